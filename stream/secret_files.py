"""Reads and writes secret files, which only their owner may read or replace; judges addresses that get secrets."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

from stream.errors import SottoError

_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}
MAX_LINKS: Final = 40
"""Maximum number of symbolic links that are followed, as on Linux."""
OTHERS_WRITE_BITS: Final = 0o022
"""Mode bits of write access for group and others."""


def is_encrypted_or_local(scheme: str, host: str | None) -> bool:
    """Return whether an address has https, or http on this machine."""
    return bool(host) and (scheme == "https" or (scheme == "http" and host in _LOOPBACK))


def trusted_users() -> set[int]:
    """Return the ids of this user, root, and the owner of ``/`` (root in a user namespace)."""
    return {0, os.geteuid(), Path("/").stat().st_uid}


def find_writable_folder(path: Path) -> Path | None:
    """Return a folder on the path in which other users could replace the file, or None.

    In a folder with the sticky bit, such as /tmp, other users cannot replace files of this user or root.

    Raises:
        OSError: the status of a folder on the path cannot be read.
    """
    trusted = trusted_users()
    link_chain = [path.absolute()]
    while link_chain[-1].is_symlink() and len(link_chain) < MAX_LINKS:
        link_chain.append(link_chain[-1].parent / link_chain[-1].readlink())
    link_chain.append(path.resolve())
    for place in {place for link in link_chain for place in (link, *link.parents)}:
        folder = place.parent
        status = folder.stat()
        if not stat.S_IMODE(status.st_mode) & OTHERS_WRITE_BITS:
            continue
        owner = place.lstat().st_uid if os.path.lexists(place) else os.geteuid()
        if not status.st_mode & stat.S_ISVTX or owner not in trusted:
            return folder
    return None


MOUNTED_SECRETS_FOLDER = Path("/run/secrets")
"""Folder in which container engines mount secrets."""


class SecretFileError(SottoError, RuntimeError):
    """A secret file cannot be used; the message has the reason and never the secret."""


def read_secret(path: Path) -> str:
    """Read an owner-only file without surrounding white space.

    The file must belong to this user or root, and no other user may be able to replace it.
    """
    try:
        with _open_for_reading(path) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SecretFileError(f"{path} is a pipe or device; write the secret into a regular file")
            # A container engine mounts its secrets read-only, with any mode or owner.
            if not path.is_relative_to(MOUNTED_SECRETS_FOLDER):
                if stat.S_IMODE(status.st_mode) & 0o077:
                    raise SecretFileError(f"file {path} is open to others; run 'chmod 600 {path}'")
                _refuse_writable_folders(path)
                if status.st_uid not in trusted_users():
                    raise SecretFileError(
                        f"file {path} belongs to another user (uid {status.st_uid}), who could change it; run "
                        f"'chown {os.geteuid()} {path}', or this as that user"
                    )
            return file.read().decode("ascii", errors="replace").strip()
    except OSError as error:
        raise SecretFileError(f"cannot read file {path} ({error.strerror}); give a readable file") from None


def read_own_file(path: Path) -> bytes | None:
    """Read an owner-only file of this user; return None for any other file, which an attacker may have written."""
    try:
        with _open_for_reading(path, os.O_NOFOLLOW) as file:
            status = os.fstat(file.fileno())
            is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            return file.read() if is_own and not stat.S_IMODE(status.st_mode) & 0o077 else None
    except OSError:
        return None


def write_secret(path: Path, text: str) -> None:
    """Write a new owner-only file, or none if the disk is full; an existing file is never overwritten."""
    try:
        _refuse_writable_folders(path)
        # O_EXCL follows no symbolic link.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SecretFileError(
            f"{path} exists already, and a secret is never overwritten; choose another path"
        ) from None
    except OSError as error:
        raise SecretFileError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text + "\n")
            stream.flush()
            os.fsync(descriptor)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise SecretFileError(f"cannot write {path}: {error.strerror}") from None


def replace_secret(path: Path, text: str) -> None:
    """Replace an owner-only file atomically; for a symbolic link, replace its target."""
    read_secret(path)
    path = path.resolve()
    new_file = path.with_name(f".{path.name}.{os.getpid()}")
    write_secret(new_file, text)
    try:
        new_file.replace(path)
    except OSError as error:
        new_file.unlink(missing_ok=True)
        raise SecretFileError(f"cannot write {path}: {error.strerror}") from None


def _open_for_reading(path: Path, flags: int = 0) -> BinaryIO:
    """Open a file for reading, with O_NONBLOCK, because the opening of a pipe would wait for its writer."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags), "rb")


def _refuse_writable_folders(path: Path) -> None:
    """Refuse a file that other users could replace through a folder on its path."""
    if (folder := find_writable_folder(path)) is not None:
        raise SecretFileError(
            f"folder {folder} is writable by others, who could replace {path}; run "
            f"'chmod go-w {folder}', or use a folder of your own"
        )
