"""Releases that are charged once: noisy cells of a histogram, whole or on demand, and what is read off them.

Every cell has its own discrete Laplace noise, derived from words that belong to the cell, so that a cell asked for alone
is that of the whole release, at any time. Privacy: docs/proofs/histogram.md and docs/proofs/lazy-histogram.md. What is computed from
noisy cells is post-processing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stream.accounting.hypotheses import WEIGHT_STEPS

Integers = npt.NDArray[np.int64]

_CODE = ">u4"


def cell_names(codes: npt.ArrayLike) -> list[bytes]:
    """The canonical bytes of cells, given as codes of shape (cells, attributes), each code below 2³²."""
    array = np.ascontiguousarray(codes, dtype=_CODE)
    width = array.itemsize * array.shape[1]
    data = array.tobytes()
    return [data[start : start + width] for start in range(0, len(data), width)]


def weighted_sum(steps: Sequence[int], values: Sequence[int], divisor: int = 1) -> float:
    """Σ w·value / divisor for weights in steps, exact until it is rounded to a double once."""
    total = sum(step * value for step, value in zip(steps, values, strict=True))
    return total / (WEIGHT_STEPS * divisor)


def marginal(release: Integers, axes: Sequence[int]) -> Integers:
    """The release summed over all axes but those given, which stand in the order given."""
    others = tuple(axis for axis in range(release.ndim) if axis not in axes)
    summed: Integers = release.sum(axis=others, dtype=np.int64)
    kept = sorted(axes)
    return summed.transpose([kept.index(axis) for axis in axes])
