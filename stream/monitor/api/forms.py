"""Computes the declarations, plans and error curves that the page's forms show; defines their models."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from schemas import (
    Amount,
    Bins,
    Categories,
    Dates,
    Decimals,
    Domain,
    EventsSource,
    Integers,
    OpeningSpec,
    PopulationRecord,
    RecordsSource,
    Source,
    StreamSpec,
    TableSource,
    ValuesSource,
)
from schemas.mechanisms import MAX_UNIVERSE
from stream.budget.mechanism_choice import choose_mechanism, compare_for_source, opening_warning
from stream.budget.openings import facts_for_plan, plan_stream, require_grid_covers_range
from stream.budget.plan_facts import SourceOptions, accepted_forms
from stream.budget.standing_streams import complete_spec, promised_windows, require_valid_periods
from stream.errors import Refused
from stream.formatting import describe_promise_bound, describe_rows, describe_source_bound
from stream.monitor.api.budget_models import ComparisonRequest, Plan, PlanComparison, PlanQuery
from stream.monitor.api.models import ApiModel, Proposal, ProposedAttributeView, SourceRow
from stream.monitor.entries import SourceEntry
from stream.privacy.composition.costs import stream_cost, to_amount, total_budget
from stream.privacy.planning.inverse_plans import VariedParameter, cutoff_field, error_curve, varied_specs
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import name_of
from stream.privacy.planning.promises import promises
from stream.questions.clamped_values import describe_values, range_text
from stream.questions.first_windows import warn_about_past_windows
from stream.questions.stream_watch import period_of
from stream.settings import DEFAULT_TABLE_BYTES, Settings
from stream.tables.engine_limits import describe_engine
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.schema_proposals import READ_PARTS, propose_attributes, read_description, remark_on_types


class AttributeView(ApiModel):
    """An attribute: its kind, its number of values, and the treatment of other values, in words."""

    name: str
    kind: Literal["categories", "integers", "decimal", "date", "timestamp", "bins"]
    size: int
    outside: str


class Declaration(ApiModel):
    """A source's declaration. ``source`` is the definition with all defaults."""

    source: Source
    attributes: list[AttributeView]
    cells: int | None
    """Number of cells of all attributes together; null without attributes."""
    total: Amount
    neighbors: Annotated[str, Field(description="The neighbor relation as a sentence.")]
    remarks: list[str]


class SourceDetail(ApiModel):
    """A source with its budget and declaration."""

    row: SourceRow
    declaration: Declaration


class CurveRequest(ApiModel):
    """A planned stream, whose error is computed as a function of ε or of the number of charged answers."""

    stream: OpeningSpec
    against: Literal["epsilon", "cutoff"] = "epsilon"
    start: Annotated[int, Field(ge=0, le=1000)] = 0
    """``following`` of the curve's last part; 0 for the first part."""


class CurvePoint(ApiModel):
    """The error bound at one point; it is ``vacuous`` if a constant answer would be within the bound."""

    value: float
    alpha: float
    vacuous: bool


class CurveLine(ApiModel):
    """One calibration at all points for which it exists."""

    method: str
    points: list[CurvePoint]


class Curve(ApiModel):
    """Some points of a plan's error curve, in the order of their values.

    ``chosen`` is the requested point, and ``method`` is the calibration at this point; both are null in
    parts without the point.
    """

    against: Literal["epsilon", "cutoff"]
    chosen: float | None
    method: str | None
    lines: list[CurveLine]
    following: Annotated[int | None, Field(description="``start`` of the next part; null after the last one.")]
    total: Annotated[int, Field(description="Number of points of the whole curve.")]


