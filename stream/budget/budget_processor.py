"""The budget service's processor: requests and charges in, ledger and control out.

The first record of truth is the ledger topic, which is this processor's changelog. Requests are idempotent by id: a
request seen before gets its first receipt again and changes nothing.
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
from stream.budget.openings import Workers
from stream.budget.request_handler import Desk
from stream.budget.trail_writer import TrailWriter
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.ledger.ledger_records import restore
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.dead_letters import Rejection, Unread, dead_letter, exhausted_reason
from stream.processing.protocol import (
    PROGRESS_KEY,
    LaterVersionError,
    Outputs,
    RecordLike,
    topic_ids_of,
    with_topic_ids,
)
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of
from stream.tables import TableStore


class LedgerClock:
    """Milliseconds since 1970 by the latest event, and by how long ago that was."""

    def __init__(self) -> None:
        self._since: tuple[int, float] | None = None

    def now(self, latest: int, monotonic: float) -> int:
        """The time, given that of the latest event and a monotonic clock's seconds."""
        if self._since is None or latest > self._since[0] + 1000 * (monotonic - self._since[1]):
            self._since = (latest, monotonic)
        return self._since[0] + int(1000 * (monotonic - self._since[1]))


PLANS_AT_ONCE: Final = 16
"""So many requests of one step may have to be planned, or have a table read: each may take a second or two."""
REQUESTS_AT_ONCE: Final = 400
"""So many requests are handled in one step at most: about 0.2 s of work, and one transaction."""

_ITS_OWN: Final = {"source", "epsilon", "delta", "population", "renews"}
"""What of a source a plan does not depend on."""
_QUICK: Final = ("close", "halt")


class _Peeked(msgspec.Struct):
    """As much of a request as tells how long it may take."""

    kind: str = ""
    stream: Any = None
    source: Any = None


_peek = msgspec.json.Decoder(_Peeked).decode
_encode = msgspec.json.Encoder(order="sorted").encode


