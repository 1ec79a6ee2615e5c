"""Limits of table engines: which engine fits a table, and how long its statements may take.

The engine is declared, and never chosen by a table's rows. Clients import this module to describe engines, so it
needs no package of the extra ``worker``. An error of an engine is reported without its text, which may quote cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Event, Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Final

from schemas import TableSource
from schemas.sources import MAX_ROWS
from stream.caches import BoundedCache
from stream.diagnostics import LoggableError

if TYPE_CHECKING:
    from stream.settings import Settings

PERSON_BYTES: Final = 44
"""Maximum memory in bytes for each person to choose rows: two orders of the names' digests, and positions."""
PERSON_CODE_BYTES: Final = 4
TEXT_CODE_BYTES: Final = 4
CHOOSING_BYTES: Final = 32
"""Maximum memory in bytes for each row, beside its codes, to choose rows: person, hash, rank and position."""
_ROOM_TO_GROW: Final = 2
"""Memory is advised if it has room for this many times the table's rows."""


def code_bytes(size: int) -> int:
    """Return the least number of bytes for the codes 0 … size − 1: 1, 2 or 4."""
    if size <= 1 << 8:
        return 1
    return 2 if size <= 1 << 16 else 4


def row_bytes(source: TableSource) -> int:
    """Return the most bytes that a row takes in memory or, if another engine counts it, on disk.

    With a person column each row's codes are stored twice: in memory while the rows within the contribution bound are
    chosen, and on disk in the tables of all rows and of the counted rows.
    """
    if source.engine == "memory":
        return _memory_row_bytes(source)
    # Each row has a mark beside its codes.
    codes = _code_bytes(source) + 1
    return codes if source.person is None else 2 * (codes + PERSON_CODE_BYTES)


def describe_engine(source: TableSource, table_bytes: int) -> str:
    """Describe a source's engine, and how many rows fit into ``table_bytes`` of memory; from public facts alone."""
    at_most, people = ("", "") if source.person is None else ("at most ", f" and {PERSON_BYTES} for each person")
    room = (
        f"memory has room for {at_most}{memory_row_limit(source, table_bytes):,} of its rows, {_memory_row_bytes(source)} bytes "
        f"each{people}, if SOTTO_TABLE_BYTES is the default"
    )
    if source.engine == "memory":
        return f"its rows are counted in memory; {room}; larger tables need the engine duckdb"
    return f"its rows are counted in DuckDB, and take {row_bytes(source)} bytes of disk each; {room}"


def advise_on_engine(source: TableSource, rows: int, table_bytes: int) -> Iterator[str]:
    """Yield advice if another engine fits a table of ``rows`` rows better; it is private, for the table's owner."""
    room = memory_row_limit(source, table_bytes)
    fits = rows * _ROOM_TO_GROW <= room
    if source.engine == "memory" and not fits:
        yield (
            f"engine: memory has room for {room:,} rows (SOTTO_TABLE_BYTES), and the engine cannot be changed when the table "
            'grows; declare "engine": "duckdb", or raise the limit in all services'
        )
    if source.engine != "memory" and fits:
        yield (
            f"engine: memory has room for {room:,} rows (SOTTO_TABLE_BYTES), and answers single questions faster; leave engine "
            "out, unless the table will outgrow it"
        )


