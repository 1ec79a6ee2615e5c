"""How far answers are off, and by how much they may be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from schemas import AboveThreshold, Answer, Calibration, NumericSparse, Query, StreamSpec, form_of
from stream.simulation.truths import Truths

_WORDS = {
    "value": "values",
    "values": "values",
    "count": "counts",
    "people": "people",
    "fraction": "shares",
    "groups": "groups",
    "terms": "weighted sums",
    "cells": "cells",
}


@dataclass(frozen=True, slots=True)
class Measurement:
    """How far an answer is off: each of its numbers, its ⊤ or ⊥, or its choice; and the promised ``alpha``, if there is one.

    A ⊤ or ⊥ is off by how far the value lies on the wrong side of the threshold, a choice by how far it is below the best.
    """

    line: int
    what: str
    errors: tuple[float, ...]
    alpha: float | None
    broken: bool

    @property
    def largest(self) -> float:
        """The largest error of the answer's numbers."""
        return max(self.errors)


@dataclass(frozen=True, slots=True)
class Figures:
    """The errors of many answers of one kind; ``alpha`` is the least and the largest that was promised."""

    what: str
    answers: int
    numbers: int
    largest: float
    mean: float
    alpha: tuple[float, float] | None
    unpromised: int
    broken: int


def measure(
    line: int, query: Query, answer: Answer, spec: StreamSpec, calibration: Calibration, truths: Truths
) -> list[Measurement]:
    """How far one answer is off. A rejected or halted one says nothing, and a mean over no row has no truth."""
    if answer.outcome in {"rejected", "halted"}:
        return []
    if query.candidates is not None:
        scores = truths.scores(query)
        regret = max(scores.values()) - scores[answer.choice or ""]
        return [_measured(line, "choices", [(regret, Fraction())], answer.alpha)]
    exact = truths.numbers(query)
    found = []
    mechanism = spec.mechanism
    if isinstance(mechanism, AboveThreshold | NumericSparse) and exact:
        threshold = Fraction(repr(mechanism.threshold if query.threshold is None else query.threshold))
        over = exact[0] - threshold
        wrong = max(Fraction(), -over if answer.outcome == "above" else over)
        found.append(_measured(line, "above and below", [(wrong, Fraction())], calibration.alpha))
    published = answer.estimates if answer.estimate is None else (answer.estimate,)
    if published and exact:
        pairs = [(Fraction(number), truth) for number, truth in zip(published, exact, strict=True)]
        found.append(_measured(line, _what(query), pairs, answer.alpha))
    return found


def figures(measurements: Iterable[Measurement]) -> tuple[Figures, ...]:
    """The figures of each kind of answer, in the order of their first ones."""
    kinds: dict[str, list[Measurement]] = {}
    for one in measurements:
        kinds.setdefault(one.what, []).append(one)
    return tuple(_figures(what, measured) for what, measured in kinds.items())


def _figures(what: str, measured: list[Measurement]) -> Figures:
    errors = [error for one in measured for error in one.errors]
    promised = [one.alpha for one in measured if one.alpha is not None]
    return Figures(
        what=what,
        answers=len(measured),
        numbers=len(errors),
        largest=max(errors),
        mean=math.fsum(errors) / len(errors),
        alpha=(min(promised), max(promised)) if promised else None,
        unpromised=len(measured) - len(promised),
        broken=sum(one.broken for one in measured),
    )


def _measured(line: int, what: str, pairs: list[tuple[Fraction, Fraction]], alpha: float | None) -> Measurement:
    errors = tuple(float(abs(number - truth)) for number, truth in pairs)
    # What is published is a double: it may be off by its last digits beside what α bounds.
    broken = alpha is not None and any(
        error > alpha + 4 * math.ulp(max(abs(float(number)), alpha))
        for error, (number, _) in zip(errors, pairs, strict=True)
    )
    return Measurement(line, what, errors, alpha, broken)


def _what(query: Query) -> str:
    """What is in an answer's numbers; figures of different units are not put together."""
    if query.sum is not None:
        return f"sums of {query.sum}"
    return f"means of {query.mean}" if query.mean is not None else _WORDS[form_of(query)]
