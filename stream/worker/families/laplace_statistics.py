"""Quantiles and variances on streams that charge each answer (docs/proofs/quantiles.md).

A quantile of an attribute with few values is read off noisy counts of all values. Otherwise the
exponential mechanism draws a value with three quarters of ε, and the rest pays for noisy counts of
ranges around it, from which its interval follows. A variance needs a noisy count and two sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from schemas import AnswersCalibration
from stream.privacy.accuracy.intervals import MISS
from stream.privacy.accuracy.noise_laws import each_failure, reach
from stream.privacy.accuracy.rank_accuracy import (
    Located,
    draw_reach,
    edge_reaches,
    located,
    misfits_reach,
    most_ranges,
    ranges_around,
)
from stream.privacy.mechanisms.rank_choice import RankLaw, choose_code, rank_law, rates_for
from stream.privacy.mechanisms.selection import UNIFORM_WORDS
from stream.privacy.mechanisms.spreads import NUMBERS, moments, variance_of, widths
from stream.privacy.noise import NoiseScaleError, Symmetric, sampler
from stream.privacy.noise.samplers import LowWords, Words
from stream.privacy.planning.answer_plans import answer_law, promised_answers
from stream.processing.dead_letters import Rejection
from stream.tables import groups_sensitivity
from stream.worker.families.family import (
    AdmittedQuestion,
    Context,
    Reply,
    form_for,
    most_parts,
    no_alpha_for,
    too_wide,
)
from stream.worker.families.statistics import (
    Found,
    Statistic,
    read_statistic,
    statistic_form,
)

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

DRAW_SHARE: Final = Fraction(3, 4)
"""Part of ε for drawing values; the rest pays for their intervals."""

VALUES_PER_SQUARE: Final = 12
"""With m quantiles, all values are counted if there are at most 12·m², otherwise m are drawn."""

MOST_WORDS: Final = 1 << 22
"""Most random words of one answer."""

MOST_WEIGHTS: Final = 1 << 21
"""Most weights of all draws of one answer."""


@dataclass(frozen=True, slots=True)
class LaplaceStatistic:
    """A question with its private counts: a row for each group, a column for each code.

    ``draws`` are the laws of the drawn quantiles, empty if all values are counted; ``cells`` the
    noise of counts; ``sums`` the noise of a variance's numbers. ``most`` is the largest price.
    """

    asked: Statistic
    counts: Integers
    draws: tuple[RankLaw, ...] = ()
    cells: Symmetric | None = None
    sums: tuple[Symmetric, ...] = ()
    most: int | None = None

    @property
    def words(self) -> int:
        """Number of random words of the answer."""
        groups, size = self.asked.groups, self.asked.size
        numbers = sum(law.words for law in self.sums)
        if self.cells is not None:
            drawn = len(self.draws)
            numbers += self.cells.words * (most_ranges(size, drawn) if drawn else size)
        return groups * (len(self.draws) * UNIFORM_WORDS + numbers)


class LaplaceStatistics:
    """Answers questions about ordered attributes on streams of kind ``laplace``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def admit(self, slot: int, query: Any) -> LaplaceStatistic | None:
        """Resolve a question; None if it is of another form."""
        if (form := statistic_form(query)) is None:
            return None
        form_for(query, form, takes_alpha=True)
        source = self._context.source_table(slot)
        if query.alpha is not None:
            raise no_alpha_for(form)
        asked = read_statistic(self._context, slot, query, form, source.attributes)
        try:
            found = self._with_laws(slot, asked)
        except NoiseScaleError:
            raise too_wide(form, "answers") from None
        weights = asked.groups * sum(2 * law.steps for law in found.draws)
        if found.words > MOST_WORDS or weights > MOST_WEIGHTS:
            raise Rejection(
                "malformed",
                f"{form}: one answer would need {max(found.words, weights):,} random words and weights, and the most is {MOST_WEIGHTS:,}; "
                "ask for fewer groups or quantiles, or open a stream with fewer answers",
            )
        return LaplaceStatistic(
            asked,
            self._counts(slot, asked),
            found.draws,
            found.cells,
            found.sums,
            most_parts(self._calibration(slot), query),
        )

    def reply(self, one: AdmittedQuestion) -> Reply:
        """Answer a question that the grant pays for."""
        question: LaplaceStatistic = one.content
        words = _Words(*self._context.answer_words([one], question.words))
        if question.asked.is_squared:
            return self._variances(one.slot, question, words)
        return self._quantiles(one.slot, question, words)

    def _calibration(self, slot: int) -> AnswersCalibration:
        return self._context.calibration(slot, AnswersCalibration)

    def _counts(self, slot: int, asked: Statistic) -> Integers:
        table = self._context.table(slot)
        try:
            counts = table.group_counts((*asked.group_by, asked.attribute), asked.predicate)
        except ValueError as error:
            raise Rejection("malformed", f"{asked.form}: {error}") from None
        return counts.reshape(asked.groups, asked.values.size)[:, asked.first : asked.end]

    def _with_laws(self, slot: int, asked: Statistic) -> LaplaceStatistic:
        """Plan the noise of an answer, from public facts."""
        calibration, source = self._calibration(slot), self._context.source_table(slot)
        replaced, rows = source.neighbors == "replace", source.contribution
        nothing = np.zeros((0, 0), dtype=np.int64)
        gaussian = calibration.method == "gaussian"
        if asked.is_squared:
            # The rows of a person may be in several groups, each with numbers of its own.
            touched = min(groups_sensitivity(source), asked.groups)
            if gaussian and calibration.moved < NUMBERS * touched:
                raise Rejection(
                    "malformed",
                    f"{asked.form}: the Gaussian noise of this stream is planned for {calibration.moved} numbers in one answer, and a person "
                    f"moves more; open one with delta 0, or with dimensions {NUMBERS * touched}",
                )
            # Every number shares ε; one person moves each by at most its width, twice if replaced.
            each = NUMBERS * rows * (2 if replaced else 1)
            sums = tuple(answer_law(calibration, each * width, NUMBERS) for width in widths(asked.size))
            return LaplaceStatistic(asked, nothing, sums=sums)
        if gaussian or asked.size <= VALUES_PER_SQUARE * len(asked.parts) ** 2:
            law = answer_law(calibration, groups_sensitivity(source), 2 if replaced else 1)
            return LaplaceStatistic(asked, nothing, cells=law)
        epsilon = Fraction(calibration.epsilon_answer)
        rates = rates_for(epsilon * DRAW_SHARE, asked.parts, rows, replaced=replaced, grouped=bool(asked.group_by))
        draws = tuple(rank_law(rate, part) for rate, part in zip(rates, asked.parts, strict=True))
        cells = sampler("two_sided", epsilon * (1 - DRAW_SHARE) / groups_sensitivity(source))
        return LaplaceStatistic(asked, nothing, draws, cells)

    def _quantiles(self, slot: int, question: LaplaceStatistic, words: _Words) -> Reply:
        asked, law = question.asked, question.cells
        if law is None:
            raise TypeError("quantiles have noisy counts")
        calibration = self._calibration(slot)
        failure = each_failure(calibration.beta, promised_answers(calibration))
        numbers = asked.groups * len(asked.parts)
        size = asked.size
        found: list[Found] = []
        for counts in question.counts:
            codes = tuple(choose_code(counts, draw, words.uniform()) for draw in question.draws)
            edges = ranges_around(size, codes) if codes else np.arange(size + 1, dtype=np.int64)
            below = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])[edges]
            noise = words.draws(law, len(edges) - 1, most_ranges(size, len(codes)) if codes else size)
            found += asked.of_codes(_located(asked, edges, np.diff(below) + noise, law, codes))
        if question.draws:
            alpha = max(draw_reach(float(draw.rate), size, failure / numbers) for draw in question.draws)
        else:
            sums = 2 * size * numbers
            alpha = max(misfits_reach(law, size, sums, float(part), failure) for part in asked.parts)
        return asked.reply(found, charged=True, basis="noisy", alpha=alpha)

    def _variances(self, slot: int, question: LaplaceStatistic, words: _Words) -> Reply:
        asked, laws = question.asked, question.sums
        calibration = self._calibration(slot)
        failure = each_failure(calibration.beta, promised_answers(calibration)) / asked.groups
        own = [float(reach(law, 1, each_failure(MISS, NUMBERS))) for law in laws]
        all_ = [float(reach(law, 1, each_failure(failure, NUMBERS))) for law in laws]
        found: list[Found] = []
        alpha = 0.0
        for counts in question.counts:
            noisy = [
                float(number + int(words.draws(law, 1, 1)[0]))
                for number, law in zip(moments(counts), laws, strict=True)
            ]
            one = asked.of_variance(*variance_of(noisy, own, asked.size))
            _, low, high = variance_of(noisy, all_, asked.size)
            alpha = max(alpha, asked.alpha_of_variance(one, low, high))
            found.append(one)
        return asked.reply(found, charged=True, basis="noisy", alpha=alpha)