def build_declaration(source: Source) -> Declaration:
    """Return a source's declaration; raise RefusedError if the ledger would refuse the definition."""
    require_grid_covers_range(source)
    require_valid_periods(source)
    attributes = source.attributes if isinstance(source, TableSource | EventsSource) else {}
    return Declaration(
        source=source,
        attributes=[
            AttributeView(
                name=name, kind=domain.kind, size=domain.size, outside=_describe_other_values(domain, source.kind)
            )
            for name, domain in attributes.items()
        ],
        cells=math.prod(domain.size for domain in attributes.values()) if attributes else None,
        total=to_amount(total_budget(source), source),
        neighbors=_describe_neighbors(source),
        remarks=_remarks(source),
    )


def _describe_other_values(domain: Domain, kind: str) -> str:
    left_out = "events {} are refused" if kind == "events" else "rows {} are left out"
    match domain:
        case Categories(other=None):
            return left_out.format("with any other value")
        case Categories(other=other):
            return f"any other value counts as '{other}'"
        case Dates(part=Integers()):
            return left_out.format("without a date")
        case Integers(outside="clamp") | Decimals(outside="clamp") | Dates(outside="clamp"):
            return f"values outside {range_text(domain)} are moved to the nearer end"
        case Bins(outside="clamp"):
            return f"values outside {domain.edges[0]:g} to {domain.edges[-1]:g} count in the nearer end bin"
        case _:
            return left_out.format("with a value outside")


def _describe_neighbors(source: Source) -> str:  # noqa: PLR0911 - one for each kind of source
    match source:
        case TableSource(person=str(person), contribution=most):
            differ = (
                "one has one person more, with all of that person's rows"
                if source.neighbors == "add-remove"
                else "all rows of one person are exchanged for another person's"
            )
            rows = "one row counts" if most == 1 else f"at most {most:,} rows count"
            return f"two tables are neighbors if {differ}; of each '{person}', {rows}"
        case TableSource(neighbors="add-remove"):
            return "two tables are neighbors if one has one row more: one person is one row, and the number of rows is private"
        case TableSource():
            return "two tables are neighbors if one row is another person's: one person is one row, and the number of rows is public"
        case RecordsSource(contributions=contributions):
            events = "one event" if contributions == 1 else f"up to {contributions:,} events"
            return f"one person sends {events} to a stream; neighbors differ in what that person sends"
        case EventsSource(contribution=most):
            when = "" if source.period is None else f" in one period of {source.period}"
            differ = (
                f"one has one person more, with all of that person's events{when}"
                if source.neighbors == "add-remove"
                else f"all events of one person{when} are exchanged for another person's"
            )
            events = "one event counts" if most == 1 else f"at most {most:,} events count"
            return f"two topics are neighbors if {differ}; of each '{source.person}', {events} in each window of a stream"
        case ValuesSource(neighbors="add-remove"):
            return f"if one person is added or removed, every value changes by at most {source.sensitivity:g}"
        case ValuesSource():
            return f"if one person is exchanged for another, every value changes by at most {source.sensitivity:g}"


def _topic_remarks(source: EventsSource) -> Iterator[str]:
    yield (
        f"its streams are standing: Sotto asks their questions, for each window of topic '{source.topic}', whose records must be "
        f"keyed by '{source.person}'"
    )
    if source.clock == "broker":
        yield (
            f"windows close by the broker's timestamps: topic '{source.topic}' needs message.timestamp.type=LogAppendTime; a partition "
            f"without events follows the feed's clock with a delay of {source.idle}"
        )
    else:
        yield "windows close by the watermarks in the topic alone: the producer writes them to every partition"
    yield f"an event whose '{source.time}' is more than {source.ahead} ahead of the clock is refused"


def _text_remarks(source: TableSource | EventsSource, grouping: str) -> Iterator[str]:
    use = f"only {grouping} by it"
    if source.accountant != "pure":
        use = f"no stream groups by it: the accountant '{source.accountant}' does not add up the ε and δ of texts; choose 'pure'"
    for name, text in source.texts.items():
        yield f"'{name}' is text of at most {text.max_length} bytes: its values are private, and {use}"


