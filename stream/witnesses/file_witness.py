"""A witness in an owner-only file: one anchor a line, appended and never changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from stream.secret_files import find_writable_folder, trusted_users
from stream.witnesses.anchor import ANCHORS_READ, Anchor, WitnessError, parse_anchor

_BLOCK_BYTES: Final = 16 << 20
"""Bytes that are read at once, from the file's end on, until they have an anchor."""
_SAFE_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Flags of opening: follow no link, and do not wait for the other end of a pipe."""


class FileWitness:
    """A file that the services append to; put it on storage that Kafka's administrators cannot write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = f"file://{path}"

    def write(self, anchor: Anchor) -> None:
        """Append a line and wait until it is on the disk."""
        with self._as_witness_errors():
            is_new = not self._path.exists()
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _SAFE_FLAGS, 0o600)
            try:
                size = self._require_protected(descriptor)
                # A crash may have cut the last line off. The file may allow appending only, so the line stays.
                is_cut_off = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                line = b"\n" * is_cut_off + anchor.encode() + b"\n"
                if os.write(descriptor, line) < len(line):
                    raise WitnessError(f"{self.name}: the disk is full; make room")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if is_new:
                self._sync_folder()

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the last anchors; none if the file does not exist yet."""
        with self._as_witness_errors():
            try:
                descriptor = os.open(self._path, os.O_RDONLY | _SAFE_FLAGS)
            except FileNotFoundError:
                if not self._path.parent.is_dir():
                    raise
                return []
            with os.fdopen(descriptor, "rb") as file:
                size = self._require_protected(descriptor)
                for lines in _read_blocks_backwards(file, size):
                    anchors = (parse_anchor(line) for line in reversed(lines) if line)
                    own = (one for one in anchors if one is not None and one.installation == installation)
                    if found := list(islice(own, ANCHORS_READ)):
                        return found
        return []

    def read_all(self) -> list[Anchor]:
        """Return the anchors of all installations, the oldest first."""
        with self._as_witness_errors(), open(self._path, "rb", opener=_open_safely) as file:
            self._require_protected(file.fileno())
            return [anchor for line in file if (anchor := parse_anchor(line)) is not None]

    def _require_protected(self, descriptor: int) -> int:
        """Return the file's size; WitnessError if other users could change or replace the file."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise WitnessError(f"{self.name}: is no regular file; give the path of a file")
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise WitnessError(f"{self.name}: others may write to it; run 'chmod 600 {self._path}'")
        if status.st_uid not in trusted_users():
            raise WitnessError(
                f"{self.name}: belongs to another user (uid {status.st_uid}), who could change it; "
                f"run 'chown {os.geteuid()} {self._path}'"
            )
        if (folder := find_writable_folder(self._path)) is not None:
            raise WitnessError(f"{self.name}: others may write to {folder}; run 'chmod go-w {folder}'")
        return status.st_size

    def _sync_folder(self) -> None:
        descriptor = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _as_witness_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise WitnessError(f"{self.name}: {error.strerror}; check its disk and folder") from None


def _open_safely(path: str, flags: int) -> int:
    return os.open(path, flags | _SAFE_FLAGS)


def _read_blocks_backwards(file: BinaryIO, end: int) -> Iterator[list[bytes]]:
    """Yield the lines of each block, the last block first; an overlong line is cut."""
    rest = b""
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        file.seek(start)
        lines = (file.read(end - start) + rest).split(b"\n")
        rest = lines.pop(0) if start > 0 else b""
        if not lines:  # The line is longer than a block, and no anchor is.
            rest = b""
        yield lines
        end = start
