"""Exact weighted sums over a tensor of integers, by cumulative sums.

A weighting gives each cell a weight. It is stored as its differences along all axes, its *corners*:
a weighting that is 1 in a box and 0 outside has 2ⁿ corners for n axes. Cumulative
sums have one entry more than cells on each axis. If cumulative sums or corners need much more memory
than the tensor, the weights of the cells are stored instead. 64-bit sums may overflow on the way, and
are exact if the result fits 63 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

IntegerArray = npt.NDArray[np.int64]

MAX_CUMULATED_ENTRIES: Final = 1 << 17
"""Cumulative sums with at most this many entries are cheap, however few cells there are."""
MAX_CUMULATED_ENTRIES_PER_CELL: Final = 3
"""Cumulative sums with at most this many entries per cell are cheap too."""


class TensorCells:
    """Integers on the cells of a tensor: true counts, noisy counts, or an estimate's shares."""

    def __init__(self, tensor: IntegerArray) -> None:
        self.tensor = tensor

    @cached_property
    def cumulated(self) -> IntegerArray:
        """Flat cumulative sums, with one entry more than cells on each axis."""
        padded = np.zeros([size + 1 for size in self.tensor.shape], dtype=np.int64)
        padded[tuple(slice(1, None) for _ in self.tensor.shape)] = self.tensor
        for axis in range(padded.ndim):
            np.cumsum(padded, axis=axis, out=padded)
        return padded.reshape(-1)

    @property
    def flat(self) -> IntegerArray:
        """The cells in row-major order."""
        return self.tensor.reshape(-1)

    @cached_property
    def total(self) -> int:
        """The sum of all cells."""
        return int(self.tensor.sum())

    @property
    def nbytes(self) -> int:
        """Upper bound of the memory in bytes, with cumulative sums."""
        return 4 * self.tensor.nbytes


@dataclass(frozen=True, eq=False)
class Weighting:
    """Weights of some entries of the cumulative sums, or of some cells; all others have weight 0."""

    indexes: IntegerArray
    weights: IntegerArray
    indexes_cumulative_sums: bool = True
    """Whether ``indexes`` are indexes of cumulative sums; otherwise they are indexes of cells."""

    def weighted_sum(self, cells: TensorCells) -> int:
        """Return the exact weighted sum."""
        sums = cells.cumulated if self.indexes_cumulative_sums else cells.flat
        return int((sums[self.indexes] * self.weights).sum())


def weighted_sums(weightings: Sequence[Weighting], cells: TensorCells) -> IntegerArray:
    """Return the exact sum of the cells by each weighting."""
    lengths = [len(one.indexes) for one in weightings]
    if len(lengths) < 2 or 0 in lengths or not all(one.indexes_cumulative_sums for one in weightings):
        return np.array([one.weighted_sum(cells) for one in weightings], dtype=np.int64)
    products = cells.cumulated[np.concatenate([one.indexes for one in weightings])]
    products *= np.concatenate([one.weights for one in weightings])
    return np.add.reduceat(products, np.cumsum([0, *lengths[:-1]]))


def box_sums(lows: IntegerArray, highs: IntegerArray, cells: TensorCells) -> IntegerArray:
    """Return the sum of each box, whose ends are a row of ``lows`` and of ``highs``."""
    shape = cells.tensor.shape
    total = np.zeros(len(lows), dtype=np.int64)
    corners = [(total, 1)]
    for axis, size in enumerate(shape):
        corners = [
            (index * (size + 1) + ends[:, axis], sign * side)
            for index, sign in corners
            for ends, side in ((highs, 1), (lows, -1))
        ]
    for index, sign in corners:
        total = total + cells.cumulated[index] if sign > 0 else total - cells.cumulated[index]
    return total


def is_cheap_to_cumulate(shape: Sequence[int]) -> bool:
    """Return True if a tensor's cumulative sums need little more memory than the tensor."""
    entries = math.prod(size + 1 for size in shape)
    return entries <= max(MAX_CUMULATED_ENTRIES, MAX_CUMULATED_ENTRIES_PER_CELL * math.prod(shape))


def cheapest_weighting(weights: IntegerArray) -> Weighting:
    """Convert the weights of all cells to corners, or if these are too many to weights of cells."""
    if math.prod(size + 2 for size in weights.shape) <= MAX_CUMULATED_ENTRIES:
        return corner_weighting(weights)
    flat = weights.reshape(-1)
    indexes = np.flatnonzero(flat)
    return Weighting(indexes, flat[indexes], indexes_cumulative_sums=False)


def corner_weighting(weights: IntegerArray) -> Weighting:
    """Convert the weights of all cells to corners."""
    padded = np.pad(weights, 1)
    for axis in range(padded.ndim):
        padded = -np.diff(padded, axis=axis)
    flat = padded.reshape(-1)
    indexes = np.flatnonzero(flat)
    return Weighting(indexes, flat[indexes])


def count_corners(factors: Sequence[IntegerArray]) -> int:
    """Return the number of corners of a product of one weighting per axis."""
    return math.prod(int(np.count_nonzero(np.diff(factor, prepend=0, append=0))) for factor in factors)


def product_weighting(factors: Sequence[IntegerArray]) -> Weighting:
    """Return the product of one weighting per axis, as corners."""
    indexes, weights = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    for factor in factors:
        padded = np.pad(factor, 1)
        edges = padded[:-1] - padded[1:]
        kept = np.flatnonzero(edges)
        indexes = (indexes[:, None] * len(edges) + kept).reshape(-1)
        weights = (weights[:, None] * edges[kept]).reshape(-1)
    return Weighting(indexes, weights)


def combine_weightings(terms: Sequence[tuple[int, Weighting]]) -> Weighting:
    """Return the sum of weightings times factors; all are stored as corners."""
    indexes, where = np.unique(np.concatenate([one.indexes for _, one in terms]), return_inverse=True)
    weights = np.zeros(len(indexes), dtype=np.int64)
    np.add.at(weights, where, np.concatenate([factor * one.weights for factor, one in terms]))
    kept = weights != 0
    return Weighting(indexes[kept], weights[kept])