def _remarks(source: Source) -> list[str]:
    remarks = []
    if isinstance(source, TableSource):
        cells = math.prod(domain.size for domain in source.attributes.values())
        if cells > MAX_UNIVERSE:
            remarks.append(
                f"all attributes together have more than {MAX_UNIVERSE:,} cells: choose some of them for a histogram; a pmw stream can have all"
            )
        remarks += _text_remarks(source, "unknown_groups groups")
        lookups = [] if source.view is None else [name for name, table in source.view.tables.items() if table.key]
        if lookups:
            remarks.append(f"lookup tables are public, no person may decide their rows: {', '.join(lookups)}")
        remarks.append("the budget service reads the table when it registers the source; the monitor does not")
        remarks += [*describe_rows(source), describe_engine(source, DEFAULT_TABLE_BYTES)]
    if isinstance(source, ValuesSource):
        remarks.append(describe_values(source))
    if isinstance(source, EventsSource):
        remarks += _text_remarks(source, "unknown_groups and running_count group")
        remarks += _topic_remarks(source)
    if source.population is not None:
        remarks.append(f"grants also count against the budget of population '{source.population}'")
    if source.renews is not None:
        remarks.append(
            f"the budget renews every {source.renews}: it bounds the grants of each such period, not of all periods together"
        )
    if source.accountant == "zcdp":
        remarks.append("zCDP: streams with Gaussian noise count by ρ, which goes further than ε and δ added up")
    return remarks


PROPOSAL_SECONDS: Final = 15.0
"""Longest time for reading the names and types of a table's columns."""

CURVE_POINTS: Final = 17
CURVE_SECONDS: Final = 0.2
"""Seconds after which no further point of a curve's part is computed."""


def plan_opening(
    opening: OpeningSpec,
    source: Source,
    entry: SourceEntry,
    population: PopulationRecord | None,
    assumptions: PlanQuery,
    now: float,
) -> Plan:
    """Plan the opening of a stream: its mechanism, its error bound and its cost.

    The source's ``population``, if it has one, pays too. ``assumptions`` affect only the warning.
    """
    chosen = choose_mechanism(opening, source)
    spec, calibration = chosen.spec, plan_stream(chosen.spec, source)
    cost = to_amount(stream_cost(calibration, source.accountant), source)
    bound_text = describe_promise_bound(spec, describe_source_bound(source), getattr(source, "total", None))
    # Of a source's budget and its population's, the plan shows the one that cannot pay; if both or neither can, the lesser.
    left, left_of = entry.record.left, None
    can_pay = entry.record.state == "open" and _is_affordable(entry.record.left, cost)
    if population is not None:
        people_can_pay = population.state == "open" and _is_affordable(population.left, cost)
        if _is_less(population.left, left) if can_pay == people_can_pay else can_pay:
            left, left_of = population.left, population.population.population
        can_pay = can_pay and people_can_pay
    is_ended = population is not None and population.state == "halted"
    return Plan(
        calibration=calibration,
        cost=cost,
        left=left,
        left_of=left_of,
        affordable=can_pay,
        halted="source" if entry.record.state == "halted" else "population" if is_ended else None,
        promises=promises(spec, calibration, counted=bound_text),
        windows=promised_windows(complete_spec(spec, source, clock=0), source),
        period=period_of(source),
        compared=list(chosen.compared),
        uninformative=opening_warning(
            chosen, calibration, source, about_rows=assumptions.rows, expected=assumptions.answer
        ),
        past_windows=warn_about_past_windows(spec, source, now) if entry.streams else None,
    )


def compare_mechanisms(request: ComparisonRequest, source: Source) -> PlanComparison:
    """Compare all mechanisms for questions about a source."""
    options = SourceOptions(rows=request.rows, group_by=request.group_by, attribute=request.attribute)
    goal = request.model_dump(include={"queries", "epsilon", "alpha", "delta", "beta", "cutoff", "q"})
    source = _restrict_to_attributes(source, request.attributes)
    found = compare_for_source(request.form, source, options, goal, {})
    document = found.document()
    return PlanComparison(
        form=found.goal.form,
        forms=sorted(accepted_forms(source)),
        warning=found.warning,
        attributes=list(source.attributes) if isinstance(source, TableSource) else None,
        **{name: document[name] for name in ("choice", "keeps", "least_alpha", "counted", "mechanisms")},
    )


