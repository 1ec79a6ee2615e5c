"""Names and their tokens are made, kept as digests and revoked; a running monitor reads changes of their file."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.cli.monitor_commands import create_names_file
from stream.monitor.api.models import AccessRole
from stream.monitor.api.tokens import (
    REREAD_SECONDS,
    RETRY_SECONDS,
    Bearer,
    NamesFile,
    Token,
    TokenError,
    TokenFile,
    change_names,
    generate_token,
    read_names,
)
from stream.secret_files import SecretFileError
from tests.unit.monitor.installation import NAMES, OPERATOR, VIEWER

NOW = 1_000_000


def added(
    names: TokenFile, name: str, role: AccessRole = "viewer", expires: int | None = None
) -> tuple[TokenFile, str]:
    changed, _, text = names.add_token(name, role, now=NOW, expires=expires)
    return changed, text


def in_file(path: Path, name: str, role: AccessRole = "viewer") -> str:
    return change_names(path, lambda names: added(names, name, role))


def test_a_token_opens_for_its_name_until_it_expires() -> None:
    names, text = added(TokenFile(), "ana", expires=NOW + 10)
    token = names.tokens[0]
    assert names.bearer(text, NOW + 9.9) == Bearer("ana", "viewer", token.id, NOW + 10)
    assert names.bearer(text, NOW + 10) is None
    assert token.status_at(NOW + 10) == "expired"


def test_a_name_may_have_several_tokens_and_each_is_taken_back_by_its_id_or_all_by_the_name() -> None:
    names, first = added(TokenFile(), "ana")
    names, second = added(names, "ana")
    names, other = added(names, "ben", "operator")
    holder = names.bearer(first, NOW)
    assert holder is not None
    without_one, ended = names.revoke(holder.token, NOW)
    assert [token.id for token in ended] == [holder.token]
    assert [without_one.bearer(text, NOW) is None for text in (first, second, other)] == [True, False, False]
    assert names.is_valid(holder, NOW)
    assert not without_one.is_valid(holder, NOW)
    without_ana, ended = without_one.revoke("ana", NOW)
    assert len(ended) == 1
    assert [without_ana.bearer(text, NOW) is None for text in (first, second, other)] == [True, True, False]
    assert without_ana.revoke("ana", NOW) == (without_ana, ())
    with pytest.raises(TokenError, match="no name and no token 'carl'"):
        names.revoke("carl", NOW)


def test_a_name_has_one_role_at_a_time() -> None:
    names, text = added(TokenFile(), "ana")
    with pytest.raises(TokenError, match="ana is a viewer already; run 'sotto token revoke ana' first"):
        added(names, "ana", "operator")
    names, _ = names.revoke("ana", NOW)
    names, fresh = added(names, "ana", "operator")
    assert names.bearer(text, NOW) is None
    found = names.bearer(fresh, NOW)
    assert found is not None
    assert found.role == "operator"


def test_what_is_kept_of_a_token_is_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    text = in_file(path, "ana")
    kept = path.read_text()
    assert text.split("_")[1] in kept
    assert text not in kept
    assert text.split("_", 2)[2] not in kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = read_names(path).tokens[0]
    assert token.digest not in repr(token)
    assert len({generate_token() for _ in range(100)}) == 100


@given(st.text(max_size=80))
def test_any_other_text_is_nobodys_token(text: str) -> None:
    if text not in {OPERATOR, VIEWER}:
        assert NAMES.bearer(text, NOW) is None


@pytest.mark.parametrize("place", range(len(OPERATOR)))
def test_no_character_of_a_token_may_differ(place: int) -> None:
    wrong = OPERATOR[:place] + ("x" if OPERATOR[place] != "x" else "y") + OPERATOR[place + 1 :]
    assert NAMES.bearer(wrong, NOW) is None
    assert NAMES.bearer(OPERATOR[:place], NOW) is None


def test_the_id_of_one_token_with_the_secret_of_another_opens_nothing() -> None:
    mixed = f"sotto_{VIEWER.split('_')[1]}_{OPERATOR.split('_')[2]}"
    assert NAMES.bearer(mixed, NOW) is None


def test_changes_are_seen_without_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    ana = in_file(path, "ana")
    now = 0.0
    names = NamesFile(path, clock=lambda: now)
    assert names().bearer(ana, NOW) is not None
    ben = in_file(path, "ben", "operator")
    assert names().bearer(ben, NOW) is not None
    change_names(path, lambda before: before.revoke("ana", NOW))
    assert names().bearer(ana, NOW) is None
    assert names().bearer(ben, NOW) is not None


def test_while_the_file_cannot_be_read_nobody_is_let_in_and_afterwards_they_are(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    ana = in_file(path, "ana")
    now = 0.0
    names = NamesFile(path, clock=lambda: now)
    assert names().bearer(ana, NOW) is not None
    whole = path.read_bytes()

    def spoil_and_mend(spoil: object, mend: object, told: str) -> None:
        nonlocal now
        assert callable(spoil)
        assert callable(mend)
        spoil()
        for _ in range(3):
            with pytest.raises((TokenError, SecretFileError), match=told):
                names()
        mend()
        now += RETRY_SECONDS
        assert names().bearer(ana, NOW) is not None

    def written(data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(0o600)

    mended = lambda: written(whole)  # noqa: E731
    spoil_and_mend(lambda: written(whole[:-20]), mended, "is not a names file")
    spoil_and_mend(lambda: written(b""), mended, "is not a names file")
    spoil_and_mend(lambda: written(whole.replace(b'"version"', b'"tokens":[],"version"')), mended, "twice")
    spoil_and_mend(path.unlink, mended, "cannot read")
    spoil_and_mend(lambda: path.chmod(0o644), lambda: path.chmod(0o600), "chmod 600")


def test_a_folder_that_is_opened_to_others_is_noticed_though_the_file_looks_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    path = folder / "names.json"
    ana = in_file(path, "ana")
    now = 0.0
    names = NamesFile(path, clock=lambda: now)
    assert names().bearer(ana, NOW) is not None
    folder.chmod(0o777)
    now += REREAD_SECONDS
    with pytest.raises(TokenError, match="is writable by others"):
        names()
    folder.chmod(0o700)
    now += RETRY_SECONDS
    assert names().bearer(ana, NOW) is not None


def test_a_link_that_is_led_elsewhere_is_followed(tmp_path: Path) -> None:
    """Kubernetes mounts and changes a secret in this way."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir(mode=0o700)
    old, new = (in_file(tmp_path / version / "names.json", "ana") for version in ("1", "2"))
    (tmp_path / "data").symlink_to("1")
    link = tmp_path / "names.json"
    link.symlink_to("data/names.json")
    names = NamesFile(link)
    assert names().bearer(old, NOW) is not None
    (tmp_path / "fresh").symlink_to("2")
    (tmp_path / "fresh").rename(tmp_path / "data")
    assert names().bearer(old, NOW) is None
    assert names().bearer(new, NOW) is not None


