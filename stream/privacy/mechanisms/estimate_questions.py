"""Questions about a tensor of cells, and the error of an estimate for each question, in whole steps.

The error of a question is measured in units of its number's sensitivity, so one row changes it by at most
1024 steps. If a question has several numbers, its error is the largest of their errors. All classes of
questions have these attributes:

- ``axes``: the axes (attributes) that the question depends on, in increasing order.
- ``key``: canonical bytes, which are the same for equal questions.
- ``unit``: a number divided by ``unit`` is the requested quantity; ``width``: a number's sensitivity.
- ``count``: number of requested numbers; ``summed_cells``: the largest number of cells in one sum.
- ``full_weights``: True if all summed cells have full and equal weight.
- ``are_ranges``: True if the cells of each number form a range of values on every axis.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from stream.caches import ENTRY_BYTES
from stream.privacy.accuracy.rate_intervals import compute_moments, rate_bounds_of_sums
from stream.privacy.mechanisms.releases import TensorCells, Weighting, box_sums, sum_to_marginal
from stream.privacy.noise.samplers import IntegerArray, Symmetric
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS

Numbers = tuple[int, ...]


def scale_and_round(masses: Sequence[int], total: int, rows: int) -> Numbers:
    """Scale the ``masses`` of a distribution to ``rows``; round to the nearest integer, halves upwards."""
    return tuple((2 * rows * mass + total) // (2 * total) for mass in masses)


@dataclass(frozen=True, eq=False)
class LinearQuestion:
    """A question of one number: a weighted sum over cells.

    The weights are the sum of ``parts``, each times its factor; ``weights`` computes the weight of each cell.
    ``extent`` returns the number of cells with a weight, and True if these cells are a range on every axis.
    """

    axes: tuple[int, ...]
    key: bytes
    parts: tuple[tuple[int, Weighting], ...]
    weights: Callable[[], IntegerArray]
    extent: Callable[[], tuple[int, bool]]
    unit: int
    width: int
    full_weights: bool
    count: int = 1

    @cached_property
    def _extent(self) -> tuple[int, bool]:
        return self.extent()

    @property
    def summed_cells(self) -> int:
        """Number of cells with a weight."""
        return self._extent[0]

    @property
    def are_ranges(self) -> bool:
        """True if the cells with a weight are a range on every axis and have equal weights."""
        return self.full_weights and self._extent[1]

    def compute_numbers(self, cells: TensorCells) -> Numbers:
        """Return the weighted sum."""
        return (sum(factor * weighting.weighted_sum(cells) for factor, weighting in self.parts),)

    def compute_error(self, private: Numbers, estimates: Numbers) -> int:
        """Return the error in units of the number's sensitivity, rounded down."""
        return abs(private[0] - estimates[0]) * WEIGHT_STEPS // self.width


class Box:
    """The count of the rows within a range on each axis: the most common question, computed in batches."""

    __slots__ = ("axes", "high", "key", "low", "shape")

    unit: Final = WEIGHT_STEPS
    width: Final = WEIGHT_STEPS
    full_weights: Final = True
    are_ranges: Final = True
    count: Final = 1

    def __init__(
        self, axes: tuple[int, ...], key: bytes, low: Sequence[int], high: Sequence[int], shape: Sequence[int]
    ) -> None:
        """Set the half-open range and the size of each axis."""
        self.axes = axes
        self.key = key
        self.low = low
        self.high = high
        self.shape = shape

    @property
    def summed_cells(self) -> int:
        """Number of counted cells."""
        return math.prod(map(operator.sub, self.high, self.low))

    def compute_numbers(self, cells: TensorCells) -> Numbers:
        """Return the count in steps."""
        [number] = box_numbers([self], cells)
        return (number,)

    def compute_error(self, private: Numbers, estimates: Numbers) -> int:
        """Return the error of the count, in steps."""
        return abs(private[0] - estimates[0])

    def weights(self) -> IntegerArray:
        """Return the weight of each cell."""
        found = np.zeros(self.shape, dtype=np.int64)
        found[tuple(map(slice, self.low, self.high))] = WEIGHT_STEPS
        return found


def box_numbers(boxes: Sequence[Box], cells: TensorCells) -> list[int]:
    """Return the count of each box, in steps; all boxes must have the same axes."""
    ends = np.array([(one.low, one.high) for one in boxes], dtype=np.int64)
    found: list[int] = (box_sums(ends[:, 0], ends[:, 1], cells) * WEIGHT_STEPS).tolist()
    return found


SingleNumber = LinearQuestion | Box
"""Questions of one number."""


