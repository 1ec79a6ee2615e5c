"""Online private multiplicative weights: a sparse vector decides when to correct a hypothesis.

The public hypothesis p̂ is a distribution over the cells of a table's attributes. A question is a
vector q of weights over these cells, in steps from 0 to ``resolution`` (the weight 1). The hypothesis's
answer is rows·q(p̂). If its error exceeds the noisy threshold (⊤), the answer is a noisy number, and p̂ is
multiplied by exp(±η q(x)) in each cell x. Otherwise the hypothesis answers for free (⊥).
Source: Hardt & Rothblum 2010; Dwork & Roth 2014, Section 4.2; proofs: docs/proofs/pmw-weights.md.

``SparseHypothesis`` is for a universe (all cells) that is too large to enumerate. A cell is *named* if the
question of an update contains it. All other cells have the same weight, so time and memory depend only on
the named cells. Source: Blum & Roth 2011, Section 4 (Sparse Multiplicative Weights).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from itertools import groupby
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from stream.privacy.mechanisms.maximum_entropy import TOTAL_BITS, exponentials, spread_shape
from stream.privacy.mechanisms.releases import cell_bytes
from stream.privacy.noise.samplers import Floats, IntegerArray

Cell = tuple[int, ...]

SHARE_BITS: Final = 80
"""Shares of cells are integers out of 2⁸⁰."""

_BYTES_PER_CELL: Final = 640
"""Approximate memory of a named cell: codes, log-weight, weight and share."""
_DECIMAL_CONTEXT: Final = Context(prec=40, Emax=MAX_EMAX, Emin=MIN_EMIN)
"""Decimal arithmetic, which gives the same result on every machine; 2⁸⁰ has only 25 digits."""


@dataclass(frozen=True, slots=True)
class CellQuestion:
    """A weighted sum of distinct, sorted ``cells``; ``steps`` has their weights, which are above 0."""

    cells: tuple[Cell, ...]
    steps: tuple[int, ...]

    @property
    def key(self) -> bytes:
        """Canonical bytes, which are the same for equivalent questions."""
        return b"".join(cell_bytes(self.cells)) + np.array(self.steps, dtype=">u4").tobytes()


class SparseHypothesis:
    """A hypothesis over ``universe`` cells, initially uniform.

    ``universe`` is the number of all cells, or the calibration's ``places`` if this is less
    (docs/proofs/pmw-weights.md, Theorem 4). Log-weights are whole multiples of η/resolution. Weights
    are relative to the weight of an unnamed cell. They are computed from the log-weights each time, so that
    rounding errors do not accumulate.
    """

    def __init__(self, universe: int, learning_rate: float, resolution: int) -> None:
        self._universe = universe
        self._log_weight_step = _DECIMAL_CONTEXT.divide(Decimal(learning_rate), Decimal(resolution))
        self._log_weights: dict[Cell, int] = {}
        self._weights: dict[Cell, Decimal] = {}
        self._shares: dict[Cell, int] | None = None
        self._other_share = 0

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        return _BYTES_PER_CELL * (1 + len(self._log_weights))

    def estimate_answers(self, questions: Sequence[CellQuestion], rows: int) -> IntegerArray:
        """Return the estimated answers to questions, in steps of 1/1024.

        An answer is ``rows`` times the sum of weight times share over the question's cells. It is rounded to the
        nearest step, halves upwards. Before rounding, inexact shares cause an error of at most rows·2⁻⁶⁰ steps.
        """
        shares = self._current_shares()
        other_share = self._other_share
        half = 1 << (SHARE_BITS - 1)
        masses = (
            sum(
                step * shares.get(cell, other_share)
                for cell, step in zip(question.cells, question.steps, strict=True)
            )
            for question in questions
        )
        return np.array([(rows * mass + half) >> SHARE_BITS for mass in masses], dtype=np.int64)

    def update(self, question: CellQuestion, *, up: bool, times: int = 1) -> None:
        """Multiply the weight of each cell x of a question by exp(±times·η·q(x)).

        q(x) = step/resolution is the weight of the cell x in the question.
        """
        with localcontext(_DECIMAL_CONTEXT):
            for cell, step in zip(question.cells, question.steps, strict=True):
                log_weight = self._log_weights.get(cell, 0) + times * (step if up else -step)
                self._log_weights[cell] = log_weight
                self._weights[cell] = (self._log_weight_step * log_weight).exp()
        self._shares = None

    def _current_shares(self) -> dict[Cell, int]:
        """Return the shares of the named cells; ``_other_share`` is the share of each other cell."""
        if self._shares is None:
            with localcontext(_DECIMAL_CONTEXT):
                others = Decimal(self._universe - len(self._weights))
                scale = Decimal(1 << SHARE_BITS) / sum(self._weights.values(), others)
                self._shares = {cell: int(weight * scale) for cell, weight in self._weights.items()}
                self._other_share = int(scale)
        return self._shares


_FIRST_BLOCK: Final = 32
_BLOCK_CELLS: Final = 1 << 13
_BUFFER_CELLS: Final = 1 << 17
"""Number of weights that are converted to doubles at once; they fit into a core's cache."""

