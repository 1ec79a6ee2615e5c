"""The budget service's processor: requests and charges in, ledger and control out.

The ledger topic is the source of truth and this processor's changelog. Requests are idempotent by
id: a repeated request gets its first receipt again and changes nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from schemas import (
    MAX_DEFINITION_BYTES,
    MAX_RECORD_BYTES,
    Charge,
    LedgerProgress,
    LedgerRecord,
    Receipt,
    Request,
    TableSource,
)
from schemas.wire import UNREADABLE, Codec, MalformedEventError
from stream.budget.openings import ControlPublisher
from stream.budget.request_handler import RequestHandler
from stream.budget.trail_writer import TrailWriter
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.ledger.ledger_records import restore
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.dead_letters import Rejection, Unread, dead_letter, exhausted_reason
from stream.processing.protocol import (
    PROGRESS_KEY,
    Batch,
    Outputs,
    RecordLike,
    decode_kept,
    keep_latest,
    topic_ids_of,
    with_topic_ids,
)
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of
from stream.tables import TableStore


class LedgerClock:
    """Time in milliseconds since 1970: the latest event's time plus the time since then."""

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None

    def now(self, latest: int, monotonic: float) -> int:
        """Return the time from the latest event's time and a monotonic clock's seconds."""
        if self._since is None or latest > self._since[0] + 1000 * (monotonic - self._since[1]):
            self._since = (latest, monotonic)
        return self._since[0] + int(1000 * (monotonic - self._since[1]))


PLANS_AT_ONCE: Final = 16
"""Most plans and table reads in one step; each of them may take a second or two."""
REQUESTS_AT_ONCE: Final = 400
"""Most requests in one step and transaction: about 0.2 s of work."""

_ITS_OWN: Final = {"source", "epsilon", "delta", "population", "renews"}
"""Fields of a source that do not affect a plan."""
_QUICK: Final = ("close", "halt")


class _RequestHead(msgspec.Struct):
    """The fields of a request that determine its processing time."""

    kind: str = ""
    stream: Any = None
    source: Any = None


_decode_head = msgspec.json.Decoder(_RequestHead).decode
_encode = msgspec.json.Encoder(order="sorted").encode


def requests_at_once(records: Sequence[RecordLike], ledger: Ledger) -> int:
    """Return how many leading requests need at most ``PLANS_AT_ONCE`` plans; at least one.

    Streams share a plan if they differ in names and thresholds only, on sources that differ in
    names and budgets only.
    """
    plans: set[bytes] = set()
    for count, record in enumerate(records[:REQUESTS_AT_ONCE]):
        plan = _plan_of(record, count, ledger)
        if plan is not None:
            plans.add(plan)
            if len(plans) > PLANS_AT_ONCE:
                return count
    return min(len(records), REQUESTS_AT_ONCE)


def _plan_of(record: RecordLike, place: int, ledger: Ledger) -> bytes | None:
    """Return a key of the plan that a request needs; None if it needs no plan."""
    if not isinstance(record.value, bytes):
        return None
    try:
        request = _decode_head(record.value)
    except UNREADABLE:
        return None  # it will be refused without a plan
    if request.kind == "open" and isinstance(request.stream, dict):
        mechanism = request.stream.get("mechanism")
        plain = {name: value for name, value in request.stream.items() if name != "stream"}
        if isinstance(mechanism, dict):
            plain["mechanism"] = {name: value for name, value in mechanism.items() if name != "threshold"}
        return _encode(plain | {"source": _facts_of(request.stream.get("source"), ledger)})
    quick = request.kind in _QUICK or (
        request.kind == "register" and isinstance(request.source, dict) and request.source.get("kind") != "table"
    )
    return None if quick else place.to_bytes(4, "big")


def _facts_of(source: Any, ledger: Ledger) -> Any:
    """Return the facts of a source that affect a plan, or its name if they are unknown."""
    account = ledger.accounts.get(source) if isinstance(source, str) else None
    if account is None or isinstance(account.source, TableSource):
        return source
    return account.source.model_dump(exclude=_ITS_OWN)


CHARGES_AT_ONCE = 1_000
"""Most charges in one step."""

RENEWALS_AT_ONCE = 100
"""Most budgets renewed in one call of ``idle``."""

_request_codec: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_charge_codec: Codec[Charge] = Codec(Charge, limit=MAX_DEFINITION_BYTES)
_ledger_codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