@dataclass(frozen=True, eq=False)
class _MaskedSums:
    """Sums of the cells in ``mask``, in steps of a row: one sum for each cell of the ``grouped`` axes."""

    axes: tuple[int, ...]
    key: bytes
    mask: npt.NDArray[np.bool_]
    grouped: tuple[int, ...]
    """Axes of the mask that define the groups, in the requested order."""
    unit: int = WEIGHT_STEPS
    width: int = WEIGHT_STEPS
    full_weights: bool = True

    @property
    def count(self) -> int:
        """Number of sums."""
        groups: int = math.prod(self.mask.shape[axis] for axis in self.grouped)
        return len(self._parts) * groups

    @cached_property
    def summed_cells(self) -> int:
        """Largest number of cells in one sum."""
        return max(int(self._sums(part.astype(np.int64)).max(initial=0)) for part in self._parts)

    @cached_property
    def are_ranges(self) -> bool:
        """True if the cells of every sum are a range of each axis."""
        return all(extent_of(part)[1] for part in self._parts)

    def compute_numbers(self, cells: TensorCells) -> Numbers:
        """Return the sums in steps, in row-major order, first all sums of the first part."""
        sums = [self._sums(np.where(part, cells.tensor, 0)) * WEIGHT_STEPS for part in self._parts]
        return tuple(number for part in sums for number in part.tolist())

    def compute_error(self, private: Numbers, estimates: Numbers) -> int:
        """Return the largest error of a sum."""
        return max(abs(true - estimate) for true, estimate in zip(private, estimates, strict=True))

    def _sums(self, tensor: IntegerArray) -> IntegerArray:
        return sum_to_marginal(tensor, self.grouped).reshape(-1)

    @property
    def _parts(self) -> tuple[npt.NDArray[np.bool_], ...]:
        """Masks of the cells that are summed separately."""
        return (self.mask,)


class CellGroups(_MaskedSums):
    """The counts of groups (cells of the ``grouped`` axes) over the cells in ``mask``."""


@dataclass(frozen=True, eq=False)
class Rates(CellGroups):
    """Two counts of each group: first its hits (rows in ``hits``), then its misses (other rows in the mask).

    The counted sets of cells are disjoint, as in `CellGroups`.
    """

    hits: npt.NDArray[np.bool_] = field(kw_only=True)

    @property
    def excluded_groups(self) -> list[int]:
        """Positions of the groups without a cell in the mask."""
        return [place for place, cells in enumerate(self._sums(self.mask.astype(np.int64)).tolist()) if not cells]

    def compute_rate_intervals(
        self, numbers: Numbers, law: Symmetric, more: int = 1
    ) -> tuple[tuple[float, float], ...]:
        """Return the confidence intervals of the rates from noisy hits and misses.

        Each cell of the question is a sum of ``more`` measured cells with noise of the law ``law``.
        """
        groups = len(numbers) // 2
        draws = [(self._sums(part.astype(np.int64)) * more).tolist() for part in self._parts]
        pairs = zip(numbers[:groups], numbers[groups:], *draws, strict=True)
        return tuple(
            rate_bounds_of_sums(hits / self.unit, misses / self.unit, law, (m, n)) for hits, misses, m, n in pairs
        )

    @property
    def _parts(self) -> tuple[npt.NDArray[np.bool_], ...]:
        return self.mask & self.hits, self.mask & ~self.hits


@dataclass(frozen=True, eq=False)
class ShareQuestion(Rates):
    """A share of all rows, as two counts: the hits (counted rows) and the misses (all other rows).

    If a ⊤ measures the question, only the number of hits (the question ``counted``) is published.
    """

    counted: SingleNumber = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Ranks(_MaskedSums):
    """The cumulative counts of an attribute in each group, from which its quantiles follow.

    For each group and code there is a count of the rows with this code or a smaller one; codes vary
    fastest. One row changes each count by at most 1, and the error of the question is the largest error of
    a count. ``ordered`` is the axis of the attribute in the mask.
    """

    ordered: int = field(kw_only=True)

    @property
    def count(self) -> int:
        """Number of cumulative counts."""
        codes: int = self.mask.shape[self.ordered]
        return super().count * codes

    def compute_error(self, private: Numbers, estimates: Numbers) -> int:
        """Return the largest error of a cumulative count, computed in arrays because there may be many counts."""
        return int(np.abs(np.array(private, dtype=np.int64) - np.array(estimates, dtype=np.int64)).max())

    def _sums(self, tensor: IntegerArray) -> IntegerArray:
        kept = sum_to_marginal(tensor, (*self.grouped, self.ordered))
        return np.cumsum(kept, axis=-1, dtype=np.int64).reshape(-1)


