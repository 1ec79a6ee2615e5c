"""Chooses the stream that answers a statement: the named stream, or the cheapest open stream of a source."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod, sqrt
from statistics import NormalDist
from typing import Final

from schemas import (
    AnswersCalibration,
    Domain,
    EstimateCalibration,
    EventsSource,
    GrantRecord,
    Histogram,
    ReleaseCalibration,
    SourceRecord,
    TableSource,
    Text,
    UnknownGroupsCalibration,
)
from stream.errors import Unknown
from stream.formatting import did_you_mean, format_error_bound
from stream.privacy.accuracy.noise_laws import (
    GAUSSIAN_TAIL_FACTOR,
    SUM_ROUNDING,
    part_failure,
    sum_alpha,
    weighted_bound,
)
from stream.privacy.accuracy.release_accuracy import SUMS_PART, cell_alpha, histogram_alpha, release_law
from stream.privacy.composition.costs import EPSILON_UNITS, charged_answers, ordinary_charges_left, realised_cost
from stream.privacy.composition.gaussian_losses import LEAST_VARIANCE
from stream.privacy.noise.samplers import Gaussian
from stream.privacy.planning.warm_starts import warm_start_order
from stream.sql.aggregates import StatementError
from stream.sql.select_statements import SelectStatement
from stream.sql.statement_questions import StatementPlan, plan_statement
from stream.tables.sensitivity import rows_are_public

COUNT_MECHANISMS: Final = ("pmw", "laplace", "histogram")
"""Mechanisms that answer every count with a number."""

TEXT_MECHANISMS: Final = ("unknown_groups",)
"""Mechanisms that group by a text attribute."""

_MUCH_SMALLER: Final = 1 / 3
"""A stream is far more accurate than another if its α is at most this part of the other's."""

_FREE_REASONS: Final = {
    "histogram": "its release is paid for",
    "pmw": "its estimate answers without a charge unless it must measure",
    "laplace": "its grant counts as spent in full",
    "unknown_groups": "its grant is spent",
}
"""Why the next answers cost nothing. If answers cost equally much, the mechanism listed first here is chosen."""


@dataclass(frozen=True, slots=True)
class Target:
    """The grant of a stream, and the table about which it answers."""

    source: TableSource
    grant: GrantRecord


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """The stream that answers a statement, and the plan; ``why`` is the reason if there were several streams."""

    target: Target
    plan: StatementPlan
    why: str | None = None


def choose_stream(
    statement: SelectStatement,
    sources: Iterable[SourceRecord],
    grants: Sequence[GrantRecord],
    refused: Collection[str] = (),
) -> StreamChoice:
    """Plan a statement on the stream that it names, or on the cheapest open stream of the source.

    Streams that their workers ``refused`` are chosen only if there are no others. Streams that can pay for the whole statement are preferred, then those whose answers may be informative, then those
    whose answers are expected to be free: first a histogram whose release is charged already, then a pmw stream that
    has begun, which charges only if it must measure. A pmw stream whose first answer did not measure the attributes of a
    question together comes after other free streams, because it may guess that they are independent. Otherwise the least ε for the statement's questions decides. If the
    number of rows is private, no α is known to be informative: then, if another stream is far more accurate, a stream
    is chosen only if its answers are expected to be free.

    Raises:
        Unknown: there is no such source or stream, or the source has no open stream.
        StatementError: no stream supports the statement, or the grant pays for a part of its questions only.
    """
    found = find_targets(statement.table, sources, grants, statement.groups)
    plans: list[StreamChoice] = []
    refusals: list[StatementError] = []
    for one in found:
        try:
            plans.append(StreamChoice(one, plan_statement(statement, one.source, one.grant)))
        except StatementError as error:
            refusals.append(error)
    if not plans:
        if len({str(one) for one in refusals}) == 1:
            raise refusals[0]
        reasons = [f"{one.grant.spec.stream}: {error}" for one, error in zip(found, refusals, strict=True)]
        raise StatementError(
            f"FROM {statement.table}: none of its streams answers this statement; " + "; ".join(reasons)
        )
    plans = [one for one in plans if one.target.grant.spec.stream not in refused] or plans
    best = _best_choice(plans)
    left, needed = _answers_left(best.target.grant), len(best.plan.questions)
    # A grant that pays for no answer is reported by the worker, in the outcome.
    if left is not None and 0 < left < needed:
        raise StatementError(
            f"FROM {statement.table}: the statement asks {needed:,} questions, and the grant of stream "
            f"'{best.target.grant.spec.stream}' pays for {left:,} more; ask for fewer columns or groups, or extend the stream"
        )
    if len(found) == 1:
        return best
    return StreamChoice(best.target, best.plan, _choice_reason(best, plans))


