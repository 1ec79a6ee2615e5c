"""A noise key is loaded only from a safe file of its owner, and never shown."""

from __future__ import annotations

import copy
import os
import stat
import sys
import traceback
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.privacy.noise.keys import NoiseKey, NoiseKeyError
from stream.settings import KEY_COMMAND_VARIABLE, KEY_FILE_VARIABLE, KEY_VARIABLE

SECRET = bytes(range(200, 232))


@pytest.fixture(autouse=True)
def _no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.delenv(KEY_FILE_VARIABLE, raising=False)
    monkeypatch.delenv(KEY_COMMAND_VARIABLE, raising=False)


def write_key_file(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def test_environment_variable_holds_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, f" {SECRET.hex().upper()}\n")
    assert NoiseKey.from_environment() == NoiseKey(SECRET)


def test_file_variable_names_a_key_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(write_key_file(tmp_path / "noise.key", SECRET.hex() + "\n")))
    assert NoiseKey.from_environment() == NoiseKey(SECRET)


def test_key_variable_takes_precedence_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(KEY_VARIABLE, SECRET.hex())
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(tmp_path / "missing"))
    assert NoiseKey.from_environment() == NoiseKey(SECRET)


def test_missing_key_error_names_both_variables_and_the_command() -> None:
    with pytest.raises(NoiseKeyError) as refused:
        NoiseKey.from_environment()
    assert all(words in str(refused.value) for words in (KEY_VARIABLE, KEY_FILE_VARIABLE, "sotto key new"))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601, 0o666])
def test_key_file_of_others_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    """A file that other users may read or write is refused, with the command that corrects it."""
    path = write_key_file(tmp_path / "noise.key", SECRET.hex(), mode)
    with pytest.raises(NoiseKeyError) as refused:
        NoiseKey.load(path)
    assert f"chmod 600 {path}" in str(refused.value)


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_private_key_file_is_read(tmp_path: Path, mode: int) -> None:
    assert NoiseKey.load(write_key_file(tmp_path / "noise.key", SECRET.hex(), mode)).secret == SECRET


def test_missing_key_file_error_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(NoiseKeyError, match=r"No such file.*restore your copy.*sotto key new"):
        NoiseKey.load(tmp_path / "noise.key")


def test_load_suggests_no_new_key_for_an_existing_file(tmp_path: Path) -> None:
    """A new key would halt the open streams of the old one."""
    for content, mode in ((SECRET.hex(), 0o644), ("no key", 0o600)):
        path = write_key_file(tmp_path / f"{mode}.key", content, mode)
        with pytest.raises(NoiseKeyError, match=str(path)) as refused:
            NoiseKey.load(path)
        assert "sotto key new" not in str(refused.value)


def test_from_environment_names_the_variable_of_an_invalid_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOTTO_NOISE_KEY", "no key")
    with pytest.raises(NoiseKeyError, match="SOTTO_NOISE_KEY: each line"):
        NoiseKey.from_environment()


def test_saved_key_is_private_and_can_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    key = NoiseKey.generate()
    before = os.umask(0)
    try:
        key.save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert NoiseKey.load(path) == key


def test_save_never_overwrites_a_key_file(tmp_path: Path) -> None:
    path = write_key_file(tmp_path / "noise.key", "precious")
    with pytest.raises(NoiseKeyError, match="never overwritten"):
        NoiseKey.generate().save(path)
    assert path.read_text() == "precious"


