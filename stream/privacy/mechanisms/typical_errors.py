"""Typical errors of estimates: a noisy mean of the distance between estimate and table.

The root distance of a set A of attributes is ‖D_A − F_A‖₁/√|A|, with the table's counts D_A, the
estimate's F_A and the number |A| of cells. Let R be the mean root distance of sets with as many
attributes. An estimate that sums the share f of all cells typically errs by R·√(f·(1 − f)); for a
single cell this is about the mean error of a cell.

If a measured marginal contains the set, R follows from the marginal's noise. Otherwise R is a noisy
mean: of the root distances, after the warm start, of all expected sets with as many attributes. One
person moves each distance ‖D_A − F_A‖₁ by at most s rows, the sensitivity, and so their weighted
mean. Proofs: docs/proofs/pmw.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stream.privacy.mechanisms.measurements import Axes, Measurements
from stream.privacy.mechanisms.tensor_sums import TensorCells
from stream.privacy.mechanisms.workload_selection import marginal_distance
from stream.privacy.planning.estimate_plans import opening_order
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.workload_plans import (
    TYPICAL_UNIT,
    ExpectedSets,
    compared_orders,
    mean_noise,
    set_weights,
    typical_law,
)


@dataclass(eq=False)
class TypicalErrors:
    """The typical errors of one stream's estimates.

    ``opening`` has the measurements of the warm start, and ``shares`` returns the estimate that
    follows from them.
    """

    warm_start: Measurements
    expected: ExpectedSets
    rows: int
    estimate_on: Callable[[Axes], TensorCells]

    def __post_init__(self) -> None:
        self._compared_counts = compared_orders(opening_order(self.warm_start.calibration), self.expected)
        self._known: dict[int, float | None] = {}

    def error_scale(self, axes: Axes, measured: Measurements) -> float | None:
        """Return R of estimates on these axes, in rows; None if it is not known.

        ``measured`` has all measurements so far.
        """
        if covering := measured.covering_marginals(axes):
            cells = math.prod(measured.sizes[axis] for axis in axes)
            return min(mean_noise(one.law) * math.sqrt(one.cells_per_cell * cells) for one in covering)
        attribute_count = len(axes)
        if attribute_count not in self._known:
            self._known[attribute_count] = self._noisy_mean(attribute_count)
        return self._known[attribute_count]

    def _noisy_mean(self, attribute_count: int) -> float | None:
        """Return R of sets that the warm start did not measure.

        R is at least the scale of its noise: smaller values cannot be distinguished from 0.
        """
        sets = [
            axes for axes in self.expected.get(attribute_count, ()) if not self.warm_start.covering_marginals(axes)
        ]
        if not sets or attribute_count not in self._compared_counts:
            return None
        law = typical_law(self.warm_start.calibration, self._compared_counts, attribute_count)
        noisy = self._mean_distance(sets) + self.warm_start.draws.typical_error_noise(attribute_count, law)
        weight = sum(set_weights(sets, self.warm_start.sizes)) / (TYPICAL_UNIT * len(sets))
        return max(float(noisy), float(1 / law.rate)) / WEIGHT_STEPS * weight

    def _mean_distance(self, sets: Sequence[Axes]) -> int:
        """Return the weighted mean of the sets' distances, in steps, rounded down: private."""
        weights = set_weights(sets, self.warm_start.sizes)
        distances = [
            marginal_distance(self.warm_start, axes, self.estimate_on(axes).tensor, self.rows) for axes in sets
        ]
        return sum(weight * one for weight, one in zip(weights, distances, strict=True)) // sum(weights)


def error_of_sums(error_scale: float, summed_cells: int, cells: int) -> float:
    """Return the typical error of an estimate that adds up ``summed_cells`` of ``cells`` cells."""
    share = summed_cells / cells
    return error_scale * math.sqrt(share * (1.0 - share))
