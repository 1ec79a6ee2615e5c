"""Families that publish a choice: selection mechanisms and randomized response.

Selection (noisy maximum, exponential) charges each answer; randomized response is charged once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from schemas import AnswersCalibration, RandomizedResponse, ReleaseCalibration
from stream.caches import RecentCache
from stream.privacy.composition.costs import shortest_decimal
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
from stream.privacy.planning.answer_plans import choice_alpha
from stream.privacy.planning.response_plans import ResponseLaw, response_law
from stream.processing.dead_letters import Rejection
from stream.processing.exact_decimals import scores_of
from stream.worker.families.family import (
    TERMS_KEPT,
    AdmittedQuestion,
    Context,
    Family,
    PaidFamily,
    Reply,
    require_form,
)


@dataclass(frozen=True, slots=True)
class _ScoredCandidates:
    """Candidates' names and private scores; a score that a producer sent is its nearest double."""

    names: tuple[str, ...]
    scores: tuple[float, ...]


class _SelectionFamily(PaidFamily):
    """Base of the noisy maximum and the exponential mechanism, which differ only in ``_choose``."""

    kind: Literal["noisy_max", "exponential"]

    def admit(self, slot: int, query: Any) -> _ScoredCandidates:
        """Resolve the candidates to private scores."""
        require_form(query, "candidates")
        names = tuple(one.name for one in query.candidates)
        if len(set(names)) < len(names):
            raise Rejection(
                "malformed", "candidates.name: two candidates have the same name; give each its own name"
            )
        score = self._sent_score if self._context.trusts_values(slot) else self._table_score
        return _ScoredCandidates(names, tuple(score(slot, one) for one in query.candidates))

    def _reply(self, one: AdmittedQuestion) -> Reply:
        calibration = self._context.calibration(one.slot, AnswersCalibration)
        choice: _ScoredCandidates = one.content
        chosen = self._choose(one, self._score_steps(one), calibration)
        alpha = choice_alpha(calibration, self.kind, len(choice.names))
        return Reply(charged=True, choice=choice.names[chosen], basis="noisy", alpha=alpha)

    def _score_steps(self, one: AdmittedQuestion) -> npt.NDArray[np.int64]:
        """Round the scores to steps."""
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
            raise Rejection(
                "malformed",
                "candidates: this stream's source has no table; give each candidate a 'value' and nothing else",
            )
        return float(candidate.value)

    def _table_score(self, slot: int, candidate: Any) -> float:
        if candidate.value is not None:
            raise Rejection(
                "malformed", "candidates.value: this stream's source is a table; give 'where' or 'sum'"
            )
        if candidate.people:
            if candidate.sum is not None:
                raise Rejection(
                    "malformed", "candidates: one candidate has both sum and people; give one of the two"
                )
            return self._context.to_grid_steps(
                slot, self._context.people(slot, candidate.where, "candidates.where")
            )
        self._context.require_row_counts(slot, "candidates.where")
        if candidate.sum is not None:
            self._context.require_planned_sum(slot, candidate.sum, "candidates.sum")
            total = self._context.total(slot, candidate.sum, candidate.where, field="candidates.sum")
            return self._context.to_grid_steps(slot, total, candidate.sum)
        if candidate.where is None:
            raise Rejection(
                "malformed", "candidates: one candidate has no score; give each a 'where', a 'sum' or 'people'"
            )
        return self._context.to_grid_steps(slot, self._context.count(slot, candidate.where, "candidates.where"))


class NoisyMaxFamily(_SelectionFamily):
    """Streams of kind ``noisy_max``."""

    kind = "noisy_max"

    def _choose(
        self, one: AdmittedQuestion, scores: npt.NDArray[np.int64], calibration: AnswersCalibration
    ) -> int:
        law = score_noise(calibration)
        words, low = self._context.answer_words([one], len(scores) * law.words)
        shape = (len(scores), law.words)
        return noisy_max(scores, law.draw(words.reshape(shape), lambda row: low(0).reshape(shape)[row]))


class ExponentialFamily(_SelectionFamily):
    """Streams of kind ``exponential``."""

    kind = "exponential"

    def _choose(
        self, one: AdmittedQuestion, scores: npt.NDArray[np.int64], calibration: AnswersCalibration
    ) -> int:
        words, _ = self._context.answer_words([one], UNIFORM_WORDS)
        uniform = int.from_bytes(words.tobytes(), "little")
        return draw_exponential(scores.tolist(), weights_for(selection_rate(calibration)), uniform)


class RandomizedResponseFamily(Family):
    """Streams of kind ``randomized_response``."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._category_indices: RecentCache[int, dict[str, int]] = RecentCache(TERMS_KEPT)

    def admit(self, slot: int, query: Any) -> int | None:
        """Return the category's index; None for an unknown category, which is answered too."""
        require_form(query, "category")
        return self._categories(slot).get(query.category)

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer each event with a random category; the number of answers is unlimited."""
        words, _ = self._context.answer_words(questions, RESPONSE_WORDS)
        replies: list[Reply | None] = []
        for one, row in zip(questions, words, strict=True):
            names, law = self._law(one.slot)
            chosen = choose_response(one.content, law, int.from_bytes(row.tobytes(), "little"))
            replies.append(Reply(charged=False, choice=names[chosen], basis="randomized"))
        return replies

    def _categories(self, slot: int) -> dict[str, int]:
        terms = int(self._streams.columns.terms_of[slot])
        if (numbers := self._category_indices.get(terms)) is None:
            names, _ = self._law(slot)
            numbers = {name: number for number, name in enumerate(names)}
            self._category_indices.put(terms, numbers)
        return numbers

    def _law(self, slot: int) -> tuple[tuple[str, ...], ResponseLaw]:
        names = self._context.mechanism(slot, RandomizedResponse).categories
        return names, response_law(
            Fraction(self._context.calibration(slot, ReleaseCalibration).epsilon_part), len(names)
        )
