"""Quantiles of windows: streams of kind laplace or histogram on live topics.

A question carries the count of each value of the attribute that the stream's predicate allows: of
one group of a window, or of all groups one after the other. The answer is drawn as on tables
(docs/proofs/quantiles.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import AnswersCalibration, EventsSource, Histogram
from schemas.queries import MAX_VALUE_COUNT
from stream.processing.dead_letters import Rejection
from stream.processing.exact_decimals import values_of
from stream.worker.families.family import AdmittedQuestion, Context, Family, Reply, require_form
from stream.worker.families.laplace_statistics import AnswerWords, LaplaceStatistic, draw_quantiles, plan_quantiles
from stream.worker.families.statistics import window_statistic


class WindowQuantilesFamily(Family):
    """Streams of live topics that ask for quantiles."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._questions: dict[int, LaplaceStatistic] = {}

    def admit(self, slot: int, query: Any) -> tuple[float, ...]:
        """Return the counts of a window's values."""
        require_form(query, "values")
        statistic = self._question(slot).statistic
        groups, values = statistic.groups, statistic.size
        found: tuple[float, ...] = query.values
        if len(found) != groups * values:
            raise Rejection(
                "malformed",
                f"values: {len(found)} counts for {values} values in each of {groups} groups; send one count for each value",
            )
        return found

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer the questions that the grants pay for."""
        return self._answer_affordable(questions, self._replies)

    def _replies(self, slot: int, paid: Sequence[AdmittedQuestion]) -> list[Reply]:
        question = self._question(slot)
        return [self._reply(slot, question, one) for one in paid]

    def _reply(self, slot: int, question: LaplaceStatistic, one: AdmittedQuestion) -> Reply:
        exact = self._streams.terms_at(slot).grid.round_private(one.content, values_of(one.payload))
        shape = question.statistic.groups, question.statistic.size
        counts: npt.NDArray[np.int64] = np.clip(exact, 0, MAX_VALUE_COUNT).reshape(shape)
        words = AnswerWords(*self._context.answer_words([one], question.words))
        return draw_quantiles(replace(question, counts=counts), words)

    def _question(self, slot: int) -> LaplaceStatistic:
        """Return the question of a stream's windows, without counts."""
        number = int(self._streams.columns.terms_of[slot])
        if (known := self._questions.get(number)) is None:
            terms, source = self._streams.terms_at(slot), self._context.source(slot, EventsSource)
            together = isinstance(terms.mechanism, Histogram)
            statistic = window_statistic(source, self._context.standing(slot), together=together)
            calibration = self._context.calibration(slot, AnswersCalibration)
            known = self._questions[number] = plan_quantiles(statistic, calibration, source)
        return known
