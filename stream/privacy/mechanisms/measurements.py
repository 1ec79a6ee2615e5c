"""The measurements of one stream: marginals and numbers with their noise.

The list of measurements is public. Noisy counts are a function of this list, the table and the key, so they
are computed again if a cache has dropped them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any, Final, Protocol

import numpy as np

from schemas import EstimateCalibration
from stream.caches import RecentCache
from stream.privacy.accuracy.noise_laws import two_sided_reach, variance_of
from stream.privacy.composition.costs import PARTS_PER_CHARGE
from stream.privacy.mechanisms.estimate_questions import CellGroups, Numbers, ResolvedQuestion, SingleNumber
from stream.privacy.mechanisms.maximum_entropy import NoisyMarginal, move_to_product, ordered_sum, sum_to_axes
from stream.privacy.mechanisms.releases import TensorCells
from stream.privacy.noise.samplers import IntegerArray, Sampler, Symmetric, sampler
from stream.privacy.planning.plans import Price, estimate_price, noise_rate, numbers_failure
from stream.privacy.planning.warm_starts import (
    marginal_law,
    number_law,
    warm_start_axes,
    warm_start_law,
    warm_start_order,
)

MAX_CONNECTED_CELLS: Final = 1 << 12
"""Maximum number of cells of the table to which `Measurements.connect_axes` adds attributes."""


def price_alone(
    calibration: EstimateCalibration, question: ResolvedQuestion, alpha: Fraction
) -> tuple[Price, bool]:
    """Return the least price at which every number of a question is within ``alpha``.

    The second value is True if the price pays for the marginal of the question's attributes, and False if it
    pays for the question's own numbers.
    """
    steps = alpha * question.unit
    numbers = estimate_price(
        calibration, _total_sensitivity(calibration, question), question.count, math.floor(steps)
    )
    if not question.full_weights or question.summed_cells != 1:
        return numbers, False
    # Each number is one cell. Under add-remove a whole marginal costs as much as one of its cells.
    rows = math.floor(steps / question.width)
    cells = estimate_price(calibration, calibration.marginal_sensitivity, question.count, rows)
    return (cells, True) if cells.parts <= numbers.parts else (numbers, False)


def separate_measurement(
    calibration: EstimateCalibration, question: ResolvedQuestion, noise_parts: int, *, marginal: bool
) -> tuple[Symmetric, Fraction]:
    """Return the noise of a question measured alone with ``noise_parts`` parts of a charge's ε, and its error bound.

    The error bound is in units of the sensitivity.
    """
    width = calibration.marginal_sensitivity if marginal else _total_sensitivity(calibration, question)
    rate = noise_rate(calibration, noise_parts, width)
    reach = two_sided_reach(
        float(rate), question.count, numbers_failure(calibration, noise_parts / PARTS_PER_CHARGE)
    )
    law = sampler("two_sided", rate)
    return law, Fraction(reach) if marginal else Fraction(reach, question.width)


def _total_sensitivity(calibration: EstimateCalibration, question: ResolvedQuestion) -> int:
    """Return the ℓ₁ sensitivity of all numbers of a question together."""
    return question.width * (calibration.marginal_sensitivity if isinstance(question, CellGroups) else 1)


Axes = tuple[int, ...]


class Draws(Protocol):
    """Draws the noise of one stream. ``tops`` is the number of earlier ⊤s."""

    def barrier(self, tops: int) -> int:
        """Return the threshold's noise ρ."""

    def query_noise(self, tops: int, keys: Sequence[bytes]) -> IntegerArray:
        """Return the noise ν of questions with these keys."""

    def number_noise(self, tops: int, key: bytes, law: Symmetric) -> int:
        """Return the noise of the number that a ⊤ publishes."""

    def numbers_noise(self, tops: int, key: bytes, noise_parts: int, count: int, law: Symmetric) -> IntegerArray:
        """Return the noise of the numbers of a question that is measured alone, with ``noise_parts`` parts."""

    def marginal_noise(
        self, tops: int | None, axes: Axes, cells: int, law: Symmetric, noise_parts: int | None = None
    ) -> IntegerArray:
        """Return the noise of a marginal's cells; ``tops`` is None in the warm start.

        ``noise_parts`` is set if the marginal was measured for one question alone.
        """

    def choice_noise(self, number: int, count: int, law: Sampler) -> IntegerArray:
        """Return the noise of the scores of ``count`` sets in round ``number`` of the warm start."""

    def typical_error_noise(self, order: int, law: Symmetric) -> int:
        """Return the noise of the typical error of estimates about ``order`` attributes."""


