"""Quantiles and variances on streams that charge each answer (docs/proofs/quantiles.md).

A quantile of an attribute with few values is computed from noisy counts of all values. Otherwise
the exponential mechanism draws a value with three quarters of ε. The rest of ε pays for noisy counts
of ranges around this value, which give its confidence interval. A variance needs a noisy count and
two noisy sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from schemas import AnswersCalibration, EventsSource, TableSource
from stream.privacy.accuracy.intervals import MISS_PROBABILITY
from stream.privacy.accuracy.noise_laws import noise_reach, part_failure
from stream.privacy.accuracy.rate_intervals import (
    NUMBERS_PER_VARIANCE,
    code_variance,
    compute_moments,
    row_sensitivities,
)
from stream.privacy.accuracy.release_accuracy import (
    LocatedQuantile,
    edge_reaches,
    locate_quantile,
    most_ranges,
    ranges_around,
)
from stream.privacy.accuracy.source_facts import QuantileFacts
from stream.privacy.composition.losses import promised_answers
from stream.privacy.mechanisms.selection import UNIFORM_WORDS, RankLaw, choose_code, rank_law
from stream.privacy.noise.samplers import IntegerArray, LowWords, NoiseScaleError, Symmetric, Words
from stream.privacy.planning.answer_plans import MOST_WEIGHTS, answer_law, quantile_noise, rank_alpha
from stream.processing.dead_letters import malformed_rejection
from stream.tables.sensitivity import groups_sensitivity
from stream.worker.families.context import AdmittedQuestion, Context
from stream.worker.families.family import (
    Reply,
    alpha_rejection,
    max_price_parts,
    require_form,
    wide_noise_rejection,
)
from stream.worker.families.statistics import Statistic, StatisticNumber, read_statistic, statistic_form

MAX_WORDS: Final = 1 << 22
"""Maximum number of random words for one answer."""


@dataclass(frozen=True, slots=True)
class LaplaceStatistic:
    """A question with the noise of its answer, and later with its private counts.

    ``draws`` has the laws of the drawn quantiles; it is empty if all values are counted. ``count_noise`` is the law
    of the noise of counts, and ``sums`` has the laws of the noise of a variance's numbers. ``alpha`` bounds
    the rank error of quantiles. ``max_parts`` is the question's ``max_price``, in parts of an ordinary
    charge. ``counts`` has a row for each group and a column for each code.
    """

    statistic: Statistic
    draws: tuple[RankLaw, ...] = ()
    count_noise: Symmetric | None = None
    sums: tuple[Symmetric, ...] = ()
    alpha: float | None = None
    max_parts: int | None = None
    counts: IntegerArray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))

    @property
    def words(self) -> int:
        """Number of random words of the answer."""
        groups, size = self.statistic.groups, self.statistic.size
        numbers = sum(law.words for law in self.sums)
        if self.count_noise is not None:
            drawn = len(self.draws)
            numbers += self.count_noise.words * (most_ranges(size, drawn) if drawn else size)
        return groups * (len(self.draws) * UNIFORM_WORDS + numbers)


class LaplaceStatistics:
    """Answers questions about ordered attributes on streams of kind ``laplace``."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def admit(self, slot: int, query: Any) -> LaplaceStatistic | None:
        """Resolve a question; None if it is not about a quantile or variance."""
        if (form := statistic_form(query)) is None:
            return None
        require_form(query, form, takes_alpha=True)
        source = self._context.source_table(slot)
        if query.alpha is not None:
            raise alpha_rejection(form)
        statistic = read_statistic(self._context, slot, query, form, source.attributes)
        found = plan_statistic(statistic, self._calibration(slot), source)
        max_parts = max_price_parts(self._calibration(slot), query)
        return replace(found, counts=self._count_values(slot, statistic), max_parts=max_parts)

    def reply(self, one: AdmittedQuestion) -> Reply:
        """Answer a question for which the grant pays."""
        question: LaplaceStatistic = one.content
        words = AnswerWords(*self._context.derive_words([one], question.words))
        if question.statistic.uses_moments:
            return self._reply_with_variances(one.slot, question, words)
        return draw_quantiles(question, words)

    def _calibration(self, slot: int) -> AnswersCalibration:
        return self._context.calibration(slot, AnswersCalibration)

    def _count_values(self, slot: int, statistic: Statistic) -> IntegerArray:
        table = self._context.table(slot)
        try:
            counts = table.group_counts((*statistic.group_by, statistic.attribute), statistic.predicate)
        except ValueError as error:
            raise malformed_rejection(f"{statistic.form}: {error}") from None
        return counts.reshape(statistic.groups, statistic.values.size)[:, statistic.first : statistic.end]

    def _reply_with_variances(self, slot: int, question: LaplaceStatistic, words: AnswerWords) -> Reply:
        statistic, laws = question.statistic, question.sums
        calibration = self._calibration(slot)
        failure = part_failure(calibration.beta, promised_answers(calibration)) / statistic.groups
        single_reaches = [
            float(noise_reach(law, 1, part_failure(MISS_PROBABILITY, NUMBERS_PER_VARIANCE))) for law in laws
        ]
        joint_reaches = [float(noise_reach(law, 1, part_failure(failure, NUMBERS_PER_VARIANCE))) for law in laws]
        found: list[StatisticNumber] = []
        alpha = 0.0
        for counts in question.counts:
            noisy = [
                float(number + int(words.draws(law, 1, 1)[0]))
                for number, law in zip(compute_moments(counts), laws, strict=True)
            ]
            one = statistic.number_of_variance(*code_variance(noisy, single_reaches, statistic.size))
            _, low, high = code_variance(noisy, joint_reaches, statistic.size)
            alpha = max(alpha, statistic.alpha_of_variance(one, low, high))
            found.append(one)
        return statistic.reply(found, charged=True, basis="noisy", alpha=alpha)


