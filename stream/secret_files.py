"""Files that hold a secret: nobody but their owner may read or replace them, and none is ever overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from stream.errors import SottoError

MAX_LINKS: Final = 40
"""Symbolic links followed from one to the next, as many as Linux follows."""
OTHERS_WRITE: Final = 0o022
"""The bits of a mode that let others write."""


def trusted_users() -> set[int]:
    """This user and the administrator, who has another number where a user namespace shows root as nobody."""
    return {0, os.geteuid(), Path("/").stat().st_uid}


def open_folder(path: Path) -> Path | None:
    """A folder on the way to a path by which others could put another in the path's place; None if there is none.

    In a sticky folder such as /tmp nobody can replace what is ours or the administrator's.

    Raises:
        OSError: If a folder on the way cannot be looked at.
    """
    trusted = trusted_users()
    ways = [path.absolute()]
    while ways[-1].is_symlink() and len(ways) < MAX_LINKS:
        ways.append(ways[-1].parent / ways[-1].readlink())
    ways.append(path.resolve())
    for place in {place for way in ways for place in (way, *way.parents)}:
        folder = place.parent
        status = folder.stat()
        if not stat.S_IMODE(status.st_mode) & OTHERS_WRITE:
            continue
        owner = place.lstat().st_uid if os.path.lexists(place) else os.geteuid()
        if not status.st_mode & stat.S_ISVTX or owner not in trusted:
            return folder
    return None


MOUNTED = Path("/run/secrets")
"""Where container engines mount secrets."""


class SecretFileError(SottoError, RuntimeError):
    """A secret's file cannot be used; the message says why and never shows the secret."""


def read_secret(path: Path) -> str:
    """The text of an owner-only file in a folder that nobody else may write, without surrounding white space.

    The file must be of this user or of root, so that nobody else has written it, whosever folder it lies in.
    """
    try:
        with _opened(path) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SecretFileError(
                    f"{path} is no regular file, but a pipe or a device; write the secret into a file"
                )
            if not _is_mounted_secret(path):
                if stat.S_IMODE(status.st_mode) & 0o077:
                    raise SecretFileError(f"file {path} is open to others; run 'chmod 600 {path}'")
                _refuse_open_folders(path)
                if status.st_uid not in trusted_users():
                    raise SecretFileError(
                        f"file {path} belongs to another user (uid {status.st_uid}), who could change it; run "
                        f"'chown {os.geteuid()} {path}', or this as that user"
                    )
            return file.read().decode("ascii", errors="replace").strip()
    except OSError as error:
        raise SecretFileError(f"cannot read file {path} ({error.strerror})") from None


def read_own(path: Path) -> bytes | None:
    """What an owner-only file of this user holds; None for any other file, by which somebody else could lead us astray."""
    try:
        with _opened(path, os.O_NOFOLLOW) as file:
            status = os.fstat(file.fileno())
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            return file.read() if is_own and not stat.S_IMODE(status.st_mode) & 0o077 else None
    except OSError:
        return None


def write_secret(path: Path, text: str) -> None:
    """Write a new owner-only file; an existing one is never overwritten."""
    try:
        _refuse_open_folders(path)
        # O_EXCL follows no symbolic link.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SecretFileError(f"{path} exists already; a secret is never overwritten") from None
    except OSError as error:
        raise SecretFileError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text + "\n")


def replace_secret(path: Path, text: str) -> None:
    """Put a new text in an owner-only file's place: a reader sees the old one or the new one, whole.

    Where the path is a symbolic link, the file that it leads to is replaced and the link stays: whoever reads either
    name reads the new text.
    """
    read_secret(path)
    path = path.resolve()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    write_secret(fresh, text)
    try:
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise SecretFileError(f"cannot write {path}: {error.strerror}") from None


def _opened(path: Path, flags: int = 0) -> BinaryIO:
    """Open a file to read, without waiting for a writer if it is a pipe."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags), "rb")


def _refuse_open_folders(path: Path) -> None:
    """Refuse a file that others could put another one in the place of, by any folder on the way to it."""
    if (folder := open_folder(path)) is not None:
        raise SecretFileError(
            f"folder {folder} may be written by others, who could put another file in the place of {path}; run "
            f"'chmod go-w {folder}', or use a folder of your own"
        )


def _is_mounted_secret(path: Path) -> bool:
    """Container engines mount secrets read-only for all users of the container, whatever the file's mode and owner."""
    return path.is_relative_to(MOUNTED)
