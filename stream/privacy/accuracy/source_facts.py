"""Public facts of a source, on which plans depend: sensitivities, numbers of questions, ranges."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import Final, Literal

from schemas import (
    Domain,
    EventsSource,
    Histogram,
    Mechanism,
    Numeric,
    RunningCount,
    Source,
    StandingQuery,
    SumOf,
    UnknownGroups,
    Windows,
    moment_ms,
)
from schemas.sources import MAX_ROWS
from stream.privacy.composition.costs import RefusedError, shortest_decimal


@dataclass(frozen=True, slots=True)
class GroupSensitivity:
    """How much one person can change the numbers of all groups.

    A person changes at most ``numbers`` of the numbers, each by at most ``each``, and all by at most
    ``together`` in the ℓ₁ norm. The ℓ₂ sensitivity is at most ``together``/√``spread``.
    """

    each: int
    together: int
    spread: int
    numbers: int


@dataclass(frozen=True, slots=True)
class QuantileFacts:
    """The public facts of a question about quantiles of an attribute.

    - ``quantiles``: the requested quantiles, from 0 to 1; ``value_count``: number of the attribute's values.
    - ``group_count``: number of groups in one answer; ``grouped``: True if the question has
      ``group_by``, so that a replaced row may move from one group to another.
    - ``contribution``: the contribution bound; ``replaced``: True if neighbors replace a unit.
    """

    quantiles: tuple[Fraction, ...]
    value_count: int
    group_count: int
    contribution: int
    replaced: bool
    grouped: bool


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """The public facts of a source that a mechanism's plan depends on.

    - ``sensitivity_steps``: sensitivity of one query, in steps of ``grid``.
    - ``sizes``: number of values of each attribute of the mechanism; ``universe``: number of
      cells or, for a standing stream, of groups.
    - ``rows``: the table's number of rows if neighbors replace a row, else a public bound on it.
    - ``records_per_person``: maximum number of a person's records in one stream (for records); ``contribution``: the
      contribution bound, to which the sensitivity is proportional.
    - ``rounding``: largest change by rounding to the grid; half a step for values in queries, 0 for tables.
    - ``window``: sensitivity of one window of a standing stream; ``horizon``: sensitivity of all windows
      of a running count together.
    - ``quantiles``: facts about the quantiles that a standing stream asks for in each window.
    - ``text_bytes``: maximum number of bytes of a text, if a standing stream has unknown groups.
    - ``disjoint``: True if an answer's numbers count disjoint groups, so that a row counts in one number.
    """

    sensitivity_steps: int = 1
    grid: float = 1.0
    neighbors: Literal["add-remove", "replace"] = "add-remove"
    universe: int | None = None
    sizes: tuple[int, ...] = ()
    rows: int | None = None
    records_per_person: int = 1
    disjoint: bool = False
    rounding: float = 0.0
    contribution: int = 1
    horizon: GroupSensitivity | None = None
    window: GroupSensitivity | None = None
    quantiles: QuantileFacts | None = None
    text_bytes: int | None = None

    @property
    def rows_public(self) -> bool:
        """True if all neighbors have the same number of rows."""
        return self.neighbors == "replace" and self.contribution == 1

    @property
    def groups_steps(self) -> int:
        """ℓ₁ sensitivity of all counts of disjoint cells; replacing a row changes two counts."""
        return self.contribution * (2 if self.neighbors == "replace" else 1)


def counts_from_zero(source: Source, standing: StandingQuery) -> bool:
    """Return True if a standing stream's numbers are never negative."""
    if not isinstance(standing.count, SumOf):
        return True
    domain = source.attributes[standing.count.sum] if isinstance(source, EventsSource) else None
    return isinstance(domain, Numeric) and domain.minimum >= 0


def covered_ms(source: EventsSource, mechanism: Mechanism, window: Windows) -> int:
    """Return how much of a period is covered by windows, in milliseconds; a running count ends with its horizon."""
    if isinstance(mechanism, RunningCount):
        return min(source.period_ms, mechanism.steps * window.every_ms)
    return source.period_ms


