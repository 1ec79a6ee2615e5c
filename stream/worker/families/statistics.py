"""Resolves questions about statistics (shares, rates, quantiles, variances, largest groups) and computes their answers.

`laplace_statistics` charges each answer and reads the table again. `release_family` and `estimate_family`
compute statistics from noisy or estimated counts: quantiles from cumulative counts, variances from three sums.
Statistics of published numbers are post-processing (docs/proofs/quantiles.md).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np

from schemas import (
    MAX_CATEGORIES,
    MAX_UNIVERSE,
    Domain,
    EstimateCalibration,
    EventsSource,
    HypothesisCalibration,
    Interval,
    StandingQuery,
    TableSource,
)
from schemas.queries import STATISTICS
from stream.formatting import MAX_NAMES_LENGTH, longest_name, values_of
from stream.privacy.accuracy.intervals import (
    MISS_PROBABILITY,
    SECOND_MISS_PROBABILITY,
    clip_interval,
    half_width,
    widen_interval,
)
from stream.privacy.accuracy.rate_intervals import NUMBERS_PER_VARIANCE, code_variance, rate_interval
from stream.privacy.accuracy.release_accuracy import LocatedQuantile, locate_quantile
from stream.privacy.mechanisms.estimate_questions import Ranks, Spreads
from stream.privacy.noise.samplers import sampler
from stream.privacy.planning.answer_plans import parse_quantiles
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS, rows_rate, rows_reach
from stream.processing.dead_letters import malformed_rejection
from stream.tables.expressions import TRUE, Predicate
from stream.tables.sensitivity import OrderedValues, codes_within, ordered_values
from stream.worker.families.context import Context, describe_attribute, list_declared, suggest_name
from stream.worker.families.family import Reply


class NoisyRate(NamedTuple):
    """The noisy hits and misses of a rate, the bound of their errors, and the rate's interval."""

    hits: float
    misses: float
    error_bound: float
    interval: Interval | None = None


def build_rates_reply(
    rates: Sequence[NoisyRate], *, grouped: bool, excluded: Collection[int] = (), **fields: Any
) -> Reply:
    """Build the answer to a question about rates; its ``alpha`` is the largest error bound of a rate.

    Rates of groups that the condition excludes (positions ``excluded``) do not count for ``alpha``, unless it
    excludes all groups. Each interval is widened so that it contains its rate.
    """
    found = [rate_interval(one.hits, one.misses, one.error_bound) for one in rates]
    alpha = max(
        error for place, (_, error) in enumerate(found) if place not in excluded or len(excluded) == len(found)
    )
    intervals = tuple(
        (min(rate, one.interval[0]), max(rate, one.interval[1]))
        for one, (rate, _) in zip(rates, found, strict=True)
        if one.interval is not None
    )
    if grouped:
        return Reply(
            estimates=tuple(rate for rate, _ in found), alpha=alpha, intervals=intervals or None, **fields
        )
    return Reply(estimate=found[0][0], alpha=alpha, interval=intervals[0] if intervals else None, **fields)


def share_interval(
    calibration: HypothesisCalibration | EstimateCalibration, rows: int, count: Interval
) -> Interval:
    """Return the confidence interval of a share from the interval of its count in rows.

    If the number of rows n̂ is noisy, the failure probability of the interval is divided between the two
    errors.
    """
    low, high = count
    if calibration.epsilon_rows > 0.0:
        low, high = widen_interval(low, high)
        extra = half_width(sampler("two_sided", rows_rate(calibration)), miss=SECOND_MISS_PROBABILITY)
        more = bound_rows_error(high, rows, extra)
        low, high = low - more, high + more
    return clip_interval((low / rows, high / rows), 0.0, 1.0)


def share_alpha(
    calibration: HypothesisCalibration | EstimateCalibration, rows: int, number: float, alpha: float
) -> float:
    """Return the error bound of a share from the error bound of its ``number`` of rows."""
    return (alpha + bound_rows_error(number + alpha, rows, rows_reach(calibration))) / rows


def bound_rows_error(max_counted: float, rows: int, reach: float) -> float:
    """Bound the error, in rows, that the noisy number of rows n̂ = ``rows`` adds to a share.

    At most ``max_counted`` rows satisfy the condition, and n̂ is wrong by at most ``reach``. Let a be the noisy count,
    f and n the true count and number of rows, and p = f/n. Then a/n̂ − f/n = ((a − f) − p·(n̂ − n)) / n̂. The
    function bounds p·(n̂ − n).
    """
    share = min(1.0, max(0.0, max_counted) / (rows - reach)) if rows > reach else 1.0
    return share * reach