_CACHED_MARGINALS_SIZE: Final = 4
"""Maximum size of all cached marginals, in multiples of the tensor's size."""
_LOG_ODDS_CONTEXT: Final = Context(prec=40)
"""Decimal arithmetic gives the same result on every machine."""


class Noise(Protocol):
    """Draws a stream's noise after ``tops`` ⊤s; questions are given by their places in the batch."""

    def barrier(self, tops: int) -> int:
        """Return ρ + s."""

    def query_noise(self, tops: int, places: range) -> IntegerArray:
        """Return ν of the questions at these places."""

    def answer_noise(self, tops: int, place: int) -> int:
        """Return the noise of the number that the ⊤ at this place publishes."""


@dataclass(frozen=True, slots=True)
class HypothesisAnswer:
    """One answer in steps.

    If ``above`` is true, the number is noisy, and the hypothesis was corrected up or down by ``times``·η. Answers after
    the last correction that the grant pays for are not ``promised``, because they are not compared with the table.
    """

    above: bool
    value: int
    up: bool = False
    times: int = 1
    promised: bool = True


@dataclass(frozen=True, slots=True)
class TensorCorrection:
    """Computes how strongly to correct a hypothesis over a tensor, from the observed error.

    ``gap`` is the least error that requires a correction: γ·rows in steps, with η = 4γ. ``reach`` bounds the
    noise of the observed error. If ``gap`` is 0, every correction is by 1·η.
    """

    gap: int = 0
    reach: int = 0

    def choose_multiple(self, observed_error: int, estimate: int = 0) -> int:  # noqa: ARG002 - as SparseCorrection
        """Return the multiple of η by which to correct.

        It is the largest multiple with which the distance to the true distribution falls by at least 2γ²,
        for every true error within ``reach`` of ``observed_error``.
        """
        if self.gap == 0:
            return 1
        observed_error = abs(observed_error)
        least = max(self.gap, observed_error - self.reach)
        safe = least + math.isqrt(least * least - self.gap * self.gap)
        return max(1, min(observed_error, safe) // self.gap)


@dataclass(frozen=True, slots=True)
class SparseCorrection:
    """Computes how strongly to correct a sparse hypothesis: by the part of the error that is certain.

    ``gap`` and ``reach`` are as in ``TensorCorrection``. ``rows`` is the row count that estimates use, in
    steps. ``max_rows`` bounds this count and the true row count, in steps; ``learning_rate`` is η.
    """

    gap: int
    reach: int
    rows: int
    max_rows: int
    learning_rate: float

    def choose_multiple(self, observed_error: int, estimate: int) -> int:
        """Return the multiple of η that moves the answer by the part of the error that is certain.

        A correction by y in the right direction lowers the distance to the true distribution by at least
        y·v − ln(1 − u + u·e^y), for the hypothesis's share u and the true share v. This grows with
        y up to the difference of their log-odds (docs/proofs/pmw-weights.md).
        """
        least = max(self.gap, abs(observed_error) - self.reach)
        with localcontext(_LOG_ODDS_CONTEXT) as context:
            sign = 1 if observed_error > 0 else -1
            # Answers are rounded to a step, so the end of the step with the smaller correction is used.
            # Both shares are at least one step away from 0 and from 1.
            start = Decimal(min(max(estimate + sign, 1), self.rows - 1)) / self.rows
            end = Decimal(estimate) / self.rows + sign * Decimal(least) / self.max_rows
            margin = Decimal(1) / self.max_rows
            end = min(max(end, margin), 1 - margin)
            odds = (end / (1 - end)) / (start / (1 - start))
            distance = sign * context.ln(odds) / Decimal(self.learning_rate)
        return max(1, math.floor(distance))


def answer_questions(
    hypothesis: Hypothesis,
    questions: Sequence[Any],
    private: IntegerArray,
    noise: Noise,
    *,
    rows: int,
    threshold: int,
    tops: int,
    cutoff: int,
    correction: TensorCorrection | SparseCorrection,
    beyond: bool = False,
) -> list[HypothesisAnswer]:
    """Answer questions in order until the cutoff.

    With ``beyond``, the hypothesis answers later questions, without a promise; otherwise they get no answer.

    A question is ⊤ iff |f(D) − rows·q(p̂)| + ν ≥ T + ρ + s, in whole steps; ``private`` has the true values f(D).
    Questions are decided in blocks: after the first ⊤ of a block, the hypothesis is corrected in place, and the rest of
    the block is decided again. Blocks grow until a ⊤ occurs, so that a ⊤ repeats few evaluations.
    """
    steps: list[HypothesisAnswer] = []
    size = _FIRST_BLOCK
    while len(steps) < len(questions) and tops < cutoff:
        block = range(len(steps), min(len(steps) + size, len(questions)))
        estimates = hypothesis.estimate_answers(questions[block.start : block.stop], rows)
        margins = np.abs(private[block.start : block.stop] - estimates) - threshold
        above = margins + noise.query_noise(tops, block) >= noise.barrier(tops)
        first_top = int(np.argmax(above)) if above.any() else len(block)
        steps += [HypothesisAnswer(above=False, value=value) for value in estimates[:first_top].tolist()]
        if first_top == len(block):
            size *= 2
            continue
        place = block[first_top]
        value = int(private[place]) + noise.answer_noise(tops, place)
        observed_error = value - int(estimates[first_top])
        step = HypothesisAnswer(
            above=True,
            value=value,
            up=observed_error > 0,
            times=correction.choose_multiple(observed_error, int(estimates[first_top])),
        )
        hypothesis.update(questions[place], up=step.up, times=step.times)
        steps.append(step)
        tops += 1
        size = _FIRST_BLOCK
    if beyond and len(steps) < len(questions):
        rest = hypothesis.estimate_answers(questions[len(steps) :], rows).tolist()
        steps += [HypothesisAnswer(above=False, value=value, promised=False) for value in rest]
    return steps


class TensorQuestion(Protocol):
    """A question about a tensor of cells."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of the question, in increasing order."""

    def steps(self) -> npt.NDArray[np.integer]:
        """Return the weights q of the cells of these axes, in row-major order and in steps."""


class TensorHypothesis:
    """A hypothesis over all cells of a tensor, initially uniform.

    Log-weights are exact, because they are whole multiples of η/resolution. p̂ consists of integers,
    computed by operations that IEEE 754 defines to the last bit. Sums of p̂ are integers below 2⁵³, which
    are exact in any order. So estimates are the same on any machine and in any batch.
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
        """Largest memory between two calls, in bytes: log-weights, p̂ and marginals."""
        return (2 + _CACHED_MARGINALS_SIZE) * self._log_weights.nbytes

    def estimate_answers(self, questions: Sequence[TensorQuestion], rows: int) -> IntegerArray:
        """Return rows·q(p̂) of each question in steps, rounded to the nearest step, halves upwards."""
        places_by_axes: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for place, question in enumerate(questions):
            places_by_axes[question.axes].append(place)
        estimates = np.empty(len(questions), dtype=np.int64)
        for axes, places in places_by_axes.items():
            marginal = self._marginal(axes)
            at_once = _BUFFER_CELLS // min(len(marginal), _BLOCK_CELLS)
            for start in range(0, len(places), at_once):
                chunk = places[start : start + at_once]
                masses = _masses([questions[place].steps() for place in chunk], marginal).tolist()
                twice = 2 * self._total
                estimates[chunk] = [(2 * rows * int(mass) + self._total) // twice for mass in masses]
        return estimates

    def update(self, question: TensorQuestion, *, up: bool, times: int = 1) -> None:
        """Multiply the weight of each cell x by exp(±times·η q(x)), with q(x) from 0 to 1."""
        change = times * question.steps().astype(np.int64).reshape(spread_shape(self._shape, question.axes))
        if up:
            self._log_weights += change
        else:
            self._log_weights -= change
        self._tensor = None
        self._marginals = {}

    def _marginal(self, axes: tuple[int, ...]) -> Floats:
        if self._tensor is None:
            self._tensor = self._compute_distribution()
            self._total = int(self._tensor.sum())
        marginal_sums = self._marginals.get(axes)
        if marginal_sums is None:
            marginal_sums = _sum_to_axes(self._tensor, axes)
            kept = sum(marginal.nbytes for marginal in self._marginals.values())
            if kept + marginal_sums.nbytes > _CACHED_MARGINALS_SIZE * self._tensor.nbytes:
                self._marginals = {}
            self._marginals[axes] = marginal_sums
        return marginal_sums

    def _compute_distribution(self) -> Floats:
        heaviest = 2.0**TOTAL_BITS
        down = np.minimum(self._log_weights.max() - self._log_weights, self._exponentials.most)
        weights = np.rint(heaviest * self._exponentials.evaluate(down))
        # There are at most 2²⁰ cells of at most 2⁴², so the total fits 63 bits.
        total = int(weights.astype(np.int64).sum())
        weights *= heaviest / float(total)
        return np.rint(weights, out=weights)


def _sum_to_axes(tensor: Floats, axes: tuple[int, ...]) -> Floats:
    """Return a flat marginal; the longest runs of summed axes come first, for speed."""
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
    """Return the sum of q(x)·p̂(x) for each question, as exact integers below 2⁵³."""
    masses = np.zeros(len(vectors))
    buffer = np.empty((len(vectors), min(len(marginal), _BLOCK_CELLS)))
    for start in range(0, len(marginal), _BLOCK_CELLS):
        part = marginal[start : start + _BLOCK_CELLS]
        for row, vector in zip(buffer, vectors, strict=True):
            row[: len(part)] = vector[start : start + _BLOCK_CELLS]
        masses += buffer[:, : len(part)] @ part
    return masses


Hypothesis = TensorHypothesis | SparseHypothesis
"""A public distribution over a universe, determined by its updates alone.

A question's estimate depends only on the updates, the question and the number of rows, never on the batch.
"""
