"""Online private multiplicative weights: a public hypothesis, and the sparse vector that decides when to correct it.

The hypothesis p̂ is a distribution over the cells of a table's attributes. A question is a vector q over these cells, in
whole steps, 0 ≤ q(x) ≤ ``resolution`` steps, which is one row's full weight. If the hypothesis' answer rows·q(p̂) is
off by more than the noisy threshold the answer is a noisy number (⊤) and p̂(x) ∝ p̂(x)·exp(±η q(x)); otherwise it is
the hypothesis' own (⊥), for nothing. Source: Hardt & Rothblum 2010; Dwork & Roth 2014, Section 4.2; the proofs are in
docs/proofs/pmw-weights.md. Nothing here draws noise or does any I/O.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from itertools import groupby
from typing import Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

Asked_contra = TypeVar("Asked_contra", contravariant=True)
Question = TypeVar("Question")

TOTAL_BITS: Final = 42
"""p̂ is held as integers of a total near 2⁴²: with weights of 10 bits every partial sum is an integer below 2⁵³."""

_FIRST_BLOCK: Final = 32
_BLOCK_CELLS: Final = 1 << 13
_BUFFER_CELLS: Final = 1 << 17
"""Questions are written out as doubles so many cells at a time, few enough to stay in a core's cache."""

_MARGINAL_BUDGET: Final = 4
_STEP: Final = 1
"""No share is taken to be nearer to 0 or 1 than a step of a count."""
_LOG_ODDS: Final = Context(prec=40)
"""Decimal arithmetic is the same on every machine."""
_NEGLIGIBLE: Final = 32
"""Cells lighter than the heaviest by e⁻³² weigh nothing: 2⁴²·e⁻³² rounds to 0."""
_LOW_BITS: Final = 10


class Hypothesis(Protocol[Asked_contra]):
    """A public distribution over a universe, rebuilt from nothing but its updates."""

    def estimates(self, questions: Sequence[Asked_contra], rows: int) -> Integers:
        """rows·q(p̂) of each question in steps, rounded to the nearest.

        A function of the updates so far, the question and ``rows`` alone, never of the rest of the batch.
        """

    def update(self, question: Asked_contra, *, up: bool, times: int = 1) -> None:
        """Move weight towards the cells of the question, or away from them, by so many times η."""

    @property
    def nbytes(self) -> int:
        """How much memory it takes, in bytes."""


class Noise(Protocol):
    """The noise of one stream, by the number of ⊤s before and the questions' places in the batch."""

    def barrier(self, tops: int) -> int:
        """ρ + s of the round under way after so many ⊤s."""

    def queries(self, tops: int, places: range) -> Integers:
        """ν of the questions at these places, asked after so many ⊤s."""

    def answer(self, tops: int, place: int) -> int:
        """The noise of the number on the ⊤ of the question at this place."""


class Correction(Protocol):
    """How strongly a noisy answer corrects the hypothesis."""

    def times(self, shown: int, estimate: int) -> int:
        """How many times η to move by, for the error shown and the hypothesis's answer, in steps."""


@dataclass(frozen=True, slots=True)
class HypothesisAnswer:
    """One answer in steps: of the hypothesis, or with ``above`` a noisy one, which moved the hypothesis ``up`` or down."""

    above: bool
    value: int
    up: bool = False
    times: int = 1


