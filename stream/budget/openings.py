"""Plans new streams, and begins periods.

Each period of a person-period source has a separate account with the source's budget. The streams that
clients open are models: they are planned, and their costs together must fit the budget, but they get no
questions. When a period begins, a copy of each model is opened on the period's account.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal

from blake3 import blake3

from schemas import (
    AboveThreshold,
    BeginPeriod,
    Calibration,
    Decimals,
    EventsSource,
    Histogram,
    Mechanism,
    Numeric,
    NumericSparse,
    RecordsSource,
    Source,
    StreamIdentity,
    StreamSpec,
    TableSource,
    UnknownGroups,
    ValuesSource,
    format_moment,
    moment_ms,
    period_name,
    span_ms,
    split_period_name,
)
from stream.budget.decision_records import ControlPublisher
from stream.budget.plan_facts import declared_sizes, facts_of_values, require_texts
from stream.budget.standing_streams import complete_spec, live_topic_facts
from stream.diagnostics import error_fields, get_logger
from stream.privacy.accuracy import source_facts
from stream.privacy.accuracy.sparse_vector_accuracy import AccuracyError
from stream.privacy.composition.costs import RefusedError, shortest_decimal
from stream.privacy.ledger.accounts import Account
from stream.privacy.ledger.grants import Grant
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.noise.samplers import NoiseScaleError
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import MECHANISMS_OF, choose_calibration, sensitivity_steps
from stream.privacy.planning.promises import describe_promise_per_period
from stream.processing.protocol import Outputs, RecordLike
from stream.tables.sensitivity import rows_are_public, total_sensitivity
from stream.tables.table_errors import private_text_message

PLAN_FAILED_MESSAGE: Final = (
    "request: no plan can be computed from its numbers; change epsilon, delta, beta or the mechanism's fields"
)

log = get_logger("budget")


def plan_stream(spec: StreamSpec, source: Source, table_rows: Callable[[], int] | None = None) -> Calibration:
    """Compute a stream's calibration from public facts only.

    ``table_rows`` returns the number of rows or people of a table; it is called only if neighboring
    tables have the same number.

    Raises:
        RefusedError: the mechanism does not fit the source; the message names the field and the remedy.
        PlanError: no calibration fits, or the numbers are too large or too small to compute one.
    """
    facts = facts_for_plan(spec, source, table_rows)
    try:
        calibration = choose_calibration(spec, facts)
    except (PlanError, AccuracyError, NoiseScaleError):
        raise
    except (ArithmeticError, ValueError) as error:
        log.warning("stream not planned", stream=spec.stream, **error_fields(error))
        raise PlanError(PLAN_FAILED_MESSAGE) from error
    if not math.isfinite(calibration.alpha):
        raise RefusedError("no finite error bound can be promised; raise epsilon or beta, or lower the cutoff")
    return calibration


def facts_for_plan(
    spec: StreamSpec, source: Source, table_rows: Callable[[], int] | None = None
) -> source_facts.SourceFacts:
    """Return a source's public facts for a plan; RefusedError if they do not fit."""
    mechanism, kind = spec.mechanism, spec.mechanism.kind
    if kind not in MECHANISMS_OF[source.kind]:
        fitting = next((name for name, kinds in MECHANISMS_OF.items() if kind in kinds), "none")
        raise RefusedError(
            f"mechanism.kind: {kind} does not run on a source of kind '{source.kind}'; use '{fitting}'"
        )
    spec = complete_spec(spec, source, clock=0)
    if isinstance(source, EventsSource):
        return live_topic_facts(spec, source)
    if isinstance(mechanism, Histogram) and mechanism.answers != 1:
        raise RefusedError("mechanism.answers: a table's histogram is released once; leave it out")
    if isinstance(source, ValuesSource):
        require_grid_covers_range(source)
        _require_threshold_in_range(mechanism, source)
        steps = sensitivity_steps(source.sensitivity, source.grid)
        if getattr(mechanism, "sums", ()):
            raise RefusedError("mechanism.sums: a source of values has no attributes; remove it")
        return facts_of_values(steps, source.grid, source.neighbors)
    if isinstance(source, RecordsSource):
        return source_facts.SourceFacts(neighbors=source.neighbors, records_per_person=source.contributions)
    return _table_facts(mechanism, source, table_rows)


