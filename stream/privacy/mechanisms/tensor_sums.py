"""Exact weighted sums over a tensor of integers by its cumulative sums: a box takes few look-ups.

A weighting (a weight for each cell) is stored as its differences along the axes, its *corners*,
which are few if it consists of ranges. Cumulative sums have one more place than cells on each
axis. If they or the corners were much larger than the tensor, a weighting is stored cell by cell.
64-bit sums may overflow on the way, and are exact if the result fits 63 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

MOST_PLACES_OF_FEW_CELLS: Final = 1 << 17
MOST_PLACES_A_CELL: Final = 3
"""Cumulative sums may have this many places, in total or per cell, whichever allows more."""


class TensorCells:
    """Integers on the cells of a tensor: true counts, noisy counts, or an estimate's shares."""

    def __init__(self, tensor: Integers) -> None:
        self.tensor = tensor

    @cached_property
    def cumulated(self) -> Integers:
        """Flat cumulative sums, with one more place than cells on each axis."""
        padded = np.zeros([size + 1 for size in self.tensor.shape], dtype=np.int64)
        padded[tuple(slice(1, None) for _ in self.tensor.shape)] = self.tensor
        for axis in range(padded.ndim):
            np.cumsum(padded, axis=axis, out=padded)
        return padded.reshape(-1)

    @property
    def flat(self) -> Integers:
        """The cells in row-major order."""
        return self.tensor.reshape(-1)

    @cached_property
    def total(self) -> int:
        """The sum of all cells."""
        return int(self.tensor.sum())

    @property
    def nbytes(self) -> int:
        """Bound of the memory in bytes, with cumulative sums."""
        return 4 * self.tensor.nbytes


@dataclass(frozen=True, eq=False)
class Corners:
    """A weighting, as weights of some places of the cumulative sums or, if not, of some cells."""

    places: Integers
    weights: Integers
    is_cumulated: bool = True

    def value(self, cells: TensorCells) -> int:
        """Return the exact weighted sum."""
        sums = cells.cumulated if self.is_cumulated else cells.flat
        return int((sums[self.places] * self.weights).sum())


def weighted_sums(weightings: Sequence[Corners], cells: TensorCells) -> Integers:
    """Return the exact weighted sum of the cells for each weighting."""
    lengths = [len(one.places) for one in weightings]
    if len(lengths) < 2 or 0 in lengths or not all(one.is_cumulated for one in weightings):
        return np.array([one.value(cells) for one in weightings], dtype=np.int64)
    products = cells.cumulated[np.concatenate([one.places for one in weightings])]
    products *= np.concatenate([one.weights for one in weightings])
    return np.add.reduceat(products, np.cumsum([0, *lengths[:-1]]))


def box_sums(lows: Integers, highs: Integers, cells: TensorCells) -> Integers:
    """Return the sum over each box; row i of ``lows`` and ``highs`` are the ends of box i."""
    shape = cells.tensor.shape
    total = np.zeros(len(lows), dtype=np.int64)
    corners = [(total, 1)]
    for axis, size in enumerate(shape):
        corners = [
            (place * (size + 1) + ends[:, axis], sign * side)
            for place, sign in corners
            for ends, side in ((highs, 1), (lows, -1))
        ]
    for place, sign in corners:
        total = total + cells.cumulated[place] if sign > 0 else total - cells.cumulated[place]
    return total


def can_cumulate(shape: Sequence[int]) -> bool:
    """Return True if a tensor's cumulative sums need little more memory than the tensor."""
    places = math.prod(size + 1 for size in shape)
    return places <= max(MOST_PLACES_OF_FEW_CELLS, MOST_PLACES_A_CELL * math.prod(shape))


def to_corners(weights: Integers) -> Corners:
    """Convert the weights of all cells to corners if that is cheap, else to weights of cells."""
    if math.prod(size + 2 for size in weights.shape) <= MOST_PLACES_OF_FEW_CELLS:
        return corners(weights)
    flat = weights.reshape(-1)
    places = np.flatnonzero(flat)
    return Corners(places, flat[places], is_cumulated=False)


def corners(weights: Integers) -> Corners:
    """Convert the weights of all cells to corners."""
    padded = np.pad(weights, 1)
    for axis in range(padded.ndim):
        padded = -np.diff(padded, axis=axis)
    flat = padded.reshape(-1)
    places = np.flatnonzero(flat)
    return Corners(places, flat[places])


def count_of_corners(factors: Sequence[Integers]) -> int:
    """Count the corners of a product of one weighting per axis."""
    return math.prod(int(np.count_nonzero(np.diff(factor, prepend=0, append=0))) for factor in factors)


def product_corners(factors: Sequence[Integers]) -> Corners:
    """Return the corners of a product of one weighting per axis."""
    places, weights = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    for factor in factors:
        padded = np.pad(factor, 1)
        edges = padded[:-1] - padded[1:]
        kept = np.flatnonzero(edges)
        places = (places[:, None] * len(edges) + kept).reshape(-1)
        weights = (weights[:, None] * edges[kept]).reshape(-1)
    return Corners(places, weights)


def add_corners(parts: Sequence[tuple[int, Corners]]) -> Corners:
    """Return the linear combination of weightings that are stored as corners."""
    places, where = np.unique(np.concatenate([one.places for _, one in parts]), return_inverse=True)
    weights = np.zeros(len(places), dtype=np.int64)
    np.add.at(weights, where, np.concatenate([factor * one.weights for factor, one in parts]))
    kept = weights != 0
    return Corners(places[kept], weights[kept])
