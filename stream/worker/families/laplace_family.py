"""The family of laplace: every answer has noise scaled to its sensitivity, and is charged.

The noise is Gaussian if the stream's calibration has the method ``gaussian``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from schemas import AnswersCalibration, Interval
from stream.privacy.accuracy.intervals import NoisyNumber, half_width, ratio_bounds
from stream.privacy.accuracy.rate_intervals import rate_bounds
from stream.privacy.composition.costs import PARTS_PER_CHARGE
from stream.privacy.mechanisms.grid import published_interval, published_numbers
from stream.privacy.noise.samplers import NoiseScaleError, Symmetric, sampler
from stream.privacy.planning.answer_plans import alpha_for, answer_law, rates_reach, ratio_interval
from stream.privacy.planning.prices import shown_price
from stream.processing.exact_decimals import value_of, values_of
from stream.worker.families.family import (
    AdmittedQuestion,
    Context,
    Family,
    NoisyRate,
    Reply,
    build_rates_reply,
    max_price_parts,
    max_price_refusal,
    price_refusal,
    wide_noise_rejection,
)
from stream.worker.families.laplace_questions import LaplaceQuestion, LaplaceQuestions
from stream.worker.families.laplace_statistics import LaplaceStatistic, LaplaceStatistics
from stream.worker.families.top_groups import keep_largest_groups


class LaplaceFamily(Family):
    """Streams of kind ``laplace``."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._questions = LaplaceQuestions(context)
        self._statistics = LaplaceStatistics(context)

    def admit(self, slot: int, query: Any) -> LaplaceQuestion | LaplaceStatistic:
        """Resolve a question to private integers and their sensitivity."""
        if (statistic := self._statistics.admit(slot, query)) is not None:
            return statistic
        question = self._questions.resolve(slot, query)
        try:
            if query.alpha is not None:
                question = self._questions.add_price(slot, question, query.alpha)
            # The noise of a priced question is never too wide; its sampler is built only if the grant pays for it.
            if question.price is None:
                self._laws(slot, question)
        except NoiseScaleError:
            raise wide_noise_rejection("query", "answers") from None
        most = max_price_parts(self._calibration(slot), query)
        return question if most is None else replace(question, max_parts=most)

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer questions that the grant pays for; noise of equal laws is drawn at once."""
        replies: list[Reply | None] = [None] * len(questions)
        left: dict[int, int] = {}
        by_laws: dict[tuple[Symmetric, ...], list[int]] = {}
        for number, one in enumerate(questions):
            rest = left[one.slot] if one.slot in left else self._streams.parts_left(one.slot)
            statistic = isinstance(one.content, LaplaceStatistic)
            parts = PARTS_PER_CHARGE if statistic or one.content.price is None else one.content.price.parts
            most = one.content.max_parts
            if most is not None and most < parts <= rest:
                replies[number] = max_price_refusal(self._calibration(one.slot), parts, most, at_most=False)
            elif parts <= rest:
                rest -= parts
                if statistic:
                    replies[number] = self._statistics.reply(one)
                else:
                    by_laws.setdefault(self._laws(one.slot, one.content), []).append(number)
            elif rest:
                asked = not statistic and one.content.alpha is not None
                replies[number] = price_refusal(self._calibration(one.slot), parts, rest, alpha=asked)
            left[one.slot] = rest
        for laws, members in by_laws.items():
            for number, noise in zip(
                members, self._context.answer_noise([questions[m] for m in members], laws), strict=True
            ):
                replies[number] = self._reply(questions[number], laws, noise)
        return replies

    def _calibration(self, slot: int) -> AnswersCalibration:
        return self._context.calibration(slot, AnswersCalibration)

    def _laws(self, slot: int, question: LaplaceQuestion) -> tuple[Symmetric, ...]:
        calibration = self._calibration(slot)
        if question.price is None:
            return tuple(answer_law(calibration, width, question.moved) for width in question.widths)
        rate = Fraction(calibration.epsilon_answer) * Fraction(question.price.share, PARTS_PER_CHARGE)
        return tuple(sampler("two_sided", rate / width) for width in question.widths)

    def _reply(self, one: AdmittedQuestion, laws: Sequence[Symmetric], noise: Sequence[int]) -> Reply:
        question: LaplaceQuestion = one.content
        calibration = self._calibration(one.slot)
        numbers = self._round_trusted(one) if question.trusted else question.numbers
        noisy = [number + drawn for number, drawn in zip(numbers, noise, strict=True)]
        if question.shape == "quotient":
            top, bottom = (
                (float(n), alpha_for(calibration, w, 2, question.moved))
                for n, w in zip(noisy, question.widths, strict=True)
            )
            low, high = question.low or 0.0, question.high or 0.0
            bounds = (low - question.centre, high - question.centre)
            estimate, alpha = ratio_interval(top, bottom, bounds)
            dividend, divisor = (NoisyNumber(n, law) for n, law in zip(noisy, laws, strict=True))
            ends = ratio_bounds(dividend, divisor, *bounds)
            first, last = ((end + question.centre) / question.parts for end in ends)
            return Reply(
                charged=True,
                estimate=(estimate + question.centre) / question.parts,
                basis="noisy",
                alpha=None if alpha is None else alpha / question.parts,
                interval=(first, last),
            )
        if question.shape == "rates":
            return _rates_of_groups(calibration, question, laws[0], noisy)
        rounded = published_numbers(noisy, calibration.grid, question.parts)
        intervals = _intervals(calibration, question, half_width(laws[0]), noisy)
        published: dict[str, Any] = (
            {"estimate": rounded[0], "interval": intervals[0]}
            if question.shape == "number"
            else {"estimates": tuple(rounded), "intervals": intervals}
        )
        reply = Reply(charged=True, basis="noisy", alpha=_error_bound(calibration, question), **published)
        if question.alpha is not None:
            parts = PARTS_PER_CHARGE if question.price is None else question.price.parts
            reply = replace(reply, parts=parts, price=shown_price(calibration, parts))
        return reply if question.top is None else keep_largest_groups(reply, question.top)

    def _round_trusted(self, one: AdmittedQuestion) -> list[int]:
        """Round the values of a question to steps."""
        question: LaplaceQuestion = one.content
        grid = self._streams.terms_at(one.slot).grid
        exactly = values_of(one.payload) if question.shape == "vector" else lambda _: value_of(one.payload)
        steps: list[int] = grid.round_private(question.trusted, exactly).tolist()
        return steps


def _intervals(
    calibration: AnswersCalibration, question: LaplaceQuestion, half: int, noisy: Sequence[int]
) -> tuple[Interval, ...]:
    """Return the confidence intervals of numbers with noise of one law."""
    limits = {"low": question.low, "high": question.high}
    rounded = calibration.rounding > 0.0
    return tuple(
        published_interval(number, half, calibration.grid, question.parts, rounded=rounded, **limits)
        for number in noisy
    )


def _error_bound(calibration: AnswersCalibration, question: LaplaceQuestion) -> float:
    """Return the error bound of the numbers, at most the requested error in spite of rounding."""
    if question.alpha is None or question.price is None:
        width, values = question.widths[0], len(question.widths)
        return alpha_for(calibration, width, values, question.moved) / question.parts
    return min(question.alpha, float(question.price.reach / question.parts))


def _rates_of_groups(
    calibration: AnswersCalibration, question: LaplaceQuestion, law: Symmetric, noisy: Sequence[int]
) -> Reply:
    """Return each group's share of hits; ``noisy`` has the hits of all groups, then their misses."""
    groups = len(noisy) // 2
    reach = rates_reach(calibration, question.widths[0], groups, question.moved)
    rates = [
        NoisyRate(hits, misses, reach, rate_bounds(NoisyNumber(hits, law), NoisyNumber(misses, law)))
        for hits, misses in zip(noisy[:groups], noisy[groups:], strict=True)
    ]
    return build_rates_reply(rates, grouped=not question.single, charged=True, basis="noisy")