def list_tables(
    sources: Iterable[SourceRecord], grants: Iterable[GrantRecord]
) -> dict[str, dict[str, Domain | Text]]:
    """Return the sources and open streams that FROM can name.

    Each has the attributes that statements about it can name.
    """
    tables = {one.source.source: one.source for one in sources if isinstance(one.source, TableSource)}
    found: dict[str, dict[str, Domain | Text]] = {}
    for grant in grants:
        table, mechanism = tables.get(grant.spec.source), grant.spec.mechanism
        kinds = (*COUNT_MECHANISMS, *TEXT_MECHANISMS)
        if table is None or mechanism.kind not in kinds or not _is_open(grant):
            continue
        texts = table.texts if mechanism.kind in TEXT_MECHANISMS else {}
        declared = {**table.attributes, **texts}
        names = getattr(mechanism, "attributes", declared)
        found[grant.spec.stream] = {name: declared[name] for name in declared if name in names}
        found[table.source] = {**found.get(table.source, {}), **found[grant.spec.stream]}
    return dict(sorted(found.items()))


def _is_open(grant: GrantRecord) -> bool:
    return (grant.state, grant.ending) == ("open", None)


def find_targets(
    name: str, sources: Iterable[SourceRecord], grants: Sequence[GrantRecord], groups: Sequence[str] = ()
) -> list[Target]:
    """Return the stream of this name, or the open streams on the source of this name.

    If the attributes of GROUP BY, ``groups``, contain a text, only streams of unknown_groups are returned.

    Raises:
        Unknown: there is no such stream or source, or no stream is open.
        StatementError: the stream supports no statements.
    """
    tables = {one.source.source: one.source for one in sources}
    grant = next((one for one in grants if one.spec.stream == name), None)
    source = tables.get(name if grant is None else grant.spec.source)
    if isinstance(source, EventsSource):
        raise StatementError(f"FROM {name}: is about a live topic, and statements are about tables; name a table")
    texts = source.texts if isinstance(source, TableSource) else {}
    by_text = not {text.casefold() for text in texts}.isdisjoint(group.casefold() for group in groups)
    answering = TEXT_MECHANISMS if by_text else COUNT_MECHANISMS
    found = _open_grants(name, tables, grants, answering) if grant is None else [grant]
    kind = found[0].spec.mechanism.kind
    if kind not in answering:
        able = "group by a text" if by_text else "answer every count with a number"
        raise StatementError(
            f"FROM {name}: stream '{found[0].spec.stream}' has the mechanism {kind}, which does not {able}; "
            f"name a stream with {' or '.join(answering)}"
        )
    table = tables.get(found[0].spec.source)
    if not isinstance(table, TableSource):
        raise StatementError(
            f"FROM {name}: source '{found[0].spec.source}' is not a table; statements are about tables"
        )
    return [Target(table, one) for one in found]


def _open_grants(
    name: str, sources: Collection[str], grants: Sequence[GrantRecord], answering: Sequence[str]
) -> list[GrantRecord]:
    if name not in sources:
        streams = [one.spec.stream for one in grants if one.state == "open"]
        hint = did_you_mean(name, [*sources, *streams]) or "; 'sotto source list' shows the sources"
        raise Unknown(f"FROM {name}: there is no such source or stream{hint}")
    found = [
        one for one in grants if one.spec.source == name and one.spec.mechanism.kind in answering and _is_open(one)
    ]
    if not found:
        raise Unknown(
            f"FROM {name}: the source has no open stream of {' or '.join(answering)}; open one with 'sotto stream open'"
        )
    return found


def _best_choice(plans: Sequence[StreamChoice]) -> StreamChoice:
    best = min(plans, key=_preference)
    if rows_are_public(best.target.source) or not _expected_cost(best):
        return best
    able = _equally_able(best, plans)
    most_accurate = min(able, key=_alpha)
    return min((one for one in able if not _is_far_better(most_accurate, one)), key=_preference)


def _equally_able(choice: StreamChoice, plans: Sequence[StreamChoice]) -> list[StreamChoice]:
    """Return the streams that are like the choice in two points: whether they can pay, and may be informative."""
    return [one for one in plans if _preference(one)[:2] == _preference(choice)[:2]]