StatisticForm = Literal["quantile", "iqr", "variance", "stddev"]

_QUARTILES: Final = (Fraction(1, 4), Fraction(3, 4))
_MOMENT_FORMS: Final = ("variance", "stddev")


class StatisticNumber(NamedTuple):
    """A published number, with its confidence interval if it has one."""

    estimate: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Statistic:
    """A resolved question about an ordered attribute.

    - ``quantiles``: the quantiles to find (0.5 is the median); empty for variances.
    - ``is_list``: True if the answer is a list.
    - ``first`` and ``end``: the half-open range of the attribute's codes that the predicate allows.
    - ``shape``: the sizes of the grouped attributes.
    """

    form: StatisticForm
    attribute: str
    values: OrderedValues
    quantiles: tuple[Fraction, ...]
    is_list: bool
    group_by: tuple[str, ...]
    shape: tuple[int, ...]
    predicate: Predicate
    first: int
    end: int

    @property
    def size(self) -> int:
        """Number of codes in the range."""
        return self.end - self.first

    @property
    def groups(self) -> int:
        """Number of groups; 1 if the question has no groups."""
        return math.prod(self.shape)

    @property
    def uses_moments(self) -> bool:
        """True for variances and deviations, False for quantiles."""
        return self.form in _MOMENT_FORMS

    @property
    def side_miss_probability(self) -> float:
        """Probability with which one side of a quantile's interval may be wrong."""
        return MISS_PROBABILITY / (2.0 * len(_QUARTILES) if self.form == "iqr" else 2.0)

    def numbers_of_quantiles(self, quantiles: Sequence[LocatedQuantile]) -> list[StatisticNumber]:
        """Return the numbers of one group from its quantiles, whose codes count from ``first``."""
        values = self.values
        numbers = [
            StatisticNumber(
                values.middle(self.first + one.code),
                values.low(self.first + one.low),
                values.high(self.first + one.high),
            )
            for one in quantiles
        ]
        if self.form == "quantile":
            return numbers
        lower, upper = numbers
        least = cast("float", upper.low) - cast("float", lower.high)
        most = cast("float", upper.high) - cast("float", lower.low)
        return [StatisticNumber(max(0.0, upper.estimate - lower.estimate), max(0.0, least), most)]

    def number_of_variance(self, variance: float, low: float | None, high: float | None) -> StatisticNumber:
        """Return the variance or deviation of one group from the variance of its codes."""
        unit = float(self.values.step or 1) ** 2
        numbers = [None if one is None else max(0.0, one) * unit for one in (variance, low, high)]
        if self.form == "stddev":
            numbers = [None if one is None else math.sqrt(one) for one in numbers]
        return StatisticNumber(cast("float", numbers[0]), *numbers[1:])

    def alpha_of_variance(self, found: StatisticNumber, low: float, high: float) -> float:
        """Return the error bound of ``found`` if the codes' variance is between ``low`` and ``high``."""
        ends = self.number_of_variance(low, low, high)
        return max(found.estimate - cast("float", ends.low), cast("float", ends.high) - found.estimate, 0.0)

    def reply(self, found: Sequence[StatisticNumber], *, charged: bool, basis: str, alpha: float | None) -> Reply:
        """Return the answer: one number, or a list of numbers in the requested order.

        Quantiles of dates or categories, and the ends of their intervals, are texts.
        """
        fields: dict[str, Any] = {"charged": charged, "basis": basis, "alpha": alpha}
        ends = tuple((one.low, one.high) for one in found if one.low is not None and one.high is not None)
        intervals = ends if len(ends) == len(found) else None
        if self.form == "quantile" and (text := self.values.text) is not None:
            choices = tuple(text(int(one.estimate)) for one in found)
            if intervals is not None:
                fields["choice_intervals"] = tuple((text(int(low)), text(int(high))) for low, high in intervals)
            if self.is_list:
                return Reply(choices=choices, **fields)
            [choice] = choices
            return Reply(choice=choice, **fields)
        if self.is_list:
            return Reply(estimates=tuple(one.estimate for one in found), intervals=intervals, **fields)
        [one] = found
        return Reply(estimate=one.estimate, interval=None if intervals is None else intervals[0], **fields)


