"""Resolves the questions of laplace streams to private integers and their sensitivity."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from schemas import (
    MAX_CATEGORIES,
    AnswersCalibration,
    Integers,
    Laplace,
    Source,
    StandingQuery,
    ValuesSource,
)
from stream.privacy.accuracy.source_facts import counts_from_zero
from stream.privacy.planning.answer_plans import alpha_for
from stream.privacy.planning.prices import Price, answer_price, takes_alpha
from stream.processing.dead_letters import Rejection
from stream.tables import count_sensitivity, groups_sensitivity, rows_are_public, total_sensitivity, within
from stream.worker.families.family import Context, form_for, no_alpha_for


@dataclass(frozen=True, slots=True)
class LaplaceQuestion:
    """A resolved question.

    - ``numbers``: private integers; ``widths``: ℓ1 sensitivity in steps to which the noise of each
      is scaled; ``moved``: how many of them one person changes.
    - ``trusted``: values that a producer sent, as doubles; they are rounded to steps from the
      decimals in the event.
    - The answer is the number divided by ``parts``, or the quotient of two numbers plus ``centre``.
    - ``low`` and ``high``: public limits of the true answer; None if there is none.
    - ``alpha``: requested error; ``price``: its price; ``most``: most parts that it may cost.
    """

    numbers: tuple[int, ...]
    widths: tuple[int, ...]
    shape: Literal["number", "vector", "quotient"]
    parts: int = 1
    centre: float = 0.0
    low: float | None = None
    high: float | None = None
    trusted: tuple[float, ...] = ()
    alpha: float | None = None
    price: Price | None = None
    most: int | None = None
    moved: int = 1


class LaplaceQuestions:
    """Resolves questions of streams of kind ``laplace``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def resolve(self, slot: int, query: Any) -> LaplaceQuestion:
        """Return a question's private integers and their sensitivity; Rejection if it is not supported."""
        if self._context.trusts_values(slot):
            return self._trusted(slot, query)
        form = form_for(query, "count", "people", "fraction", "sum", "mean", "groups", takes_alpha=True)
        public = form != "fraction" or rows_are_public(self._context.source_table(slot))
        if query.alpha is not None and (form == "mean" or not public):
            raise no_alpha_for(form)
        match form:
            case "count" | "people":
                count = self._context.people if form == "people" else self._context.count
                width = 1 if form == "people" else self._count_width(slot)
                return LaplaceQuestion(
                    (count(slot, query.where),), (width,), "number", low=0.0, high=self._most_rows(slot)
                )
            case "fraction":
                return self._fraction(slot, query)
            case "sum":
                domain = self._summed(slot, query.sum, query.where, "sum")
                total = self._context.total(slot, query.sum, query.where)
                low, high = self._sum_limits(slot, domain)
                return LaplaceQuestion((total,), (self._sum_width(slot, domain),), "number", low=low, high=high)
            case "mean":
                return self._mean(slot, query)
            case _:
                return self._groups(slot, query)

    def _calibration(self, slot: int) -> AnswersCalibration:
        return self._context.calibration(slot, AnswersCalibration)

    def add_price(self, slot: int, question: LaplaceQuestion, alpha: float) -> LaplaceQuestion:
        """Add a requested error and its price to a question about a table."""
        calibration, width, values = self._calibration(slot), question.widths[0], len(question.widths)
        steps = math.floor(Fraction(alpha) * question.parts)
        if not takes_alpha(calibration):
            ordinary = alpha_for(calibration, width, values, question.moved)
            if ordinary <= steps:
                return replace(question, alpha=alpha)
            raise Rejection(
                "malformed",
                "alpha: where delta is above 0 all answers are charged alike; ask with an alpha of at least "
                f"{ordinary / question.parts:.6g}, or open a stream with delta 0",
            )
        accountant = self._context.streams.terms_at(slot).source.accountant
        price = answer_price(calibration, accountant, width, values, steps)
        return replace(question, alpha=alpha, price=price)

    def _trusted(self, slot: int, query: Any) -> LaplaceQuestion:
        terms = self._context.streams.terms_at(slot)
        form = form_for(query, "value") if terms.standing is not None else form_for(query, "value", "values")
        values = (query.value,) if form == "value" else query.values
        mechanism = terms.mechanism
        if isinstance(mechanism, Laplace) and len(values) > mechanism.dimensions:
            raise Rejection(
                "malformed",
                f"values: {len(values)} of them, the stream takes {mechanism.dimensions}; open it with more dimensions",
            )
        calibration = self._calibration(slot)
        width = len(values) * calibration.sensitivity_steps
        shape: Literal["number", "vector"] = "number" if form == "value" else "vector"
        low, high = _limits(terms.source, terms.standing)
        return LaplaceQuestion(
            (), (width,) * len(values), shape, low=low, high=high, trusted=values, moved=len(values)
        )

    def _summed(self, slot: int, attribute: str, where: str | None, field: str) -> Integers:
        """Return the attribute's domain, restricted to the values that satisfy the predicate."""
        domain = self._context.integers(slot, attribute, field)
        return within(domain, attribute, self._context.predicate(slot, where))

    def _sum_width(self, slot: int, domain: Integers, centre: int = 0) -> int:
        # A constant attribute has sensitivity 0, but noise needs a scale.
        return max(1, total_sensitivity(self._context.source_table(slot), domain, centre))

    def _count_width(self, slot: int) -> int:
        return count_sensitivity(self._context.source_table(slot))

    def _most_rows(self, slot: int) -> float | None:
        """Return the number of rows as a limit of counts, if it is public."""
        rows = self._context.public_rows(slot)
        return None if rows is None else float(rows)

    def _sum_limits(self, slot: int, domain: Integers) -> tuple[float | None, float | None]:
        """Return the limits of a sum of values in a domain."""
        rows = self._context.public_rows(slot)
        least, most = min(domain.minimum, 0), max(domain.maximum, 0)
        if rows is not None:
            return float(rows * least), float(rows * most)
        return (0.0 if least == 0 else None), (0.0 if most == 0 else None)

    def _fraction(self, slot: int, query: Any) -> LaplaceQuestion:
        count = self._context.count(slot, query.where)
        if (rows := self._context.public_rows(slot)) is not None:
            return LaplaceQuestion((count,), (1,), "number", parts=max(1, rows), low=0.0, high=1.0)
        everyone, width = self._context.count(slot, None), 2 * self._count_width(slot)
        # Both numbers share the answer's ε, so each has twice the noise scale.
        return LaplaceQuestion((count, everyone), (width, width), "quotient", low=0.0, high=1.0, moved=2)

    def _mean(self, slot: int, query: Any) -> LaplaceQuestion:
        domain = self._summed(slot, query.mean, query.where, "mean")
        centre = (domain.minimum + domain.maximum) // 2
        width = self._sum_width(slot, domain, centre)
        total = self._context.total(slot, query.mean, query.where, centre=centre, field="mean")
        low, high = float(domain.minimum), float(domain.maximum)
        count = self._context.count(slot, query.where)
        return LaplaceQuestion(
            (total, count),
            (2 * width, 2 * self._count_width(slot)),
            "quotient",
            1,
            float(centre),
            low,
            high,
            moved=2,
        )

    def _groups(self, slot: int, query: Any) -> LaplaceQuestion:
        predicate = self._context.predicate(slot, query.where)
        try:
            counts = self._context.table(slot).group_counts(query.group_by, predicate, max_cells=MAX_CATEGORIES)
        except ValueError as error:
            raise Rejection("malformed", f"group_by: {error}") from None
        source = self._context.source_table(slot)
        numbers = tuple(counts.ravel().tolist())
        # The ℓ₂ norm is largest if all rows of a person lie in one group.
        moved = 2 if source.neighbors == "replace" else 1
        widths = (groups_sensitivity(source),) * len(numbers)
        return LaplaceQuestion(numbers, widths, "vector", low=0.0, high=self._most_rows(slot), moved=moved)


def _limits(source: Source, standing: StandingQuery | None) -> tuple[float | None, float | None]:
    """Return the public limits of the numbers that a producer or a feed sends."""
    if isinstance(source, ValuesSource):
        return source.minimum, source.maximum
    return (0.0 if standing is not None and counts_from_zero(source, standing) else None), None