class ValueCache(Protocol):
    """A cache of values that can be computed again."""

    def get(self, key: Any) -> Any:
        """Return the value of a key, or None."""

    def put(self, key: Any, value: Any) -> None:
        """Store a value unless it is too large."""


@dataclass(frozen=True, slots=True)
class MeasuredMarginal:
    """One measurement: a marginal on ``axes`` with the law of its noise.

    - ``tops``: the number of earlier ⊤s; None in the warm start.
    - ``question``: the question whose own numbers were measured too, or None; ``reach``: the error bound
      of these numbers, in units of the sensitivity.
    - ``noise_parts``: the number of parts for which the question was measured alone, or None. If ``axes`` are
      empty, no marginal was measured.
    - ``unselected``: True for a set of the workload if the warm start measured all sets without a choice.
    """

    axes: Axes
    law: Symmetric
    tops: int | None
    question: ResolvedQuestion | None = None
    reach: float | Fraction = math.inf
    noise_parts: int | None = None
    unselected: bool = False

    @property
    def charges(self) -> float:
        """The price of the measurement, in ordinary charges."""
        return 1.0 if self.noise_parts is None else self.noise_parts / PARTS_PER_CHARGE


@dataclass(frozen=True, slots=True)
class CoveringMarginal:
    """A measured marginal whose axes include all axes of a question.

    Each cell of the question is the sum of ``cells_per_cell`` cells of the marginal.
    """

    index: int
    law: Symmetric
    charges: float
    sizes: tuple[int, ...]
    cells_per_cell: int


_MAX_CACHED_SETS: Final = 1 << 13
"""Each cache keeps this number of recent sets of attributes, and up to the same number of older ones."""
_BYTES_PER_INDEX: Final = 256
_BYTES_PER_MEASUREMENT: Final = 2048