def test_save_does_not_follow_a_dangling_link(tmp_path: Path) -> None:
    (tmp_path / "noise.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NoiseKeyError, match="never overwritten"):
        NoiseKey.generate().save(tmp_path / "noise.key")
    assert not (tmp_path / "elsewhere").exists()


def test_save_names_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(NoiseKeyError, match="cannot write"):
        NoiseKey.generate().save(tmp_path / "missing" / "noise.key")


def test_generated_keys_differ() -> None:
    assert NoiseKey.generate() != NoiseKey.generate()


def test_key_id_never_changes() -> None:
    # Streams are bound to the id; with another one, no worker would answer after an upgrade.
    assert NoiseKey(bytes(32)).key_id == "113894abdf17bfce"
    assert NoiseKey(SECRET).key_id == "a9b93c73879aefa2"


@given(first=st.binary(min_size=32, max_size=32), second=st.binary(min_size=32, max_size=32))
def test_different_keys_have_different_ids_and_subkeys(first: bytes, second: bytes) -> None:
    one, other = NoiseKey(first), NoiseKey(second)
    assert (one.key_id == other.key_id) == (first == second)
    assert (one.subkey("tables") == other.subkey("tables")) == (first == second)
    assert one.subkey("tables") != one.subkey("table")


def _shown(key: NoiseKey) -> list[str]:
    return [repr(key), str(key), f"{key}", f"{[key]}", repr(copy.copy(key)), key.key_id]


@given(secret=st.binary(min_size=32, max_size=32))
def test_key_never_shows_its_secret(secret: bytes) -> None:
    forms = (secret.hex(), repr(secret), str(list(secret)), str(secret))
    assert not [form for form in forms for text in _shown(NoiseKey(secret)) if form in text]


@pytest.mark.parametrize(
    "text", ["", SECRET.hex()[:-2], SECRET.hex() + "00", SECRET.hex()[:-1], SECRET.hex()[:-2] + "zz"]
)
def test_invalid_key_text_is_refused_without_a_quote(text: str) -> None:
    with pytest.raises(NoiseKeyError) as refused:
        NoiseKey.from_text(text)
    traceback_text = "".join(traceback.format_exception(refused.value))
    assert "restore your copy" in traceback_text
    assert SECRET.hex()[:16] not in traceback_text


@given(content=st.binary(max_size=70))
@settings(deadline=None, max_examples=25)
def test_key_file_of_any_bytes_is_read_or_refused_without_a_quote(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = write_key_file(tmp_path_factory.mktemp("key") / "noise.key", content)
    try:
        shown = repr(NoiseKey.load(path))
    except NoiseKeyError as error:
        shown = repr(error)
    forms = (content.hex(), repr(content)[2:-1], content.decode(errors="replace").strip())
    assert not [form for form in forms if len(form) >= 8 and form in shown]


def test_key_file_of_raw_bytes_is_refused_without_a_quote(tmp_path: Path) -> None:
    with pytest.raises(NoiseKeyError, match="64 hexadecimal digits"):
        NoiseKey.load(write_key_file(tmp_path / "noise.key", SECRET))


def test_key_file_may_hold_older_keys_after_the_present_one(tmp_path: Path) -> None:
    first = NoiseKey(SECRET)
    second = first.successor()
    third = second.successor()
    path = tmp_path / "noise.key"
    third.save(path)
    loaded = NoiseKey.load(path)
    assert loaded == third
    assert [key.key_id for key in loaded.older] == [second.key_id, first.key_id]


@pytest.mark.parametrize("text", ["", "\n", f"{SECRET.hex()}\n{SECRET.hex()}", f"{SECRET.hex()}\nxyz"])
def test_key_list_with_a_fault_is_refused_without_a_quote(text: str) -> None:
    """An empty list, a repeated key and a malformed key are refused."""
    with pytest.raises(NoiseKeyError) as refused:
        NoiseKey.from_text(text)
    assert SECRET.hex() not in str(refused.value)


def test_rotated_key_file_stays_private(tmp_path: Path) -> None:
    path = tmp_path / "noise.key"
    NoiseKey(SECRET).save(path)
    NoiseKey.load(path).successor().save(path, replace=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["noise.key"]
    assert NoiseKey.load(path).older == (NoiseKey(SECRET),)


def test_key_command_provides_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_COMMAND_VARIABLE, f"{sys.executable} -c 'print(\"{SECRET.hex()}\")'")
    assert NoiseKey.from_environment() == NoiseKey(SECRET)


@pytest.mark.parametrize("command", ["/no/such/command", "false", "'", "sh -c 'echo secret >&2; exit 3'"])
def test_failing_key_command_is_named_by_its_variable_alone(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_COMMAND_VARIABLE, command)
    with pytest.raises(NoiseKeyError, match="SOTTO_NOISE_KEY_COMMAND") as refused:
        NoiseKey.from_environment()
    assert "secret" not in str(refused.value)
    assert command not in str(refused.value) or len(command) < 2
