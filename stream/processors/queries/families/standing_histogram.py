"""Histograms of a live topic: each window is one question, and its answer the noisy numbers of all its groups.

What one person does in a window moves all of its numbers together by the plan's sensitivity at most, and is paid for once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from schemas import AnswersCalibration, EventsSource, Histogram
from stream.accounting.answers import alpha_for, answer_law
from stream.accounting.movement import movement
from stream.mechanisms.grid import shown
from stream.noise import Role, event_words
from stream.processors.queries.families.base import Asked, Context, Reply, Stateless, form_for, stream_by_stream
from stream.processors.rejections import Rejection
from stream.processors.written import values_of


class StandingHistogramFamily(Stateless):
    """Streams of kind ``histogram`` on live topics."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def admit(self, slot: int, query: Any) -> tuple[float, ...]:
        """The numbers of all groups of a window, in row-major order."""
        form_for(query, "values")
        values: tuple[float, ...] = query.values
        if len(values) != (groups := self._groups(slot)):
            raise Rejection(
                "malformed", f"values: there are {len(values)}, and {groups} groups; send one for each"
            )
        return values

    def answer(self, questions: Sequence[Asked]) -> list[Reply | None]:
        """Noise for all windows of a stream at once."""
        return stream_by_stream(questions, self._replies)

    def _replies(self, slot: int, asked: Sequence[Asked]) -> list[Reply | None]:
        paid = asked[: self._context.streams.left(slot)]
        replies: list[Reply | None] = [None] * len(asked)
        if not paid:
            return replies
        terms = self._context.streams.terms_at(slot)
        calibration, groups = terms.calibration, self._groups(slot)
        if not isinstance(calibration, AnswersCalibration):
            raise TypeError("a standing histogram has a calibration of kind 'answers'")
        width, spread = calibration.sensitivity_steps, self._spread(slot, groups)
        law = answer_law(calibration, width, spread)
        words, low = event_words(
            [self._context.streams.noise.subkey(slot, Role.ANSWER)] * len(paid),
            self._context.topic,
            self._context.partition,
            [one.offset for one in paid],
            [one.payload for one in paid],
            groups * law.words,
        )
        alpha = alpha_for(calibration, width, groups, spread)
        columns = [
            law.draw(
                words[:, group * law.words : (group + 1) * law.words],
                lambda row, start=group * law.words: low(row)[start : start + law.words],  # type: ignore[misc]
            )
            for group in range(groups)
        ]
        for place, (one, noise) in enumerate(zip(paid, np.stack(columns, axis=1).tolist(), strict=True)):
            exact = terms.grid.private(one.content, values_of(one.payload)).tolist()
            noisy = [number + drawn for number, drawn in zip(exact, noise, strict=True)]
            told = tuple(shown(noisy, calibration.grid))
            replies[place] = Reply(charged=True, estimates=told, basis="noisy", alpha=alpha)
        return replies

    def _groups(self, slot: int) -> int:
        """How many groups a window has: the cells of the attributes that the mechanism names."""
        terms = self._context.streams.terms_at(slot)
        if not isinstance(terms.source, EventsSource) or not isinstance(terms.mechanism, Histogram):
            raise TypeError(f"stream in slot {slot} is no histogram of a live topic")
        return math.prod(terms.source.attributes[name].size for name in terms.mechanism.attributes)

    def _spread(self, slot: int, groups: int) -> int:
        """Among how many numbers a person's movement is spread where its ℓ₂ norm is largest."""
        terms = self._context.streams.terms_at(slot)
        if not isinstance(terms.source, EventsSource) or terms.standing is None:
            raise TypeError(f"stream in slot {slot} is no standing one")
        return movement(terms.source, terms.standing, groups).spread
