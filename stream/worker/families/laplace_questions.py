"""Resolves the questions to laplace streams, to private integers and their sensitivity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from schemas import MAX_CATEGORIES, AnswersCalibration, Integers, Laplace, TableSource, ValuesSource
from schemas.queries import MAX_BOUND, STATISTICS
from stream.privacy.accuracy.source_facts import counts_from_zero
from stream.privacy.composition.losses import takes_alpha
from stream.privacy.planning.answer_plans import alpha_for
from stream.privacy.planning.plans import Price, answer_price
from stream.processing.dead_letters import malformed_rejection
from stream.tables.expressions import Predicate, conjunction
from stream.tables.sensitivity import (
    excluded_groups,
    groups_sensitivity,
    people_groups_sensitivity,
    person_sensitivity,
    restrict_domain,
    rows_are_public,
    total_sensitivity,
)
from stream.worker.families.context import Context
from stream.worker.families.family import alpha_rejection, require_form
from stream.worker.families.statistics import TopGroups, parse_top
from stream.worker.stream_terms import StreamTerms


@dataclass(frozen=True, slots=True)
class LaplaceQuestion:
    """A resolved question.

    - ``numbers``: private integers. ``widths``: for each number, the ℓ₁ sensitivity in steps to which its
      noise is scaled. ``moved``: how many of the numbers one person changes.
    - ``sent_values``: values that a producer sent, as the nearest doubles. The decimals in the event determine
      the rounding to steps, but they are read only near a tie.
    - ``shape``: the form of the answer. With ``number`` or ``vector``, the answer is each number divided by
      ``divisor``: the number of steps in 1 for a sum, the public number of rows for a share, otherwise 1.
      With ``quotient``, it is the quotient of two numbers plus ``center``, divided by ``divisor``, the number
      of steps in 1. With ``rates``, it is each group's share of hits: ``numbers`` has the hits of all groups,
      then the misses; ``is_ungrouped`` is True for a question without groups, and ``excluded`` has the positions
      of the groups that ``where`` excludes by the declared domains alone.
    - ``low`` and ``high``: public limits of the true answer; None if there is no limit.
    - ``top``: how many of the largest numbers are published; None for all.
    - ``alpha``: the requested error; ``price``: its price. ``max_parts``: the question's ``max_price`` in
      parts of an ordinary charge (``PARTS_PER_CHARGE``).
    """

    numbers: tuple[int, ...]
    widths: tuple[int, ...]
    shape: Literal["number", "vector", "quotient", "rates"]
    divisor: int | Fraction = 1
    center: float = 0.0
    low: float | None = None
    high: float | None = None
    sent_values: tuple[float, ...] = ()
    alpha: float | None = None
    price: Price | None = None
    max_parts: int | None = None
    moved: int = 1
    is_ungrouped: bool = False
    excluded: frozenset[int] = frozenset()
    top: TopGroups | None = None


class LaplaceQuestions:
    """Resolves questions of streams of kind ``laplace``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def resolve(self, slot: int, query: Any) -> LaplaceQuestion:
        """Return a question's private integers and their sensitivity; Rejection if it is not supported."""
        if self._context.trusts_values(slot):
            return self._resolve_sent_values(slot, query)
        resolvers: dict[str, Callable[[int, Any], LaplaceQuestion]] = {
            "count": self._resolve_count,
            "people": self._resolve_people,
            "fraction": self._resolve_fraction,
            "sum": self._resolve_sum,
            "mean": self._resolve_mean,
            "groups": self._resolve_groups,
            "rate": self._resolve_rate,
            "people_groups": self._resolve_people_groups,
            "person_sum": self._resolve_person_sum,
        }
        # LaplaceStatistics resolves the questions about statistics before.
        form = require_form(query, *resolvers, *STATISTICS, takes_alpha=True)
        public = form != "fraction" or rows_are_public(self._context.source_table(slot))
        if query.alpha is not None and (form in {"mean", "rate"} or not public):
            raise alpha_rejection(form)
        return resolvers[form](slot, query)

    def _calibration(self, slot: int) -> AnswersCalibration:
        return self._context.calibration(slot, AnswersCalibration)

    def add_price(self, slot: int, question: LaplaceQuestion, alpha: float) -> LaplaceQuestion:
        """Add a requested error and its price to a question about a table."""
        calibration, width, values = self._calibration(slot), question.widths[0], len(question.widths)
        steps = math.floor(Fraction(alpha) * question.divisor)
        if not takes_alpha(calibration):
            ordinary = alpha_for(calibration, width, values, question.moved)
            if ordinary <= steps:
                return replace(question, alpha=alpha)
            raise malformed_rejection(
                "alpha: all answers of a stream with delta above 0 cost the same; ask with an alpha of at least "
                f"{ordinary / question.divisor:.6g}, or open a stream with delta 0"
            )
        accountant = self._context.streams.terms_at(slot).source.accountant
        price = answer_price(calibration, accountant, width, values, steps)
        return replace(question, alpha=alpha, price=price)

    def _resolve_sent_values(self, slot: int, query: Any) -> LaplaceQuestion:
        terms = self._context.streams.terms_at(slot)
        form = require_form(query, "value", *(("values",) if terms.standing is None else ()))
        values = (query.value,) if form == "value" else query.values
        mechanism = terms.mechanism
        if isinstance(mechanism, Laplace) and len(values) > mechanism.dimensions:
            raise malformed_rejection(
                f"values: {len(values)} values, and the stream takes at most {mechanism.dimensions}; open one with more dimensions"
            )
        calibration = self._calibration(slot)
        width = len(values) * calibration.sensitivity_steps
        shape: Literal["number", "vector"] = "number" if form == "value" else "vector"
        low, high = sent_value_limits(terms)
        return LaplaceQuestion(
            (), (width,) * len(values), shape, low=low, high=high, sent_values=values, moved=len(values)
        )

    def _resolve_count(self, slot: int, query: Any) -> LaplaceQuestion:
        count = self._context.count(slot, query.where)
        high = self._context.count_limit(slot)
        return LaplaceQuestion(
            (count,), (self._context.source_table(slot).contribution,), "number", low=0.0, high=high
        )

    def _resolve_people(self, slot: int, query: Any) -> LaplaceQuestion:
        people = self._context.people(slot, query.where, min_rows=query.min_rows)
        return LaplaceQuestion((people,), (1,), "number", low=0.0, high=self._context.count_limit(slot))

    def _resolve_sum(self, slot: int, query: Any) -> LaplaceQuestion:
        domain = self._summed_domain(slot, query.sum, query.where, "sum")
        total = self._context.total(slot, query.sum, query.where)
        divisor = self._steps_in_one(slot, query.sum, "sum")
        low, high = (None if end is None else end / divisor for end in self._sum_limits(slot, domain))
        return LaplaceQuestion((total,), (self._sum_width(slot, domain),), "number", divisor, low=low, high=high)

    def _summed_domain(self, slot: int, attribute: str, where: str | None, field: str) -> Integers:
        """Return the attribute's domain in steps, restricted to values that satisfy the predicate."""
        domain = self._context.numeric_domain(slot, attribute, field).in_steps
        return restrict_domain(domain, attribute, self._context.predicate(slot, where))

    def _steps_in_one(self, slot: int, attribute: str, field: str) -> int | Fraction:
        """Return the number of an attribute's steps in 1."""
        unit = self._context.numeric_domain(slot, attribute, field).unit
        return 1 if unit == 1 else 1 / unit

    def _sum_width(self, slot: int, domain: Integers, center: int = 0) -> int:
        # A constant attribute has sensitivity 0, but noise needs a scale.
        return max(1, total_sensitivity(self._context.source_table(slot), domain, center))

    def _sum_limits(self, slot: int, domain: Integers) -> tuple[float | None, float | None]:
        rows = self._context.public_rows(slot)
        least, most = min(domain.minimum, 0), max(domain.maximum, 0)
        if rows is not None:
            return float(rows * least), float(rows * most)
        return (0.0 if least == 0 else None), (0.0 if most == 0 else None)

    def _resolve_fraction(self, slot: int, query: Any) -> LaplaceQuestion:
        count = self._context.count(slot, query.where)
        if (rows := self._context.public_rows(slot)) is not None:
            return LaplaceQuestion((count,), (1,), "number", divisor=max(1, rows), low=0.0, high=1.0)
        misses = self._context.count(slot, None) - count
        return self._resolve_shares(slot, (count, misses), is_ungrouped=True)

    def _resolve_rate(self, slot: int, query: Any) -> LaplaceQuestion:
        where, hit = self._context.predicate(slot, query.where), self._context.predicate(slot, query.rate, "rate")
        hits = conjunction((where, hit))
        if query.group_by is None:
            table = self._context.table(slot)
            all_rows, hit_rows = table.count(where), table.count(hits)
            return self._resolve_shares(slot, (hit_rows, all_rows - hit_rows), is_ungrouped=True)
        rows = self._cell_counts(slot, query.group_by, where, people=False)
        hit_cells = self._cell_counts(slot, query.group_by, hits, people=False)
        misses = (total - one for total, one in zip(rows, hit_cells, strict=True))
        excluded = excluded_groups(where, self._context.source_table(slot), query.group_by)
        shares = self._resolve_shares(slot, (*hit_cells, *misses), is_ungrouped=False)
        return replace(shares, excluded=excluded)

    def _resolve_shares(self, slot: int, numbers: tuple[int, ...], *, is_ungrouped: bool) -> LaplaceQuestion:
        """Return the question about hits and misses: counts of disjoint cells, each with the whole ε."""
        source = self._context.source_table(slot)
        widths = (groups_sensitivity(source),) * len(numbers)
        return LaplaceQuestion(
            numbers, widths, "rates", moved=_max_changed_cells(source), is_ungrouped=is_ungrouped
        )

    def _resolve_person_sum(self, slot: int, query: Any) -> LaplaceQuestion:
        context, attribute = self._context, query.person_sum
        numeric = context.numeric_domain(slot, attribute, "person_sum")
        domain, divisor, bound = numeric.in_steps, 1 / numeric.unit, math.floor(query.bound / numeric.unit)
        if not bound:
            raise malformed_rejection("bound: less than a step of the attribute; give at least one step")
        if max(abs(domain.minimum), abs(domain.maximum)) > MAX_BOUND:
            raise malformed_rejection(
                f"person_sum: the attribute's declared range is beyond ±{MAX_BOUND}; declare a smaller one, or ask for the sum"
            )
        total = context.table(slot).person_total(attribute, context.predicate(slot, query.where), bound)
        # If an attribute has only the value 0, its sensitivity is 0, but noise needs a scale.
        width = max(1, person_sensitivity(context.source_table(slot), domain, bound))
        low, high = (0.0 if domain.minimum >= 0 else None), (0.0 if domain.maximum <= 0 else None)
        return LaplaceQuestion((total,), (width,), "number", divisor, low=low, high=high)

    def _resolve_mean(self, slot: int, query: Any) -> LaplaceQuestion:
        domain = self._summed_domain(slot, query.mean, query.where, "mean")
        center = (domain.minimum + domain.maximum) // 2
        width = self._sum_width(slot, domain, center)
        total = self._context.total(slot, query.mean, query.where, center=center, field="mean")
        low, high = float(domain.minimum), float(domain.maximum)
        count = self._context.count(slot, query.where)
        return LaplaceQuestion(
            (total, count),
            (2 * width, 2 * self._context.source_table(slot).contribution),
            "quotient",
            self._steps_in_one(slot, query.mean, "mean"),
            float(center),
            low,
            high,
            moved=2,
        )

    def _resolve_groups(self, slot: int, query: Any) -> LaplaceQuestion:
        numbers = self._cell_counts(slot, query.group_by, self._context.predicate(slot, query.where), people=False)
        source = self._context.source_table(slot)
        widths = (groups_sensitivity(source),) * len(numbers)
        top = parse_top(source, query)
        moved, high = _max_changed_cells(source), self._context.count_limit(slot)
        return LaplaceQuestion(numbers, widths, "vector", low=0.0, high=high, moved=moved, top=top)

    def _resolve_people_groups(self, slot: int, query: Any) -> LaplaceQuestion:
        numbers = self._cell_counts(slot, query.group_by, self._context.predicate(slot, query.where), people=True)
        source = self._context.source_table(slot)
        # A person changes at most ``width`` counts, each by 1.
        width = people_groups_sensitivity(source, len(numbers))
        widths, high, top = (width,) * len(numbers), self._context.count_limit(slot), parse_top(source, query)
        return LaplaceQuestion(numbers, widths, "vector", low=0.0, high=high, moved=width, top=top)

    def _cell_counts(
        self, slot: int, group_by: Sequence[str], predicate: Predicate, *, people: bool
    ) -> tuple[int, ...]:
        """Return the true (private) count of rows or people in each cell."""
        table = self._context.table(slot)
        try:
            counts = table.group_counts(group_by, predicate, MAX_CATEGORIES, people=people)
        except ValueError as error:
            raise malformed_rejection(f"group_by: {error}") from None
        return tuple(counts.ravel().tolist())


def sent_value_limits(terms: StreamTerms) -> tuple[float | None, float | None]:
    """Return the public limits of the numbers that a producer or a feed sends."""
    if isinstance(terms.source, ValuesSource):
        return terms.source.minimum, terms.source.maximum
    counts = terms.standing is not None and counts_from_zero(terms.source, terms.standing)
    return (0.0 if counts else None), None


def _max_changed_cells(source: TableSource) -> int:
    """Return how many counts a person changes in the case with the largest ℓ₂ norm of the change.

    All rows of the person are then in one cell; if they are replaced, the new rows are in one other cell.
    """
    return 2 if source.neighbors == "replace" else 1
