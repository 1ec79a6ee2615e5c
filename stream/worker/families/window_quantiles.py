"""Quantiles of windows: streams of kind laplace or histogram on live topics.

A question carries the count of each value of the attribute that the stream's predicate allows: of
one group of a window, or of all groups one after the other. The answer is drawn as on tables (docs/proofs/quantiles.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import AnswersCalibration, EventsSource, Histogram
from schemas.queries import MAX_VALUE_COUNT
from stream.processing.dead_letters import Rejection
from stream.processing.exact_decimals import values_of
from stream.worker.families.family import AdmittedQuestion, Context, Family, Reply, require_form
from stream.worker.families.laplace_statistics import AnswerWords, LaplaceStatistic, quantiles_of, quantiles_reply
from stream.worker.families.statistics import window_statistic


@dataclass(frozen=True, slots=True)
class _WindowQuestion:
    """A stream's question without counts, and the shape of those: groups and values."""

    question: LaplaceStatistic
    shape: tuple[int, int]


class WindowQuantilesFamily(Family):
    """Streams of live topics that ask for quantiles."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._questions: dict[int, _WindowQuestion] = {}

    def admit(self, slot: int, query: Any) -> tuple[float, ...]:
        """Return the counts of a window's values."""
        require_form(query, "values")
        groups, values = self._question(slot).shape
        found: tuple[float, ...] = query.values
        if len(found) != groups * values:
            raise Rejection(
                "malformed",
                f"values: there are {len(found)}, and the attribute has {values} values in each of {groups} groups; send a count for each",
            )
        return found

    def answer(self, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        """Answer the questions that the grants pay for."""
        return self._answer_affordable(questions, self._replies)

    def _replies(self, slot: int, paid: Sequence[AdmittedQuestion]) -> list[Reply]:
        known = self._question(slot)
        return [self._reply(slot, known, one) for one in paid]

    def _reply(self, slot: int, known: _WindowQuestion, one: AdmittedQuestion) -> Reply:
        exact = self._streams.terms_at(slot).grid.round_private(one.content, values_of(one.payload))
        counts: npt.NDArray[np.int64] = np.clip(exact, 0, MAX_VALUE_COUNT).reshape(known.shape)
        question = replace(known.question, counts=counts)
        words = AnswerWords(*self._context.answer_words([one], question.words))
        return quantiles_reply(question, words)

    def _question(self, slot: int) -> _WindowQuestion:
        number = int(self._streams.columns.terms_of[slot])
        if (known := self._questions.get(number)) is None:
            terms, source = self._streams.terms_at(slot), self._context.source(slot, EventsSource)
            if terms.standing is None:
                raise TypeError(f"stream in slot {slot} is no standing one")
            statistic = window_statistic(source, terms.standing, together=isinstance(terms.mechanism, Histogram))
            calibration = self._context.calibration(slot, AnswersCalibration)
            nothing = np.zeros((0, 0), dtype=np.int64)
            question = quantiles_of(statistic, nothing, calibration, source)
            known = self._questions[number] = _WindowQuestion(question, (statistic.groups, statistic.size))
        return known