def _located(
    asked: Statistic, edges: Integers, noisy: Integers, law: Symmetric, codes: tuple[int, ...]
) -> list[Located]:
    """Return each quantile's code and the codes between which it lies, from noisy counts of ranges."""
    left = np.arange(len(edges), dtype=np.int64)
    below = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(noisy)])
    found = []
    for place, part in enumerate(asked.parts):
        misfits = below - float(part) * float(below[-1])
        one = located(edges, misfits, edge_reaches(law, left, float(part), asked.failure))
        if codes:
            one = Located(codes[place], min(one.low, codes[place]), max(one.high, codes[place]))
        found.append(one)
    return found


class _Words:
    """The random words of one answer, each of which is used once."""

    def __init__(self, high: Words, low: LowWords) -> None:
        self._high, self._low, self._next = high[0], low, 0

    def uniform(self) -> int:
        """Return an integer below 2^256."""
        start, self._next = self._next, self._next + UNIFORM_WORDS
        return int.from_bytes(self._high[start : self._next].astype(">u8").tobytes(), "big")

    def draws(self, law: Symmetric, count: int, reserved: int) -> Integers:
        """Draw noise ``count`` times, of words for ``reserved`` draws."""
        start, width = self._next, law.words
        self._next += reserved * width
        high = self._high[start : start + count * width].reshape(count, width)

        def low(row: int) -> Words:
            at = start + row * width
            return self._low(0)[at : at + width]

        return law.draw(high, low)