@dataclass(eq=False)
class Measurements:
    """The measurements of one stream, in order in ``listed``.

    ``sizes`` has the number of values of each attribute; ``true_counts`` returns the private counts of a marginal.
    ``best_by_question`` maps a question's key to the index of the most accurate measurement of its numbers.
    """

    sizes: tuple[int, ...]
    calibration: EstimateCalibration
    true_counts: Callable[[Axes], TensorCells]
    draws: Draws
    cache: ValueCache

    def __post_init__(self) -> None:
        calibration = self.calibration
        self.listed = [
            MeasuredMarginal(axes, warm_start_law(calibration), None)
            for axes in (warm_start_axes(self.sizes, warm_start_order(calibration)) if calibration.starts else ())
        ]
        self._singles = {one.axes[0]: index for index, one in enumerate(self.listed) if len(one.axes) == 1}
        self.best_by_question: dict[bytes, int] = {}
        self._used: RecentCache[Axes, tuple[int, ...]] = RecentCache(_MAX_CACHED_SETS)
        self._covering: RecentCache[Axes, list[CoveringMarginal]] = RecentCache(_MAX_CACHED_SETS)
        self._connected: RecentCache[tuple[Axes, int], Axes] = RecentCache(_MAX_CACHED_SETS)

    # The methods from here on read public values only.

    def add(self, tops: int, axes: Axes, question: ResolvedQuestion | None, noise_parts: int | None) -> None:
        """Add the measurement of the charged answer after ``tops`` others; see `MeasuredMarginal`."""
        if noise_parts is not None and question is not None:
            law, reach = separate_measurement(self.calibration, question, noise_parts, marginal=bool(axes))
            measurement = MeasuredMarginal(axes, law, tops, question, reach, noise_parts)
        else:
            law = marginal_law(self.calibration, numbered=question is not None)
            measurement = MeasuredMarginal(axes, law, tops, question, self.calibration.sparse_vector.answer_alpha)
        if question is not None:
            best = self.best_by_question.get(question.key)
            if best is None or measurement.reach < self.listed[best].reach:
                self.best_by_question[question.key] = len(self.listed)
        self.append(measurement)

    def copy(self) -> Measurements:
        """Return a copy, so that later measurements are not added to it."""
        copy = replace(self)
        copy.listed, copy.best_by_question = list(self.listed), dict(self.best_by_question)
        return copy

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes, with the caches."""
        indices = self._used.weight + self._covering.weight + self._connected.weight
        return _BYTES_PER_MEASUREMENT * len(self.listed) + _BYTES_PER_INDEX * indices

    def append(self, measurement: MeasuredMarginal) -> None:
        """Add a measurement to the list."""
        self.listed.append(measurement)
        for cache in (self._used, self._covering, self._connected):
            cache.clear()

    def connect_axes(self, axes: Axes, max_cells: int = MAX_CONNECTED_CELLS) -> Axes:
        """Return ``axes`` with the attributes by which measured marginals connect them.

        Two axes that no measurement contains together are connected by the attributes that were measured with each of
        them, the smallest first. If there are no such attributes, they are connected by the attributes on the shortest
        chain of measurements between the two. The table of all these attributes has at most ``max_cells`` cells.
        """
        if (cached := self._connected.get((axes, max_cells))) is None:
            measured = [measurement.axes for measurement in self.listed]
            cached = connect_axes(self.sizes, measured, axes, max_cells)
            self._connected.put((axes, max_cells), cached)
        return cached

    def indices_for_fit(self, fitted_axes: Axes) -> tuple[int, ...]:
        """Return the indices of the measurements that a fit on the axes ``fitted_axes`` uses.

        Each of them contains two or more of the axes, or an axis that no earlier measurement contains.
        """
        if (cached := self._used.get(fitted_axes)) is None:
            used, covered = [], set[int]()
            for index, measurement in enumerate(self.listed):
                shared = {axis for axis in measurement.axes if axis in fitted_axes}
                if len(shared) > 1 or shared - covered:
                    used.append(index)
                    covered |= shared
            cached = tuple(used)
            self._used.put(fitted_axes, cached, 1 + len(used))
        return cached

    def covering_marginals(self, axes: Axes) -> list[CoveringMarginal]:
        """Return the measured marginals that have all these axes."""
        if (cached := self._covering.get(axes)) is None:
            cached = [
                CoveringMarginal(
                    index,
                    measurement.law,
                    measurement.charges,
                    tuple(self.sizes[axis] for axis in measurement.axes),
                    math.prod(self.sizes[axis] for axis in measurement.axes if axis not in axes),
                )
                for index, measurement in enumerate(self.listed)
                if set(axes) <= set(measurement.axes)
            ]
            self._covering.put(axes, cached, 1 + len(cached))
        return cached

    def are_measured_together(self, axes: Axes) -> bool:
        """Return True if a measured marginal contains each pair of these axes, or the only axis."""
        return all(self.covering_marginals(some) for some in combinations(axes, min(2, len(axes))))

    # The methods from here on read private values, which are published only with noise.

    def noisy_counts(self, index: int) -> IntegerArray:
        """Return a measurement's noisy counts."""
        key = ("counts", index, self.listed[index].axes)
        if (cached := self.cache.get(key)) is None:
            measurement = self.listed[index]
            true = self.true_counts(measurement.axes).tensor
            noise = self.draws.marginal_noise(
                measurement.tops, measurement.axes, true.size, measurement.law, measurement.noise_parts
            )
            cached = true + noise.reshape(true.shape)
            self.cache.put(key, cached)
        return cached  # type: ignore[no-any-return]

    def noisy_numbers(self, index: int) -> Numbers:
        """Return the numbers that were published with a measurement."""
        measurement = self.listed[index]
        if measurement.question is None or measurement.tops is None:
            raise ValueError("this measurement has no published number")
        if measurement.noise_parts is not None and measurement.axes:
            return measurement.question.compute_numbers(TensorCells(self.noisy_counts(index)))
        true = measurement.question.compute_numbers(self.true_counts(measurement.question.axes))
        if measurement.noise_parts is not None:
            noise = self.draws.numbers_noise(
                measurement.tops, measurement.question.key, measurement.noise_parts, len(true), measurement.law
            )
            return tuple(number + drawn for number, drawn in zip(true, noise.tolist(), strict=True))
        law = number_law(self.calibration, measurement.question.width)
        return (true[0] + self.draws.number_noise(measurement.tops, measurement.question.key, law),)

    def noisy_marginals(self, fitted_axes: Axes) -> list[NoisyMarginal]:
        """Return the noisy marginals on these axes, for a fit."""
        marginals = []
        for index in self.indices_for_fit(fitted_axes):
            shared = tuple(axis for axis in self.listed[index].axes if axis in fitted_axes)
            measurement = sum_to_axes(self._combined_marginal(index), shared)
            marginals.append(replace(measurement, axes=tuple(fitted_axes.index(axis) for axis in shared)))
        return marginals

    def _combined_marginal(self, index: int) -> NoisyMarginal:
        """Combine a marginal's cells with the number that was measured with it, weighted by precision.

        The marginal of an unselected set is changed as `move_to_product` describes.
        """
        one = self.listed[index]
        counts = self.noisy_counts(index).astype(np.float64)
        variance = variance_of(one.law)
        if self.calibration.estimate > 1 and one.unselected:
            singles = [self._combined_marginal(self._singles[axis]) for axis in one.axes]
            return move_to_product(NoisyMarginal(one.axes, counts, variance), singles, self.calibration.noise)
        if isinstance(question := one.question, SingleNumber) and one.noise_parts is None:
            weights = question.weights().astype(np.float64)
            difference = (
                self.noisy_numbers(index)[0] - question.compute_numbers(TensorCells(self.noisy_counts(index)))[0]
            )
            spread = variance * ordered_sum(weights * weights) + variance_of(
                number_law(self.calibration, question.width)
            )
            counts = counts + weights * (variance * difference / spread)
        return NoisyMarginal(one.axes, counts, variance)