def requests_at_once(records: Sequence[RecordLike], ledger: Ledger) -> int:
    """As many requests, from the first, as need no more than ``PLANS_AT_ONCE`` plans; at least one.

    Streams that differ in their names and thresholds alone, on sources that differ in their names and budgets alone, share a plan.
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
    """What tells requests apart that are not planned alike; None for one that is quick."""
    if not isinstance(record.value, bytes):
        return None
    try:
        request = _peek(record.value)
    except UNREADABLE:
        return None  # refused unread
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
    """What a plan depends on of a source; its name where that is not known beforehand."""
    account = ledger.accounts.get(source) if isinstance(source, str) else None
    if account is None or isinstance(account.source, TableSource):
        return source
    return account.source.model_dump(exclude=_ITS_OWN)


CHARGES_AT_ONCE = 1_000
"""So many charges are taken in in one step."""

RENEWALS_AT_ONCE = 100
"""So many budgets begin a new period in one step without events."""

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
        """Take ``mint``, which gives 16 unpredictable bytes for the request that opens a stream."""
        self.inputs = (topics.requests, topics.charges)
        self.tables: tuple[str, ...] = ()
        self.changelog = topics.ledger
        self.repeatable = False
        self.heavy = True
        self.ledger = Ledger()
        self._topics = topics
        self._partition = partition
        self._workers = Workers(topics)
        self.desk = Desk(self.ledger, self._workers, key_id=key_id, tables=tables, mint=mint)
        self._trail = TrailWriter(topics, self.ledger)
        self._clock = LedgerClock()
        self._reached = dict.fromkeys(self.inputs, 0)
        self.topic_ids: dict[str, str] = {}
        self._restoring: dict[bytes, RecordLike] = {}

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Collect the ledger's records; of each key only the latest is ever decoded."""
        for record in records:
            key = record.key or b""
            if record.value is None:
                self._restoring.pop(key, None)
            else:
                self._restoring[key] = record

    def restored(self) -> Mapping[str, int]:
        """Rebuild the accounts: sources first, whatever order compaction left. Gives the inputs' next offsets."""
        with _uncollected():
            beside: list[LedgerRecord] = []
            restore(self.ledger, self._entries(beside))
        self.desk.receipts.restore(record for record in beside if isinstance(record, Receipt))
        for progress in (record for record in beside if isinstance(record, LedgerProgress)):
            self._reached = {self._topics.requests: progress.requests, self._topics.charges: progress.charges}
            self._trail.restore(progress.trail)
        return dict(self._reached)

    def _entries(self, beside: list[LedgerRecord]) -> Iterator[LedgerRecord]:
        """The accounts and grants that were collected, one by one; what is no part of the ledger goes ``beside``."""
        for key in list(self._restoring):
            record = self._restoring.pop(key)
            if key == PROGRESS_KEY:
                self.topic_ids = topic_ids_of(record)
            entry = _entry_of(record)
            if isinstance(entry, Receipt | LedgerProgress):
                beside.append(entry)
            else:
                yield entry

    def recreated(self, topic: str) -> None:
        """Take requests or charges from their beginning: a request is done once, and charges are totals."""
        self._reached[topic] = 0

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """There are no tables to follow."""
        del records
        return Outputs()

    def needs_tables(self, records: Sequence[RecordLike]) -> bool:
        """There are no tables."""
        del records
        return False

    def idle(self, now: float) -> Outputs:
        """Begin the periods that are due, which no decision waits for, but whoever looks at a budget; note points of the trail."""
        outputs = Outputs()
        clock = self._clock.now(self.ledger.clock, now)
        due = [owner for owner in self.ledger.renewing if owner.budget.is_over(clock)]
        if due:
            self.ledger.tell_time(clock)
            for owner in due[:RENEWALS_AT_ONCE]:
                self.ledger.turn(owner)
            self._trail.renewed(outputs)
        self._trail.note_quiet(now, outputs)
        if outputs:
            self._write_changes(outputs)
            self._progress(outputs)
        return outputs

    def portion(self, records: Sequence[RecordLike]) -> int:
        """As many as are handled in moments, and in seconds at worst."""
        if records[0].topic == self._topics.charges:
            return min(len(records), CHARGES_AT_ONCE)
        return requests_at_once(records, self.ledger)

    def process(self, records: Sequence[RecordLike]) -> Outputs:
        """Handle requests or charges in order."""
        outputs = Outputs()
        for record in records:
            self.ledger.tell_time(record.timestamp)
            self._trail.begin(outputs)
            try:
                if isinstance(record.value, Unread):
                    self._reject(outputs, record, record.value.rejection)
                elif record.topic == self._topics.charges:
                    self._charge(_charge_codec.decode(record.value), outputs)
                else:
                    self._request(record, _request_codec.decode(record.value), outputs)
            except MalformedEventError as error:
                self._reject(outputs, record, Rejection("malformed", str(error)))
            except RefusedError as refused:
                self._reject(outputs, record, Rejection("refused", refused.reason))
            self._trail.renewed(outputs)
        self._trail.note_due(outputs)
        self._write_changes(outputs)
        if records:
            self._reach(records[-1], outputs)
        return outputs

    def _reach(self, last: RecordLike, outputs: Outputs) -> None:
        self._reached[last.topic] = last.offset + 1
        self._progress(outputs)

    def _progress(self, outputs: Outputs) -> None:
        requests, charges = (self._reached[topic] for topic in self.inputs)
        progress = LedgerProgress(requests=requests, charges=charges, trail=self._trail.head)
        headers = with_topic_ids(self.topic_ids)
        outputs.add(self._topics.ledger, self._partition, (PROGRESS_KEY, _ledger_codec.encode(progress), headers))

    def _reject(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> None:
        partition = partition_of(record.key or b"", self._topics.partitions)
        outputs.add(self._topics.rejected, partition, dead_letter(record, rejection))

    def _request(self, record: RecordLike, request: Request, outputs: Outputs) -> None:
        """Have a request done, and write what it was told; the trail has it too, unless it was sent again."""
        receipt, writes, is_news = self.desk.take(record, request, outputs)
        for write in writes:
            self._write(outputs, *write)
        if is_news:
            self._trail.decided(request, receipt, outputs)
        for account in self.desk.periods.begun():
            self._trail.began(receipt, account, outputs)

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
        # What the ledger takes for ended must not answer, whoever said that it has.
        reason = charge.reason or "halted by its worker"
        ended = grant.state == "halted" and self.ledger.end(charge.source, charge.stream, "halted", reason)
        if grant.state == "exhausted" and grant.ending is None:
            grant.reason, ended = exhausted_reason(grant.calibration, grant.cutoff), True
        if ended:
            self._workers.tell(account, grant, outputs)
        if grant.state == before:
            self._trail.spent(account)
        else:
            self._trail.ended(account, grant, outputs)

    def _write_changes(self, outputs: Outputs) -> None:
        """Write down whatever has changed in this step."""
        for write in self.ledger.changes():
            self._write(outputs, *write)

    def _write(self, outputs: Outputs, source: str, key: bytes, record: LedgerRecord | None) -> None:
        value = None if record is None else _ledger_codec.encode(record)
        partition = partition_of(source.encode(), LEDGER_PARTITIONS)
        outputs.add(self._topics.ledger, partition, (key, value, ()))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage meanwhile: a restore makes hundreds of thousands of objects, and all of them stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _entry_of(record: RecordLike) -> LedgerRecord:
    try:
        return _ledger_codec.decode_own(record.value or b"")
    except MalformedEventError:
        raise LaterVersionError(record) from None
