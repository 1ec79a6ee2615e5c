"""Reads the rows of a source into memory or an engine's database.

A service reads by ``GuardedReader``, from allowed places and within limits. A malicious file may exhaust memory or
time, or crash a reader. So a separate process (``reading_process``), which the operating system limits, reads each
table, and the service verifies its output. The process gets only some environment variables (``_PASSED_VARIABLES``).
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
from typing import Any, Final, TypeVar

from schemas import Address, TableSource
from stream.diagnostics import get_logger
from stream.errors import Missing
from stream.optional_packages import explain_missing_packages
from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import CountedTable
from stream.tables.engine_limits import EngineLimits, row_bytes
from stream.tables.readers import table_files
from stream.tables.readers.reading_protocol import TimedPipe, receive_header, receive_rows
from stream.tables.readers.source_parts import Stamp, base_columns, join_stamps, stamp_of_files
from stream.tables.rows import Collected, Collector, Frame, RowCollector, Rows, StoredRows, collect_rows
from stream.tables.schema_proposals import ColumnType
from stream.tables.table_errors import OUTSIDE_ROOTS, ColumnError, TableDataError, UnreadableError

READING_PROCESS: Final = "stream.tables.readers.reading_process"

_COMMON_VARIABLES: Final = ("PATH", "LANG", "LC_", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHON", "POLARS_")
_NETWORK_VARIABLES: Final = ("HOME", "SSL_CERT_")
_CLOUD_VARIABLES: Final = (
    *_COMMON_VARIABLES,
    *_NETWORK_VARIABLES,
    *("REQUESTS_CA_BUNDLE", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
_PASSED_VARIABLES: Final = {
    None: _COMMON_VARIABLES,
    "s3": (*_CLOUD_VARIABLES, "AWS_"),
    "postgresql": (*_COMMON_VARIABLES, *_NETWORK_VARIABLES, "PG"),
    "spark": (*_CLOUD_VARIABLES, "SPARK_CONNECT_"),
    "trino": (*_CLOUD_VARIABLES, "TRINO_"),
    "clickhouse": (*_CLOUD_VARIABLES, "CLICKHOUSE_"),
    "bigquery": (*_CLOUD_VARIABLES, "GOOGLE_", "CLOUDSDK_"),
    "snowflake": (*_CLOUD_VARIABLES, "SNOWFLAKE_"),
    "databricks": (*_CLOUD_VARIABLES, "DATABRICKS_"),
}
"""Prefixes of the environment variables that a reading process gets, by the scheme of the table's address."""

log = get_logger("tables")
Result = TypeVar("Result")

AllowedFiles = dict[str, tuple[table_files.TableFile, ...] | None]
"""The files of each local path; None for an address."""

_UNDECLARED: Final = {"kind": "table", "neighbors": "add-remove", "epsilon": 1.0}
"""Fields of a placeholder source, by which the columns of a table are read before it is declared."""


@dataclass(frozen=True)
class ReadingLimits:
    """The places in which a deployment's tables may be, and the limits for reading them."""

    roots: tuple[table_files.Root, ...]
    """Folders and addresses below which tables are read, at any depth; if empty, no table is read."""
    table_bytes: int
    """Maximum number of bytes of a table's codes in the memory of a service."""
    reading_bytes: int
    """Maximum number of bytes of a table's files, and of memory of the process that reads them."""
    seconds: float
    """Longest time for reading a table."""
    reveals_causes: bool = False
    """True if callers get the cause of a failed read."""
    logs_causes: bool = True
    """True if the log has the cause of a failed read."""
    engine: EngineLimits = EngineLimits()  # noqa: RUF009  (its slots are shared by the process)
    """The limits of the databases of engines other than ``memory``."""

    @classmethod
    def parse(cls, roots: str, **limits: Any) -> ReadingLimits:
        """Create limits from roots in one text, which ``parse_roots`` parses, and the other fields."""
        return cls(table_files.parse_roots(roots), **limits)

    def row_limit(self, source: TableSource) -> int:
        """Return the most rows of a source's table, in memory or in an engine's database."""
        most_bytes = self.table_bytes if source.engine == "memory" else self.engine.disk_bytes
        return most_bytes // row_bytes(source)

    def file_bytes(self, source: TableSource) -> int | None:
        """Return the most bytes of a source's files; None for a database engine, which reads them in pieces."""
        return self.reading_bytes if source.engine == "memory" else None


