"""PMW-Bypass, Algorithm 1 of Turbo (Kostopoulou et al., SOSP 2023), with the constants of its published library.

For an error of α with a probability of 1 − β for each question it takes ε₀ = 4·ln(1/β)/(nα):

* a question was asked before: its answer is told again;
* some of its cells had fewer updates than their threshold (5 at first): *bypass*, Laplace noise of scale 1/ε₀, and an
  external update of the histogram where that is off by more than τα, τ = 0.01;
* else the sparse vector, which costs 3ε₀ whenever it starts anew, compares the histogram's error with α/2, Laplace noise of scale
  1/ε₀ on both. Below, the histogram's answer is free; above, Laplace noise as before and an update, and the cells' thresholds
  rise to one above the least number of updates among them.

An update multiplies the question's cells by e^{±η}, η = 4/8. The published β is 0.001 for each question. The number of
rows is public. numpy's noise: a peer's figure, not a release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

UPDATES_BEFORE, UPDATES_MORE = 5, 1
RATE = 4.0 / 8.0
MARGIN = 0.01


class Questions(Protocol):
    """Counts of boxes."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The attributes' sizes."""

    def slices(self, place: int, /) -> tuple[slice, ...]:
        """One question's cells."""


@dataclass
class Told:
    """What came of it: answers as counts, how many were paid for, and the parts of ε that were paid."""

    estimates: Floats
    paid: int
    started: int
    each: float

    def epsilon(self) -> float:
        """What all cost together under pure privacy."""
        return self.each * (self.paid + 3 * self.started)

    def rho(self) -> float:
        """The same under zCDP: ε²/2 for each part."""
        return 0.5 * self.each**2 * (self.paid + 9 * self.started)


def each_epsilon(alpha: float, beta: float, rows: int) -> float:
    """What an answer costs, and a third of what a start of the sparse vector does."""
    return 4.0 * math.log(1.0 / beta) / (rows * alpha)


def answers(
    questions: Questions, truth: Floats, rows: int, alpha: float, beta: float, generator: np.random.Generator
) -> Told:
    """Answer all questions in order, each to within ``alpha`` of the rows."""
    each = each_epsilon(alpha, beta, rows)
    noise = 1.0 / (rows * each)
    histogram = np.full(questions.sizes, 1.0 / float(np.prod(questions.sizes)))
    updates = np.zeros(questions.sizes, dtype=np.int32)
    needed = np.full(questions.sizes, UPDATES_BEFORE, dtype=np.int32)
    before: dict[str, float] = {}
    told = Told(np.empty(len(truth)), 0, 0, each)
    threshold: float | None = None
    for place, value in enumerate(truth):
        cells = questions.slices(place)
        asked = repr(cells)
        known = before.get(asked)
        if known is not None:
            told.estimates[place] = known * rows
            continue
        share = float(value) / rows
        guess = float(histogram[cells].sum())
        bypass = bool((updates[cells] < needed[cells]).any())
        if not bypass:
            if threshold is None:
                threshold = 0.5 * alpha + generator.laplace(0.0, noise)
                told.started += 1
            if abs(share - guess) + generator.laplace(0.0, noise) < threshold:
                told.estimates[place] = guess * rows
                continue
            threshold = None
            needed[cells] = updates[cells].min() + UPDATES_MORE
        answer = share + generator.laplace(0.0, noise)
        told.paid += 1
        told.estimates[place] = answer * rows
        before[asked] = answer
        margin = MARGIN * alpha if bypass else 0.0
        if abs(answer - guess) > margin:
            histogram[cells] *= math.exp(math.copysign(RATE, answer - guess))
            histogram /= histogram.sum()
            updates[cells] += 1
    return told