def require_listable_groups(shape: Sequence[int]) -> None:
    """Raise Rejection if a group-by has more groups than an answer can list."""
    if (groups := math.prod(shape)) > MAX_CATEGORIES:
        raise malformed_rejection(
            f"group_by: has {groups:,} groups, and at most {MAX_CATEGORIES:,} are allowed; group by fewer or smaller attributes"
        )


def statistic_form(query: Any) -> StatisticForm | None:
    """Return the form of a question about an ordered attribute, else None."""
    return next((name for name in STATISTICS if getattr(query, name) is not None), None)


def window_statistic(source: EventsSource, standing: StandingQuery, *, together: bool) -> Statistic:
    """Return a window's question about quantiles; with ``together``, one question covers all groups."""
    from stream.tables.predicates import parse  # noqa: PLC0415  (the SQL parser is slow to import)

    attribute = standing.quantile
    values = None if attribute is None else ordered_values(source.attributes[attribute])
    if attribute is None or values is None:
        raise TypeError("the stream asks for no quantiles of an ordered attribute")
    predicate = TRUE if standing.where is None else parse(standing.where, source.attributes)
    first, end = codes_within(values.size, attribute, predicate)
    quantiles, several = _parse_quantiles("quantile", standing.q)
    by = standing.by if together else ()
    shape = tuple(source.attributes[name].size for name in by)
    return Statistic(
        "quantile", attribute, values, quantiles, bool(by) or several, by, shape, predicate, first, end
    )


def read_statistic(
    context: Context, slot: int, query: Any, form: StatisticForm, stream_attributes: Collection[str]
) -> Statistic:
    """Resolve a question about one of ``stream_attributes`` that is ordered."""
    attribute = getattr(query, form)
    attributes = context.source_table(slot).attributes
    ordered = {name: ordered_values(attributes[name]) for name in stream_attributes}
    values = ordered.get(attribute)
    if values is None or not values.has_statistic(form):
        fitting = [name for name, one in ordered.items() if one is not None and one.has_statistic(form)]
        kind = "numbers" if form in _MOMENT_FORMS else "ordered values"
        raise malformed_rejection(
            f"{form}: {describe_attribute(attribute, attributes)} is not an attribute of {kind} of this stream; {list_declared(fitting)}"
            f"{suggest_name(attribute, fitting)}"
        )
    group_by = tuple(query.group_by or ())
    for place, name in enumerate(group_by):
        if name == attribute or name in group_by[:place]:
            raise malformed_rejection("group_by: an attribute is named twice; name it once")
        if name not in ordered:
            raise malformed_rejection(
                f"group_by: {describe_attribute(name, attributes)} is not an attribute of this stream; {list_declared(stream_attributes)}"
            )
    shape = tuple(attributes[name].size for name in group_by)
    require_listable_groups(shape)
    if math.prod(shape) * values.size > MAX_UNIVERSE:
        raise malformed_rejection(
            f"group_by: the groups have more than {MAX_UNIVERSE} values of the attribute together; group by fewer or smaller "
            "attributes"
        )
    return build_statistic(context.source_table(slot), query, form, values, context.predicate(slot, query.where))


def build_statistic(
    source: TableSource, query: Any, form: StatisticForm, values: OrderedValues, predicate: Predicate
) -> Statistic:
    """Build a question about a declared attribute with these values; Rejection if ``q`` is too exact."""
    attribute, group_by = getattr(query, form), tuple(query.group_by or ())
    shape = tuple(source.attributes[name].size for name in group_by)
    first, end = codes_within(values.size, attribute, predicate)
    quantiles, several = _parse_quantiles(form, query.q)
    is_list = bool(group_by) or several
    return Statistic(form, attribute, values, quantiles, is_list, group_by, shape, predicate, first, end)


def _parse_quantiles(form: StatisticForm, q: Any) -> tuple[tuple[Fraction, ...], bool]:
    if form != "quantile":
        return (_QUARTILES if form == "iqr" else ()), False
    several = isinstance(q, list | tuple)
    try:
        return parse_quantiles(0.5 if q is None else q), several
    except ValueError as error:
        raise malformed_rejection(f"q: {error}") from None


