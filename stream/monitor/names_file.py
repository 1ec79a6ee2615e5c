"""The file of names: changed by ``sotto token``, and read again by a running monitor whenever it has changed.

Whoever is written into it is let in at once, and whoever is revoked is not let in again. While the file cannot be read, or
others may write it, nobody is let in: what was read before may have been taken back since.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from schemas.repeats import repeats_a_field
from stream.log import get_logger
from stream.monitor.tokens import Names, TokenError
from stream.secret_files import SecretFileError, read_secret, replace_secret, write_secret

REREAD_SECONDS = 10.0
"""A file that looks unchanged is read again after so long: its folder may be open to others by now."""
RETRY_SECONDS = 1.0
"""A file that could not be read is tried again after so long."""

log = get_logger("monitor")

_Stamp = tuple[int, ...]
_Made = TypeVar("_Made")


class NamesFile:
    """The names as they stand in the file now; every call looks whether it has changed."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._stamp: _Stamp | None = None
        self._read_at = float("-inf")
        self._names: Names | None = None
        self._trouble = ""

    def __call__(self) -> Names:
        """The names, or TokenError while they cannot be read."""
        now, stamp = self._clock(), _stamp(self._path)
        patience = RETRY_SECONDS if self._names is None else REREAD_SECONDS
        if stamp != self._stamp or now - self._read_at >= patience:
            self._stamp, self._read_at = stamp, now
            self._read()
        if self._names is None:
            raise TokenError(self._trouble)
        return self._names

    def _read(self) -> None:
        try:
            self._names = read_names(self._path)
            if self._trouble:
                log.info("names can be read again")
            self._trouble = ""
        except (SecretFileError, TokenError) as error:
            self._names = None
            if str(error) != self._trouble:
                log.error("names cannot be read; nobody is let in", detail=str(error))  # noqa: TRY400
            self._trouble = str(error)


def read_names(path: Path) -> Names:
    """The names of an owner-only file."""
    text = read_secret(path)
    try:
        names = Names.model_validate_json(text)
        is_repeated = repeats_a_field(text)
    except ValidationError as error:
        places = sorted({".".join(map(str, detail["loc"])) or "document" for detail in error.errors()})[:5]
        raise TokenError(
            f"{path} is no file of names, see {', '.join(places)}; 'sotto token create' makes one"
        ) from None
    if is_repeated:
        raise TokenError(f"{path} gives a field twice; restore the file that 'sotto token' wrote")
    return names


def change_names(path: Path, change: Callable[[Names], tuple[Names, _Made]]) -> _Made:
    """Change the file, or make it, while no other command does; a reader sees the old file or the new one, whole."""
    with _alone_in(path.resolve().parent):
        is_new = not os.path.lexists(path)
        names, made = change(Names() if is_new else read_names(path))
        text = names.model_dump_json(indent=1)
        if is_new:
            write_secret(path, text)
        else:
            replace_secret(path, text)
    return made


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder's lock: the file itself is replaced, so a lock on it would be on the old one."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SecretFileError(f"cannot use folder {folder}: {error.strerror}; make it first") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns)