def _alpha(choice: StreamChoice) -> float:
    """Return the error bound of a count; a histogram may have to add up all cells of a row of the result."""
    spec, calibration = choice.target.grant.spec, choice.target.grant.calibration
    if not isinstance(spec.mechanism, Histogram) or not isinstance(calibration, ReleaseCalibration):
        return calibration.alpha
    attributes = choice.target.source.attributes
    universe = prod(attributes[name].size for name in spec.mechanism.attributes)
    cells = max(1, universe // max(1, len(choice.plan.rows)))
    try:
        return histogram_alpha(calibration, universe, cells)
    except ModuleNotFoundError:  # a client without SciPy
        return _bound_without_scipy(calibration, universe, cells)


def _bound_without_scipy(calibration: ReleaseCalibration, universe: int, cells: int) -> float:
    """Return a valid bound that is a little larger than ``histogram_alpha``, for a client without SciPy."""
    law, sums, beta = release_law(calibration), calibration.expected_queries, SUMS_PART * calibration.beta
    if isinstance(law, Gaussian):

        def reach(failure: float, draws: int) -> float:
            deviations = -NormalDist().inv_cdf(0.5 * failure) * SUM_ROUNDING
            return float(ceil(sqrt(law.variance) * sqrt(draws) * deviations))

        cell = reach(part_failure((1.0 - SUMS_PART) * calibration.beta, universe), 1)
        if cells == 1 or law.variance >= LEAST_VARIANCE:
            return min(cells * cell, reach(beta / sums / GAUSSIAN_TAIL_FACTOR**cells, cells))
        return min(cells * cell, sum_alpha(law, cells, sums, beta, full_weights=False))
    if cells == 1:
        return min(cell_alpha(calibration, universe), sum_alpha(law, 1, sums, beta, full_weights=False))
    bound = weighted_bound(float(law.rate), cells, sums, beta)
    return min(
        cells * cell_alpha(calibration, universe),
        min(bound(step / 1000) for step in range(1, 1000)) * SUM_ROUNDING,
    )


def _is_far_better(one: StreamChoice, other: StreamChoice) -> bool:
    return _alpha(one) < _alpha(other) and _alpha(one) <= _alpha(other) * _MUCH_SMALLER


def _preference(choice: StreamChoice) -> tuple[bool, bool, Fraction, bool, int, float, str]:
    """Return the sort key of a choice.

    The key has whether too few charged answers are left, whether answers are not informative, the expected ε, whether
    an answer may be a guess, the kind, α and the name.
    """
    grant = choice.target.grant
    left = _answers_left(grant)
    lacks = left is not None and left < len(choice.plan.questions)
    order = [*_FREE_REASONS].index(grant.spec.mechanism.kind)
    cost, may_guess = _expected_cost(choice), _may_guess(choice)
    return lacks, _is_uninformative(grant), cost, may_guess, order, _alpha(choice), grant.spec.stream


def _may_guess(choice: StreamChoice) -> bool:
    """Return whether the warm start of a pmw stream measured not all pairs, but a question has more attributes."""
    calibration = choice.target.grant.calibration
    if not isinstance(calibration, EstimateCalibration):
        return False
    order = warm_start_order(calibration)
    return order < 2 and choice.plan.most_attributes > order


def _answers_left(grant: GrantRecord) -> int | None:
    """Return for how many further questions a grant pays, each charged; None if answers may be free."""
    if not isinstance(grant.calibration, AnswersCalibration | UnknownGroupsCalibration):
        return None
    return _charges_left(grant)


def _charges_left(grant: GrantRecord) -> int:
    charges = charged_answers(grant.calibration, grant.extensions)
    return ordinary_charges_left(charges, grant.tops, max(grant.surplus, 0))


def _is_uninformative(grant: GrantRecord) -> bool:
    """Return whether public facts show that no answer is informative: α is vacuous, or estimates have no bound."""
    is_spent = isinstance(grant.calibration, EstimateCalibration) and not _charges_left(grant)
    return is_spent or grant.calibration.vacuous


def _expected_cost(choice: StreamChoice) -> Fraction:
    """Return the expected ε of the questions, or ρ under zCDP; a pmw stream that has begun is expected to charge nothing."""
    grant, source = choice.target.grant, choice.target.source
    questions = len(choice.plan.questions)
    charges = questions if isinstance(grant.calibration, AnswersCalibration | UnknownGroupsCalibration) else 0
    before, after = (
        realised_cost(
            grant.calibration,
            source.accountant,
            grant.answered + more,
            grant.tops + charges * (more > 0),
            extensions=grant.extensions,
        )
        for more in (0, questions)
    )
    cost = after - before
    return Fraction(cost.loss if source.accountant == "pure" else cost.rho, EPSILON_UNITS)


def _choice_reason(choice: StreamChoice, plans: Sequence[StreamChoice]) -> str:
    """Describe why a stream was chosen among the open streams of its source.

    The text mentions a far more accurate stream, also one whose grant pays for too few questions, or, if accuracy
    decided, the cheapest one.
    """
    kind, cost = choice.target.grant.spec.mechanism.kind, float(_expected_cost(choice))
    unit = "ε" if choice.target.source.accountant == "pure" else "ρ"
    able = _equally_able(choice, plans)
    cheapest, most_accurate = min(able, key=_preference), min(able, key=_alpha)
    group = "cheapest open stream" if choice is cheapest else "cheapest of the accurate open streams"
    reason = f"{group}: {kind}, " + (f"least {unit}, {cost:.4g}" if cost else _FREE_REASONS[kind])
    other = most_accurate if choice is cheapest else cheapest
    detail = f" for {unit} {float(_expected_cost(other)):.4g}"
    if choice is cheapest and not _is_far_better(other, choice):
        lacking = [one for one in plans if _preference(one)[:2] == (True, False) and _is_far_better(one, choice)]
        if not lacking:
            return reason
        other = min(lacking, key=_alpha)
        left, needed = _answers_left(other.target.grant), len(other.plan.questions)
        detail = f", but its grant pays for only {left:,} of {needed:,} questions"
    errors = [format_error_bound(_alpha(one), grouped=True) for one in (choice, other)]
    return f"{reason}; a count may err by {errors[0]}, and in stream '{other.target.grant.spec.stream}' by {errors[1]}{detail}"
