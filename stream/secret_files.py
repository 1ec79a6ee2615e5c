"""Files that hold a secret: nobody but their owner may read them, and none is ever overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class SecretFileError(RuntimeError):
    """A secret's file cannot be used; the message says why and never shows the secret."""


def read_secret(path: Path) -> str:
    """The text of an owner-only file, without surrounding white space."""
    try:
        mode = path.stat().st_mode
        if stat.S_IMODE(mode) & 0o077 and not _is_mounted_secret(path):
            raise SecretFileError(f"file {path} is open to others; run 'chmod 600 {path}'")
        return path.read_bytes().decode("ascii", errors="replace").strip()
    except OSError as error:
        raise SecretFileError(f"cannot read file {path} ({error.strerror})") from None


def write_secret(path: Path, text: str) -> None:
    """Write a new owner-only file; an existing one is never overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SecretFileError(f"{path} exists already; a secret is never overwritten") from None
    except OSError as error:
        raise SecretFileError(f"cannot write {path}: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text + "\n")


def replace_secret(path: Path, text: str) -> None:
    """Put a new text in an owner-only file's place: a reader sees the old one or the new one, whole."""
    read_secret(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    write_secret(fresh, text)
    try:
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise SecretFileError(f"cannot write {path}: {error.strerror}") from None


def _is_mounted_secret(path: Path) -> bool:
    """Container engines mount secrets read-only for all users of the container, whatever the file's mode."""
    return path.is_relative_to("/run/secrets")