def memory_row_limit(source: TableSource, table_bytes: int) -> int:
    """Return the number of a source's rows that fit into ``table_bytes`` of memory."""
    return min(MAX_ROWS, table_bytes // _memory_row_bytes(source))


def _memory_row_bytes(source: TableSource) -> int:
    codes = _code_bytes(source)
    return codes if source.person is None else 2 * codes + CHOOSING_BYTES


def _code_bytes(source: TableSource) -> int:
    codes = sum(code_bytes(domain.size) for domain in source.attributes.values())
    return codes + TEXT_CODE_BYTES * len(source.texts)


_POLL_SECONDS: Final = 0.05
_LATE_STATEMENTS: Final = 64
"""Maximum number of statements of one database whose extended time limit is remembered."""
_TOO_LONG: Final = "the statement took longer than SOTTO_ENGINE_SECONDS"


class CancelledStepError(Exception):
    """The processing of a batch was cancelled, because its partition has been given up."""


current_cancellation: Final[ContextVar[Event | None]] = ContextVar("current_cancellation", default=None)
"""An event that is set if the partition whose batch this context processes is given up."""


def is_step_cancelled() -> bool:
    """Return whether the partition whose batch this context processes has been given up."""
    return (event := current_cancellation.get()) is not None and event.is_set()


class EngineStatementError(LoggableError):
    """A table engine could not run a statement.

    The message names only the kind of failure, because the text of an engine's error may quote cells. The failure may
    depend on private data, so no question is refused because of it: the partition's task tries again.
    """


@dataclass(frozen=True)
class EngineLimits:
    """The limits of a process's table engines."""

    folder: str = ""
    """Folder of the databases; if empty, the system's temporary folder."""
    memory_bytes: int = 1 << 30
    """Maximum memory in bytes of one table's database."""
    disk_bytes: int = 32 << 30
    """Maximum number of bytes of one table's codes on disk, and again of its statements' temporary files."""
    seconds: float = 60.0
    """Longest time of one statement, including its wait for other statements; each new try has twice the time."""
    statements: int = 2
    """Maximum number of statements that the process runs at the same time."""
    slots: BoundedSemaphore = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", BoundedSemaphore(self.statements))

    @classmethod
    def from_settings(cls, settings: Settings) -> EngineLimits:
        """Return the limits of a service with these settings."""
        return cls(
            settings.engine_folder,
            settings.engine_memory_bytes,
            settings.engine_disk_bytes,
            settings.engine_seconds,
            settings.engine_statements,
        )


class StatementRunner:
    """Runs the statements of one database, one at a time."""

    def __init__(self, limits: EngineLimits, interrupt: Callable[[], None]) -> None:
        self._limits = limits
        self._interrupt = interrupt
        self._lock = Lock()
        self._extended_seconds: BoundedCache[str, float] = BoundedCache(_LATE_STATEMENTS)

    @contextmanager
    def limit_statement(self, text: str) -> Iterator[None]:
        """Limit the ``with`` block, which runs the statement ``text``.

        EngineStatementError if the statement fails or lasts too long. When it is tried again it gets twice the time,
        so that no question stops its partition for ever. CancelledStepError if the partition is given up meanwhile. A
        statement that waits for another one of its own table takes no slot from other tables.
        """
        seconds = self._extended_seconds.get(text) or self._limits.seconds
        deadline = monotonic() + seconds
        with _acquire(self._lock, deadline), _acquire(self._limits.slots, deadline):
            try:
                with self._guard_statement(deadline):
                    yield
            except EngineStatementError:
                if monotonic() > deadline:
                    self._extended_seconds.put(text, 2 * seconds)
                raise
            self._extended_seconds.pop(text)

    @contextmanager
    def guard_reading(self) -> Iterator[None]:
        """Guard a ``with`` block that reads all rows, as when a table is loaded; its time is not limited."""
        with _acquire(self._lock, math.inf), self._guard_statement(math.inf):
            yield

    @contextmanager
    def _guard_statement(self, deadline: float) -> Iterator[None]:
        ended = Event()
        context = copy_context()
        watcher = Thread(target=context.run, args=(self._watch, ended, deadline), daemon=True)
        watcher.start()
        try:
            yield
        except Exception as error:  # noqa: BLE001  (any error of an engine)
            if is_step_cancelled():
                raise CancelledStepError from None
            late = monotonic() > deadline
            raise EngineStatementError(
                _TOO_LONG if late else f"the engine failed: {type(error).__name__}"
            ) from None
        finally:
            ended.set()
            watcher.join()

    def _watch(self, ended: Event, deadline: float) -> None:
        """After the deadline or a cancellation, interrupt the statement repeatedly until it ends.

        One interrupt is not enough: it has no effect if it comes just before the statement begins.
        """
        while not ended.wait(_POLL_SECONDS):
            if monotonic() > deadline or is_step_cancelled():
                self._interrupt()


@contextmanager
def _acquire(lock: Lock | BoundedSemaphore, deadline: float) -> Iterator[None]:
    """Hold a lock during a ``with`` block.

    EngineStatementError if it is not free before the deadline; CancelledStepError if the partition is given up.
    """
    while True:
        if is_step_cancelled():
            raise CancelledStepError
        if lock.acquire(timeout=_POLL_SECONDS):
            break
        if monotonic() > deadline:
            raise EngineStatementError(_TOO_LONG)
    try:
        yield
    finally:
        lock.release()