def connect_axes(sizes: Sequence[int], measured: Sequence[Axes], axes: Axes, max_cells: int) -> Axes:
    """Return ``axes`` with the attributes that connect them, as `Measurements.connect_axes` does."""
    neighbors: dict[int, set[int]] = {}
    for measurement in measured:
        for axis in measurement:
            neighbors.setdefault(axis, set()).update(other for other in measurement if other != axis)
    fitted_axes, cells = set(axes), math.prod(sizes[axis] for axis in axes)
    for left, right in combinations(axes, 2):
        if right in neighbors.get(left, ()):
            continue
        common_neighbors = sorted(
            (neighbors.get(left, set()) & neighbors.get(right, set())) - fitted_axes,
            key=lambda axis: (sizes[axis], axis),
        )
        for chain in [[axis] for axis in common_neighbors] or [_find_shortest_chain(neighbors, left, right)]:
            more = math.prod(sizes[axis] for axis in set(chain) - fitted_axes)
            if cells * more <= max_cells:
                fitted_axes.update(chain)
                cells *= more
    return tuple(sorted(fitted_axes))


def _find_shortest_chain(neighbors: dict[int, set[int]], left: int, right: int) -> list[int]:
    """Return the attributes between ``left`` and ``right`` on the shortest chain of measurements."""
    previous: dict[int, int] = {left: left}
    reached = [left]
    for axis in reached:
        for other in sorted(neighbors.get(axis, ())):
            if other not in previous:
                previous[other] = axis
                reached.append(other)
    chain = []
    axis = previous.get(right, left)
    while axis != left:
        chain.append(axis)
        axis = previous[axis]
    return chain
