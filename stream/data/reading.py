"""Reading table files for a service: from the deployment's folders only, beside the service, within limits.

A file may be made to take any amount of memory or time to read, and a reader may be brought to crash. So each file is
read by a process of its own (``reading_process``) that has the limits set on it by the operating system; what comes back
is checked again here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import IO, Final

import numpy as np

from schemas import TableSource
from stream.data.encoding import CodeArray, code_type
from stream.data.errors import DataError, UnreadableError
from stream.data.people import NAME_BYTES, NUMBER_BYTES, People
from stream.data.rows import Rows
from stream.log import get_logger

READING_PROCESS: Final = "stream.data.reading_process"
_HEADER_BYTES: Final = 64 * 1024
_SECRETS: Final = "SOTTO_"

log = get_logger("tables")


@dataclass(frozen=True)
class ReadingLimits:
    """What a deployment lets its services read."""

    roots: tuple[Path, ...]
    """Folders that tables may lie in, at any depth; none, and no file is read."""

    table_bytes: int
    """Most bytes that a table's codes may take up in a service."""

    reading_bytes: int
    """Most bytes of a file, and most memory that reading it may take."""

    seconds: float
    """Longest that reading one file may take."""

    @classmethod
    def parse(cls, roots: str, *, table_bytes: int, reading_bytes: int, seconds: float) -> ReadingLimits:
        """Take folders as one text, separated as in ``PATH``."""
        folders = tuple(Path(folder) for folder in roots.split(os.pathsep) if folder)
        return cls(folders, table_bytes, reading_bytes, seconds)


class GuardedReader:
    """Reads table files within a deployment's limits.

    Whatever is wrong with a file, whoever registered its source is told the same; the service's own log has the cause.
    """

    def __init__(self, limits: ReadingLimits) -> None:
        self._limits = limits

    def __call__(self, source: TableSource) -> Rows:
        """The source's rows as its file is now; DataError if the file may not or cannot be read as declared."""
        try:
            self._check(Path(source.path))
            return self._read(source)
        except UnreadableError as error:
            log.warning("table not read", source=source.source, cause=error.cause)
            raise UnreadableError(error.cause) from None

    def _check(self, named: Path) -> None:
        """UnreadableError unless the file behind a path, all links followed, may be read."""
        try:
            path = named.resolve(strict=True)
            roots = [root.resolve() for root in self._limits.roots]
        except (OSError, RuntimeError, ValueError):
            raise UnreadableError("missing") from None
        if not any(path.is_relative_to(root) for root in roots):
            raise UnreadableError("outside SOTTO_TABLE_ROOTS")
        if not path.is_file():
            raise UnreadableError("no regular file")
        if path.stat().st_size > self._limits.reading_bytes:
            raise UnreadableError("larger than SOTTO_TABLE_READING_BYTES")

    def _read(self, source: TableSource) -> Rows:
        limits = self._limits
        request = {
            "source": source.model_dump(mode="json"),
            "table_bytes": limits.table_bytes,
            "reading_bytes": limits.reading_bytes,
            "seconds": limits.seconds,
        }
        environment = {name: text for name, text in os.environ.items() if not name.startswith(_SECRETS)}
        with subprocess.Popen(  # noqa: S603  (our own interpreter and module)
            # -P: a module in the folder that the service runs in is none of ours.
            [sys.executable, "-P", "-m", READING_PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # What it says when it crashes may quote cells.
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        ) as process:
            late = Timer(limits.seconds, process.kill)
            late.start()
            try:
                return self._receive(source, process, json.dumps(request).encode())
            except (EOFError, OSError, LookupError, TypeError, json.JSONDecodeError):
                # It crashed, was ended, or says what it would not say.
                process.kill()
                raise UnreadableError(f"reading ended early, status {process.wait()}") from None
            finally:
                late.cancel()
                process.kill()

    def _receive(self, source: TableSource, process: subprocess.Popen[bytes], request: bytes) -> Rows:
        if process.stdin is None or process.stdout is None:
            raise EOFError
        with suppress(BrokenPipeError):
            process.stdin.write(request)
            process.stdin.close()
        answer = json.loads(_exactly(process.stdout, _length(process.stdout)))
        if "unreadable" in answer:
            raise UnreadableError(answer["unreadable"])
        if "refused" in answer:
            raise DataError(answer["refused"])
        rows, file_rows, people = int(answer["rows"]), int(answer["file_rows"]), int(answer["people"])
        if not (0 <= rows <= file_rows and 0 <= people <= file_rows):
            raise EOFError
        if rows * row_bytes(source) + people * NAME_BYTES > self._limits.table_bytes:
            raise UnreadableError("larger than SOTTO_TABLE_BYTES")
        codes: dict[str, CodeArray] = {}
        for name, domain in source.attributes.items():
            kind = code_type(domain.size)
            codes[name] = np.frombuffer(_exactly(process.stdout, rows * kind.itemsize), dtype=kind)
            if rows and int(codes[name].max()) >= domain.size:
                raise EOFError
        if source.person is None:
            return Rows(source.attributes, codes, file_rows)
        numbers = np.frombuffer(_exactly(process.stdout, rows * NUMBER_BYTES), dtype="<u4").astype(np.uint32)
        if rows and int(numbers.max()) >= people:
            raise EOFError
        names = np.frombuffer(_exactly(process.stdout, people * NAME_BYTES), dtype="<u8").astype(np.uint64)
        return Rows(source.attributes, codes, file_rows, People(numbers, names.reshape(-1, 2)))


def row_bytes(source: TableSource) -> int:
    """How many bytes the codes of one row take up, and whose row it is, where that is read."""
    codes = sum(code_type(domain.size).itemsize for domain in source.attributes.values())
    return codes + (0 if source.person is None else NUMBER_BYTES)


def _length(stream: IO[bytes]) -> int:
    length = int.from_bytes(_exactly(stream, 4), "little")
    if length > _HEADER_BYTES:
        raise EOFError
    return length


def _exactly(stream: IO[bytes], size: int) -> bytearray:
    """So many bytes of a pipe; EOFError if it ends before."""
    buffer = bytearray(size)
    view, filled = memoryview(buffer), 0
    while filled < size:
        got = stream.readinto(view[filled:])  # type: ignore[attr-defined]  # a pipe opened by subprocess is buffered
        if not got:
            raise EOFError
        filled += got
    return buffer


def header(answer: dict[str, object]) -> bytes:
    """What comes ahead of the codes: its own length, then how many rows there are or why there are none."""
    text = json.dumps(answer).encode()
    return len(text).to_bytes(4, "little") + text


def write_rows(stream: IO[bytes], rows: Rows) -> None:
    """Send rows as ``GuardedReader`` receives them."""
    people = rows.people
    counts = {"rows": rows.private_row_count, "file_rows": rows.file_row_count}
    stream.write(header({**counts, "people": 0 if people is None else people.count}))
    for name in rows.attributes:
        stream.write(np.ascontiguousarray(rows.private_codes[name]).view(np.uint8).data)
    if people is not None:
        stream.write(np.ascontiguousarray(people.private_numbers, dtype="<u4").view(np.uint8).data)
        stream.write(np.ascontiguousarray(people.private_names, dtype="<u8").view(np.uint8).data)
    stream.flush()