def plan_statistic(statistic: Statistic, calibration: AnswersCalibration, source: TableSource) -> LaplaceStatistic:
    """Plan the noise of an answer about a table from public facts; Rejection if it is too wide, or too much work."""
    form = statistic.form
    try:
        plan = _plan_variances if statistic.uses_moments else plan_quantiles
        found = plan(statistic, calibration, source)
    except NoiseScaleError:
        if statistic.uses_moments:
            raise wide_noise_rejection(form, "answers") from None
        raise malformed_rejection(
            f"{form}: its noise would be too wide; open a stream with a larger epsilon or fewer answers, or declare a smaller contribution"
        ) from None
    weights = statistic.groups * sum(2 * law.max_distance for law in found.draws)
    for what, needed, limit in (("random words", found.words, MAX_WORDS), ("weights", weights, MOST_WEIGHTS)):
        if needed > limit:
            raise malformed_rejection(
                f"{form}: one answer would need {needed:,} {what}, and the limit is {limit:,}; ask for fewer groups or quantiles, or "
                "open a stream with fewer answers"
            )
    return found


def _plan_variances(
    statistic: Statistic, calibration: AnswersCalibration, source: TableSource
) -> LaplaceStatistic:
    # A person's rows may be in several groups, each of which has its own numbers.
    touched = min(groups_sensitivity(source), statistic.groups)
    if calibration.method == "gaussian" and calibration.moved < NUMBERS_PER_VARIANCE * touched:
        raise malformed_rejection(
            f"{statistic.form}: the Gaussian noise of this stream is planned for {calibration.moved} numbers in one answer, and a person "
            f"changes more; open a stream with delta 0, or with dimensions {NUMBERS_PER_VARIANCE * touched}"
        )
    # ε is divided among all numbers. One person changes each by at most its width, or twice if replaced.
    each = NUMBERS_PER_VARIANCE * source.contribution * (2 if source.neighbors == "replace" else 1)
    widths = row_sensitivities(statistic.size)
    sums = tuple(answer_law(calibration, each * width, NUMBERS_PER_VARIANCE) for width in widths)
    return LaplaceStatistic(statistic, sums=sums)


def plan_quantiles(
    statistic: Statistic, calibration: AnswersCalibration, source: TableSource | EventsSource
) -> LaplaceStatistic:
    """Plan the noise of an answer about quantiles from public facts.

    Raises:
        NoiseScaleError: the noise is too wide.
    """
    facts = QuantileFacts(
        statistic.quantiles,
        statistic.size,
        statistic.groups,
        source.contribution,
        source.neighbors == "replace",
        bool(statistic.group_by),
    )
    noise = quantile_noise(calibration, facts)
    draws = tuple(map(rank_law, noise.rates, statistic.quantiles)) if noise.rates else ()
    alpha = rank_alpha(calibration, facts, noise)
    return LaplaceStatistic(statistic, draws, noise.count_noise, alpha=alpha)


def draw_quantiles(question: LaplaceStatistic, words: AnswerWords) -> Reply:
    """Draw the quantiles of each group, and find their intervals."""
    statistic, law = question.statistic, question.count_noise
    if law is None:
        raise TypeError("a question about quantiles needs the noise of counts")
    size = statistic.size
    found: list[StatisticNumber] = []
    for counts in question.counts:
        codes = tuple(choose_code(counts, draw, words.uniform()) for draw in question.draws)
        edges = ranges_around(size, codes) if codes else np.arange(size + 1, dtype=np.int64)
        below = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])[edges]
        noise = words.draws(law, len(edges) - 1, most_ranges(size, len(codes)) if codes else size)
        found += statistic.numbers_of_quantiles(
            _locate_quantiles(statistic, edges, np.diff(below) + noise, law, codes)
        )
    return statistic.reply(found, charged=True, basis="noisy", alpha=question.alpha)


def _locate_quantiles(
    statistic: Statistic, edges: IntegerArray, noisy: IntegerArray, law: Symmetric, codes: tuple[int, ...]
) -> list[LocatedQuantile]:
    """Locate each quantile in noisy counts of ranges: its code, and the lowest and highest possible code."""
    left = np.arange(len(edges), dtype=np.int64)
    below = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(noisy)])
    found = []
    for place, quantile in enumerate(statistic.quantiles):
        misfits = below - float(quantile) * float(below[-1])
        one = locate_quantile(
            edges, misfits, edge_reaches(law, left, float(quantile), statistic.side_miss_probability)
        )
        if codes:
            one = LocatedQuantile(codes[place], min(one.low, codes[place]), max(one.high, codes[place]))
        found.append(one)
    return found


class AnswerWords:
    """The random words of one answer, each of which is used once."""

    def __init__(self, high: Words, low: LowWords) -> None:
        self._high, self._low, self._next = high[0], low, 0

    def uniform(self) -> int:
        """Return an integer below 2^256."""
        start, self._next = self._next, self._next + UNIFORM_WORDS
        return int.from_bytes(self._high[start : self._next].astype(">u8").tobytes(), "big")

    def draws(self, law: Symmetric, count: int, reserved: int) -> IntegerArray:
        """Draw noise ``count`` times from the words of ``reserved`` draws; the other words stay unused."""
        start, width = self._next, law.words
        self._next += reserved * width
        high = self._high[start : start + count * width].reshape(count, width)

        def low(row: int) -> Words:
            at = start + row * width
            return self._low(0)[at : at + width]

        return law.draw(high, low)
