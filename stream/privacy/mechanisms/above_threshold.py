"""AboveThreshold with any cutoff, for a batch over many streams at once.

A query with the value f is ⊤ iff f + ν ≥ T + ρ + s, in whole grid steps: T is the threshold, ν is
noise of the query, ρ noise of the stream or of the round (which ends with a ⊤), and s a public
shift. The stream halts after its cutoff of ⊤s.
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
from stream.privacy.noise import Sampler, Symmetric, sampler

Integers = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]

Scalar = TypeVar("Scalar", bound=np.generic)

BELOW, ABOVE, HALTED = 0, 1, 2

NextBarrier = Callable[[int, int], int]
"""Returns ρ + s of a new round, given the stream's row and its ⊤s in this batch."""


def threshold_sampler(calibration: SparseVectorCalibration) -> Sampler:
    """Return the law of ρ: rate ε₁/Δ per step."""
    rate = Fraction(calibration.epsilon_threshold) / calibration.sensitivity_steps
    return sampler(calibration.noise, rate)


def query_sampler(calibration: SparseVectorCalibration) -> Sampler:
    """Return the law of ν: rate ε₂/(2cΔ), or ε₂/(cΔ) if monotone; c = 1 with a ρ per round."""
    tops = 1 if calibration.fresh_threshold else calibration.cutoff
    width = tops * calibration.sensitivity_steps * (1 if calibration.monotone else 2)
    return sampler(calibration.noise, Fraction(calibration.epsilon_query) / width)


def answer_sampler(calibration: SparseVectorCalibration) -> Symmetric:
    """Return the two-sided law of a ⊤'s number: rate ε₃/(cΔ); c = 1 if each round has its own ρ."""
    tops = 1 if calibration.fresh_threshold else calibration.cutoff
    return sampler("two_sided", Fraction(calibration.epsilon_answer) / (tops * calibration.sensitivity_steps))


@dataclass(frozen=True)
class Decisions:
    """The decisions on a batch.

    - ``codes``: BELOW, ABOVE or HALTED of each query.
    - ``position``: index of each query among the queries of its stream in this batch.
    - ``tops_before``: ⊤s of the stream in this batch before each query.
    - ``tops_left``: ⊤s that each stream may still publish.
    """

    codes: Codes
    position: Integers
    tops_before: Integers
    tops_left: Integers


def decide_queries(
    margin: Integers,
    stream: npt.NDArray[np.intp],
    barrier: Integers,
    tops_left: Integers,
    next_barrier: NextBarrier | None = None,
    fresh: npt.NDArray[np.bool_] | None = None,
    order: npt.NDArray[np.intp] | None = None,
) -> Decisions:
    """Answer a batch of queries in order.

    Args:
        margin: f + ν − T of each query, in steps.
        stream: each query's row in the two arrays below.
        barrier: ρ + s of each stream's current round.
        tops_left: the ⊤s that each stream may still publish; 0 means halted.
        next_barrier: called with a row and its ⊤s of this batch when a new round begins.
        fresh: the streams that draw a new ρ after each ⊤; none by default.
        order: the queries sorted stably by stream, if known.

    Returns:
        The decisions; the inputs are not changed.
    """
    if order is None:
        order = np.argsort(stream, kind="stable")
    rows = stream[order]
    sorted_margin = margin[order]
    first = np.ones(len(rows), dtype=np.bool_)
    np.not_equal(rows[1:], rows[:-1], out=first[1:])
    starts = np.flatnonzero(first)
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1:] = len(rows) - starts[-1:]
    above = sorted_margin >= barrier[rows]
    if fresh is not None and next_barrier is not None:
        _decide_rounds_again(above, sorted_margin, rows, starts, tops_left, fresh, next_barrier)
    cumulated = np.cumsum(above)
    before: Integers = cumulated - above - np.repeat(cumulated[starts] - above[starts], lengths)
    allowed = before < tops_left[rows]
    shown = np.bincount(rows[above & allowed], minlength=len(tops_left)).astype(np.int64)

    def in_input_order(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
        result = np.empty_like(values)
        result[order] = values
        return result

    return Decisions(
        codes=in_input_order(np.where(allowed, above.astype(np.uint8), np.uint8(HALTED))),
        position=in_input_order(np.arange(len(rows)) - np.repeat(starts, lengths)),
        tops_before=in_input_order(np.minimum(before, tops_left[rows])),
        tops_left=tops_left - shown,
    )


def _decide_rounds_again(
    above: npt.NDArray[np.bool_],
    margin: Integers,
    rows: npt.NDArray[np.intp],
    starts: npt.NDArray[np.intp],
    tops_left: Integers,
    fresh: npt.NDArray[np.bool_],
    next_barrier: NextBarrier,
) -> None:
    """Decide again after each ⊤ with the new ρ, for streams that draw a ρ for each round."""
    redrawn = fresh[rows[starts]]
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