@dataclass(frozen=True, slots=True)
class Strength:
    """How strongly to correct an error that a noisy answer shows.

    ``gap`` is the least error that calls for a correction, γ·rows in steps, and η = 4γ; ``reach`` is how far the error
    shown may be off. With a ``gap`` of 0 every correction is by η once.
    """

    gap: int = 0
    reach: int = 0

    def times(self, shown: int, estimate: int = 0) -> int:
        """How many times η to move by: as if the error shown (of either sign) were the true one, where that is safe.

        Safe is what brings the hypothesis nearer to the truth by 2γ² at least, whatever the true error within the reach.
        """
        del estimate
        if self.gap == 0:
            return 1
        shown = abs(shown)
        least = max(self.gap, shown - self.reach)
        safe = least + math.isqrt(least * least - self.gap * self.gap)
        return max(1, min(shown, safe) // self.gap)


@dataclass(frozen=True, slots=True)
class Aim:
    """Corrections that bring the hypothesis's answer to the least error that the one shown proves, in one step.

    ``gap`` and ``reach`` are those of ``Strength``. ``rows`` is what the hypothesis's answers are multiples of, ``most`` at least
    that and the true number of rows, all in steps; ``learning_rate`` is η.
    """

    gap: int
    reach: int
    rows: int
    most: int
    learning_rate: float

    def times(self, shown: int, estimate: int) -> int:
        """How many times η lie between the log-odds of the hypothesis's answer and those of the least error proved.

        A step y of the right sign lowers the distance by y·b − ln(1 − a + a·e^y) at least, a the share that the hypothesis
        says and b the true one, which grows until y is the difference of their log-odds: docs/proofs/sparse-pmw.md.
        """
        least = max(self.gap, abs(shown) - self.reach)
        with localcontext(_LOG_ODDS) as context:
            sign = 1 if shown > 0 else -1
            # Answers are rounded to a step; the nearer end is the safe one.
            start = Decimal(min(max(estimate + sign, _STEP), self.rows - _STEP)) / self.rows
            end = Decimal(estimate) / self.rows + sign * Decimal(least) / self.most
            margin = Decimal(_STEP) / self.most
            end = min(max(end, margin), 1 - margin)
            odds = (end / (1 - end)) / (start / (1 - start))
            distance = sign * context.ln(odds) / Decimal(self.learning_rate)
        return max(1, math.floor(distance))


def run(
    hypothesis: Hypothesis[Question],
    questions: Sequence[Question],
    private: Integers,
    noise: Noise,
    *,
    rows: int,
    threshold: int,
    tops: int,
    cutoff: int,
    strength: Correction,
) -> list[HypothesisAnswer]:
    """Answer questions in order until the cutoff; those that come after it have no step.

    ⊤ iff |f(D) − rows·q(p̂)| + ν ≥ T + ρ + s, all in whole steps; ``private`` holds the f(D). What was decided before the
    first ⊤ of a block stands; the hypothesis is then corrected and only what follows is evaluated again. Blocks grow while
    no ⊤ comes, so that a ⊤ costs the evaluation of few questions twice. The hypothesis is changed in place.
    """
    steps: list[HypothesisAnswer] = []
    size = _FIRST_BLOCK
    while len(steps) < len(questions) and tops < cutoff:
        block = range(len(steps), min(len(steps) + size, len(questions)))
        estimates = hypothesis.estimates(questions[block.start : block.stop], rows)
        margins = np.abs(private[block.start : block.stop] - estimates) - threshold
        above = margins + noise.queries(tops, block) >= noise.barrier(tops)
        standing = int(np.argmax(above)) if above.any() else len(block)
        steps += [HypothesisAnswer(above=False, value=value) for value in estimates[:standing].tolist()]
        if standing == len(block):
            size *= 2
            continue
        place = block[standing]
        value = int(private[place]) + noise.answer(tops, place)
        shown = value - int(estimates[standing])
        step = HypothesisAnswer(
            above=True, value=value, up=shown > 0, times=strength.times(shown, int(estimates[standing]))
        )
        hypothesis.update(questions[place], up=step.up, times=step.times)
        steps.append(step)
        tops += 1
        size = _FIRST_BLOCK
    return steps


class TensorQuestion(Protocol):
    """A question about a tensor of cells."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that the question depends on, in increasing order."""

    def steps(self) -> npt.NDArray[np.integer]:
        """q over the cells of these axes in row-major order, in steps."""


class TensorHypothesis:
    """A hypothesis over all cells of a tensor, starting at the uniform distribution.

    Log-weights are whole multiples of η/resolution, hence exact, and p̂ is a tensor of integers, computed from them by
    operations that IEEE 754 defines to the last bit. Sums of p̂ are sums of integers below 2⁵³, which doubles hold
    exactly in whatever order they are added: so a matrix product of any shape gives the same estimates, on any machine.
    """

    def __init__(self, shape: tuple[int, ...], learning_rate: float, resolution: int) -> None:
        self._shape = shape
        self._exponentials = exponentials(learning_rate, resolution)
        self._log_weights = np.zeros(shape, dtype=np.int64)
        self._tensor: Floats | None = None
        self._total = 0
        self._marginals: dict[tuple[int, ...], Floats] = {}

    @property
    def nbytes(self) -> int:
        """The most that it takes between two calls: log-weights, p̂ and marginals."""
        return (2 + _MARGINAL_BUDGET) * self._log_weights.nbytes

    def estimates(self, questions: Sequence[TensorQuestion], rows: int) -> Integers:
        """rows·q(p̂) of each question in steps, rounded to the nearest, halves upwards.

        A function of the updates so far, the question and ``rows`` alone, never of the rest of the batch.
        """
        alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, question in enumerate(questions):
            alike[question.axes].append(place)
        estimates = np.empty(len(questions), dtype=np.int64)
        for axes, places in alike.items():
            marginal = self._marginal(axes)
            at_once = _BUFFER_CELLS // min(len(marginal), _BLOCK_CELLS)
            for start in range(0, len(places), at_once):
                chunk = places[start : start + at_once]
                masses = _masses([questions[place].steps() for place in chunk], marginal).tolist()
                twice = 2 * self._total
                estimates[chunk] = [(2 * rows * int(mass) + self._total) // twice for mass in masses]
        return estimates

    def update(self, question: TensorQuestion, *, up: bool, times: int = 1) -> None:
        """Multiply each cell's weight by exp(±times·η q(x)), q in units of a full weight."""
        moved = times * question.steps().astype(np.int64).reshape(_broadcast(self._shape, question.axes))
        if up:
            self._log_weights += moved
        else:
            self._log_weights -= moved
        self._tensor = None
        self._marginals = {}

    def _marginal(self, axes: tuple[int, ...]) -> Floats:
        """p̂ summed over all other axes, flat; computed once per update."""
        if self._tensor is None:
            self._tensor = self._normalised()
            self._total = int(self._tensor.sum())
        known = self._marginals.get(axes)
        if known is None:
            known = _summed_over_others(self._tensor, axes)
            kept = sum(marginal.nbytes for marginal in self._marginals.values())
            if kept + known.nbytes > _MARGINAL_BUDGET * self._tensor.nbytes:
                self._marginals = {}
            self._marginals[axes] = known
        return known

    def _normalised(self) -> Floats:
        heaviest = 2.0**TOTAL_BITS
        weights = np.rint(heaviest * self._exponentials.of(self._log_weights - self._log_weights.max()))
        # The heaviest cell has 2⁴² and there are at most 2²⁰ cells, so that the total fits 63 bits.
        total = int(weights.astype(np.int64).sum())
        weights *= heaviest / float(total)
        return np.rint(weights, out=weights)


@dataclass(frozen=True, slots=True)
class Exponentials:
    """exp(η/resolution·k) for whole k ≤ 0, the same to the last bit on every machine.

    The product of two numbers from tables that are computed in decimal arithmetic and rounded correctly; relative error
    below 2⁻⁵¹. 0 below exp(−32).
    """

    low: Floats
    high: Floats

    def of(self, steps: Integers) -> Floats:
        """The exponentials of an array of whole steps, none of them above 0."""
        down = np.minimum(-steps, (len(self.high) << _LOW_BITS) - 1)
        values: Floats = self.low[down & ((1 << _LOW_BITS) - 1)]
        values *= self.high[down >> _LOW_BITS]
        return values


@lru_cache(maxsize=64)
def exponentials(learning_rate: float, resolution: int) -> Exponentials:
    """The table for the rate η; ``resolution`` steps are a weight of 1."""
    with localcontext(prec=30):
        rate = Decimal(learning_rate) / resolution
        reach = math.ceil(_NEGLIGIBLE / (learning_rate / resolution * (1 << _LOW_BITS)))
        low = [float((-rate * step).exp()) for step in range(1 << _LOW_BITS)]
        high = [float((-rate * (step << _LOW_BITS)).exp()) for step in range(reach)]
    return Exponentials(np.array(low), np.array([*high, 0.0]))


def _summed_over_others(tensor: Floats, axes: tuple[int, ...]) -> Floats:
    """The marginal of some axes, flat. The longest runs of other axes go first, which leaves little for the rest."""
    runs = [
        (kept, math.prod(tensor.shape[axis] for axis in run))
        for kept, run in groupby(range(tensor.ndim), key=lambda axis: axis in axes)
    ]
    summed = tensor.reshape([size for _, size in runs])
    for place in sorted(range(len(runs)), key=lambda place: -runs[place][1]):
        if not runs[place][0]:
            summed = summed.sum(axis=place, keepdims=True)
    return summed.reshape(-1)


def _masses(vectors: Sequence[npt.NDArray[np.integer]], marginal: Floats) -> Floats:
    """q·p̂ of each question: products of p̂'s integers with steps, below 2⁵³ in any partial sum."""
    masses = np.zeros(len(vectors))
    written = np.empty((len(vectors), min(len(marginal), _BLOCK_CELLS)))
    for start in range(0, len(marginal), _BLOCK_CELLS):
        part = marginal[start : start + _BLOCK_CELLS]
        for row, vector in zip(written, vectors, strict=True):
            row[: len(part)] = vector[start : start + _BLOCK_CELLS]
        masses += written[:, : len(part)] @ part
    return masses


def _broadcast(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length if axis in axes else 1 for axis, length in enumerate(shape))