def _restrict_to_attributes(source: Source, names: Collection[str]) -> Source:
    """Return a table with only the named attributes; without ``names``, return the source unchanged."""
    if not names:
        return source
    declared = source.attributes if isinstance(source, TableSource) else {}
    for name in names:
        if name not in declared:
            raise PlanError(f"attributes: the source declares no '{name}'; give attributes of a table")
    kept = {name: domain for name, domain in declared.items() if name in names}
    return source.model_copy(update={"attributes": kept})


def propose_source(path: str, settings: Settings) -> Proposal:
    """Propose attributes for a table in the table roots, from its columns and its public description."""
    limits = ReadingLimits.parse(
        settings.table_roots,
        table_bytes=settings.table_bytes,
        reading_bytes=settings.table_reading_bytes,
        seconds=PROPOSAL_SECONDS,
        reveals_causes=settings.table_causes,
    )
    columns = GuardedReader(limits).columns(path)
    found = propose_attributes(columns, read_description(path, limits.roots))
    views = [ProposedAttributeView.from_record(one) for one in found]
    return Proposal(read=READ_PARTS, remark=remark_on_types(columns, found), attributes=views)


def plan_curve(request: CurveRequest, source: Source) -> Curve:
    """Compute a part of a stream's error curve: as many points as ``CURVE_SECONDS`` allow, at least one."""
    against = VariedParameter(request.against)
    spec = choose_mechanism(request.stream, source).spec
    facts = facts_for_plan(spec, source)
    values = [value for value, _ in varied_specs(spec, against, CURVE_POINTS)]
    chosen = _requested_value(spec, against)
    ends = time.monotonic() + CURVE_SECONDS
    lines: dict[str, list[CurvePoint]] = {}
    method, following = None, request.start
    for curve_point in error_curve(spec, facts, against, CURVE_POINTS, request.start):
        for calibration in curve_point.calibrations:
            point = CurvePoint(value=curve_point.value, alpha=calibration.alpha, vacuous=calibration.vacuous)
            lines.setdefault(name_of(calibration), []).append(point)
        if curve_point.value == chosen:
            method = _chosen_method(spec, source)
        following += 1
        if time.monotonic() > ends:
            break
    return Curve(
        against=against.value,
        chosen=chosen,
        method=method,
        lines=[CurveLine(method=name, points=points) for name, points in lines.items()],
        following=following if following < len(values) else None,
        total=len(values),
    )


def _requested_value(spec: StreamSpec, against: VariedParameter) -> float | None:
    if against is VariedParameter.EPSILON:
        return spec.epsilon
    name = cutoff_field(spec.mechanism.kind, type(spec.mechanism), standing=spec.standing is not None)
    given = None if name is None else getattr(spec.mechanism, name)
    return None if given is None else float(given)


def _chosen_method(spec: StreamSpec, source: Source) -> str | None:
    try:
        return name_of(plan_stream(spec, source))
    except (Refused, PlanError, ValueError, ArithmeticError):
        return None


def _is_less(left: Amount, other: Amount) -> bool:
    """Return whether a budget has less ε (or ρ) left; False if their accountants differ."""
    if left.rho is None or other.rho is None:
        return left.rho is other.rho and (left.epsilon, left.delta) < (other.epsilon, other.delta)
    return left.rho < other.rho


def _is_affordable(left: Amount, cost: Amount) -> bool:
    if cost.rho is None or left.rho is None:
        return cost.epsilon <= left.epsilon and cost.delta <= left.delta
    # With δ, an amount's ε is derived from its ρ and cannot be compared, so only ρ is compared.
    adds_up = not (cost.delta or left.delta)
    return (adds_up and cost.epsilon <= left.epsilon) or cost.rho <= left.rho
