"""Randomized response: each event is a person's category, each answer a category drawn around it."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from schemas import RandomizedResponse, ReleaseCalibration
from stream.accounting.randomized_response import Response, response
from stream.mechanisms.randomized_response import UNIFORM_WORDS, respond
from stream.noise import Role, event_words
from stream.processors.queries.families.base import Asked, Context, Reply, Stateless, form_for


class RandomizedResponseFamily(Stateless):
    """Streams of kind ``randomized_response``."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._numbers: dict[int, dict[str, int]] = {}

    def admit(self, slot: int, query: Any) -> int | None:
        """The number of the person's category in the stream's list; None for any other, which is answered all the same."""
        form_for(query, "category")
        return self._categories(slot).get(query.category)

    def answer(self, questions: Sequence[Asked]) -> list[Reply | None]:
        """One draw for each event; there is no end to them."""
        if not questions:
            return []
        streams = self._context.streams
        words, _ = event_words(
            [streams.noise.subkey(one.slot, Role.ANSWER) for one in questions],
            self._context.topic,
            self._context.partition,
            [one.offset for one in questions],
            [one.payload for one in questions],
            UNIFORM_WORDS,
        )
        replies: list[Reply | None] = []
        for one, row in zip(questions, words, strict=True):
            names, law = self._law(one.slot)
            chosen = respond(one.content, law, int.from_bytes(row.tobytes(), "little"))
            replies.append(Reply(charged=False, choice=names[chosen], basis="randomized"))
        return replies

    def _categories(self, slot: int) -> dict[str, int]:
        terms = int(self._context.streams.columns.terms_of[slot])
        if (numbers := self._numbers.get(terms)) is None:
            names, _ = self._law(slot)
            numbers = self._numbers[terms] = {name: number for number, name in enumerate(names)}
        return numbers

    def _law(self, slot: int) -> tuple[tuple[str, ...], Response]:
        terms = self._context.streams.terms_at(slot)
        mechanism, calibration = terms.mechanism, terms.calibration
        if not isinstance(mechanism, RandomizedResponse) or not isinstance(calibration, ReleaseCalibration):
            raise TypeError("a randomized_response stream has a calibration of kind 'release'")
        names = mechanism.categories
        return names, response(Fraction(calibration.epsilon_part), len(names))