def questions_in_period(source: Source, mechanism: Mechanism, standing: StandingQuery | None) -> int:
    """Return the number of questions of a period's stream in its period; 0 for other streams."""
    if (
        not isinstance(source, EventsSource)
        or source.starts is None
        or standing is None
        or standing.begins is None
    ):
        return 0
    window = standing.window
    last_start_ms = moment_ms(source.starts) + covered_ms(source, mechanism, window) - window.size_ms
    windows = max(0, (last_start_ms - window.first_start_from(moment_ms(standing.begins))) // window.every_ms + 1)
    return windows * questions_per_window(source, mechanism, standing)


def groups_by_text(source: EventsSource, standing: StandingQuery) -> bool:
    """Return True if the groups of a standing query are private texts."""
    return any(name in source.texts for name in standing.by)


def questions_per_window(source: EventsSource, mechanism: Mechanism, standing: StandingQuery) -> int:
    """Return the number of questions about a window: one for each group, or one for all groups."""
    if isinstance(mechanism, Histogram | UnknownGroups) or groups_by_text(source, standing):
        return 1
    return math.prod(source.attributes[name].size for name in standing.by)


def window_sensitivity(source: EventsSource, standing: StandingQuery, groups: int) -> GroupSensitivity:
    """Return the sensitivity of a window's numbers, one for each group.

    All events of a person may lie in one group. In a count of people, a person changes only the
    group of the first event, by 1. Replacing a person removes one contribution and adds another:
    a number changes by at most the largest minus the least contribution.
    """
    most, replaced = source.contribution, source.neighbors == "replace"
    people = 2 if replaced else 1
    if standing.quantile is not None:
        # Each group has a count for each value: a person changes them by at most ``most`` events in all.
        groups *= source.attributes[standing.quantile].size
        return GroupSensitivity(most, people * most, people, min(groups, people * most))
    if standing.count == "people":
        moved = min(groups, people)
        return GroupSensitivity(1, moved, moved, moved)
    low, high = _one_event(source, standing)
    farthest = max(high, -low)
    each = most * max(1, high - low) if replaced else most * farthest
    numbers = min(groups, people * most)
    if not replaced or groups == 1:
        return GroupSensitivity(each, each, 1, numbers)
    # If both contributions are in one group, their changes add up if the signs may differ; otherwise they cancel.
    spread = 1 if low < 0 < high else 2
    return GroupSensitivity(each, 2 * most * farthest, spread, numbers)


def horizon_sensitivity(source: EventsSource, standing: StandingQuery) -> GroupSensitivity:
    """Return the sensitivity of all windows and groups of a running count.

    Windows must not overlap. At most ``total`` events of a person count in all windows together (in a count
    of people, at most one in each window). All of these events may lie in one window and group. Raise
    RefusedError if the source has no ``total``.
    """
    if source.total is None:
        raise RefusedError(
            f"total: source '{source.source}' does not bound how often a person counts in all windows of a running count; register "
            "one with total"
        )
    low, high = _one_event(source, standing)
    farthest = source.total * max(high, -low)
    if source.neighbors == "add-remove":
        return GroupSensitivity(farthest, farthest, 1, source.total)
    spread = 1 if low < 0 < high else 2
    return GroupSensitivity(source.total * (high - low), 2 * farthest, spread, 2 * source.total)


def _one_event(source: EventsSource, standing: StandingQuery) -> tuple[int, int]:
    """Return the least and the most that one event adds to a number.

    If every event adds 0, the result is 0 and 1, because noise needs a scale.
    """
    low, high = summed_range(source, standing.count) if isinstance(standing.count, SumOf) else (1, 1)
    return min(low, 0), max(high, 0 if low < 0 else 1)


def summed_range(source: EventsSource, count: SumOf) -> tuple[int, int]:
    """Return the ends of the summed attribute's range in steps; raise RefusedError if it cannot be summed."""
    whole = summed_domain(source, count).in_steps
    return whole.minimum, whole.maximum


def list_numeric_attributes(attributes: Mapping[str, Domain]) -> str:
    """List the declared attributes that have sums, as the remedy of a refusal."""
    names = [name for name, domain in attributes.items() if isinstance(domain, Numeric)]
    return f"name one of {', '.join(names[:8])}" if names else "none is declared"


def summed_domain(source: EventsSource, count: SumOf) -> Numeric:
    """Return the summed attribute's domain; raise RefusedError if it cannot be summed."""
    domain = source.attributes.get(count.sum)
    if not isinstance(domain, Numeric):
        raise RefusedError(
            "standing.count.sum: the source has no attribute of integers or decimals of this name; "
            + list_numeric_attributes(source.attributes)
        )
    return domain


MAX_STEPS = 1 << 50
"""Values and sums in queries are clamped to ±2⁵⁰ steps, which leaves room for noise of 52 binary digits."""

LARGEST_NUMBER = Decimal(10**15)
"""Values in queries without a declared range are clamped to ±10¹⁵, or to the grid's smaller range."""

LEAST_REACH = Decimal(10**9)
"""A grid with a smaller range requires a declared range."""

_exact_context = Context(prec=120, traps=[Inexact])


def largest_value(grid: float) -> Decimal:
    """Return the largest absolute value on a grid."""
    return _exact_context.multiply(shortest_decimal(grid), Decimal(MAX_STEPS))


def clamping_range(grid: float, minimum: float | None, maximum: float | None) -> tuple[Decimal, Decimal]:
    """Return the range to which values in queries are clamped: the declared or the default range."""
    end = min(LARGEST_NUMBER, largest_value(grid))
    return -end if minimum is None else shortest_decimal(minimum), end if maximum is None else shortest_decimal(
        maximum
    )


def require_monotone_counts(monotone: bool, neighbors: str, unit: str = "row") -> None:
    """Refuse ``monotone`` if neighbors replace a unit, because then one count may rise and another fall."""
    if monotone and neighbors == "replace":
        raise RefusedError(
            f"mechanism.monotone: counts are not monotone when neighbors replace a {unit}; leave it false, or register the source with "
            "neighbors 'add-remove'"
        )


LARGEST_TOTAL: Final = 1 << 53
"""Largest count or total of a table: doubles represent all integers up to it exactly."""

LARGEST_SUMMED: Final = LARGEST_TOTAL // MAX_ROWS
"""With values up to this, the total of MAX_ROWS rows is within LARGEST_TOTAL.

In a window of a live topic, MAX_ROWS/8 events stay within the limit of 2⁵⁰ steps.
"""


def require_total(domain: Numeric, name: str, field: str, finer: int = 1) -> None:
    """Raise RefusedError if sums of an attribute might be clipped.

    A step of the attribute's domain has ``finer`` steps of the sum.
    """
    in_steps = domain.in_steps
    furthest = max(abs(in_steps.minimum), abs(in_steps.maximum)) * finer
    if furthest > LARGEST_SUMMED:
        steps = "" if domain.unit == finer == 1 else " steps"
        raise RefusedError(
            f"{field}: '{name}' has values up to {furthest:,}{steps} from 0, and sums are exact for values up to {LARGEST_SUMMED:,}{steps}; register "
            "the attribute with values counted from a nearer origin, in larger units, or in a narrower range"
        )
