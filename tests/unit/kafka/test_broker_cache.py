"""Java runs only Kafka's own files, from a folder in which no other user could have replaced them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.kafka import kafka_files, kafka_programs
from stream.kafka.broker_process import BrokerError, file_lock
from stream.kafka.kafka_files import cache_folder, jar_name, jars_folder, require_pinned
from stream.kafka.kafka_programs import fetch_jars

SOMEBODY = 12345
JARS = {"org.example:one:1.0": b"the first", "org.example:two:2.1": b"the second"}
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture(autouse=True)
def _small_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = {coordinate: hashlib.sha256(content).hexdigest() for coordinate, content in JARS.items()}
    monkeypatch.setattr(kafka_files, "PINNED_JARS", pins)


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "working"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SOTTO_CACHE", raising=False)
    return folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with all required files, and with Java's startup cache."""
    monkeypatch.setenv("SOTTO_CACHE", str(tmp_path / "cache"))
    folder = fill_cache(tmp_path / "cache")
    (folder / "start-25.aot").write_bytes(b"remembered")
    return tmp_path / "cache"


@pytest.fixture
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def fill_cache(cache: Path) -> Path:
    folder = jars_folder(cache)
    folder.mkdir(parents=True)
    for coordinate, content in JARS.items():
        (folder / jar_name(coordinate)).write_bytes(content)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_fetch_jars_uses_pinned_files(cache: Path) -> None:
    assert fetch_jars() == jars_folder(cache)


@pytest.mark.parametrize("content", [b"the First", b"", b"the first and more"])
def test_fetch_jars_refuses_other_content_under_pinned_name(cache: Path, content: bytes) -> None:
    folder = jars_folder(cache)
    (folder / "one-1.0.jar").write_bytes(content)
    with pytest.raises(
        BrokerError, match=rf"one-1\.0\.jar is not the pinned file; delete {folder}, .*SOTTO_CACHE"
    ):
        fetch_jars()


@pytest.mark.parametrize("name", ["zero.jar", "ZERO.JAR"])
def test_fetch_jars_refuses_additional_jar(cache: Path, name: str) -> None:
    folder = jars_folder(cache)
    (folder / name).write_bytes(b"another")
    with pytest.raises(
        BrokerError, match=rf"{name} is not one of Kafka's files, and Java would run it; delete {folder}"
    ):
        fetch_jars()


INSIDE = ["one-1.0.jar", "start-25.aot", "."]


@pytest.mark.parametrize("within", INSIDE)
@pytest.mark.parametrize("bits", [0o020, 0o002])
def test_fetch_jars_refuses_files_writable_by_others(cache: Path, within: str, bits: int) -> None:
    folder = jars_folder(cache)
    changed = folder / within
    changed.chmod(mode(changed) | bits)
    with pytest.raises(
        BrokerError, match=rf"others may write {changed}; delete {folder}, and the next start fetches"
    ):
        fetch_jars()


@pytest.mark.parametrize("within", INSIDE)
@only_root
def test_fetch_jars_refuses_files_of_other_users(cache: Path, within: str) -> None:
    folder = jars_folder(cache)
    os.chown(folder / within, SOMEBODY, -1)
    with pytest.raises(BrokerError, match=rf"belongs to another user \(uid {SOMEBODY}\); delete {folder}"):
        fetch_jars()


def test_fetch_jars_does_not_check_inside_owner_only_folder(cache: Path) -> None:
    inner = jars_folder(cache) / "formatting"
    inner.mkdir(mode=0o700)
    (inner / "made").touch()
    (inner / "made").chmod(0o666)
    assert fetch_jars() == jars_folder(cache)
    inner.chmod(0o755)
    with pytest.raises(BrokerError, match=f"others may write {inner / 'made'}; delete"):
        fetch_jars()


def test_fetch_jars_refuses_links(cache: Path, tmp_path: Path) -> None:
    folder = jars_folder(cache)
    (folder / "start-25.aot").rename(tmp_path / "elsewhere")
    (folder / "start-25.aot").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BrokerError, match=r"start-25\.aot is a link; delete"):
        fetch_jars()


def test_fetch_jars_refuses_cache_in_writable_folder(cache: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(
        BrokerError, match=f"others may write {tmp_path}; set SOTTO_CACHE .*chmod go-w {tmp_path}'"
    ):
        fetch_jars()
    tmp_path.chmod(0o1777)
    assert fetch_jars() == jars_folder(cache)


@only_root
def test_require_pinned_refuses_roots_jars_for_other_users(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.secret_files.os.geteuid", lambda: SOMEBODY)
    require_pinned(jars_folder(cache))


@pytest.mark.parametrize("users", ["XDG_CACHE_HOME", "HOME"])
def test_cache_folder_prefers_users_cache_to_working_folder(
    working_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: str
) -> None:
    fill_cache(working_folder / ".sotto" / "cache")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv(users, str(tmp_path / "of-user"))
    assert cache_folder().is_relative_to(tmp_path / "of-user")


@pytest.mark.parametrize("home", ["", "/proc/nowhere"])
def test_cache_folder_without_writable_home_is_working_folder(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", home)
    assert cache_folder() == working_folder / ".sotto" / "cache"


@pytest.mark.parametrize("owner", [None, pytest.param(SOMEBODY, marks=only_root)])
def test_fetch_jars_refuses_shared_working_folder(
    working_folder: Path, monkeypatch: pytest.MonkeyPatch, owner: int | None
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "")
    kafka = fill_cache(working_folder / ".sotto" / "cache")
    for path in (working_folder, *working_folder.rglob("*")):
        if owner is None:
            path.chmod(0o777)
        else:
            os.chown(path, owner, -1)
    with pytest.raises(BrokerError, match=f"Kafka's files in {kafka.parent} cannot be trusted: .*SOTTO_CACHE"):
        fetch_jars()


@pytest.mark.usefixtures("_no_umask")
def test_fetch_jars_writes_owner_only_files_under_any_umask(
    working_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(artifact: object) -> Path:
        path = tmp_path / f"{artifact}.part"
        path.write_bytes(next(content for name, content in JARS.items() if name.split(":")[1] in path.name))
        return path

    monkeypatch.setattr(kafka_programs, "download", download)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of-user"))
    folder = fetch_jars()
    assert {mode(above) for above in folder.parents if above.is_relative_to(tmp_path / "of-user")} == {0o700}
    assert not {path for path in folder.parent.rglob("*") if mode(path) & 0o022}
    assert fetch_jars() == folder
    assert not list(working_folder.iterdir())


@pytest.mark.usefixtures("_no_umask")
def test_file_lock_is_owner_only_under_any_umask(tmp_path: Path) -> None:
    with file_lock(tmp_path / "a" / "b.lock", 10):
        assert mode(tmp_path / "a" / "b.lock") == 0o600