class BudgetProcessor:
    """The ledger of all sources, with its receipts."""

    def __init__(
        self,
        topics: Topics,
        partition: int,
        *,
        key_id: str,
        tables: TableStore,
        mint: Callable[[RecordLike], bytes],
    ) -> None:
        """Take ``mint``, which returns 16 unpredictable bytes for a request that opens a stream."""
        self.inputs = (topics.requests, topics.charges)
        self.tables: tuple[str, ...] = ()
        self.changelog = topics.ledger
        self.repeatable = False
        self.heavy = True
        self.ledger = Ledger()
        self._topics = topics
        self._partition = partition
        self._workers = ControlPublisher(topics)
        self.desk = RequestHandler(self.ledger, self._workers, key_id=key_id, tables=tables, mint=mint)
        self._trail = TrailWriter(topics, self.ledger)
        self._clock = LedgerClock()
        self._reached = dict.fromkeys(self.inputs, 0)
        self.topic_ids: dict[str, str] = {}
        self._restoring: dict[bytes, RecordLike] = {}

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Collect the ledger's records; only the latest of each key is decoded."""
        keep_latest(self._restoring, records)

    def restored(self) -> Mapping[str, int]:
        """Rebuild the accounts, in any order of the records; return the inputs' next offsets."""
        with _gc_disabled():
            beside: list[LedgerRecord] = []
            restore(self.ledger, self._entries(beside))
        self.desk.receipts.restore(record for record in beside if isinstance(record, Receipt))
        for progress in (record for record in beside if isinstance(record, LedgerProgress)):
            self._reached = {self._topics.requests: progress.requests, self._topics.charges: progress.charges}
            self._trail.restore(progress.trail)
        return dict(self._reached)

    def _entries(self, beside: list[LedgerRecord]) -> Iterator[LedgerRecord]:
        """Yield the collected ledger records; append receipts and progress to ``beside``."""
        for key in list(self._restoring):
            record = self._restoring.pop(key)
            if key == PROGRESS_KEY:
                self.topic_ids = topic_ids_of(record)
            entry = decode_kept(record, _ledger_codec.decode_own)
            if isinstance(entry, Receipt | LedgerProgress):
                beside.append(entry)
            else:
                yield entry

    def recreated(self, topic: str) -> None:
        """Read a recreated topic from offset 0: requests are idempotent, and charges are totals."""
        self._reached[topic] = 0

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """Return no outputs: this processor has no tables."""
        del records
        return Outputs()

    def idle(self, now: float) -> Outputs:
        """Begin due periods, so that readers see current budgets, and write trail points."""
        outputs = Outputs()
        clock = self._clock.now(self.ledger.clock, now)
        due = [owner for owner in self.ledger.renewing if owner.budget.is_over(clock)]
        if due:
            self.ledger.tell_time(clock)
            for owner in due[:RENEWALS_AT_ONCE]:
                self.ledger.turn(owner)
            self._trail.write_renewals(outputs)
        self._trail.note_quiet(now, outputs)
        if outputs:
            self._write_changes(outputs)
            self._progress(outputs)
        return outputs

    def prepare(self, records: Sequence[RecordLike]) -> Batch:
        """Return the first records, within the limits of one step."""
        if records and records[0].topic == self._topics.charges:
            return Batch(records[:CHARGES_AT_ONCE])
        return Batch(records[: requests_at_once(records, self.ledger)])

    def process(self, batch: Batch) -> Outputs:
        """Process requests or charges in order."""
        outputs, records = Outputs(), batch.records
        for record in records:
            self.ledger.tell_time(record.timestamp)
            self._trail.ensure_begun(outputs)
            try:
                if isinstance(record.value, Unread):
                    self._reject(outputs, record, record.value.rejection)
                elif record.topic == self._topics.charges:
                    self._charge(_charge_codec.decode(record.value), outputs)
                else:
                    self._request(record, _request_codec.decode(record.value), outputs)
            except MalformedEventError as error:
                self._reject(outputs, record, Rejection("malformed", str(error)))
            except RefusedError as refused:  # charges only: a refused request gets a receipt
                self._reject(outputs, record, Rejection("refused", refused.reason))
            self._trail.write_renewals(outputs)
        self._trail.note_due(outputs)
        self._write_changes(outputs)
        if records:
            self._reached[records[-1].topic] = records[-1].offset + 1
            self._progress(outputs)
        return outputs

    def _progress(self, outputs: Outputs) -> None:
        requests, charges = (self._reached[topic] for topic in self.inputs)
        progress = LedgerProgress(requests=requests, charges=charges, trail=self._trail.head)
        headers = with_topic_ids(self.topic_ids)
        outputs.add(self._topics.ledger, self._partition, (PROGRESS_KEY, _ledger_codec.encode(progress), headers))

    def _reject(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> None:
        partition = partition_of(record.key or b"", self._topics.partitions)
        outputs.add(self._topics.rejected, partition, dead_letter(record, rejection))

    def _request(self, record: RecordLike, request: Request, outputs: Outputs) -> None:
        """Process a request and write its receipt, and a trail entry unless it is a repeat."""
        receipt, writes, is_news = self.desk.handle(record, request, outputs)
        for write in writes:
            self._write(outputs, *write)
        if is_news:
            self._trail.write_decision(request, receipt, outputs)
        for account in self.desk.periods.drain_begun():
            self._trail.write_period(receipt, account, outputs)

    def _charge(self, charge: Charge, outputs: Outputs) -> None:
        account, grant = self.ledger.find(charge.source, charge.stream)
        before = grant.state
        changed = self.ledger.charge(
            charge.source,
            charge.stream,
            charge.incarnation,
            answered=charge.answered,
            tops=charge.tops,
            surplus=charge.surplus,
            state=charge.state,
            reason=charge.reason,
        )
        if not changed:
            return
        # Publish also an end that a worker reported: the stream's next worker must not answer.
        reason = charge.reason or "halted by its worker"
        ended = grant.state == "halted" and self.ledger.end(charge.source, charge.stream, "halted", reason)
        if grant.state == "exhausted" and grant.ending is None:
            grant.reason, ended = exhausted_reason(grant.calibration, grant.cutoff), True
        if ended:
            self._workers.publish_control(account, grant, outputs)
        if grant.state == before:
            self._trail.schedule_point(account)
        else:
            self._trail.write_end(account, grant, outputs)

    def _write_changes(self, outputs: Outputs) -> None:
        for write in self.ledger.changes():
            self._write(outputs, *write)

    def _write(self, outputs: Outputs, source: str, key: bytes, record: LedgerRecord | None) -> None:
        value = None if record is None else _ledger_codec.encode(record)
        partition = partition_of(source.encode(), LEDGER_PARTITIONS)
        outputs.add(self._topics.ledger, partition, (key, value, ()))


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection while a restore makes hundreds of thousands of lasting objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
