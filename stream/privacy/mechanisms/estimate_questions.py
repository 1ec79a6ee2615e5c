"""Questions about a tensor of cells, and how far an estimate is from the truth on them, in whole steps.

Each question has one error, which one person moves by at most a step's 1024 parts of a row: that of a number in units of what
one person moves it by, the largest one of several numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from stream.privacy.mechanisms.tensor_sums import Corners, TensorCells, box_sums
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS

Integers = npt.NDArray[np.int64]
Numbers = tuple[int, ...]


class ResolvedQuestion(Protocol):
    """A question, resolved. Its numbers are whole, of its own unit."""

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of the tensor that the question depends on, in increasing order."""

    @property
    def key(self) -> bytes:
        """Canonical bytes: equal for equal questions, however they were written."""

    @property
    def unit(self) -> int:
        """What a number is divided by to be what was asked for."""

    @property
    def width(self) -> int:
        """How far one person moves each number."""

    @property
    def count(self) -> int:
        """How many numbers it asks for."""

    @property
    def summed(self) -> int:
        """The most cells that one of the numbers adds up."""

    @property
    def whole(self) -> bool:
        """Whether each cell that is added up counts in full, and all alike."""

    @property
    def ranges(self) -> bool:
        """Whether each number is that of a range of values of every axis."""

    def numbers(self, cells: TensorCells) -> Numbers:
        """The exact numbers of a tensor on the question's axes."""

    def error(self, private: Numbers, estimates: Numbers) -> int:
        """The largest error of the estimates, in steps; private."""