def require_grid_covers_range(source: Source) -> None:
    """Refuse a source of values whose range needs more than 2^50 steps of its grid."""
    if not isinstance(source, ValuesSource):
        return
    exact_reach = source_facts.largest_value(source.grid)
    reach = float(exact_reach)
    given = [(name, end) for name in ("minimum", "maximum") if (end := getattr(source, name)) is not None]
    for name, end in given:
        if abs(shortest_decimal(end)) > exact_reach:
            raise RefusedError(
                f"{name}: a grid of {source.grid:g} reaches from {-reach:.6g} to {reach:.6g} only; use a grid of at "
                f"least {_sufficient_grid(abs(end)):g}, or a narrower range"
            )
    if len(given) < 2 and exact_reach < source_facts.LEAST_REACH:
        raise RefusedError(
            f"grid: {source.grid:g} reaches from {-reach:.6g} to {reach:.6g} only; declare the source's minimum and "
            f"maximum within that, or use a grid of at least {_sufficient_grid(float(source_facts.LEAST_REACH)):g}"
        )
    low, high = source_facts.clamping_range(source.grid, source.minimum, source.maximum)
    if low >= high:
        raise RefusedError(
            f"minimum, maximum: no value lies between {float(low):.6g} and {float(high):.6g}; give both, in order"
        )


def _sufficient_grid(reach: float) -> float:
    """Return a grid step of few digits that is large enough for values up to ``reach``."""
    exponent = math.floor(math.log10(reach / source_facts.MAX_STEPS)) - 2
    return math.ceil(reach / source_facts.MAX_STEPS / 10.0**exponent) * 10.0**exponent


def _require_threshold_in_range(mechanism: Mechanism, source: ValuesSource) -> None:
    if not isinstance(mechanism, AboveThreshold | NumericSparse):
        return
    low, high = source_facts.clamping_range(source.grid, source.minimum, source.maximum)
    if not low <= shortest_decimal(mechanism.threshold) <= high:
        raise RefusedError(
            f"mechanism.threshold: {mechanism.threshold:g} lies outside the source's range, {float(low):.6g} to {float(high):.6g}, "
            "to which values are clamped; choose one inside, or register a source with a wider range"
        )


def _table_facts(
    mechanism: Mechanism, source: TableSource, table_rows: Callable[[], int] | None
) -> source_facts.SourceFacts:
    if isinstance(mechanism, UnknownGroups):
        require_texts(source)
    monotone, sums = getattr(mechanism, "monotone", False), getattr(mechanism, "sums", ())
    source_facts.require_monotone_counts(monotone, source.neighbors)
    step = _common_step(source, sums)
    # One person changes a count of people by 1, and a count of rows by the number of this person's counted rows.
    sensitivities = [int((1 if getattr(mechanism, "people", False) else source.contribution) / step)]
    for index, name in enumerate(sums):
        if name in source.texts:
            raise RefusedError(f"mechanism.sums.{index}: {private_text_message(name)}")
        domain = source.attributes.get(name)
        if not isinstance(domain, Numeric):
            raise RefusedError(
                f"mechanism.sums.{index}: the source has no attribute of integers or decimals of this name; "
                + source_facts.list_numeric_attributes(source.attributes)
            )
        if monotone and domain.minimum < 0:
            raise RefusedError(
                f"mechanism.monotone: sums of '{name}' can fall when a row is added; leave it false, or declare the "
                "attribute with a minimum of at least 0"
            )
        finer = int(domain.unit / step)
        source_facts.require_total(domain, name, f"mechanism.sums.{index}", finer)
        sensitivities.append(total_sensitivity(source, domain.in_steps) * finer)
    sizes = declared_sizes(source, getattr(mechanism, "attributes", ()), "mechanism.attributes")
    return source_facts.SourceFacts(
        sensitivity_steps=max(sensitivities),
        grid=float(step),
        neighbors=source.neighbors,
        universe=math.prod(sizes),
        sizes=sizes,
        rows=_public_rows(mechanism, source, table_rows),
        disjoint=True,
        contribution=source.contribution,
    )