def statistic_reply(
    statistic: Statistic, question: Ranks | Spreads, numbers: Sequence[int], max_error: float | None, beta: float
) -> Reply:
    """Return the answer from ``numbers``, each of which is wrong by at most ``max_error`` (None: unknown).

    All bounds hold together with probability 1 − ``beta``. So confidence intervals follow from them, unless
    ``beta`` exceeds the probability with which an interval may miss the true number.
    """
    if isinstance(question, Spreads):
        found, alpha = _compute_variances(statistic, question, numbers, max_error or 0.0)
    else:
        found, alpha = _compute_quantiles(statistic, numbers, max_error or 0.0)
    if max_error is None or beta > MISS_PROBABILITY:
        found = [StatisticNumber(one.estimate) for one in found]
    return statistic.reply(found, charged=False, basis="hypothesis", alpha=None if max_error is None else alpha)


def _compute_quantiles(
    statistic: Statistic, numbers: Sequence[int], max_error: float
) -> tuple[list[StatisticNumber], float]:
    rows = np.array(numbers, dtype=np.float64).reshape(statistic.groups, statistic.values.size) / WEIGHT_STEPS
    edges = np.arange(statistic.size + 1, dtype=np.int64)
    # For the quantile q, let P rows be at or below a value, and N rows in all. Then P − q·N has the error of
    # one count plus q times the error of another.
    bounds = [(1.0 + float(quantile)) * max_error for quantile in statistic.quantiles]
    found: list[StatisticNumber] = []
    for cumulated in rows[:, statistic.first : statistic.end]:
        # Noisy cumulative counts keep their error bounds if they are made non-decreasing.
        below = np.maximum.accumulate(np.concatenate([np.zeros(1), cumulated]))
        total = float(below[-1])
        found += statistic.numbers_of_quantiles(
            [
                locate_quantile(edges, below - float(quantile) * total, np.full(len(edges), bound))
                for quantile, bound in zip(statistic.quantiles, bounds, strict=True)
            ]
        )
    return found, max(bounds)


def _compute_variances(
    statistic: Statistic, question: Spreads, numbers: Sequence[int], max_error: float
) -> tuple[list[StatisticNumber], float]:
    reaches = [max_error * most for most in question.moves]
    found = []
    alpha = 0.0
    for start in range(0, len(numbers), NUMBERS_PER_VARIANCE):
        group_numbers = [float(number) for number in numbers[start : start + NUMBERS_PER_VARIANCE]]
        variance, low, high = code_variance(group_numbers, reaches, statistic.size)
        one = statistic.number_of_variance(variance, low, high)
        alpha = max(alpha, statistic.alpha_of_variance(one, low, high))
        found.append(one)
    return found, alpha


@dataclass(frozen=True, slots=True)
class TopGroups:
    """The number of groups to publish, and the attributes by which they are grouped."""

    count: int
    attributes: tuple[tuple[str, Domain], ...]


def parse_top(source: TableSource, query: Any) -> TopGroups | None:
    """Return a grouped query's ``top``; None if it has none, or if it groups by undeclared attributes."""
    if query.top is None or not set(query.group_by) <= source.attributes.keys():
        return None
    top = TopGroups(query.top, tuple((name, source.attributes[name]) for name in query.group_by))
    count = min(top.count, math.prod(domain.size for _, domain in top.attributes))
    longest = longest_name(source.attributes, query.group_by)
    if count * longest > MAX_NAMES_LENGTH:
        raise malformed_rejection(
            f"top: the names of {count} groups have up to {count * longest:,} characters; ask for at most "
            f"{MAX_NAMES_LENGTH // longest}"
        )
    return top


def keep_largest_groups(reply: Reply, top: TopGroups) -> Reply:
    """Keep the largest numbers of a reply, with the names of their groups.

    Groups with equal numbers are in row-major order. The error bound holds for all numbers at once, and so
    also for the chosen numbers. A confidence interval holds for a number that is fixed in advance, so chosen
    numbers have no interval.
    """
    numbers = reply.estimates or ()
    indices = sorted(range(len(numbers)), key=lambda index: (-numbers[index], index))[: top.count]
    values = [(name, values_of(domain)) for name, domain in top.attributes]
    groups = []
    for index in indices:
        group: dict[str, str | int | float] = {}
        for name, choices in reversed(values):
            index, code = divmod(index, len(choices))  # noqa: PLW2901
            group[name] = choices[code]
        groups.append({name: group[name] for name, _ in values})
    chosen = tuple(numbers[index] for index in indices)
    return replace(reply, estimates=chosen, top_groups=tuple(groups), intervals=None, typical_error=None)