class GuardedReader:
    """Reads tables within a deployment's limits.

    The log has the cause of a failed read. Callers get the same error for all causes, unless ``reveals_causes`` is set.
    """

    def __init__(self, limits: ReadingLimits) -> None:
        self._limits = limits

    def __call__(self, source: TableSource) -> Rows:
        """Read the source's rows into memory; TableDataError if the path is forbidden or reading fails."""
        return self._collect(source, RowCollector(source))

    def read(self, source: TableSource) -> Rows | StoredRows:
        """Read the source's rows into memory or its engine's database; TableDataError as in ``__call__``."""
        base_columns(source)  # raises TableDataError for an invalid view
        try:
            collector = make_collector(source, self._limits.engine)
        except Missing as error:
            raise self._explain(source, UnreadableError(str(error))) from None
        except UnreadableError as error:
            raise self._explain(source, error) from None
        found: Rows | StoredRows = self._collect(source, collector)
        return found

    def _collect(self, source: TableSource, collector: Collector[Collected]) -> Collected:
        limits = self._limits
        return self._read_or_explain(
            source,
            "rows",
            lambda pipe: receive_rows(pipe, source, collector, limits.row_limit(source), limits.table_bytes),
        )

    def stamp(self, source: TableSource) -> Stamp:
        """Return the stamp of a source's table; for an address, a reading process determines it."""
        paths = "\n".join(source.paths)
        if source.addresses:
            return self._read_or_explain(
                source, "stamp", lambda pipe: (paths, *receive_header(pipe, source)["stamp"])
            )
        try:
            listed = self._list_allowed_files(source)
            return join_stamps([stamp_of_files(path, files or ()) for path, files in listed.items()])
        except UnreadableError:
            # The error of the path is raised when the table is read.
            return (paths,)

    def columns(self, path: str) -> list[ColumnType]:
        """Return the names and types of a table's columns; TableDataError if the path is forbidden or unreadable."""
        undeclared = TableSource.model_validate(
            {"source": "undeclared", "path": path, **_UNDECLARED, "attributes": {"unknown": ["any"]}}
        )
        return self._read_or_explain(
            undeclared,
            "columns",
            lambda pipe: [ColumnType(*one) for one in receive_header(pipe, undeclared)["columns"]],
        )

    def _read_or_explain(self, source: TableSource, wanted: str, receive: Callable[[TimedPipe], Result]) -> Result:
        try:
            return self._run_process(source, wanted, self._list_allowed_files(source), receive)
        except UnreadableError as error:
            raise self._explain(source, error) from None
        except ColumnError as error:
            if self._limits.logs_causes:
                log.warning("table not read", source=source.source, cause=str(error))
            raise (error if self._limits.reveals_causes else error.in_file("")) from None

    def _explain(self, source: TableSource, error: UnreadableError) -> UnreadableError:
        """Log why a table cannot be read, and return the error for callers."""
        details = {"file": error.file} if error.file else {}
        if ";" not in error.cause:
            details["remedy"] = error.remedy
        if self._limits.logs_causes:
            log.warning("table not read", source=source.source, cause=error.cause, **details)
        return error.for_callers(hidden=not self._limits.reveals_causes)

    def _list_allowed_files(self, source: TableSource) -> AllowedFiles:
        """List the files of each local path; None for an address; UnreadableError if one is forbidden."""
        return {path: self._list_files(path, self._limits.file_bytes(source)) for path in source.paths}

    def _list_files(self, path: str, most_bytes: int | None) -> tuple[table_files.TableFile, ...] | None:
        roots = self._limits.roots
        if (address := Address.parse_table(path)) is not None:
            if not table_files.is_allowed(address, roots):
                raise UnreadableError(OUTSIDE_ROOTS)
            return None
        try:
            path_pattern = table_files.local_pattern(path)
            if path_pattern is not None and not table_files.is_within(
                table_files.local_folder(path_pattern), roots
            ):
                raise UnreadableError(OUTSIDE_ROOTS)
            parts = table_files.local_files(path)
            inside = all(table_files.is_within(Path(part.location), roots) for part in parts)
        except (OSError, RuntimeError, ValueError) as error:
            raise UnreadableError(error.cause if isinstance(error, UnreadableError) else "missing") from None
        if not inside:
            raise UnreadableError(OUTSIDE_ROOTS)
        # Which files of a Delta or Iceberg table count is known only from its log or metadata.
        if table_files.local_delta_folder(path) is None and table_files.local_iceberg_metadata(path) is None:
            table_files.require_size(parts, most_bytes)
        return parts

    def _run_process(
        self, source: TableSource, wanted: str, parts: AllowedFiles, receive: Callable[[TimedPipe], Result]
    ) -> Result:
        limits = self._limits
        request = {
            "wanted": wanted,
            "source": source.model_dump(mode="json"),
            "folders": [str(root.resolve()) for root in limits.roots if isinstance(root, Path)],
            "parts": {path: None if files is None else list(map(asdict, files)) for path, files in parts.items()},
            "row_limit": limits.row_limit(source),
            "file_bytes": limits.file_bytes(source),
            "reading_bytes": limits.reading_bytes,
            "seconds": limits.seconds,
        }
        deadline = monotonic() + limits.seconds
        process = _start_process(source)
        try:
            with process:
                try:
                    return receive(_send_request(process, json.dumps(request).encode(), deadline))
                finally:
                    # Nothing has waited for the process yet, so no other process can have its pid.
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
        except TableDataError:
            raise
        except (EOFError, OSError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
            # These errors mean that the process crashed, was killed, or sent an invalid answer.
            raise UnreadableError(f"the reading process ended early, with status {process.returncode}") from None


def _start_process(source: TableSource) -> subprocess.Popen[bytes]:
    """Start a reading process; UnreadableError if the system has no resources for it."""
    try:
        return subprocess.Popen(  # noqa: S603  (our own interpreter and module)
            # -P keeps the process from importing modules of the current folder.
            [sys.executable, "-P", "-m", READING_PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Messages of a crash may quote cells.
            stderr=subprocess.DEVNULL,
            env=_environment(source),
            start_new_session=True,
        )
    except OSError as error:
        raise UnreadableError(f"no process could be started: {error.strerror}", lasting=False) from None


def _send_request(process: subprocess.Popen[bytes], request: bytes, deadline: float) -> TimedPipe:
    """Send a request and return the pipe for the answer."""
    if process.stdin is None or process.stdout is None:
        raise EOFError
    TimedPipe(process.stdin, deadline).write(request)
    process.stdin.close()
    return TimedPipe(process.stdout, deadline)


def _environment(source: TableSource) -> dict[str, str]:
    schemes = [None, *(address.scheme for address in source.addresses)]
    prefixes = tuple(prefix for scheme in schemes for prefix in _PASSED_VARIABLES[scheme])
    return {name: text for name, text in os.environ.items() if name.startswith(prefixes)}


def make_collector(source: TableSource, limits: EngineLimits) -> Collector[Any]:
    """Return the collector of a source's rows; Missing if its engine is not installed."""
    if source.engine == "memory":
        return RowCollector(source)
    with explain_missing_packages():
        from stream.tables.stored_table import StoredRowCollector  # noqa: PLC0415  (an extra)

    return StoredRowCollector(source, limits)


def read_rows(
    source: TableSource, frame: Frame | None = None, limits: EngineLimits | None = None
) -> Rows | StoredRows:
    """Read a source's rows in this process, without a guard; see ``Rows.load``."""
    found: Rows | StoredRows = collect_rows(source, make_collector(source, limits or EngineLimits()), frame)
    return found


def build_table(rows: Rows | StoredRows, source: TableSource, key: bytes) -> CountedTable:
    """Build the table of a source's rows; ``key`` determines which rows of a person count."""
    if isinstance(rows, Rows):
        return PrivateTable.from_rows(rows, source, key)
    from stream.tables.stored_table import StoredTable  # noqa: PLC0415  (an extra)

    return StoredTable.from_rows(rows, source, key)