def rounded(masses: Sequence[int], total: int, rows: int) -> Numbers:
    """The numbers that a distribution gives for so many rows, rounded to the nearest, halves upwards."""
    return tuple((2 * rows * mass + total) // (2 * total) for mass in masses)


@dataclass(frozen=True, eq=False)
class Linear:
    """A weighted count or a sum: the sum of multiples of weightings.

    ``weights`` writes the whole weighting out; ``extent`` says how many cells have a weight, and whether they are a range of
    every axis.
    """

    axes: tuple[int, ...]
    key: bytes
    parts: tuple[tuple[int, Corners], ...]
    weights: Callable[[], Integers]
    extent: Callable[[], tuple[int, bool]]
    unit: int
    width: int
    whole: bool
    count: int = 1

    @property
    def plain(self) -> Corners | None:
        """The one weighting that the question is, if it is one."""
        return self.parts[0][1] if len(self.parts) == 1 and self.parts[0][0] == 1 else None

    @cached_property
    def _extent(self) -> tuple[int, bool]:
        return self.extent()

    @property
    def summed(self) -> int:
        """How many cells have a weight."""
        return self._extent[0]

    @property
    def ranges(self) -> bool:
        """Whether these cells are a range of every axis, all of one weight."""
        return self.whole and self._extent[1]

    def numbers(self, cells: TensorCells) -> Numbers:
        """The weighted sum."""
        return (sum(factor * weighting.value(cells) for factor, weighting in self.parts),)

    def error(self, private: Numbers, estimates: Numbers) -> int:
        """The error in units of what one person moves the number by, rounded down."""
        return abs(private[0] - estimates[0]) * WEIGHT_STEPS // self.width


class Box:
    """How many rows lie within a range of each axis: a count as most are asked, of which many are added up at once."""

    __slots__ = ("axes", "high", "key", "low", "shape")

    unit: Final = WEIGHT_STEPS
    width: Final = WEIGHT_STEPS
    whole: Final = True
    ranges: Final = True
    count: Final = 1

    def __init__(
        self, axes: tuple[int, ...], key: bytes, low: Sequence[int], high: Sequence[int], shape: Sequence[int]
    ) -> None:
        """Take the half-open range of each axis, and how many values each has."""
        self.axes = axes
        self.key = key
        self.low = low
        self.high = high
        self.shape = shape

    @property
    def summed(self) -> int:
        """How many cells are counted."""
        return math.prod(map(operator.sub, self.high, self.low))

    def numbers(self, cells: TensorCells) -> Numbers:
        """The count in steps."""
        [number] = box_numbers([self], cells)
        return (number,)

    def error(self, private: Numbers, estimates: Numbers) -> int:
        """The error of the count, in steps."""
        return abs(private[0] - estimates[0])

    def weights(self) -> Integers:
        """The weight of each cell, written out."""
        found = np.zeros(self.shape, dtype=np.int64)
        found[tuple(map(slice, self.low, self.high))] = WEIGHT_STEPS
        return found


def box_numbers(boxes: Sequence[Box], cells: TensorCells) -> list[int]:
    """The numbers of boxes on the same axes."""
    ends = np.array([(one.low, one.high) for one in boxes], dtype=np.int64)
    found: list[int] = (box_sums(ends[:, 0], ends[:, 1], cells) * WEIGHT_STEPS).tolist()
    return found


Single = Linear | Box
"""Questions of one number."""


@dataclass(frozen=True, eq=False)
class CellGroups:
    """The counts of the cells of some axes, within a mask: a count for each."""

    axes: tuple[int, ...]
    key: bytes
    mask: npt.NDArray[np.bool_]
    grouped: tuple[int, ...]
    """Which axes of the mask the groups are, in the order asked."""
    unit: int = WEIGHT_STEPS
    width: int = WEIGHT_STEPS
    whole: bool = True

    @property
    def count(self) -> int:
        """How many groups there are."""
        return math.prod(self.mask.shape[axis] for axis in self.grouped)

    @cached_property
    def summed(self) -> int:
        """The most cells of one group."""
        return int(self._grouped(self.mask.astype(np.int64)).max(initial=0))

    @cached_property
    def ranges(self) -> bool:
        """Whether every group is a range of each axis."""
        return extent_of(self.mask)[1]

    def numbers(self, cells: TensorCells) -> Numbers:
        """The counts in steps, in row-major order."""
        return tuple((self._grouped(np.where(self.mask, cells.tensor, 0)) * WEIGHT_STEPS).tolist())

    def error(self, private: Numbers, estimates: Numbers) -> int:
        """The largest error of a count."""
        return max(abs(true - told) for true, told in zip(private, estimates, strict=True))

    def _grouped(self, tensor: Integers) -> Integers:
        others = tuple(axis for axis in range(tensor.ndim) if axis not in self.grouped)
        left = sorted(self.grouped)
        kept = tensor.sum(axis=others) if others else tensor
        return kept.transpose([left.index(axis) for axis in self.grouped]).reshape(-1)


@dataclass(frozen=True, eq=False)
class Mean:
    """An attribute's sum above its minimum, and how many rows it is over: a mean is their quotient.

    With m the estimate of the mean, the error is the larger of that of the count and of |sum − m·count| in ranges of the
    attribute; one person moves either by one at most.
    """

    rows: Linear
    total: Linear
    key: bytes
    minimum: int
    range: int
    count: int = 2
    unit: int = 1
    width: int = 1
    whole: bool = False
    ranges: bool = False

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of the sum."""
        return self.total.axes

    @property
    def summed(self) -> int:
        """How many cells are added up."""
        return self.rows.summed

    def numbers(self, cells: TensorCells) -> Numbers:
        """The sum above the minimum, and the count in steps."""
        return (*self.total.numbers(cells), *self.rows.numbers(cells))

    def error(self, private: Numbers, estimates: Numbers) -> int:
        """The larger of both errors."""
        scaled = _mean_steps(estimates, self.range)
        # In steps of a value: one person moves this by at most the range, for the mean lies within it.
        apart = abs(WEIGHT_STEPS * private[0] - scaled * private[1] // WEIGHT_STEPS)
        counts = abs(private[1] - estimates[1])
        return max(counts, apart // max(1, self.range))

    def mean(self, estimates: Numbers) -> float:
        """The estimate of the mean."""
        return self.minimum + _mean_steps(estimates, self.range) / WEIGHT_STEPS


def _mean_steps(estimates: Numbers, most: int) -> int:
    """The quotient in steps of a value, within the attribute's range."""
    total, count = estimates
    if count <= 0:
        return most * WEIGHT_STEPS // 2
    return min(max(WEIGHT_STEPS * WEIGHT_STEPS * total // count, 0), most * WEIGHT_STEPS)


def extent_of(weights: npt.NDArray[np.generic]) -> tuple[int, bool]:
    """How many cells have a weight, and whether they are a range of every axis."""
    used = weights != 0
    count = int(np.count_nonzero(used))
    volume = 1
    for axis in range(used.ndim):
        others = tuple(other for other in range(used.ndim) if other != axis)
        there = np.flatnonzero(used.any(axis=others))
        volume *= int(there[-1] - there[0]) + 1 if len(there) else 0
    return count, count == volume


def plain_of(questions: Sequence[ResolvedQuestion]) -> list[tuple[int, Corners]]:
    """The places of questions that are one weighting each, with it."""
    found = []
    for place, question in enumerate(questions):
        if isinstance(question, Linear) and (weighting := question.plain) is not None:
            found.append((place, weighting))
    return found
