"""AboveThreshold with any cutoff, for a batch over many streams at once.

A query with the value f is ⊤ iff f + ν ≥ T + ρ + s, in whole grid steps: T is the threshold, ν is noise of the query, ρ
noise of the stream or of the round (which ends with a ⊤), and s a public shift. f + ν − T is the query's *margin*, and
ρ + s the *barrier*. After c ⊤s (the cutoff) the stream is exhausted, and further queries are answered ``halted``.
Privacy: the master lemma of docs/proofs/above-threshold.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from schemas import SparseVectorCalibration
from stream.privacy.noise.samplers import IntegerArray, Sampler, Symmetric, sampler

Scalar = TypeVar("Scalar", bound=np.generic)

BELOW, ABOVE, HALTED = 0, 1, 2
"""Codes of a query's outcome."""

NextBarrier = Callable[[int, int], int]
"""Returns the barrier of a new round, from the stream's row and its number of ⊤s in this batch."""


def threshold_sampler(calibration: SparseVectorCalibration) -> Sampler:
    """Return the law of ρ: rate ε₁/Δ per step."""
    rate = Fraction(calibration.epsilon_threshold) / calibration.sensitivity_steps
    return sampler(calibration.noise, rate)


def query_sampler(calibration: SparseVectorCalibration) -> Sampler:
    """Return the law of ν: rate ε₂/(2cΔ), or ε₂/(cΔ) if monotone.

    c = 1 if each round has its own ρ.
    """
    tops = 1 if calibration.fresh_threshold else calibration.cutoff
    width = tops * calibration.sensitivity_steps * (1 if calibration.monotone else 2)
    return sampler(calibration.noise, Fraction(calibration.epsilon_query) / width)


def answer_sampler(calibration: SparseVectorCalibration) -> Symmetric:
    """Return the two-sided law of a ⊤'s number: rate ε₃/(cΔ).

    c = 1 if each round has its own ρ.
    """
    tops = 1 if calibration.fresh_threshold else calibration.cutoff
    return sampler("two_sided", Fraction(calibration.epsilon_answer) / (tops * calibration.sensitivity_steps))


@dataclass(frozen=True)
class Decisions:
    """The decisions on a batch.

    - ``outcomes``: BELOW, ABOVE or HALTED, for each query.
    - ``position``: for each query, its index among the queries of its stream in this batch.
    - ``tops_before``: for each query, the number of earlier ⊤s of its stream in this batch.
    - ``tops_left``: for each stream, the number of ⊤s that it may still publish.
    """

    outcomes: npt.NDArray[np.uint8]
    position: IntegerArray
    tops_before: IntegerArray
    tops_left: IntegerArray


def decide_queries(
    margin: IntegerArray,
    stream_row: npt.NDArray[np.intp],
    barrier: IntegerArray,
    tops_left: IntegerArray,
    next_barrier: NextBarrier | None = None,
    redraws: npt.NDArray[np.bool_] | None = None,
    order: npt.NDArray[np.intp] | None = None,
) -> Decisions:
    """Answer a batch of queries in order.

    Args:
        margin: f + ν − T of each query, in steps.
        stream_row: for each query, the row of its stream in ``barrier``, ``tops_left`` and ``redraws``.
        barrier: ρ + s of each stream's current round.
        tops_left: the number of ⊤s that each stream may still publish; 0 if it is exhausted.
        next_barrier: called with a stream's row and its number of ⊤s in this batch when a new round begins.
        redraws: for each stream, True if it draws a new ρ after each ⊤; by default no stream does.
        order: the queries sorted stably by stream, if known.

    Returns:
        The decisions; the inputs are not changed.
    """
    if order is None:
        order = np.argsort(stream_row, kind="stable")
    rows = stream_row[order]
    sorted_margin = margin[order]
    first = np.ones(len(rows), dtype=np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1:] = len(rows) - starts[-1:]
    above = sorted_margin >= barrier[rows]
    if redraws is not None and next_barrier is not None:
        _decide_rounds_again(above, sorted_margin, rows, starts, tops_left, redraws, next_barrier)
    cumulated = np.cumsum(above)
    before: IntegerArray = cumulated - above - np.repeat(cumulated[starts] - above[starts], lengths)
    allowed = before < tops_left[rows]
    shown = np.bincount(rows[above & allowed], minlength=len(tops_left)).astype(np.int64)

    def in_input_order(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        result = np.empty_like(values)
        result[order] = values
        return result

    return Decisions(
        outcomes=in_input_order(np.where(allowed, above.astype(np.uint8), np.uint8(HALTED))),
        position=in_input_order(np.arange(len(rows)) - np.repeat(starts, lengths)),
        tops_before=in_input_order(np.minimum(before, tops_left[rows])),
        tops_left=tops_left - shown,
    )


def _decide_rounds_again(
    above: npt.NDArray[np.bool_],
    margin: IntegerArray,
    rows: npt.NDArray[np.intp],
    starts: npt.NDArray[np.intp],
    tops_left: IntegerArray,
    redraws: npt.NDArray[np.bool_],
    next_barrier: NextBarrier,
) -> None:
    """Decide again after each ⊤ with the new ρ, for streams that draw a ρ for each round."""
    redrawn = redraws[rows[starts]]
    if not redrawn.any():
        return
    ends = np.append(starts[1:], len(rows))
    for start, end in zip(starts[redrawn], ends[redrawn], strict=True):
        row = int(rows[start])
        tops = 0
        position = int(start)
        while position < end:
            hits = np.flatnonzero(above[position:end])
            if not len(hits):
                break
            position += int(hits[0]) + 1
            tops += 1
            if tops >= tops_left[row] or position >= end:
                above[position:end] = False
                break
            above[position:end] = margin[position:end] >= next_barrier(row, tops)
