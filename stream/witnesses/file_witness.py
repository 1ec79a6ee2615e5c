"""A witness in an owner-only file: one anchor a line, appended and never changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stream.secret_files import find_writable_folder
from stream.witnesses.anchor import ANCHORS_READ, Anchor, WitnessError, parse_anchor

_BYTES_READ: Final = 16 << 20
"""Bytes at the file's end that are read for its newest anchors."""


class FileWitness:
    """A file that the services append to; put it on storage that Kafka's administrators cannot write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name = f"file://{path}"

    def write(self, anchor: Anchor) -> None:
        """Append a line and wait until it is on the disk."""
        with self._as_witness_errors():
            is_new = not self._path.exists()
            descriptor = os.open(
                self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
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
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                if not self._path.parent.is_dir():
                    raise
                return []
            with os.fdopen(descriptor, "rb") as file:
                start = max(0, self._require_protected(descriptor) - _BYTES_READ)
                file.seek(start)
                lines = file.read().split(b"\n")
        found: list[Anchor] = []
        for line in reversed(lines):
            anchor = parse_anchor(line) if line else None
            if anchor is not None and anchor.installation == installation:
                found.append(anchor)
                if len(found) == ANCHORS_READ:
                    break
        return found

    def _require_protected(self, descriptor: int) -> int:
        """Return the file's size; WitnessError if other users could change or replace the file."""
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise WitnessError(f"{self.name}: is no regular file; give the path of a file")
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise WitnessError(f"{self.name}: others may write to it; run 'chmod 600 {self._path}'")
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