def _common_step(source: TableSource, sums: Sequence[str]) -> Fraction:
    """Return the largest common step of counts and of all summed attributes."""
    step = Fraction(1)
    for domain in map(source.attributes.get, sums):
        if isinstance(domain, Decimals):
            one, other = step.as_integer_ratio(), domain.unit.as_integer_ratio()
            step = Fraction(math.gcd(one[0] * other[1], other[0] * one[1]), one[1] * other[1])
    return step


def _public_rows(mechanism: Mechanism, source: TableSource, table_rows: Callable[[], int] | None) -> int | None:
    given: int | None = getattr(mechanism, "rows", None)
    if not rows_are_public(source):
        return given
    known = table_rows() if table_rows is not None else given
    if given is not None and known != given:
        raise RefusedError(
            "mechanism.rows: differs from the table's number of rows, which is public here; leave it out"
        )
    return known


def definition_digest(spec: StreamSpec, account: Account, calibration: Calibration) -> str:
    """Return the digest of a stream's definition; the stream's noise depends on it."""
    parts = [
        spec.model_dump_json().encode(),
        account.source.model_dump_json().encode(),
        (account.fingerprint or "").encode(),
        calibration.model_dump_json().encode(),
    ]
    return blake3(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


@dataclass
class AccountPeriods:
    """Opens streams, and begins the periods of sources; each period has a separate account in the ledger."""

    ledger: Ledger
    control_publisher: ControlPublisher
    key_id: str
    """Name of the noise key for new streams."""
    new_incarnation: Callable[[RecordLike], bytes]
    _begun: list[Account] = field(default_factory=list)

    def drain_begun(self) -> list[Account]:
        """Return the accounts of periods that began since the last call."""
        begun, self._begun = self._begun, []
        return begun

    def accounts_of(self, source: str) -> Sequence[Account]:
        """Return the accounts of a source's periods, in the order in which they were created."""
        return self.ledger.periods.get(source, ())

    def require_unused_name(self, name: str) -> None:
        """Refuse a new source's or stream's name if a name of its future periods is in use."""
        for known in (*self.ledger.accounts, *self.ledger.source_of_stream):
            if (named := split_period_name(known)) is not None and named[0] == name:
                raise RefusedError(
                    f"'{known}' has a name that a period of '{name}' would get; choose another name"
                )
        if self.ledger.retired_names.has("periods", name):
            raise RefusedError(
                f"a retired stream has a name that a period of '{name}' would get; choose another name"
            )

    def earliest_start_ms(self, source: Source) -> int:
        """Return the end, in milliseconds, of the source's last period that has begun; 0 without periods.

        A new stream gets questions only about later periods.
        """
        if not isinstance(source, EventsSource) or not source.has_periods:
            return 0
        ends = (_period_start_ms(account) + source.period_ms for account in self.accounts_of(source.source))
        return max(ends, default=0)

    def require_later_start(self, spec: StreamSpec, source: Source) -> None:
        """Refuse a stream that starts in a period that has begun."""
        earliest_ms, standing = self.earliest_start_ms(source), spec.standing
        if standing is not None and standing.begins is not None and moment_ms(standing.begins) < earliest_ms:
            raise RefusedError(
                f"standing.begins: the periods up to {format_moment(earliest_ms)} have already begun without this stream; give "
                "that moment or a later one"
            )

    def begin_period(self, record: RecordLike, request: BeginPeriod, outputs: Outputs) -> None:
        """Begin a period's account with a copy of each open stream of its source.

        If the period has already begun, nothing happens. All checks come before the first change, so
        that an account gets all of its streams or is not created.
        """
        parent = self.ledger.account(request.source)
        source, start = parent.source, moment_ms(request.start)
        if not isinstance(source, EventsSource) or not source.has_periods:
            raise RefusedError(
                f"source '{request.source}' has no periods; give a source with the unit 'person-period'"
            )
        name = period_name(source.source, start)
        if name in self.ledger.accounts or self.ledger.retired_names.has("source", name):
            return
        if parent.state == "halted":
            raise RefusedError(f"source '{request.source}' is halted: {parent.reason}")
        if start % source.period_ms:
            raise RefusedError(
                f"start: periods of {source.period} begin at multiples of {source.period} since 1970; give such a moment"
            )
        if source.clock == "broker" and start > self.ledger.clock + span_ms(source.ahead) + span_ms(source.idle):
            raise RefusedError("start: the period has not begun yet; send the request again after its start")
        grants = [
            grant
            for grant in parent.grants.values()
            if grant.state == "open"
            and grant.ending is None
            and _first_question_ms(grant.spec) < start + source.period_ms
        ]
        if not grants:
            raise RefusedError(
                f"source '{request.source}' has no open stream with questions about this period; open one"
            )
        account = self.ledger.register(source.account_of_period(start), None)
        seed = self.new_incarnation(record)
        for grant in grants:
            self._copy_model(account, grant, start, seed, outputs)
        self._begun.append(account)

    def end_stream(
        self, account: Account, stream: str, ending: Literal["halted", "closed"], reason: str, outputs: Outputs
    ) -> None:
        """End the copies of a model in all periods, and notify their workers."""
        if not isinstance(account.source, EventsSource) or not account.source.has_periods:
            return
        for one in self.accounts_of(account.name):
            name = period_name(stream, _period_start_ms(one))
            if name in one.grants and self.ledger.end_stream(one.name, name, ending, reason):
                self.control_publisher.publish_control(one, one.grants[name], outputs)

    def _copy_model(self, account: Account, model: Grant, start: int, seed: bytes, outputs: Outputs) -> None:
        if model.spec.standing is None:
            raise TypeError("a stream on a live topic must be a standing stream")
        begins = format_moment(max(start, _first_question_ms(model.spec)))
        name = period_name(model.spec.stream, start)
        spec = model.spec.model_copy(
            update={
                "stream": name,
                "source": account.name,
                "standing": model.spec.standing.model_copy(update={"begins": begins}),
            }
        )
        incarnation = blake3(name.encode(), key=blake3(seed).digest()).digest(16)
        self.open_stream(account, spec, model.calibration, incarnation, model.analyst, outputs)

    def open_stream(
        self,
        account: Account,
        spec: StreamSpec,
        calibration: Calibration,
        incarnation: bytes,
        analyst: str | None,
        outputs: Outputs,
    ) -> None:
        """Reserve a stream's grant and notify its worker; RefusedError if a budget does not suffice."""
        digest = definition_digest(spec, account, calibration)
        identity = StreamIdentity(incarnation=incarnation.hex(), digest=digest, key_id=self.key_id)
        grant = self.ledger.reserve(spec, calibration, identity, analyst)
        self.control_publisher.publish_control(account, grant, outputs)


def require_no_periods(source: Source, reason: str) -> None:
    """Refuse an operation that sources with periods do not support, with the ``reason``."""
    if isinstance(source, EventsSource) and source.period is not None:
        raise RefusedError(f"source '{source.source}' has periods: {reason}")


def describe_period_budget(source: Source) -> str | None:
    """Describe what the budget of a source with periods promises; None for sources without periods."""
    if not isinstance(source, EventsSource) or not source.has_periods:
        return None
    return describe_promise_per_period(source.epsilon, source.delta, source.period or "")


def _period_start_ms(account: Account) -> int:
    return moment_ms(getattr(account.source, "starts", None) or "1970-01-01T00:00:00Z")


def _first_question_ms(spec: StreamSpec) -> int:
    begins = None if spec.standing is None else spec.standing.begins
    return 0 if begins is None else moment_ms(begins)
