"""Handles requests to the budget service; requests are idempotent by id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

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
    StreamSpec,
    TableSource,
    split_period_name,
    subject_of,
)
from stream.budget.decision_records import ControlPublisher
from stream.budget.mechanism_choice import choose_mechanism, opening_warning
from stream.budget.openings import (
    AccountPeriods,
    describe_period_budget,
    plan_stream,
    require_grid_covers_range,
    require_no_periods,
)
from stream.budget.receipts import LedgerWrite, Receipts, request_digest
from stream.budget.standing_streams import (
    complete_spec,
    promised_windows,
    require_bounded_past,
    require_foreign_topic,
    require_valid_periods,
)
from stream.budget.waiting_requests import TableReadings
from stream.caches import RecentCache
from stream.privacy.accuracy.sparse_vector_accuracy import AccuracyError
from stream.privacy.composition.costs import RefusedError, to_amount
from stream.privacy.ledger.accounts import Account
from stream.privacy.ledger.ledger_records import refresh_source, require_refreshable
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.mechanisms.private_values import require_exact_doubles
from stream.privacy.noise.samplers import NoiseScaleError
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.promises import describe_joining, describe_promise
from stream.processing.protocol import Outputs, RecordLike
from stream.processing.topic_names import Topics
from stream.tables.table_errors import TableDataError

Outcome = Literal["registered", "opened", "closing", "halted", "refused"]

_ROW_COUNTS_KEPT: Final = 1 << 12
_REFUSAL_ERRORS = (RefusedError, PlanError, AccuracyError, NoiseScaleError, TableDataError)
"""Errors that refuse a request. After any other error the task fails and retries the request."""


class RequestHandler:
    """Applies requests to the ledger and remembers their receipts."""

    def __init__(
        self,
        ledger: Ledger,
        control_publisher: ControlPublisher,
        topics: Topics,
        *,
        key_id: str,
        readings: TableReadings,
        new_incarnation: Callable[[RecordLike], bytes],
    ) -> None:
        self.receipts = Receipts()
        self._ledger = ledger
        self._control_publisher = control_publisher
        self._topics = topics
        self.periods = AccountPeriods(ledger, control_publisher, key_id=key_id, new_incarnation=new_incarnation)
        self._readings = readings
        self._row_counts: RecentCache[tuple[str, str | None], int] = RecentCache(_ROW_COUNTS_KEPT)
        """Public numbers of rows by source and fingerprint, kept because tables may be unloaded."""

    def handle(
        self, record: RecordLike, request: Request, outputs: Outputs
    ) -> tuple[Receipt, Iterable[LedgerWrite], bool]:
        """Apply a request once; return its receipt, the ledger's records, and True unless it is a repeat.

        The records are the receipt and, if there are too many receipts, the deletion of the oldest one.
        A request with the id of an earlier request and other content is refused.

        Raises:
            TableNotReadError: the request's table is being read; nothing has changed.
        """
        digest = request_digest(request)
        if (handled := self.receipts.find_repeat(request, digest)) is not None:
            return handled
        try:
            receipt = self._apply(record, request, digest, outputs)
        except _REFUSAL_ERRORS as error:
            asked, left = (error.asked, error.left) if isinstance(error, RefusedError) else (None, None)
            refusal = {"reason": str(error)[:1024], "asked": asked, "left": left}
            receipt = self._receipt(request, digest, "refused").model_copy(update=refusal)
        return receipt, self.receipts.add_receipt(receipt), True

    def _apply(self, record: RecordLike, request: Request, digest: str, outputs: Outputs) -> Receipt:
        """Apply a request and return its receipt; a refusal raises and changes nothing."""
        fields: dict[str, Any] = {}
        outcome: Outcome
        match request:
            case RegisterSource() | RegisterPopulation() | JoinPopulation() | Allot():
                fields, outcome = self._apply_to_budgets(record, request), "registered"
            case OpenStream():
                fields, outcome = self._open_stream(record, request, outputs), "opened"
            case ExtendStream():
                fields, outcome = self._extend_stream(request, digest, outputs), "opened"
            case CloseStream():
                outcome = self._end_stream(request, "closed", outputs)
            case HaltStream():
                outcome = self._end_stream(request, "halted", outputs)
            case HaltSource():
                fields, outcome = self._halt_source(request, outputs), "halted"
            case BeginPeriod():
                self.periods.begin_period(record, request, outputs)
                outcome = "registered"
            case RefreshSource():
                fields, outcome = self._refresh_source(request, outputs), "registered"
        return self._receipt(request, digest, outcome).model_copy(update=fields)

    def _apply_to_budgets(
        self, record: RecordLike, request: RegisterSource | RegisterPopulation | JoinPopulation | Allot
    ) -> dict[str, Any]:
        """Apply a request that creates or changes a budget; return fields of its receipt."""
        if isinstance(request, JoinPopulation):
            require_no_periods(self._ledger.account(request.source).source, "it cannot join a population")
            return self._join_population(request)
        if isinstance(request, Allot):
            ledger = self._ledger
            owner = (
                ledger.account(request.source)
                if request.source is not None
                else ledger.population_account(request.population or "")
            )
            ledger.allot(owner, request.allotment, request.analysts, request.epsilon, request.delta)
            return {}
        if isinstance(request, RegisterSource):
            require_exact_doubles(record.value or b"")
            account = self._register_source(request)
            if (meant := describe_period_budget(account.source)) is not None:
                return {"meaning": meant}
            budget = account.budget
        else:
            budget = self._ledger.register_population(request.population).budget
        if budget.terms.renews is None:
            return {}
        return {"meaning": describe_promise(budget.terms, budget.period_number)}

    def _join_population(self, request: JoinPopulation) -> dict[str, Any]:
        """Add a source to a population; the receipt says whether earlier periods did not count its grants."""
        ledger = self._ledger
        is_member = ledger.account(request.source).population is not None
        account = ledger.join_population(request.source, request.population)
        number = ledger.population_account(request.population).budget.period_number
        if is_member or not account.grants or number <= 1:
            return {}
        return {"meaning": describe_joining(request.source, request.population, number)}

    def _register_source(self, request: RegisterSource) -> Account:
        """Register a source.

        Only the first registration reads the table, because a repeat's receipt must depend on definitions alone.
        """
        source, fingerprint = request.source, None
        if source.source not in self._ledger.accounts:
            require_grid_covers_range(source)
            require_valid_periods(source)
            require_foreign_topic(source, self._topics)
            if isinstance(source, EventsSource) and source.has_periods:
                self.periods.require_unused_name(source.source)
            if isinstance(source, TableSource):
                fingerprint = self._readings.fingerprint(source)
        return self._ledger.register(source, fingerprint)

    def _open_stream(self, record: RecordLike, request: OpenStream, outputs: Outputs) -> dict[str, Any]:
        account = self._ledger.account(request.stream.source)
        count_rows = partial(self._count_rows, account)
        chosen = choose_mechanism(request.stream, account.source, count_rows)
        spec = self._complete_spec(chosen.spec, account.source)
        calibration = plan_stream(spec, account.source, count_rows)
        if request.informative and (
            warning := opening_warning(replace(chosen, spec=spec), calibration, account.source, count_rows)
        ):
            raise RefusedError(f"promise: {warning}; to open the stream anyway, acknowledge it (--force)")
        incarnation = self.periods.new_incarnation(record)
        self.periods.open_stream(account, spec, calibration, incarnation, request.analyst, outputs)
        if spec.standing is None:
            return {"compared": chosen.compared} if chosen.compared else {}
        return {"begins": spec.standing.begins, "windows": promised_windows(spec, account.source)}

    def _complete_spec(self, spec: StreamSpec, source: Source) -> StreamSpec:
        """Fill in a specification's defaults; RefusedError for a name or source of a period."""
        if split_period_name(spec.stream) is not None:
            raise RefusedError(
                "stream: the name ends like that of a period's stream, with @ and a moment; choose another name"
            )
        if isinstance(source, EventsSource) and source.period_of is not None:
            raise RefusedError(
                f"source: this is one period of '{source.period_of}', and its streams open automatically; open the stream on '{source.period_of}'"
            )
        lead_ms = source.opening_lead_ms if isinstance(source, EventsSource) else 0
        earliest = self._ledger.clock + lead_ms
        completed_spec = complete_spec(spec, source, clock=max(earliest, self.periods.earliest_start_ms(source)))
        self.periods.require_later_start(completed_spec, source)
        require_bounded_past(completed_spec, source, clock=self._ledger.clock)
        if isinstance(source, EventsSource) and source.has_periods:
            self.periods.require_unused_name(spec.stream)
        return completed_spec

    def _extend_stream(self, request: ExtendStream, digest: str, outputs: Outputs) -> dict[str, Any]:
        """Grant further charged answers, notify the worker, and return fields of the receipt.

        Because receipts may be deleted, a grant keeps the digests of the requests that extended it. A
        repeated request has a known digest and extends nothing.
        """
        account, grant = self._ledger.find_stream(request.source, request.stream)
        require_no_periods(account.source, "its streams are not extended; open another stream")
        accountant = account.source.accountant
        if (found := grant.extension_of_request(digest, accountant)) is None:
            self._ledger.extend(
                request.source, request.stream, digest, request.epsilon, request.delta, request.analyst
            )
            found = grant.extension_of_request(digest, accountant)
            self._control_publisher.publish_control(account, grant, outputs)
        if found is None:
            raise AssertionError("the ledger did not record the extension")
        extension, cost = found
        return {"answers": extension.answers, "granted": to_amount(cost, account.source)}

    def _count_rows(self, account: Account) -> int:
        """Return the number of rows of a table whose neighbors have equally many rows."""
        if not isinstance(account.source, TableSource):
            raise RefusedError("mechanism.rows: the source is no table and has no rows; remove the field")
        table_key = (account.name, account.fingerprint)
        if (rows := self._row_counts.get(table_key)) is None:
            rows = self._readings.count_rows(account.source, account.fingerprint, account.version)
            self._row_counts.put(table_key, rows)
        return rows

    def _end_stream(
        self, request: CloseStream | HaltStream, ending: Literal["halted", "closed"], outputs: Outputs
    ) -> Literal["closing", "halted"]:
        account, grant = self._ledger.find_stream(request.source, request.stream)
        if self._ledger.end_stream(request.source, request.stream, ending, request.reason):
            self._control_publisher.publish_control(account, grant, outputs)
        self.periods.end_stream(account, request.stream, ending, request.reason, outputs)
        return "closing" if grant.ending == "closed" else "halted"

    def _halt_source(self, request: HaltSource, outputs: Outputs) -> dict[str, Any]:
        account = self._ledger.account(request.source)
        for one in (account, *self.periods.accounts_of(request.source)):
            for grant in self._ledger.halt_source(one.name, request.reason):
                self._control_publisher.publish_control(one, grant, outputs)
        return {}

    def _refresh_source(self, request: RefreshSource, outputs: Outputs) -> dict[str, Any]:
        """Read a table's next version, notify the workers, and return fields of the receipt.

        Unchanged rows make a new version too, because whether a row has changed is private.
        """
        account = self._ledger.account(request.source)
        require_refreshable(account)
        if isinstance(account.source, TableSource):
            fingerprint = self._readings.fingerprint(account.source, account.version + 1)
            for grant in refresh_source(self._ledger, account, fingerprint, close=request.close):
                self._control_publisher.publish_control(account, grant, outputs, repeats=True)
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
            state=None if ended is None else self._ledger.find_stream(source, ended)[1].state,
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
