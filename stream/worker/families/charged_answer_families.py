"""Families that keep no release and no estimate: laplace, selection and randomized response.

Laplace adds noise that is scaled to each answer's sensitivity; the noise is Gaussian if the calibration has
the method ``gaussian``. Laplace and selection (noisy maximum, exponential) charge each answer; randomized
response is charged once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from schemas import AnswersCalibration, Interval, RandomizedResponse, ReleaseCalibration
from stream.privacy.accuracy.intervals import NoisyNumber, half_width, ratio_bounds
from stream.privacy.accuracy.rate_intervals import rate_bounds, ratio_interval
from stream.privacy.composition.costs import PARTS_PER_CHARGE, shortest_decimal
from stream.privacy.mechanisms.private_values import (
    published_interval,
    published_numbers,
    scores_of,
    value_of,
    values_of,
)
from stream.privacy.mechanisms.selection import (
    RESPONSE_WORDS,
    UNIFORM_WORDS,
    choose_response,
    draw_exponential,
    noisy_max,
    score_noise,
    selection_rate,
    weights_for,
)
from stream.privacy.noise.samplers import NoiseScaleError, Symmetric, sampler
from stream.privacy.planning.answer_plans import alpha_for, answer_law, choice_alpha, rates_reach
from stream.privacy.planning.plans import shown_price
from stream.privacy.planning.response_plans import ResponseLaw, response_law
from stream.processing.dead_letters import malformed_rejection
from stream.worker.families.context import AdmittedQuestion, Context, TermsCache
from stream.worker.families.family import (
    Family,
    PaidFamily,
    Reply,
    max_price_parts,
    max_price_refusal,
    price_refusal,
    require_form,
    wide_noise_rejection,
)
from stream.worker.families.laplace_questions import LaplaceQuestion, LaplaceQuestions
from stream.worker.families.laplace_statistics import LaplaceStatistic, LaplaceStatistics
from stream.worker.families.statistics import NoisyRate, build_rates_reply, keep_largest_groups


class LaplaceFamily(Family):
    """Streams of kind ``laplace``."""

    counts_rows = True

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
            # The noise of a priced question is never too wide, and its sampler is made only if the grant pays.
            if question.price is None:
                self._laws(slot, question)
        except NoiseScaleError:
            raise wide_noise_rejection("query", "answers") from None
        most = max_price_parts(self._calibration(slot), query)
        return question if most is None else replace(question, max_parts=most)

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer the questions for which grants pay; noise with equal laws is drawn together."""
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
            drawn = self._context.answer_noise([questions[number] for number in members], laws)
            for number, noise in zip(members, drawn, strict=True):
                replies[number] = self._reply(questions[number], laws, noise)
        return replies

    def _calibration(self, slot: int) -> AnswersCalibration:
        return self._context.calibration(slot, AnswersCalibration)

    def _laws(self, slot: int, question: LaplaceQuestion) -> tuple[Symmetric, ...]:
        calibration = self._calibration(slot)
        if question.price is None:
            return tuple(answer_law(calibration, width, question.moved) for width in question.widths)
        rate = Fraction(calibration.epsilon_answer) * Fraction(question.price.noise_parts, PARTS_PER_CHARGE)
        return tuple(sampler("two_sided", rate / width) for width in question.widths)

    def _reply(self, one: AdmittedQuestion, laws: Sequence[Symmetric], noise: Sequence[int]) -> Reply:
        question: LaplaceQuestion = one.content
        calibration = self._calibration(one.slot)
        numbers = self._round_trusted(one) if question.sent_values else question.numbers
        noisy = [number + drawn for number, drawn in zip(numbers, noise, strict=True)]
        if question.shape == "quotient":
            top, bottom = (
                (float(n), alpha_for(calibration, w, 2, question.moved))
                for n, w in zip(noisy, question.widths, strict=True)
            )
            low, high = question.low or 0.0, question.high or 0.0
            bounds = (low - question.center, high - question.center)
            estimate, alpha = ratio_interval(top, bottom, bounds)
            dividend, divisor = (NoisyNumber(n, law) for n, law in zip(noisy, laws, strict=True))
            ends = ratio_bounds(dividend, divisor, *bounds)
            first, last = ((end + question.center) / question.divisor for end in ends)
            return Reply(
                charged=True,
                estimate=(estimate + question.center) / question.divisor,
                basis="noisy",
                alpha=None if alpha is None else alpha / question.divisor,
                interval=(first, last),
            )
        if question.shape == "rates":
            return _rates_of_groups(calibration, question, laws[0], noisy)
        rounded = published_numbers(noisy, calibration.grid, question.divisor)
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
        question: LaplaceQuestion = one.content
        grid = self._streams.terms_at(one.slot).grid
        exactly = values_of(one.payload) if question.shape == "vector" else lambda _: value_of(one.payload)
        steps: list[int] = grid.round_private(question.sent_values, exactly).tolist()
        return steps


