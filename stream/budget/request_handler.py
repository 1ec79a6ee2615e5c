"""Handles requests to the budget service; requests are idempotent by id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from schemas import (
    Allot,
    BeginPeriod,
    CloseStream,
    EventsSource,
    ExtendStream,
    HaltSource,
    HaltStream,
    JoinPopulation,
    OpenStream,
    Receipt,
    RefreshSource,
    RegisterPopulation,
    RegisterSource,
    Request,
    Source,
    StreamIdentity,
    StreamSpec,
    TableSource,
    named_from,
    subject_of,
)
from stream.budget.openings import (
    AccountPeriods,
    ControlPublisher,
    definition_digest,
    period_meaning,
    plan_for,
    require_reach,
    require_whole_life,
)
from stream.budget.receipts import Receipts, Write, receipt_key, request_digest
from stream.budget.standing_streams import complete_spec, promised_windows, require_bounded_past, require_declared
from stream.privacy.accuracy.sparse_vector_accuracy import AccuracyError
from stream.privacy.composition.costs import to_amount
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.ledger.accounts import Account
from stream.privacy.ledger.grants import meaning, meaning_of_joining
from stream.privacy.ledger.ledger_records import refresh, require_refreshable
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.noise import NoiseScaleError
from stream.privacy.planning.noise_layouts import PlanError
from stream.processing.exact_decimals import require_kept_digits
from stream.processing.protocol import Outputs, RecordLike
from stream.tables import DataError, TableStore

Outcome = Literal["registered", "opened", "closing", "halted", "refused"]


_REFUSALS = (RefusedError, PlanError, AccuracyError, NoiseScaleError, DataError)
"""Errors caused by a request. Any other error fails the task, and the request is retried."""


class RequestHandler:
    """Applies requests to the ledger and remembers their receipts."""

    def __init__(
        self,
        ledger: Ledger,
        workers: ControlPublisher,
        *,
        key_id: str,
        tables: TableStore,
        mint: Callable[[RecordLike], bytes],
    ) -> None:
        self.receipts = Receipts()
        self._ledger = ledger
        self._workers = workers
        self.periods = AccountPeriods(ledger, workers, key_id=key_id, mint=mint)
        self._key_id = key_id
        self._tables = tables
        # Public numbers of rows, kept because tables may be unloaded.
        self._rows: dict[tuple[str, str | None], int] = {}
        self._mint = mint

    def handle(
        self, record: RecordLike, request: Request, outputs: Outputs
    ) -> tuple[Receipt, Iterable[Write], bool]:
        """Apply a request once; return receipt, ledger writes, and True unless it is a repeat.

        The writes are the receipt and, if there are too many, the deletion of the oldest one. A
        request with the id of another request is refused; it is no repeat.
        """
        digest = request_digest(request)
        if (written := self.receipts.find_repeat(request, digest)) is not None:
            _, key, earlier = written[0]
            if earlier is not None:
                return earlier, written, key != receipt_key(request.request)
        try:
            receipt = self._apply(record, request, digest, outputs)
        except _REFUSALS as error:
            asked, left = (error.asked, error.left) if isinstance(error, RefusedError) else (None, None)
            receipt = self._receipt(request, digest, "refused").model_copy(
                update={"reason": str(error)[:1024], "asked": asked, "left": left},
            )
        return receipt, self.receipts.keep(receipt), True

    def _apply(self, record: RecordLike, request: Request, digest: str, outputs: Outputs) -> Receipt:
        """Apply a request and return its receipt; a refusal raises and changes nothing."""
        fields: dict[str, Any] = {}
        outcome: Outcome
        match request:
            case RegisterSource() | RegisterPopulation() | JoinPopulation() | Allot():
                fields, outcome = self._apply_to_budgets(record, request), "registered"
            case OpenStream():
                fields, outcome = self._open(record, request, outputs), "opened"
            case ExtendStream():
                fields, outcome = self._extend(request, digest, outputs), "opened"
            case CloseStream():
                outcome = self._end(request, "closed", outputs)
            case HaltStream():
                outcome = self._end(request, "halted", outputs)
            case HaltSource():
                fields, outcome = self._halt_source(request, outputs), "halted"
            case BeginPeriod():
                self.periods.begin_period(record, request, outputs)
                outcome = "registered"
            case RefreshSource():
                fields, outcome = self._refresh(request, outputs), "registered"
        return self._receipt(request, digest, outcome).model_copy(update=fields)

    def _apply_to_budgets(
        self, record: RecordLike, request: RegisterSource | RegisterPopulation | JoinPopulation | Allot
    ) -> dict[str, Any]:
        """Apply a request about whole budgets and return fields of its receipt."""
        if isinstance(request, JoinPopulation):
            require_whole_life(self._ledger.account(request.source).source, "it cannot join a population")
            return self._join(request)
        if isinstance(request, Allot):
            self._allot(request)
            return {}
        if isinstance(request, RegisterSource):
            require_kept_digits(record.value or b"")
            account = self._register(request)
            if (meant := period_meaning(account.source)) is not None:
                return {"meaning": meant}
            budget = account.budget
        else:
            budget = self._ledger.register_population(request.population).budget
        return {} if budget.terms.renews is None else {"meaning": meaning(budget.terms, budget.number)}

    def _join(self, request: JoinPopulation) -> dict[str, Any]:
        """Add a source to a population; the receipt tells if earlier periods omit its grants."""
        ledger = self._ledger
        is_member = ledger.account(request.source).people is not None
        account = ledger.join(request.source, request.population)
        number = ledger.people(request.population).budget.number
        if is_member or not account.grants or number <= 1:
            return {}
        return {"meaning": meaning_of_joining(request.source, request.population, number)}

    def _register(self, request: RegisterSource) -> Account:
        """Register a source. Only the first registration reads its table.

        The receipt of a repeat depends on the two definitions alone, because it is public and costs
        nothing.
        """
        source, fingerprint = request.source, None
        if source.source not in self._ledger.accounts:
            require_reach(source)
            require_declared(source)
            if isinstance(source, EventsSource) and source.has_periods:
                self.periods.require_free(source.source)
            if isinstance(source, TableSource):
                fingerprint = self._tables.fingerprint(source)
        return self._ledger.register(source, fingerprint)

    def _allot(self, request: Allot) -> None:
        ledger = self._ledger
        owner = (
            ledger.account(request.source)
            if request.source is not None
            else ledger.people(request.population or "")
        )
        ledger.allot(owner, request.allotment, request.analysts, request.epsilon, request.delta)

    def _open(self, record: RecordLike, request: OpenStream, outputs: Outputs) -> dict[str, Any]:
        account = self._ledger.account(request.stream.source)
        spec = self._completed(request.stream, account.source)
        calibration = plan_for(spec, account.source, lambda: self._rows_of(account))
        digest = definition_digest(spec, account, calibration)
        identity = StreamIdentity(incarnation=self._mint(record).hex(), digest=digest, key_id=self._key_id)
        grant = self._ledger.reserve(spec, calibration, identity, request.analyst)
        self._workers.publish_control(account, grant, outputs)
        if spec.standing is None:
            return {}
        return {"begins": spec.standing.begins, "windows": promised_windows(spec, account.source)}

    def _completed(self, spec: StreamSpec, source: Source) -> StreamSpec:
        """Fill in a specification's defaults; RefusedError for a name or source of a period."""
        if named_from(spec.stream) is not None:
            raise RefusedError("stream: ends as the name of one of a period does; choose another name")
        if isinstance(source, EventsSource) and source.period_of is not None:
            raise RefusedError(
                f"source: is a period, whose streams open by themselves; open them on '{source.period_of}'"
            )
        completed_spec = complete_spec(spec, source, clock=max(self._ledger.clock, self.periods.earliest(source)))
        self.periods.require_ahead(completed_spec, source)
        require_bounded_past(completed_spec, source, clock=self._ledger.clock)
        if isinstance(source, EventsSource) and source.has_periods:
            self.periods.require_free(spec.stream)
        return completed_spec

    def _extend(self, request: ExtendStream, digest: str, outputs: Outputs) -> dict[str, Any]:
        """Grant further charged answers, notify the worker, and return fields of the receipt.

        The grant keeps the digests of the requests that extended it: their receipts may be deleted.
        """
        account, grant = self._ledger.find(request.source, request.stream)
        require_whole_life(account.source, "its streams are not extended; open another stream")
        accountant = account.source.accountant
        if (found := grant.extended_by(digest, accountant)) is None:
            self._ledger.extend(
                request.source, request.stream, digest, request.epsilon, request.delta, request.analyst
            )
            found = grant.extended_by(digest, accountant)
            self._workers.publish_control(account, grant, outputs)
        if found is None:
            raise AssertionError("the ledger has extended a stream by no request")
        extension, cost = found
        return {"answers": extension.answers, "granted": to_amount(cost, account.source)}

    def _rows_of(self, account: Account) -> int:
        """Return the number of rows of a table, which is public if neighbors replace a row."""
        if not isinstance(account.source, TableSource):
            raise RefusedError("mechanism.rows: the source has no rows; remove it")
        asked = (account.name, account.fingerprint)
        if (known := self._rows.get(asked)) is None:
            table = self._tables.get(account.source, account.fingerprint, account.version)
            known = self._rows[asked] = table.public_size
        return known

    def _end(
        self,
        request: CloseStream | HaltStream,
        ending: Literal["halted", "closed"],
        outputs: Outputs,
    ) -> Literal["closing", "halted"]:
        account, grant = self._ledger.find(request.source, request.stream)
        if self._ledger.end(request.source, request.stream, ending, request.reason):
            self._workers.publish_control(account, grant, outputs)
        self.periods.end_stream(
            account,
            request.stream,
            lambda source, stream: self._ledger.end(source, stream, ending, request.reason),
            outputs,
        )
        return "closing" if grant.ending == "closed" else "halted"

    def _halt_source(self, request: HaltSource, outputs: Outputs) -> dict[str, Any]:
        account = self._ledger.account(request.source)
        for one in (account, *self.periods.accounts_of(request.source)):
            for grant in self._ledger.halt_source(one.name, request.reason):
                self._workers.publish_control(one, grant, outputs)
        return {}

    def _refresh(self, request: RefreshSource, outputs: Outputs) -> dict[str, Any]:
        """Read a table's next version, notify the workers, and return fields of the receipt.

        Equal data also makes a new version: whether a row has changed is private.
        """
        account = self._ledger.account(request.source)
        require_refreshable(account)
        if isinstance(account.source, TableSource):
            found = self._tables.fingerprint(account.source, account.version + 1)
            for grant in refresh(self._ledger, account, found, close=request.close):
                self._workers.publish_control(account, grant, outputs)
        return {"version": account.version}

    def _receipt(self, request: Request, digest: str, outcome: Outcome) -> Receipt:
        source, stream = subject_of(request)
        ended = stream if outcome in {"closing", "halted"} else None
        return Receipt(
            request=request.request,
            digest=digest,
            sequence=self.receipts.sequence,
            source=source,
            stream=stream,
            outcome=outcome,
            state=None if ended is None else self._ledger.find(source, ended)[1].state,
            population=_population_of(request),
        )


def _population_of(request: Request) -> str | None:
    match request:
        case RegisterPopulation():
            return request.population.population
        case JoinPopulation() | Allot():
            return request.population
        case _:
            return None
