"""MWEM (Hardt, Ligett & McSherry, NIPS 2012): told all questions before, it measures those that its histogram gets most wrong.

As published, with both improvements of its section on experiments: every round goes over all measurements so far again, and the last
histogram is the answer rather than the mean of all. The number of rows is taken as public. numpy's noise: a peer's
figure, not a release.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SWEEPS = 20
"""How often a round goes over the measurements."""


class Questions(Protocol):
    """Counts of boxes."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The attributes' sizes."""

    def sums(self, marginal: Callable[[tuple[int, ...]], npt.NDArray[np.generic]], /) -> Floats:
        """All questions' answers."""

    def slices(self, place: int, /) -> tuple[slice, ...]:
        """One question's cells."""


def answers(
    questions: Questions, truth: Floats, rows: int, epsilon: float, rounds: int, generator: np.random.Generator
) -> Floats:
    """All answers from the histogram of the last of so many rounds, half of each round's ε for choosing, half for measuring."""
    histogram = np.full(questions.sizes, rows / float(np.prod(questions.sizes)))
    measured: list[tuple[tuple[slice, ...], float]] = []
    chosen: set[int] = set()
    rate = epsilon / (2.0 * rounds)
    for _ in range(rounds):
        errors = np.abs(questions.sums(lambda axes, now=histogram: marginal(now, axes)) - truth)  # type: ignore[misc]
        scores = 0.5 * rate * errors
        scores[list(chosen)] = -np.inf
        place = int(np.argmax(scores + generator.gumbel(size=len(scores))))
        chosen.add(place)
        measured.append((questions.slices(place), float(truth[place] + generator.laplace(0.0, 1.0 / rate))))
        for _ in range(SWEEPS):
            for cells, told in measured:
                wrong = told - float(histogram[cells].sum())
                histogram[cells] *= np.exp(wrong / (2.0 * rows))
                histogram *= rows / histogram.sum()
    return questions.sums(lambda axes: marginal(histogram, axes))


def marginal(histogram: Floats, axes: tuple[int, ...]) -> Floats:
    """A histogram summed over the axes that are left out."""
    result: Floats = histogram.sum(axis=tuple(axis for axis in range(histogram.ndim) if axis not in axes))
    return result
