"""Typical errors of estimates: a noisy mean of the distance between estimate and table.

The root distance of a set A of attributes is ‖D_A − F_A‖₁/√|A|, with the table's counts D_A, the
estimate's F_A and the number |A| of cells. An estimate that sums the share f of all cells typically
errs by R·√(f·(1 − f)): about the mean error of a cell if it is one cell. For sets that a marginal
measured, R follows from the noise. For other sets R is the noisy mean, over the expected sets of as
many attributes, of their root distances after the warm start. One person moves that mean distance
by at most s rows, as the weights of the sets add up to 1. Proofs: docs/proofs/pmw.md.
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

    opening: Measurements
    expected: ExpectedSets
    rows: int
    shares: Callable[[Axes], TensorCells]

    def __post_init__(self) -> None:
        self._orders = compared_orders(opening_order(self.opening.calibration), self.expected)
        self._known: dict[int, float | None] = {}

    def root_distance(self, axes: Axes, measured: Measurements) -> float | None:
        """Return R of estimates on these axes, in rows; None if it is not known.

        ``measured`` has all measurements so far.
        """
        if covering := measured.covering_marginals(axes):
            cells = math.prod(measured.sizes[axis] for axis in axes)
            return min(mean_noise(one.law) * math.sqrt(one.cells_per_cell * cells) for one in covering)
        order = len(axes)
        if order not in self._known:
            self._known[order] = self._noisy_mean(order)
        return self._known[order]

    def _noisy_mean(self, order: int) -> float | None:
        """Return R of sets that the warm start did not measure.

        R is at least the scale of its noise: smaller values cannot be distinguished from 0.
        """
        sets = [axes for axes in self.expected.get(order, ()) if not self.opening.covering_marginals(axes)]
        if not sets or order not in self._orders:
            return None
        law = typical_law(self.opening.calibration, self._orders, order)
        noisy = self._mean_distance(sets) + self.opening.draws.typical_error_noise(order, law)
        weight = sum(set_weights(sets, self.opening.sizes)) / (TYPICAL_UNIT * len(sets))
        return max(float(noisy), float(1 / law.rate)) / WEIGHT_STEPS * weight

    def _mean_distance(self, sets: Sequence[Axes]) -> int:
        """Return the weighted mean of the sets' distances, in steps, rounded down: private."""
        weights = set_weights(sets, self.opening.sizes)
        distances = [marginal_distance(self.opening, axes, self.shares(axes).tensor, self.rows) for axes in sets]
        return sum(weight * one for weight, one in zip(weights, distances, strict=True)) // sum(weights)


def error_of_sums(root_distance: float, summed: int, cells: int) -> float:
    """Return the typical error of a sum of ``summed`` of all ``cells``: R·√(f·(1 − f))."""
    share = summed / cells
    return root_distance * math.sqrt(share * (1.0 - share))