def _intervals(
    calibration: AnswersCalibration, question: LaplaceQuestion, half: int, noisy: Sequence[int]
) -> tuple[Interval, ...]:
    limits = {"low": question.low, "high": question.high}
    rounded = calibration.rounding > 0.0
    return tuple(
        published_interval(number, half, calibration.grid, question.divisor, rounded=rounded, **limits)
        for number in noisy
    )


def _error_bound(calibration: AnswersCalibration, question: LaplaceQuestion) -> float:
    """Return the error bound of the numbers; rounding must not raise it above the requested error."""
    if question.alpha is None or question.price is None:
        width, values = question.widths[0], len(question.widths)
        return alpha_for(calibration, width, values, question.moved) / question.divisor
    return min(question.alpha, float(question.price.reach / question.divisor))


def _rates_of_groups(
    calibration: AnswersCalibration, question: LaplaceQuestion, law: Symmetric, noisy: Sequence[int]
) -> Reply:
    """Return each group's share of hits; ``noisy`` has the hits of all groups, then their misses."""
    groups = len(noisy) // 2
    possible = max(1, groups - len(question.excluded))
    reach = rates_reach(calibration, question.widths[0], possible, question.moved)
    rates = [
        NoisyRate(hits, misses, reach, rate_bounds(NoisyNumber(hits, law), NoisyNumber(misses, law)))
        for hits, misses in zip(noisy[:groups], noisy[groups:], strict=True)
    ]
    return build_rates_reply(
        rates, grouped=not question.is_ungrouped, excluded=question.excluded, charged=True, basis="noisy"
    )


@dataclass(frozen=True, slots=True)
class _ScoredCandidates:
    """The names and private scores of candidates; scores that a producer sent are rounded to doubles."""

    names: tuple[str, ...]
    scores: tuple[float, ...]


