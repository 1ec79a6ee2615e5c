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


def add_token(
    names: TokenFile, name: str, role: AccessRole = "viewer", expires: int | None = None
) -> tuple[TokenFile, str]:
    changed, _, text = names.add_token(name, role, now=NOW, expires=expires)
    return changed, text


def add_token_to_file(path: Path, name: str, role: AccessRole = "viewer") -> str:
    return change_names(path, lambda names: add_token(names, name, role))


def test_token_is_valid_until_it_expires() -> None:
    names, text = add_token(TokenFile(), "ana", expires=NOW + 10)
    token = names.tokens[0]
    assert names.bearer(text, NOW + 9.9) == Bearer("ana", "viewer", token.id, NOW + 10)
    assert names.bearer(text, NOW + 10) is None
    assert token.status_at(NOW + 10) == "expired"


def test_tokens_are_revoked_by_id_or_by_name() -> None:
    names, first = add_token(TokenFile(), "ana")
    names, second = add_token(names, "ana")
    names, other = add_token(names, "ben", "operator")
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


def test_name_has_one_role_at_a_time() -> None:
    names, text = add_token(TokenFile(), "ana")
    with pytest.raises(TokenError, match="ana is a viewer already; run 'sotto token revoke ana' first"):
        add_token(names, "ana", "operator")
    names, _ = names.revoke("ana", NOW)
    names, fresh = add_token(names, "ana", "operator")
    assert names.bearer(text, NOW) is None
    found = names.bearer(fresh, NOW)
    assert found is not None
    assert found.role == "operator"


def test_names_file_keeps_digest_of_token_only(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    text = add_token_to_file(path, "ana")
    kept = path.read_text()
    assert text.split("_")[1] in kept
    assert text not in kept
    assert text.split("_", 2)[2] not in kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = read_names(path).tokens[0]
    assert token.digest not in repr(token)
    assert len({generate_token() for _ in range(100)}) == 100


@given(st.text(max_size=80))
def test_other_text_is_no_token(text: str) -> None:
    if text not in {OPERATOR, VIEWER}:
        assert NAMES.bearer(text, NOW) is None


@pytest.mark.parametrize("place", range(len(OPERATOR)))
def test_token_with_one_changed_character_is_refused(place: int) -> None:
    wrong = OPERATOR[:place] + ("x" if OPERATOR[place] != "x" else "y") + OPERATOR[place + 1 :]
    assert NAMES.bearer(wrong, NOW) is None
    assert NAMES.bearer(OPERATOR[:place], NOW) is None


def test_token_id_with_other_secret_is_refused() -> None:
    mixed = f"sotto_{VIEWER.split('_')[1]}_{OPERATOR.split('_')[2]}"
    assert NAMES.bearer(mixed, NOW) is None


def test_names_file_changes_apply_without_restart(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    ana = add_token_to_file(path, "ana")
    now = 0.0
    names = NamesFile(path, clock=lambda: now)
    assert names().bearer(ana, NOW) is not None
    ben = add_token_to_file(path, "ben", "operator")
    assert names().bearer(ben, NOW) is not None
    change_names(path, lambda before: before.revoke("ana", NOW))
    assert names().bearer(ana, NOW) is None
    assert names().bearer(ben, NOW) is not None


def test_unreadable_names_file_refuses_all_until_repaired(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    ana = add_token_to_file(path, "ana")
    now = 0.0
    names = NamesFile(path, clock=lambda: now)
    assert names().bearer(ana, NOW) is not None
    whole = path.read_bytes()

    def spoil_and_repair(spoil: object, mend: object, message: str) -> None:
        nonlocal now
        assert callable(spoil)
        assert callable(mend)
        spoil()
        for _ in range(3):
            with pytest.raises((TokenError, SecretFileError), match=message):
                names()
        mend()
        now += RETRY_SECONDS
        assert names().bearer(ana, NOW) is not None

    def write_names(data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(0o600)

    mended = lambda: write_names(whole)  # noqa: E731
    spoil_and_repair(lambda: write_names(whole[:-20]), mended, "is not a names file")
    spoil_and_repair(lambda: write_names(b""), mended, "is not a names file")
    spoil_and_repair(lambda: write_names(whole.replace(b'"version"', b'"tokens":[],"version"')), mended, "twice")
    spoil_and_repair(path.unlink, mended, "cannot read")
    spoil_and_repair(lambda: path.chmod(0o644), lambda: path.chmod(0o600), "chmod 600")


def test_names_file_in_folder_opened_to_others_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    path = folder / "names.json"
    ana = add_token_to_file(path, "ana")
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


def test_names_file_follows_changed_link(tmp_path: Path) -> None:
    """Kubernetes mounts and changes a secret in this way."""
    for version in ("1", "2"):
        (tmp_path / version).mkdir(mode=0o700)
    old, new = (add_token_to_file(tmp_path / version / "names.json", "ana") for version in ("1", "2"))
    (tmp_path / "data").symlink_to("1")
    link = tmp_path / "names.json"
    link.symlink_to("data/names.json")
    names = NamesFile(link)
    assert names().bearer(old, NOW) is not None
    (tmp_path / "fresh").symlink_to("2")
    (tmp_path / "fresh").rename(tmp_path / "data")
    assert names().bearer(old, NOW) is None
    assert names().bearer(new, NOW) is not None


def test_concurrent_changes_of_names_file_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda number: add_token_to_file(path, f"name-{number}"), range(24)))
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
def test_invalid_names_file_is_refused_without_quoting_it(tmp_path: Path, change: object) -> None:
    assert callable(change)
    path = tmp_path / "names.json"
    add_token_to_file(path, "ana")
    document = json.loads(path.read_text())
    document["tokens"] = [change(one) for one in document["tokens"]]
    path.write_text(json.dumps(document))
    with pytest.raises(TokenError, match=r"is not a names file \(wrong: tokens") as caught:
        read_names(path)
    assert document["tokens"][0]["digest"] not in str(caught.value)


def test_token_file_refuses_repeated_id_and_second_role() -> None:
    one = NAMES.tokens[0]
    for other in (one, Token.from_text(VIEWER, one.name, "viewer", created=0)):
        with pytest.raises(ValueError, match="two"):
            TokenFile(tokens=(one, other))


def test_create_names_file_creates_names_once(tmp_path: Path) -> None:
    """A revoked token stays revoked after later starts."""
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
