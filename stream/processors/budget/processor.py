"""The budget service's processor: requests and charges in, ledger and control out.

The first record of truth is the ledger topic, which is this processor's changelog. Requests are idempotent by id: a
request seen before gets its first receipt again and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from schemas import (
    MAX_DEFINITION_BYTES,
    MAX_RECORD_BYTES,
    Charge,
    CloseStream,
    Control,
    ExtendStream,
    GrantRecord,
    HaltSource,
    HaltStream,
    LedgerProgress,
    LedgerRecord,
    OpenStream,
    Receipt,
    RegisterSource,
    Request,
    Source,
    SourceRecord,
    StreamIdentity,
    TableSource,
    subject_of,
)
from schemas.wire import Codec, MalformedEventError
from stream.accounting.accuracy import AccuracyError
from stream.accounting.costs import to_amount
from stream.accounting.ledger import Account, Grant, Ledger, RefusedError
from stream.accounting.planner import PlanError
from stream.data import DataError, TableStore
from stream.noise import NoiseScaleError
from stream.processors.base import PROGRESS_KEY, LaterVersionError, Message, Outputs, RecordLike
from stream.processors.budget.openings import control_event, definition_digest, plan_for, require_reach
from stream.processors.budget.trail import Trail
from stream.processors.exhaustion import exhausted_reason
from stream.processors.letters import dead_letter
from stream.processors.receipts import Receipts, receipt_key, request_digest
from stream.processors.rejections import INTERNAL, Rejection
from stream.processors.topics import LEDGER_PARTITIONS, Topics, partition_of
from stream.processors.unread import Unread
from stream.processors.written import require_kept_digits

REQUESTS_AT_ONCE = 16
"""So many requests are handled in one step: one that opens a stream may be planned for a second or two."""

CHARGES_AT_ONCE = 1_000
"""So many charges are taken in in one step."""

_request_codec: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_charge_codec: Codec[Charge] = Codec(Charge, limit=MAX_DEFINITION_BYTES)
_ledger_codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)
_control_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)


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
        self._key_id = key_id
        self._tables = tables
        self._mint = mint
        self._receipts = Receipts()
        self._trail = Trail(topics, self._touch)
        self._reached = dict.fromkeys(self.inputs, 0)
        self._restoring: dict[bytes, RecordLike] = {}
        self._changed_accounts: dict[str, Account] = {}
        self._changed_grants: dict[str, tuple[Account, Grant]] = {}

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
        records = [_entry_of(record) for record in self._restoring.values()]
        for record in records:
            if isinstance(record, SourceRecord):
                self.ledger.restore_source(record)
        for record in records:
            if isinstance(record, GrantRecord):
                self.ledger.restore_grant(record)
        self._receipts.restore(record for record in records if isinstance(record, Receipt))
        for progress in (record for record in records if isinstance(record, LedgerProgress)):
            self._reached = {self._topics.requests: progress.requests, self._topics.charges: progress.charges}
            self._trail.restore(progress.trail, self.ledger)
        self._restoring = {}
        return dict(self._reached)

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """There are no tables to follow."""
        del records
        return Outputs()

    def needs_tables(self, records: Sequence[RecordLike]) -> bool:
        """There are no tables."""
        del records
        return False

    def refuse(self, record: RecordLike) -> Outputs:
        """Write a dead letter for an event that breaks ``process``."""
        outputs = Outputs()
        self._reject(outputs, record, INTERNAL)
        self._reach(record, outputs)
        return outputs

    def idle(self, now: float) -> Outputs:
        """Points of the trail are due when nothing has come for a while."""
        outputs = Outputs()
        self._trail.note_quiet(now, outputs)
        if outputs:
            self._write_changes(outputs)
            self._progress(outputs)
        return outputs

    def portion(self, records: Sequence[RecordLike]) -> int:
        """As many as are handled in moments, and in seconds at worst."""
        many = CHARGES_AT_ONCE if records[0].topic == self._topics.charges else REQUESTS_AT_ONCE
        return min(len(records), many)

    def process(self, records: Sequence[RecordLike]) -> Outputs:
        """Handle requests or charges in order."""
        outputs = Outputs()
        for record in records:
            self._trail.at(record.timestamp)
            self._trail.begin(self.ledger, outputs)
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
        outputs.add(self._topics.ledger, self._partition, (PROGRESS_KEY, _ledger_codec.encode(progress), ()))

    def _reject(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> None:
        partition = partition_of(record.key or b"", self._topics.partitions)
        outputs.add(self._topics.rejected, partition, dead_letter(record, rejection))

    def _request(self, record: RecordLike, request: Request, outputs: Outputs) -> None:
        digest = request_digest(request)
        if (written := self._receipts.again(request, digest)) is not None:
            for write in written:
                self._write(outputs, *write)
            _, key, told = written[0]
            if told is not None and key != receipt_key(request.request):
                self._note(request, told, outputs)
            return
        try:
            receipt = self._done(record, request, digest, outputs)
        except (RefusedError, PlanError, ValueError, ArithmeticError) as error:
            asked, left = (error.asked, error.left) if isinstance(error, RefusedError) else (None, None)
            receipt = self._receipt(request, digest, "refused").model_copy(
                update={"reason": _reason(error), "asked": asked, "left": left},
            )
        for write in self._receipts.keep(receipt):
            self._write(outputs, *write)
        self._note(request, receipt, outputs)

    def _note(self, request: Request, receipt: Receipt, outputs: Outputs) -> None:
        """Write a request and its decision into the trail."""
        account = self.ledger.accounts.get(receipt.source)
        grant = None if account is None else account.grants.get(receipt.stream or "")
        self._trail.decided(request, receipt, account, grant, outputs)

    def _done(self, record: RecordLike, request: Request, digest: str, outputs: Outputs) -> Receipt:
        """Do what is asked, and give its receipt; a refusal is raised, and has changed nothing."""
        match request:
            case RegisterSource():
                require_kept_digits(record.value or b"")
                return self._receipt(request, digest, self._register(request))
            case OpenStream():
                return self._receipt(request, digest, self._open(record, request, outputs))
            case ExtendStream():
                told = self._extend(request, digest, outputs)
                return self._receipt(request, digest, "opened").model_copy(update=told)
            case CloseStream():
                return self._receipt(request, digest, self._end(request, "closed", outputs))
            case HaltStream():
                return self._receipt(request, digest, self._end(request, "halted", outputs))
            case HaltSource():
                return self._receipt(request, digest, self._halt_source(request, outputs))

    def _register(self, request: RegisterSource) -> Literal["registered"]:
        source = request.source
        if source.source not in self.ledger.accounts:
            require_reach(source)
        self._touch(self.ledger.register(source, self._fingerprint_of(source)))
        return "registered"

    def _fingerprint_of(self, source: Source) -> str | None:
        """A table's fingerprint; that which is on record if the data has it under an older key."""
        if not isinstance(source, TableSource):
            return None
        known = self.ledger.accounts.get(source.source)
        if known is not None and known.fingerprint is not None and self._tables.matches(source, known.fingerprint):
            return known.fingerprint
        return self._tables.fingerprint(source)

    def _open(self, record: RecordLike, request: OpenStream, outputs: Outputs) -> Literal["opened"]:
        spec = request.stream
        account = self.ledger.account(spec.source)
        calibration = plan_for(spec, account.source, lambda: self._rows_of(account))
        digest = definition_digest(spec, account, calibration)
        identity = StreamIdentity(incarnation=self._mint(record).hex(), digest=digest, key_id=self._key_id)
        grant = self.ledger.reserve(spec, calibration, identity)
        self._touch(account, grant)
        self._tell(account, grant, outputs)
        return "opened"

    def _extend(self, request: ExtendStream, digest: str, outputs: Outputs) -> dict[str, Any]:
        """Grant further charged answers, tell the worker, and give what the receipt says of it.

        The grant knows by which requests it was extended, for their receipts may be forgotten.
        """
        account, grant = self.ledger.find(request.source, request.stream)
        accountant = account.source.accountant
        if (found := grant.extended_by(digest, accountant)) is None:
            self.ledger.extend(request.source, request.stream, digest, request.epsilon, request.delta)
            found = grant.extended_by(digest, accountant)
            self._touch(account, grant)
            self._tell(account, grant, outputs)
        if found is None:
            raise AssertionError("the ledger has extended a stream by no request")
        extension, cost = found
        return {"answers": extension.answers, "granted": to_amount(cost, account.source)}

    def _rows_of(self, account: Account) -> int:
        """The number of rows of an account's file, public where neighbours replace a row."""
        if not isinstance(account.source, TableSource):
            raise RefusedError("mechanism.rows: the source has no rows; remove it")
        return self._tables.get(account.source, account.fingerprint).file_row_count

    def _end(
        self,
        request: CloseStream | HaltStream,
        ending: Literal["halted", "closed"],
        outputs: Outputs,
    ) -> Literal["closing", "halted"]:
        account, grant = self.ledger.find(request.source, request.stream)
        if self.ledger.end(request.source, request.stream, ending, request.reason):
            self._touch(account, grant)
            self._tell(account, grant, outputs)
        return "closing" if grant.ending == "closed" else "halted"

    def _halt_source(self, request: HaltSource, outputs: Outputs) -> Literal["halted"]:
        account = self.ledger.account(request.source)
        for grant in self.ledger.halt_source(request.source, request.reason):
            self._touch(account, grant)
            self._tell(account, grant, outputs)
        self._touch(account)
        return "halted"

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
        self._touch(account, grant)
        # What the ledger takes for ended must not answer, whoever said that it has.
        reason = charge.reason or "halted by its worker"
        ended = grant.state == "halted" and self.ledger.end(charge.source, charge.stream, "halted", reason)
        if grant.state == "exhausted" and grant.ending is None:
            grant.reason, ended = exhausted_reason(grant.calibration, grant.cutoff), True
        if ended:
            self._tell(account, grant, outputs)
        if grant.state == before:
            self._trail.spent(account)
        else:
            self._trail.ended(account, grant, outputs)

    def _tell(self, account: Account, grant: Grant, outputs: Outputs) -> None:
        """Tell the stream's worker what it may do now."""
        control = control_event(account, grant)
        key = grant.spec.stream.encode()
        message: Message = (key, _control_codec.encode(control), ())
        outputs.add(self._topics.control, partition_of(key, self._topics.partitions), message)

    def _receipt(
        self,
        request: Request,
        digest: str,
        outcome: Literal["registered", "opened", "closing", "halted", "refused"],
    ) -> Receipt:
        source, stream = subject_of(request)
        ended = stream if outcome in {"closing", "halted"} else None
        return Receipt(
            request=request.request,
            digest=digest,
            sequence=self._receipts.sequence,
            source=source,
            stream=stream,
            outcome=outcome,
            state=None if ended is None else self.ledger.find(source, ended)[1].state,
        )

    def _write_changes(self, outputs: Outputs) -> None:
        """Write each changed account and grant once per batch: records are absolute, the last one counts."""
        for name, account in self._changed_accounts.items():
            self._write(outputs, name, f"source|{name}".encode(), account.record())
        for stream, (account, grant) in self._changed_grants.items():
            name = account.source.source
            self._write(outputs, name, f"grant|{name}|{stream}".encode(), account.grant_record(grant))
        self._changed_accounts.clear()
        self._changed_grants.clear()

    def _touch(self, account: Account, grant: Grant | None = None) -> None:
        self._changed_accounts[account.source.source] = account
        if grant is not None:
            self._changed_grants[grant.spec.stream] = (account, grant)

    def _write(self, outputs: Outputs, source: str, key: bytes, record: LedgerRecord | None) -> None:
        value = None if record is None else _ledger_codec.encode(record)
        partition = partition_of(source.encode(), LEDGER_PARTITIONS)
        outputs.add(self._topics.ledger, partition, (key, value, ()))


def _entry_of(record: RecordLike) -> LedgerRecord:
    try:
        return _ledger_codec.decode(record.value)
    except MalformedEventError:
        raise LaterVersionError(record) from None


def _reason(error: Exception) -> str:
    """Why a request is refused, for the ledger: our own words, or that it cannot be computed."""
    if isinstance(error, RefusedError | PlanError | AccuracyError | NoiseScaleError | DataError):
        return str(error)[:1024]
    return "request: it cannot be planned with these numbers; change epsilon, delta, beta or the mechanism's"