def test_changes_at_one_time_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda number: in_file(path, f"name-{number}"), range(24)))
    names = read_names(path)
    assert all(names.bearer(text, NOW) is not None for text in texts)
    assert [each.name for each in tmp_path.iterdir()] == ["names.json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda one: {**one, "role": "king"},
        lambda one: {**one, "digest": "0badc0de"},
        lambda one: {**one, "name": "two words"},
        lambda one: {**one, "more": 1},
        lambda one: {**one, "expires": "soon"},
    ],
)
def test_a_file_that_says_something_else_lets_nobody_in_and_is_not_quoted(tmp_path: Path, change: object) -> None:
    assert callable(change)
    path = tmp_path / "names.json"
    in_file(path, "ana")
    document = json.loads(path.read_text())
    document["tokens"] = [change(one) for one in document["tokens"]]
    path.write_text(json.dumps(document))
    with pytest.raises(TokenError, match="is not a names file, see tokens") as caught:
        read_names(path)
    assert document["tokens"][0]["digest"] not in str(caught.value)


def test_two_entries_of_one_id_or_two_roles_of_one_name_are_refused() -> None:
    one = NAMES.tokens[0]
    for other in (one, Token.from_text(VIEWER, one.name, "viewer", created=0)):
        with pytest.raises(ValueError, match="two"):
            TokenFile(tokens=(one, other))


def test_a_first_start_makes_both_names_once_and_what_was_revoked_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    files: dict[AccessRole, Path] = {"operator": tmp_path / "o.token", "viewer": tmp_path / "v.token"}
    files["viewer"].write_text("from an earlier version")
    files["viewer"].chmod(0o600)
    create_names_file(path, files)
    texts = {role: file.read_text().strip() for role, file in files.items()}
    for role, text in texts.items():
        found = read_names(path).bearer(text, NOW)
        assert found is not None
        assert (found.name, found.role) == (role, role)
    change_names(path, lambda names: names.revoke("viewer", NOW))
    create_names_file(path, files)
    assert {role: file.read_text().strip() for role, file in files.items()} == texts
    assert read_names(path).bearer(texts["viewer"], NOW) is None
