"""Files with a secret: the users who may read or replace them, and symbolic links."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from stream.cli.manage.record_rows import create_owner_only_file
from stream.cli.output import CommandError
from stream.errors import Unreachable
from stream.privacy.noise.keys import NoiseKey, NoiseKeyError
from stream.secret_files import SecretFileError, read_secret, replace_secret, write_secret

SOMEBODY = 12345
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def own_folder(path: Path, mode: int = 0o700) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_secret_in_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = own_folder(tmp_path / "shared")
    write_secret(folder / "kept", "secret")
    folder.chmod(mode)
    for use in (
        lambda: read_secret(folder / "kept"),
        lambda: write_secret(folder / "new", "secret"),
        lambda: replace_secret(folder / "kept", "other"),
    ):
        with pytest.raises(SecretFileError, match=f"chmod go-w {folder}"):
            use()
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert (folder / "kept").read_text() == "secret\n"


def test_secret_in_a_folder_that_others_may_replace_is_refused(tmp_path: Path) -> None:
    above = own_folder(tmp_path / "above")
    inner = own_folder(above / "inner")
    write_secret(inner / "kept", "secret")
    above.chmod(0o777)
    with pytest.raises(SecretFileError, match=f"folder {above} is writable by others"):
        read_secret(inner / "kept")


def test_secret_in_a_sticky_folder_is_read(tmp_path: Path) -> None:
    folder = own_folder(tmp_path / "sticky", 0o1777)
    write_secret(folder / "kept", "secret")
    assert read_secret(folder / "kept") == "secret"
    if os.geteuid() == 0:
        os.chown(folder / "kept", SOMEBODY, -1)
        with pytest.raises(SecretFileError, match="is writable by others"):
            read_secret(folder / "kept")


@only_root
def test_root_keeps_secrets_in_a_folder_of_another_user(tmp_path: Path) -> None:
    """That user cannot create files of root."""
    folder = own_folder(tmp_path / "theirs")
    os.chown(folder, SOMEBODY, -1)
    write_secret(folder / "kept", "secret")
    assert read_secret(folder / "kept") == "secret"
    (folder / "kept").unlink()
    theirs = folder / "kept"
    theirs.write_text("theirs")
    theirs.chmod(0o600)
    os.chown(theirs, SOMEBODY, -1)
    with pytest.raises(SecretFileError, match="belongs to another user"):
        read_secret(theirs)


@only_root
def test_secret_of_another_user_is_refused_even_to_root(tmp_path: Path) -> None:
    write_secret(tmp_path / "kept", "secret")
    os.chown(tmp_path / "kept", SOMEBODY, -1)
    (tmp_path / "link").symlink_to("kept")
    for path in (tmp_path / "kept", tmp_path / "link"):
        with pytest.raises(SecretFileError, match=f"file {path} belongs to another user .*'chown 0 {path}'"):
            read_secret(path)


@only_root
def test_secret_of_root_or_the_user_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes Kubernetes' layout of a Secret, a sticky folder with links to the current version, and a home folder."""
    version = own_folder(tmp_path / "..2026_11_24", 0o755)
    write_secret(version / "noise.key", "secret")
    (version / "noise.key").chmod(0o400)
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "noise.key").symlink_to("..data/noise.key")
    home = own_folder(tmp_path / "home")
    write_secret(home / "noise.key", "secret")
    for path in (home, home / "noise.key"):
        os.chown(path, SOMEBODY, -1)
    tmp_path.chmod(0o1777)
    assert read_secret(tmp_path / "noise.key") == "secret"
    monkeypatch.setattr("stream.secret_files.os.geteuid", lambda: SOMEBODY)
    assert read_secret(tmp_path / "noise.key") == "secret"
    assert read_secret(home / "noise.key") == "secret"


def test_secret_mounted_by_a_container_engine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = own_folder(tmp_path / "secrets")
    write_secret(folder / "noise_key", "secret")
    (folder / "noise_key").chmod(0o440)
    folder.chmod(0o777)
    if os.geteuid() == 0:
        for path in (folder, folder / "noise_key"):
            os.chown(path, SOMEBODY, SOMEBODY)
    with pytest.raises(SecretFileError):
        read_secret(folder / "noise_key")
    monkeypatch.setattr("stream.secret_files.MOUNTED_SECRETS_FOLDER", folder)
    assert read_secret(folder / "noise_key") == "secret"


def test_key_is_rotated_behind_a_symbolic_link(tmp_path: Path) -> None:
    target, between, link = (
        own_folder(tmp_path / "kept") / "noise.key",
        tmp_path / "between",
        tmp_path / "noise.key",
    )
    first = NoiseKey.generate()
    first.save(target)
    between.symlink_to("kept/noise.key")
    link.symlink_to(between)
    rotated = NoiseKey.load(link).successor()
    rotated.save(link, replace=True)
    assert link.is_symlink()
    assert between.is_symlink()
    assert NoiseKey.load(target) == NoiseKey.load(link) == rotated
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [path.name for path in target.parent.iterdir()] == ["noise.key"]


def test_link_through_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    target, shared = own_folder(tmp_path / "kept") / "noise.key", own_folder(tmp_path / "shared", 0o777)
    NoiseKey.generate().save(target)
    (shared / "between").symlink_to(target)
    for link, leads_to in (("first", shared / "between"), ("second", tmp_path / "first")):
        (tmp_path / link).symlink_to(leads_to)
        with pytest.raises(NoiseKeyError, match=f"chmod go-w {shared}"):
            NoiseKey.load(tmp_path / link)


def test_new_secret_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SecretFileError, match="exists already"):
        write_secret(tmp_path / "link", "secret")
    assert not (tmp_path / "elsewhere").exists()


def test_pipe_in_place_of_a_key_file_is_refused_at_once(tmp_path: Path) -> None:
    """A named pipe as a secret's file is refused without waiting for a writer."""
    os.mkfifo(tmp_path / "noise.key", 0o600)
    with pytest.raises(SecretFileError, match=r"noise\.key is a pipe or device; write the secret"):
        read_secret(tmp_path / "noise.key")
    with pytest.raises(NoiseKeyError, match="is a pipe or device"):
        NoiseKey.load(tmp_path / "noise.key")


def test_full_disk_leaves_no_empty_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second try on a disk with space would refuse to overwrite the empty file; a replaced file keeps its text."""

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    folder = own_folder(tmp_path / "full")
    write_secret(folder / "kept", "secret")
    monkeypatch.setattr(os, "fsync", fail)
    for write in (write_secret, lambda _path, text: replace_secret(folder / "kept", text)):
        with pytest.raises(SecretFileError, match=r"cannot write .*: No space left on device"):
            write(folder / "new", "other")
    with (
        pytest.raises(CommandError, match=r"cannot write .*new: No space left on device"),
        create_owner_only_file(folder / "new"),
    ):
        pass
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert read_secret(folder / "kept") == "secret"


def test_error_of_a_file_content_is_not_one_of_the_disk(tmp_path: Path) -> None:
    """An Unreachable is an OSError, too, and its message must reach the user."""
    with pytest.raises(Unreachable, match="no broker"), create_owner_only_file(tmp_path / "new"):
        raise Unreachable("no broker")
    assert not (tmp_path / "new").exists()
