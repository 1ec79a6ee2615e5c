"""Limits the requests of a step, reads tables beside the partition's loop, and keeps the requests that wait.

A request whose table must be read first waits, and so do later requests about the same subject (source
or population), in their order. Other requests are decided meanwhile. The ledger has each waiting request
until the transaction of its decision, so a restart reads its table again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Executor, Future
from contextvars import copy_context
from dataclasses import dataclass
from operator import attrgetter
from threading import Event
from typing import Any, Final, TypeVar

import msgspec

from schemas import FIRST_VERSION, Request, TableSource, WaitingRequest, ledger_codec, request_codec, subject_of
from schemas.wire import DECODE_ERRORS
from stream.budget.receipts import LedgerWrite, request_digest, waiting_key
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.protocol import Record, RecordLike
from stream.tables.engine_limits import CancelledStepError, current_cancellation, is_step_cancelled
from stream.tables.store import TableStore

Result = TypeVar("Result")

MAX_PLANS_PER_STEP: Final = 16
"""Maximum number of plans in one step; each of them may take a second or two."""
MAX_REQUESTS_PER_STEP: Final = 400
"""Maximum number of requests in one step and transaction: about 0.2 s of work."""

_FIELDS_WITHOUT_EFFECT_ON_PLANS: Final = {"source", "epsilon", "delta", "population", "renews"}
"""Fields of a source that do not affect a plan."""
_KINDS_WITHOUT_PLAN: Final = ("close", "halt", "register")


class _RequestHead(msgspec.Struct):
    """The fields of a request that determine its processing time."""

    kind: str = ""
    stream: Any = None


_decode_head = msgspec.json.Decoder(_RequestHead).decode
_encode_plan = msgspec.json.Encoder(order="sorted").encode


def count_requests_of_step(records: Sequence[RecordLike], ledger: Ledger) -> int:
    """Return the number of requests, at least one, that one step processes.

    They need at most ``MAX_PLANS_PER_STEP`` plans. Streams share a plan if they differ only in names and
    thresholds, and their sources differ only in names and budgets.
    """
    plans: set[bytes | None] = {None}
    for count, record in enumerate(records[:MAX_REQUESTS_PER_STEP]):
        plans.add(_plan_key(record, count, ledger))
        if len(plans) > MAX_PLANS_PER_STEP + 1:
            return count
    return min(len(records), MAX_REQUESTS_PER_STEP)


def _plan_key(record: RecordLike, position: int, ledger: Ledger) -> bytes | None:
    """Return the key of the plan that a request needs, or None if it needs none; equal plans have equal keys."""
    if not isinstance(record.value, bytes):
        return None
    try:
        request = _decode_head(record.value)
    except DECODE_ERRORS:
        return None  # it will be refused without a plan
    if request.kind == "open" and isinstance(request.stream, dict):
        mechanism = request.stream.get("mechanism")
        plan = {name: value for name, value in request.stream.items() if name != "stream"}
        if isinstance(mechanism, dict):
            plan["mechanism"] = {name: value for name, value in mechanism.items() if name != "threshold"}
        source = request.stream.get("source")
        account = ledger.accounts.get(source) if isinstance(source, str) else None
        if account is not None and not isinstance(account.source, TableSource):
            plan["source"] = account.source.model_dump(exclude=_FIELDS_WITHOUT_EFFECT_ON_PLANS)
        return _encode_plan(plan)
    return None if request.kind in _KINDS_WITHOUT_PLAN else position.to_bytes(4, "big")


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
        """Return the requests about a subject whose first request waits for no reading; empty if there is none."""
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
