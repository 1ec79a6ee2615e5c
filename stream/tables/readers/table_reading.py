"""Reads tables for a service in a separate process, from allowed places and within limits.

A malicious file may exhaust memory or time, or crash a reader. So each table is read by a process
(``reading_process``) with limits of the operating system, and the service verifies its output. The
process gets only some environment variables (``_PASSED_ON``).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Final, TypeVar

from schemas import Address, TableSource
from stream.log import get_logger
from stream.tables.readers.reading_protocol import TimedPipe, receive_header, receive_rows
from stream.tables.readers.sheets import Stamp, stamp_of_parts
from stream.tables.readers.table_files import (
    Root,
    TableFile,
    is_allowed,
    is_within,
    local_delta,
    local_folder,
    local_parts,
    local_scope,
    parse_roots,
    require_size,
)
from stream.tables.rows import Rows
from stream.tables.table_errors import OUTSIDE, ColumnError, DataError, UnreadableError

READING_PROCESS: Final = "stream.tables.readers.reading_process"

_ALWAYS: Final = ("PATH", "LANG", "LC_", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHON", "POLARS_")
_NETWORK: Final = ("HOME", "SSL_CERT_")
_STORES: Final = ("AWS_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_PASSED_ON: Final = {
    None: _ALWAYS,
    "s3": (*_ALWAYS, *_NETWORK, *_STORES),
    "postgresql": (*_ALWAYS, *_NETWORK, "PG"),
}
"""Prefixes of environment variables that a reading process gets, by scheme."""

log = get_logger("tables")
Told = TypeVar("Told")


@dataclass(frozen=True)
class ReadingLimits:
    """The places and limits for a deployment's tables."""

    roots: tuple[Root, ...]
    """Folders and addresses of tables, at any depth; if empty, no table is read."""

    table_bytes: int
    """Most bytes of a table's codes in a service."""

    reading_bytes: int
    """Most bytes of a table's files, and of the memory for reading it."""

    seconds: float
    """Longest time for reading a table."""

    names_causes: bool = False
    """Whether callers, and not only the log, get the cause of an unreadable table."""

    @classmethod
    def parse(
        cls, roots: str, *, table_bytes: int, reading_bytes: int, seconds: float, names_causes: bool = False
    ) -> ReadingLimits:
        """Create limits with roots as one text (``parse_roots``)."""
        return cls(parse_roots(roots), table_bytes, reading_bytes, seconds, names_causes)


class GuardedReader:
    """Reads tables within a deployment's limits.

    Callers get the same error for all causes, unless the limits allow details; the log has the cause.
    """

    def __init__(self, limits: ReadingLimits) -> None:
        self._limits = limits

    def __call__(self, source: TableSource) -> Rows:
        """Read the source's rows; DataError if that is forbidden or fails."""
        return self._read_or_explain(
            source, "rows", lambda pipe: receive_rows(pipe, source, self._limits.table_bytes)
        )

    def stamp(self, source: TableSource) -> Stamp:
        """Return the stamp of a source's table; for an address, a reading process determines it."""
        if Address.of_table(source.path) is not None:
            return self._read_or_explain(
                source, "stamp", lambda pipe: (source.path, *receive_header(pipe, source)["stamp"])
            )
        try:
            return stamp_of_parts(source.path, self._allowed(source.path) or ())
        except UnreadableError:
            # Reading reports the error of the path.
            return (source.path,)

    def _read_or_explain(self, source: TableSource, wanted: str, receive: Callable[[TimedPipe], Told]) -> Told:
        try:
            return self._ask(source, wanted, self._allowed(source.path), receive)
        except UnreadableError as error:
            file = {"file": error.file} if error.file else {}
            log.warning("table not read", source=source.source, cause=error.cause, **file)
            raise error.for_callers(hidden=not self._limits.names_causes) from None
        except ColumnError as error:
            log.warning("table not read", source=source.source, cause=str(error))
            raise (error if self._limits.names_causes else error.in_file("")) from None

    def _allowed(self, path: str) -> tuple[TableFile, ...] | None:
        """List a local path's files; None for an address; UnreadableError if one is forbidden."""
        roots = self._limits.roots
        if (address := Address.of_table(path)) is not None:
            if not is_allowed(address, roots):
                raise UnreadableError(OUTSIDE)
            return None
        try:
            scope = local_scope(path)
            if scope is not None and not is_within(local_folder(scope), roots):
                raise UnreadableError(OUTSIDE)
            parts = local_parts(path)
            inside = all(is_within(Path(part.location), roots) for part in parts)
        except (OSError, RuntimeError, ValueError) as error:
            raise UnreadableError(error.cause if isinstance(error, UnreadableError) else "missing") from None
        if not inside:
            raise UnreadableError(OUTSIDE)
        if local_delta(path) is None:  # only the log of a Delta table says which files count
            require_size(parts, self._limits.reading_bytes)
        return parts

    def _ask(
        self,
        source: TableSource,
        wanted: str,
        parts: tuple[TableFile, ...] | None,
        receive: Callable[[TimedPipe], Told],
    ) -> Told:
        limits = self._limits
        request = {
            "wanted": wanted,
            "source": source.model_dump(mode="json"),
            "folders": [str(root.resolve()) for root in limits.roots if isinstance(root, Path)],
            "parts": None if parts is None else list(map(asdict, parts)),
            "table_bytes": limits.table_bytes,
            "reading_bytes": limits.reading_bytes,
            "seconds": limits.seconds,
        }
        until = monotonic() + limits.seconds
        process = _started(source.path)
        try:
            with process:
                try:
                    return receive(_asked(process, json.dumps(request).encode(), until))
                finally:
                    _end(process)
        except DataError:
            raise
        except (EOFError, OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
            # The process crashed, was killed, or sent an invalid answer.
            raise UnreadableError(f"reading ended early, status {process.returncode}") from None


def _started(path: str) -> subprocess.Popen[bytes]:
    """Start a reading process; UnreadableError if the system has no resources for it."""
    try:
        return subprocess.Popen(  # noqa: S603  (our own interpreter and module)
            # -P: modules in the current folder must not be imported.
            [sys.executable, "-P", "-m", READING_PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # The output of a crash may quote cells.
            stderr=subprocess.DEVNULL,
            env=_environment(path),
            start_new_session=True,
        )
    except OSError as error:
        raise UnreadableError(f"no process could be started: {error.strerror}", lasting=False) from None


def _asked(process: subprocess.Popen[bytes], request: bytes, until: float) -> TimedPipe:
    """Send a request and return the pipe for the answer."""
    if process.stdin is None or process.stdout is None:
        raise EOFError
    TimedPipe(process.stdin, until).write(request)
    process.stdin.close()
    return TimedPipe(process.stdout, until)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group; it must not have been waited for."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _environment(path: str) -> dict[str, str]:
    """Return a reading process's environment."""
    address = Address.of_table(path)
    begins = _PASSED_ON[None if address is None else address.scheme]
    return {name: text for name, text in os.environ.items() if name.startswith(begins)}
