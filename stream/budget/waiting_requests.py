"""Reads tables beside the partition's loop, and keeps the requests that wait for a table.

A request whose table must be read first waits, and so do later requests about the same subject (source
or population), in their order. Other requests are decided meanwhile. The ledger has each waiting request
until the transaction of its decision, so a restart reads its table again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from dataclasses import dataclass
from operator import attrgetter
from threading import Event
from typing import Any, TypeVar

from schemas import FIRST_VERSION, Request, TableSource, WaitingRequest, ledger_codec, request_codec, subject_of
from stream.budget.receipts import LedgerWrite, request_digest, waiting_key
from stream.processing.protocol import Record, RecordLike
from stream.tables.engine_limits import CancelledStepError, current_cancellation, is_step_cancelled
from stream.tables.store import TableStore

Result = TypeVar("Result")


class TableNotReadError(Exception):
    """A request needs a table that is still being read; ``reading`` ends when it has been read."""

    def __init__(self, reading: Future[Any]) -> None:
        super().__init__("the table is being read")
        self.reading = reading


class TableReadings:
    """Reads tables for requests: in ``threads``, or at once if it is None.

    With threads, a method raises TableNotReadError until the table has been read, and then returns the
    result once. A source has one reading at a time.
    """

    def __init__(self, tables: TableStore, threads: Executor | None = None) -> None:
        self._tables = tables
        self._threads = threads
        self._cancelled = Event()
        self._readings: dict[str, tuple[Hashable, Future[Any]]] = {}

    def fingerprint(self, source: TableSource, version: int = FIRST_VERSION) -> str:
        """Return the fingerprint of the source's current table as data of this ``version``."""
        return self._read(source, version, lambda: self._tables.fingerprint(source, version))

    def count_rows(self, source: TableSource, fingerprint: str | None, version: int) -> int:
        """Return the public number of rows of the table of this fingerprint."""
        return self._read(source, fingerprint, lambda: self._tables.get(source, fingerprint, version).public_size)

    def cancel(self) -> None:
        """Cancel all readings, because this process gives up the partition."""
        self._cancelled.set()

    def forget(self, source: str) -> None:
        """Forget a source's reading, if there is one; its request has been decided."""
        self._readings.pop(source, None)

    def _read(self, source: TableSource, key: Hashable, read: Callable[[], Result]) -> Result:
        if self._threads is None:
            return read()
        known, reading = self._readings.get(source.source, (None, None))
        if reading is None or known != key:
            reading = self._threads.submit(copy_context().run, self._run, read)
            self._readings[source.source] = key, reading
        if not reading.done():
            raise TableNotReadError(reading)
        self.forget(source.source)
        result: Result = reading.result()
        return result

    def _run(self, read: Callable[[], Result]) -> Result:
        current_cancellation.set(self._cancelled)
        if is_step_cancelled():
            raise CancelledStepError
        return read()


@dataclass
class HeldRequest:
    """A request that waits: for ``reading``, or for an earlier request if it is None."""

    key: bytes
    number: int
    record: RecordLike
    request: Request
    reading: Future[Any] | None = None


class WaitingRequests:
    """The requests that wait, by subject; the first one of each waits for its table."""

    def __init__(self) -> None:
        self._queues: dict[str, deque[HeldRequest]] = {}
        self._held: dict[bytes, HeldRequest] = {}
        self._next_number = 0

    def has(self, subject: str) -> bool:
        """Return True if requests about the subject wait."""
        return subject in self._queues

    def restore(self, records: Iterable[WaitingRequest]) -> None:
        """Load the ledger's waiting requests."""
        for one in sorted(records, key=attrgetter("number")):
            value = one.value.encode()
            self._next_number = one.number
            self._append(Record("", 0, one.number, 0, None, value), request_codec.decode_trusted(value), None)

    def add(self, record: RecordLike, request: Request, reading: Future[Any] | None = None) -> LedgerWrite:
        """Add a request and return its ledger write; a repeat is not added, but its record is written again."""
        held = self._append(record, request, reading)
        waiting = WaitingRequest(number=held.number, value=(held.record.value or b"").decode())
        return held.key, ledger_codec.encode(waiting)

    def list_ready(self) -> list[HeldRequest]:
        """Return the requests about one subject whose first request has its table or has not begun to read it."""
        for queue in self._queues.values():
            if queue[0].reading is None or queue[0].reading.done():
                return list(queue)
        return []

    def remove(self, held: HeldRequest) -> LedgerWrite:
        """Remove a decided request, the first one about its subject; return its ledger write."""
        subject, _ = subject_of(held.request)
        self._queues[subject].popleft()
        if not self._queues[subject]:
            del self._queues[subject]
        del self._held[held.key]
        return held.key, None

    def _append(self, record: RecordLike, request: Request, reading: Future[Any] | None) -> HeldRequest:
        key = waiting_key(request.request, request_digest(request))
        if (held := self._held.get(key)) is None:
            held = self._held[key] = HeldRequest(key, self._next_number, record, request, reading)
            self._next_number += 1
            self._queues.setdefault(subject_of(request)[0], deque()).append(held)
        return held
