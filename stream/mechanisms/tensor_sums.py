"""Exact sums over a tensor of integers, by its cumulated sums: a range of any size costs a handful of look-ups.

A weighting of the cells is kept as its differences, which are few where it is made of ranges. Sums of wrapped 64-bit integers
are exact as long as the result fits 63 bits, whatever stands in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]


class Cells:
    """Whole numbers on the cells of a tensor: true counts, noisy ones, or an estimate's shares."""

    def __init__(self, tensor: Integers) -> None:
        self.tensor = tensor

    @cached_property
    def cumulated(self) -> Integers:
        """At each corner the sum of all cells below it in every axis, flat; one place more than cells along each axis."""
        padded = np.zeros([size + 1 for size in self.tensor.shape], dtype=np.int64)
        padded[tuple(slice(1, None) for _ in self.tensor.shape)] = self.tensor
        for axis in range(padded.ndim):
            np.cumsum(padded, axis=axis, out=padded)
        return padded.reshape(-1)

    @cached_property
    def total(self) -> int:
        """What all cells add up to."""
        return int(self.tensor.sum())

    @property
    def nbytes(self) -> int:
        """How much memory it takes with its cumulated sums, in bytes."""
        return 4 * self.tensor.nbytes


@dataclass(frozen=True, eq=False)
class Corners:
    """A weighting Σ_x w(x)·cell(x) as a weighting of cumulated sums."""

    places: Integers
    weights: Integers

    def value(self, cells: Cells) -> int:
        """The weighted sum, exactly."""
        return int((cells.cumulated[self.places] * self.weights).sum())


def values(weightings: Sequence[Corners], cells: Cells) -> Integers:
    """Each weighting's sum, exactly."""
    lengths = [len(one.places) for one in weightings]
    if not lengths or 0 in lengths:
        return np.array([one.value(cells) for one in weightings], dtype=np.int64)
    taken = cells.cumulated[np.concatenate([one.places for one in weightings])]
    taken *= np.concatenate([one.weights for one in weightings])
    return np.add.reduceat(taken, np.cumsum([0, *lengths[:-1]]))


def corners(weights: Integers) -> Corners:
    """The differences of a weighting that is written out over all cells."""
    padded = np.pad(weights, 1)
    for axis in range(padded.ndim):
        padded = -np.diff(padded, axis=axis)
    return _without_zeros(padded)


def product_corners(factors: Sequence[Integers]) -> Corners:
    """The differences of a product of one weighting for each axis."""
    places, found = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    for factor in factors:
        padded = np.pad(factor, 1)
        edges = padded[:-1] - padded[1:]
        kept = np.flatnonzero(edges)
        places = (places[:, None] * len(edges) + kept).reshape(-1)
        found = (found[:, None] * edges[kept]).reshape(-1)
    return Corners(places, found)


def added(parts: Sequence[tuple[int, Corners]]) -> Corners:
    """A sum of multiples of weightings."""
    places, where = np.unique(np.concatenate([one.places for _, one in parts]), return_inverse=True)
    found = np.zeros(len(places), dtype=np.int64)
    np.add.at(found, where, np.concatenate([factor * one.weights for factor, one in parts]))
    kept = found != 0
    return Corners(places[kept], found[kept])


def _without_zeros(differences: Integers) -> Corners:
    flat = differences.reshape(-1)
    places = np.flatnonzero(flat)
    return Corners(places, flat[places])