class _SelectionFamily(PaidFamily):
    """Base of noisy maximum and exponential mechanism, which differ only in ``_choose``."""

    kind: Literal["noisy_max", "exponential"]
    counts_rows = True

    def admit(self, slot: int, query: Any) -> _ScoredCandidates:
        """Resolve the candidates to private scores."""
        require_form(query, "candidates")
        names = tuple(one.name for one in query.candidates)
        if len(set(names)) < len(names):
            raise malformed_rejection("candidates.name: two candidates have the same name; give each its own name")
        score = self._sent_score if self._context.trusts_values(slot) else self._table_score
        return _ScoredCandidates(names, tuple(score(slot, one) for one in query.candidates))

    def _reply(self, one: AdmittedQuestion) -> Reply:
        calibration = self._context.calibration(one.slot, AnswersCalibration)
        choice: _ScoredCandidates = one.content
        chosen = self._choose(one, self._score_steps(one), calibration)
        alpha = choice_alpha(calibration, self.kind, len(choice.names))
        return Reply(charged=True, choice=choice.names[chosen], basis="noisy", alpha=alpha)

    def _score_steps(self, one: AdmittedQuestion) -> npt.NDArray[np.int64]:
        terms = self._streams.terms_at(one.slot)
        scores = one.content.scores
        exact_score = (
            scores_of(one.payload)
            if terms.source.kind == "values"
            else lambda place: shortest_decimal(scores[place])
        )
        return terms.value_grid.round_private(scores, exact_score)

    @abstractmethod
    def _choose(
        self, one: AdmittedQuestion, scores: npt.NDArray[np.int64], calibration: AnswersCalibration
    ) -> int:
        """Return the index of the candidate to publish."""

    def _sent_score(self, slot: int, candidate: Any) -> float:
        del slot
        if candidate.value is None or candidate.where or candidate.sum or candidate.people:
            raise malformed_rejection(
                "candidates: this stream's source has no table; give each candidate a 'value' and nothing else"
            )
        return float(candidate.value)

    def _table_score(self, slot: int, candidate: Any) -> float:
        if candidate.value is not None:
            raise malformed_rejection("candidates.value: this stream's source is a table; give 'where' or 'sum'")
        if candidate.people:
            if candidate.sum is not None:
                raise malformed_rejection("candidates: one candidate has both sum and people; give one of the two")
            people = self._context.people(slot, candidate.where, "candidates.where")
            return self._context.to_grid_steps(slot, people)
        self._context.require_row_counts(slot, "candidates.where")
        if candidate.sum is not None:
            self._context.require_planned_sum(slot, candidate.sum, "candidates.sum")
            total = self._context.total(slot, candidate.sum, candidate.where, field="candidates.sum")
            return self._context.to_grid_steps(slot, total, candidate.sum)
        if candidate.where is None:
            raise malformed_rejection(
                "candidates: one candidate has no score; give each a 'where', a 'sum' or 'people'"
            )
        return self._context.to_grid_steps(slot, self._context.count(slot, candidate.where, "candidates.where"))


class NoisyMaxFamily(_SelectionFamily):
    """Streams of kind ``noisy_max``."""

    kind = "noisy_max"

    def _choose(
        self, one: AdmittedQuestion, scores: npt.NDArray[np.int64], calibration: AnswersCalibration
    ) -> int:
        law = score_noise(calibration)
        words, low = self._context.derive_words([one], len(scores) * law.words)
        shape = (len(scores), law.words)
        return noisy_max(scores, law.draw(words.reshape(shape), lambda row: low(0).reshape(shape)[row]))


class ExponentialFamily(_SelectionFamily):
    """Streams of kind ``exponential``."""

    kind = "exponential"

    def _choose(
        self, one: AdmittedQuestion, scores: npt.NDArray[np.int64], calibration: AnswersCalibration
    ) -> int:
        words, _ = self._context.derive_words([one], UNIFORM_WORDS)
        uniform = int.from_bytes(words.tobytes(), "little")
        return draw_exponential(scores.tolist(), weights_for(selection_rate(calibration)), uniform)


class RandomizedResponseFamily(Family):
    """Streams of kind ``randomized_response``."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._category_indices = TermsCache(context, _index_categories)

    def admit(self, slot: int, query: Any) -> int | None:
        """Return the index of the event's category; None for an unknown category, which is answered too."""
        require_form(query, "category")
        return self._category_indices.find(slot).get(query.category)

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer each event with a random category; the number of answers is unlimited."""
        words, _ = self._context.derive_words(questions, RESPONSE_WORDS)
        replies: list[Reply | None] = []
        for one, row in zip(questions, words, strict=True):
            names, law = self._law(one.slot)
            chosen = choose_response(one.content, law, int.from_bytes(row.tobytes(), "little"))
            replies.append(Reply(charged=False, choice=names[chosen], basis="randomized"))
        return replies

    def _law(self, slot: int) -> tuple[tuple[str, ...], ResponseLaw]:
        names = self._context.mechanism(slot, RandomizedResponse).categories
        return names, response_law(
            Fraction(self._context.calibration(slot, ReleaseCalibration).epsilon_part), len(names)
        )


def _index_categories(context: Context, slot: int) -> dict[str, int]:
    categories = context.mechanism(slot, RandomizedResponse).categories
    return {name: index for index, name in enumerate(categories)}
