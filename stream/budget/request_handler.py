"""What is done with each request, and the receipt that it gets. Requests are idempotent by id."""

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
from stream.budget.account_periods import AccountPeriods, period_meaning, require_whole_life
from stream.budget.openings import Workers, definition_digest, plan_for, require_reach
from stream.budget.standing_streams import completed, promised_windows, require_bounded_past, require_declared
from stream.privacy.accuracy.sparse_vector_accuracy import AccuracyError
from stream.privacy.composition.costs import to_amount
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.ledger.accounts import Account
from stream.privacy.ledger.grants import meaning, meaning_of_joining
from stream.privacy.ledger.ledger_records import refresh, require_refreshable
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.noise import NoiseScaleError
from stream.privacy.planning.plans import PlanError
from stream.processing.exact_decimals import require_kept_digits
from stream.processing.protocol import Outputs, RecordLike
from stream.processing.receipts import Receipts, Write, receipt_key, request_digest
from stream.tables import DataError, TableStore

Outcome = Literal["registered", "opened", "closing", "halted", "refused"]


_REFUSALS = (RefusedError, PlanError, AccuracyError, NoiseScaleError, DataError)
"""What is wrong with a request. Any other error is a fault: it fails the task, and the request is tried again."""


class Desk:
    """Takes requests to the ledger, and remembers what became of each."""

    def __init__(
        self,
        ledger: Ledger,
        workers: Workers,
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
        # Numbers of rows that are public; the tables may be let go of.
        self._rows: dict[tuple[str, str | None], int] = {}
        self._mint = mint

    def take(
        self, record: RecordLike, request: Request, outputs: Outputs
    ) -> tuple[Receipt, Iterable[Write], bool]:
        """Do what is asked, once. Gives its receipt, what is to be written of it, and whether that was not decided before.

        What is to be written is the receipt, and one that is forgotten for it.
        """
        digest = request_digest(request)
        if (written := self.receipts.again(request, digest)) is not None:
            _, key, told = written[0]
            if told is not None:
                return told, written, key != receipt_key(request.request)
        try:
            receipt = self._done(record, request, digest, outputs)
        except _REFUSALS as error:
            asked, left = (error.asked, error.left) if isinstance(error, RefusedError) else (None, None)
            receipt = self._receipt(request, digest, "refused").model_copy(
                update={"reason": str(error)[:1024], "asked": asked, "left": left},
            )
        return receipt, self.receipts.keep(receipt), True

    def _done(self, record: RecordLike, request: Request, digest: str, outputs: Outputs) -> Receipt:
        """Do what is asked, and give its receipt; a refusal is raised, and has changed nothing."""
        told: dict[str, Any] = {}
        outcome: Outcome
        match request:
            case RegisterSource() | RegisterPopulation() | JoinPopulation() | Allot():
                told, outcome = self._of_budgets(record, request), "registered"
            case OpenStream():
                told, outcome = self._open(record, request, outputs), "opened"
            case ExtendStream():
                told, outcome = self._extend(request, digest, outputs), "opened"
            case CloseStream():
                outcome = self._end(request, "closed", outputs)
            case HaltStream():
                outcome = self._end(request, "halted", outputs)
            case HaltSource():
                told, outcome = self._halt_source(request, outputs), "halted"
            case BeginPeriod():
                self.periods.begin(record, request, outputs)
                outcome = "registered"
            case RefreshSource():
                told, outcome = self._refresh(request, outputs), "registered"
        return self._receipt(request, digest, outcome).model_copy(update=told)

    def _of_budgets(
        self, record: RecordLike, request: RegisterSource | RegisterPopulation | JoinPopulation | Allot
    ) -> dict[str, Any]:
        """Do what concerns whole budgets, and give what the receipt says of it."""
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
        """Let a source join; the receipt names what earlier periods of the population have not counted."""
        ledger = self._ledger
        is_member = ledger.account(request.source).people is not None
        account = ledger.join(request.source, request.population)
        number = ledger.people(request.population).budget.number
        if is_member or not account.grants or number <= 1:
            return {}
        return {"meaning": meaning_of_joining(request.source, request.population, number)}

    def _register(self, request: RegisterSource) -> Account:
        """Register a source. Only the first registration reads its table.

        The answer to a later one depends on the two definitions alone, because it is public and costs nothing.
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
        self._workers.tell(account, grant, outputs)
        if spec.standing is None:
            return {}
        return {"begins": spec.standing.begins, "windows": promised_windows(spec, account.source)}

    def _completed(self, spec: StreamSpec, source: Source) -> StreamSpec:
        """The specification with what was left out; RefusedError if nobody opens such a stream."""
        if named_from(spec.stream) is not None:
            raise RefusedError("stream: ends as the name of one of a period does; choose another name")
        if isinstance(source, EventsSource) and source.period_of is not None:
            raise RefusedError(
                f"source: is a period, whose streams open by themselves; open them on '{source.period_of}'"
            )
        completed_spec = completed(spec, source, clock=max(self._ledger.clock, self.periods.earliest(source)))
        self.periods.require_ahead(completed_spec, source)
        require_bounded_past(completed_spec, source, clock=self._ledger.clock)
        if isinstance(source, EventsSource) and source.has_periods:
            self.periods.require_free(spec.stream)
        return completed_spec

    def _extend(self, request: ExtendStream, digest: str, outputs: Outputs) -> dict[str, Any]:
        """Grant further charged answers, tell the worker, and give what the receipt says of it.

        The grant knows by which requests it was extended, for their receipts may be forgotten.
        """
        account, grant = self._ledger.find(request.source, request.stream)
        require_whole_life(account.source, "its streams are not extended; open another stream")
        accountant = account.source.accountant
        if (found := grant.extended_by(digest, accountant)) is None:
            self._ledger.extend(
                request.source, request.stream, digest, request.epsilon, request.delta, request.analyst
            )
            found = grant.extended_by(digest, accountant)
            self._workers.tell(account, grant, outputs)
        if found is None:
            raise AssertionError("the ledger has extended a stream by no request")
        extension, cost = found
        return {"answers": extension.answers, "granted": to_amount(cost, account.source)}

    def _rows_of(self, account: Account) -> int:
        """The number of rows of an account's file, public where neighbours replace a row."""
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
            self._workers.tell(account, grant, outputs)
        self.periods.end(
            account,
            request.stream,
            lambda source, stream: self._ledger.end(source, stream, ending, request.reason),
            outputs,
        )
        return "closing" if grant.ending == "closed" else "halted"

    def _halt_source(self, request: HaltSource, outputs: Outputs) -> dict[str, Any]:
        account = self._ledger.account(request.source)
        for one in (account, *self.periods.of(request.source)):
            for grant in self._ledger.halt_source(one.name, request.reason):
                self._workers.tell(one, grant, outputs)
        return {}

    def _refresh(self, request: RefreshSource, outputs: Outputs) -> dict[str, Any]:
        """Take in a table's next version, tell the workers, and give its number.

        It is another even if no row has changed: whether one has is private.
        """
        account = self._ledger.account(request.source)
        require_refreshable(account)
        if isinstance(account.source, TableSource):
            found = self._tables.fingerprint(account.source, account.version + 1)
            for grant in refresh(self._ledger, account, found, close=request.close):
                self._workers.tell(account, grant, outputs)
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
