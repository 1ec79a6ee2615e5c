"""Laplace: every answer has noise scaled to its question's sensitivity, and is charged.

The noise is Gaussian if the calibration says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from schemas import MAX_CATEGORIES, AnswersCalibration, Integers, Laplace
from stream.privacy.composition.costs import PARTS
from stream.privacy.mechanisms.grid import shown
from stream.privacy.noise import NoiseScaleError, Sampler, sampler
from stream.privacy.planning.answer_plans import alpha_for, answer_law, ratio_interval
from stream.privacy.planning.prices import Price, answer_price, shown_price, takes_alpha
from stream.processing.dead_letters import Rejection
from stream.processing.exact_decimals import value_of, values_of
from stream.tables import count_sensitivity, groups_sensitivity, rows_are_public, total_sensitivity, within
from stream.worker.families.family import (
    AdmittedQuestion,
    Family,
    Reply,
    above_limit,
    form_for,
    most_parts,
    no_alpha_for,
    too_dear,
    too_wide,
)


@dataclass(frozen=True, slots=True)
class _LaplaceQuestion:
    """A resolved question.

    - ``numbers``: private integers; ``widths``: ℓ1 sensitivity in steps to which the noise of each
      is scaled; ``moved``: how many of them one person changes.
    - ``trusted``: values that a producer sent, as doubles; they are rounded to steps from the
      decimals in the event.
    - The answer is the number divided by ``parts``, or the quotient of two numbers plus ``centre``,
      within ``low`` and ``high``.
    - ``alpha``: requested error; ``price``: its price; ``most``: most parts that it may cost.
    """

    numbers: tuple[int, ...]
    widths: tuple[int, ...]
    shape: Literal["number", "vector", "quotient"]
    parts: int = 1
    centre: float = 0.0
    low: float = 0.0
    high: float = 1.0
    trusted: tuple[float, ...] = ()
    alpha: float | None = None
    price: Price | None = None
    most: int | None = None
    moved: int = 1


class LaplaceFamily(Family):
    """Streams of kind ``laplace``."""

    def admit(self, slot: int, query: Any) -> _LaplaceQuestion:
        """Resolve a question to private integers and their sensitivity."""
        question = self._question(slot, query)
        try:
            if query.alpha is not None:
                question = self._priced(slot, question, query.alpha)
            # Priced noise always fits; its sampler is built only when the grant pays for it.
            if question.price is None:
                self._laws(slot, question)
        except NoiseScaleError:
            raise too_wide("query", "answers") from None
        most = most_parts(self._calibration(slot), query)
        return question if most is None else replace(question, most=most)

    def _question(self, slot: int, query: Any) -> _LaplaceQuestion:
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
                return _LaplaceQuestion((count(slot, query.where),), (width,), "number")
            case "fraction":
                return self._fraction(slot, query)
            case "sum":
                domain = self._summed(slot, query.sum, query.where, "sum")
                total = self._context.total(slot, query.sum, query.where)
                return _LaplaceQuestion((total,), (self._sum_width(slot, domain),), "number")
            case "mean":
                return self._mean(slot, query)
            case _:
                return self._groups(slot, query)

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions that the grant pays for; noise of equal laws is drawn at once."""
        replies: list[Reply | None] = [None] * len(questions)
        left: dict[int, int] = {}
        by_laws: dict[tuple[Sampler, ...], list[int]] = {}
        for number, one in enumerate(questions):
            rest = left[one.slot] if one.slot in left else self._streams.parts_left(one.slot)
            parts = PARTS if one.content.price is None else one.content.price.parts
            most = one.content.most
            if most is not None and most < parts <= rest:
                replies[number] = above_limit(self._calibration(one.slot), parts, most, at_most=False)
            elif parts <= rest:
                rest -= parts
                by_laws.setdefault(self._laws(one.slot, one.content), []).append(number)
            elif rest:
                asked = one.content.alpha is not None
                replies[number] = too_dear(self._calibration(one.slot), parts, rest, alpha=asked)
            left[one.slot] = rest
        for laws, members in by_laws.items():
            for number, noise in zip(
                members, self._context.answer_noise([questions[m] for m in members], laws), strict=True
            ):
                replies[number] = self._reply(questions[number], noise)
        return replies

    def _calibration(self, slot: int) -> AnswersCalibration:
        return self._context.calibration(slot, AnswersCalibration)

    def _priced(self, slot: int, question: _LaplaceQuestion, alpha: float) -> _LaplaceQuestion:
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
        accountant = self._streams.terms_at(slot).source.accountant
        price = answer_price(calibration, accountant, width, values, steps)
        return replace(question, alpha=alpha, price=price)

    def _trusted(self, slot: int, query: Any) -> _LaplaceQuestion:
        terms = self._streams.terms_at(slot)
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
        return _LaplaceQuestion((), (width,) * len(values), shape, trusted=values, moved=len(values))

    def _summed(self, slot: int, attribute: str, where: str | None, field: str) -> Integers:
        """Return the attribute's domain, restricted to the values that satisfy the predicate."""
        domain = self._context.integers(slot, attribute, field)
        return within(domain, attribute, self._context.predicate(slot, where))

    def _sum_width(self, slot: int, domain: Integers, centre: int = 0) -> int:
        # A constant attribute has sensitivity 0, but noise needs a scale.
        return max(1, total_sensitivity(self._context.source_table(slot), domain, centre))

    def _count_width(self, slot: int) -> int:
        return count_sensitivity(self._context.source_table(slot))

    def _fraction(self, slot: int, query: Any) -> _LaplaceQuestion:
        count = self._context.count(slot, query.where)
        if (rows := self._context.public_rows(slot)) is not None:
            return _LaplaceQuestion((count,), (1,), "number", parts=max(1, rows))
        everyone, width = self._context.count(slot, None), 2 * self._count_width(slot)
        # Both numbers share the answer's ε, so each has twice the noise scale.
        return _LaplaceQuestion((count, everyone), (width, width), "quotient", moved=2)

    def _mean(self, slot: int, query: Any) -> _LaplaceQuestion:
        domain = self._summed(slot, query.mean, query.where, "mean")
        centre = (domain.minimum + domain.maximum) // 2
        width = self._sum_width(slot, domain, centre)
        total = self._context.total(slot, query.mean, query.where, centre=centre, field="mean")
        low, high = float(domain.minimum), float(domain.maximum)
        count = self._context.count(slot, query.where)
        return _LaplaceQuestion(
            (total, count),
            (2 * width, 2 * self._count_width(slot)),
            "quotient",
            1,
            float(centre),
            low,
            high,
            moved=2,
        )

    def _groups(self, slot: int, query: Any) -> _LaplaceQuestion:
        predicate = self._context.predicate(slot, query.where)
        try:
            counts = self._context.table(slot).group_counts(query.group_by, predicate, max_cells=MAX_CATEGORIES)
        except ValueError as error:
            raise Rejection("malformed", f"group_by: {error}") from None
        source = self._context.source_table(slot)
        numbers = tuple(counts.ravel().tolist())
        # The ℓ₂ norm is largest if all rows of a person lie in one group.
        moved = 2 if source.neighbors == "replace" else 1
        return _LaplaceQuestion(numbers, (groups_sensitivity(source),) * len(numbers), "vector", moved=moved)

    def _laws(self, slot: int, question: _LaplaceQuestion) -> tuple[Sampler, ...]:
        calibration = self._calibration(slot)
        if question.price is None:
            return tuple(answer_law(calibration, width, question.moved) for width in question.widths)
        rate = Fraction(calibration.epsilon_answer) * Fraction(question.price.share, PARTS)
        return tuple(sampler("two_sided", rate / width) for width in question.widths)

    def _reply(self, one: AdmittedQuestion, noise: Sequence[int]) -> Reply:
        question: _LaplaceQuestion = one.content
        calibration = self._calibration(one.slot)
        numbers = self._rounded(one) if question.trusted else question.numbers
        noisy = [number + drawn for number, drawn in zip(numbers, noise, strict=True)]
        if question.shape == "quotient":
            top, bottom = (
                (float(n), alpha_for(calibration, w, 2, question.moved))
                for n, w in zip(noisy, question.widths, strict=True)
            )
            bounds = (question.low - question.centre, question.high - question.centre)
            estimate, alpha = ratio_interval(top, bottom, bounds)
            return Reply(charged=True, estimate=estimate + question.centre, basis="noisy", alpha=alpha)
        rounded = shown(noisy, calibration.grid, question.parts)
        published: dict[str, Any] = (
            {"estimate": rounded[0]} if question.shape == "number" else {"estimates": tuple(rounded)}
        )
        alpha = _kept(calibration, question)
        if question.alpha is None:
            return Reply(charged=True, basis="noisy", alpha=alpha, **published)
        parts = PARTS if question.price is None else question.price.parts
        price = shown_price(calibration, parts)
        return Reply(charged=True, basis="noisy", alpha=alpha, parts=parts, price=price, **published)

    def _rounded(self, one: AdmittedQuestion) -> list[int]:
        """Round a question's trusted values to steps."""
        question: _LaplaceQuestion = one.content
        grid = self._streams.terms_at(one.slot).grid
        exactly = values_of(one.payload) if question.shape == "vector" else lambda _: value_of(one.payload)
        steps: list[int] = grid.private(question.trusted, exactly).tolist()
        return steps


def _kept(calibration: AnswersCalibration, question: _LaplaceQuestion) -> float:
    """Return the error bound of the numbers; it must not exceed a requested error by rounding."""
    if question.alpha is None or question.price is None:
        width, values = question.widths[0], len(question.widths)
        return alpha_for(calibration, width, values, question.moved) / question.parts
    return min(question.alpha, question.price.reach / question.parts)