@dataclass(frozen=True, eq=False)
class Spreads:
    """Count, sum and sum of squares of an attribute in each group, from which its variance follows.

    ``moves`` has the sensitivity of each of the three numbers to one row. The error is the largest error of
    a number, in units of its sensitivity. ``ordered`` is the axis of the attribute in the mask. Only rows
    with codes from ``first`` up to (but not including) ``end`` count.
    """

    axes: tuple[int, ...]
    key: bytes
    mask: npt.NDArray[np.bool_]
    grouped: tuple[int, ...]
    ordered: int
    first: int
    end: int
    moves: tuple[int, int, int]
    unit: int = 1
    width: int = 1
    full_weights: bool = False
    are_ranges: bool = False

    @property
    def count(self) -> int:
        """Number of numbers: three for each group."""
        groups: int = math.prod(self.mask.shape[axis] for axis in self.grouped)
        return len(self.moves) * groups

    @cached_property
    def summed_cells(self) -> int:
        """Largest number of cells in one group."""
        found: int = self._counts(self.mask.astype(np.int64)).sum(axis=-1).max(initial=0).item()
        return found

    def compute_numbers(self, cells: TensorCells) -> Numbers:
        """Return the three numbers of each group."""
        counts = self._counts(np.where(self.mask, cells.tensor, 0))
        return tuple(number for group in counts for number in compute_moments(group[self.first : self.end]))

    def compute_error(self, private: Numbers, estimates: Numbers) -> int:
        """Return the largest error, in units of the number's sensitivity."""
        errors = (
            abs(true - estimate) * WEIGHT_STEPS // self.moves[place % len(self.moves)]
            for place, (true, estimate) in enumerate(zip(private, estimates, strict=True))
        )
        return max(errors)

    def _counts(self, tensor: IntegerArray) -> IntegerArray:
        kept = sum_to_marginal(tensor, (*self.grouped, self.ordered))
        return kept.reshape(-1, kept.shape[-1])


@dataclass(frozen=True, eq=False)
class MeanQuestion:
    """The mean of an attribute, from the sum of (value − minimum) and the number of rows.

    Let m be the estimate of the mean. The error is the larger of the count's error and |sum − m·count| / range.
    One person changes each of the two by at most one row.
    """

    rows: LinearQuestion
    total: LinearQuestion
    key: bytes
    minimum: int
    range: int
    count: int = 2
    unit: int = 1
    width: int = 1
    full_weights: bool = False
    are_ranges: bool = False

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of the sum."""
        return self.total.axes

    @property
    def summed_cells(self) -> int:
        """Number of summed cells."""
        return self.rows.summed_cells

    def compute_numbers(self, cells: TensorCells) -> Numbers:
        """Return the sum above the minimum, and the count in steps."""
        return (*self.total.compute_numbers(cells), *self.rows.compute_numbers(cells))

    def compute_error(self, private: Numbers, estimates: Numbers) -> int:
        """Return the larger one of the two errors."""
        scaled = _mean_steps(estimates, self.range)
        # The mean is within the range, so the sensitivity is at most the range, in steps of a value.
        difference = abs(WEIGHT_STEPS * private[0] - scaled * private[1] // WEIGHT_STEPS)
        counts = abs(private[1] - estimates[1])
        return max(counts, difference // max(1, self.range))

    def mean(self, estimates: Numbers) -> float:
        """Return the estimated mean."""
        return self.minimum + _mean_steps(estimates, self.range) / WEIGHT_STEPS


BYTES_PER_NUMBER: Final = 256
"""Memory of one number of an answer, with its error bound and interval, in bytes."""
_BYTES_PER_CHARACTER: Final = 8
"""Memory of a question's texts and predicates, in bytes per character of its key."""

ResolvedQuestion = LinearQuestion | Box | CellGroups | Ranks | Spreads | MeanQuestion
"""A question whose names and predicates are resolved to cells; its numbers are in units of 1/``unit``."""


def memory_of_question(question: ResolvedQuestion) -> int:
    """Return the approximate memory, in bytes, of a resolved question with its answer."""
    match question:
        case LinearQuestion():
            arrays = sum(part.indexes.nbytes + part.weights.nbytes for _, part in question.parts)
        case MeanQuestion():
            arrays = memory_of_question(question.rows) + memory_of_question(question.total)
        case Box():
            arrays = 0
        case Rates():
            arrays = question.mask.nbytes + question.hits.nbytes
        case _:
            arrays = question.mask.nbytes
    return 4 * ENTRY_BYTES + _BYTES_PER_CHARACTER * len(question.key) + arrays + BYTES_PER_NUMBER * question.count


def _mean_steps(estimates: Numbers, range_size: int) -> int:
    """Return the estimated mean above the minimum, in steps; the middle of the range if no row is counted."""
    total, count = estimates
    if count <= 0:
        return range_size * WEIGHT_STEPS // 2
    return min(max(WEIGHT_STEPS * WEIGHT_STEPS * total // count, 0), range_size * WEIGHT_STEPS)


def extent_of(weights: npt.NDArray[np.generic]) -> tuple[int, bool]:
    """Return the number of cells with a weight, and True if they are a range on every axis."""
    used = weights != 0
    count = int(np.count_nonzero(used))
    volume = 1
    for axis in range(used.ndim):
        others = tuple(other for other in range(used.ndim) if other != axis)
        positions = np.flatnonzero(used.any(axis=others))
        volume *= int(positions[-1] - positions[0]) + 1 if len(positions) else 0
    return count, count == volume
