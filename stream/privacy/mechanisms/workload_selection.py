"""Marginals that a warm start measures for a workload, and typical errors of the estimates.

Round by round, the set of attributes is chosen on which the estimate differs most from the table,
and its marginal is measured. A choice is a noisy maximum: each set's score, in whole steps, is the
ℓ₁ distance of its marginal from the estimate minus the noise that measuring it would add. The
number of rounds follows from the plan and the public (or noisy) number of rows. Key, stream and table
determine all results, with the same bits on every machine.

*Typical errors* of estimates: the root distance of a set A of attributes is ‖D_A − F_A‖₁/√|A|, with
the table's counts D_A, the estimate's F_A and the number |A| of cells. Let R be the mean root distance
of sets with as many attributes. An estimate that sums the share f of all cells typically errs by
R·√(f·(1 − f)); for a single cell this is about the mean error of a cell. If a measured marginal
contains the set, R follows from the marginal's noise. Otherwise R is a noisy mean over all expected
sets with as many attributes, after the warm start. One person moves each ‖D_A − F_A‖₁ by at most s
rows, the sensitivity, and so their weighted mean. Proofs: docs/proofs/pmw.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stream.privacy.mechanisms.maximum_entropy import average_equal_axes, estimate_product, fit_distribution
from stream.privacy.mechanisms.measurements import Axes, MeasuredMarginal, Measurements
from stream.privacy.mechanisms.selection import noisy_max
from stream.privacy.mechanisms.tensor_sums import TensorCells
from stream.privacy.noise.samplers import Symmetric
from stream.privacy.planning.estimate_plans import opening_order
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.workload_plans import (
    TYPICAL_UNIT,
    ExpectedSets,
    chosen_set_law,
    compared_orders,
    count_rounds,
    mean_noise,
    set_choice_law,
    set_weights,
    typical_law,
)

IntegerArray = npt.NDArray[np.int64]

_PAIR: Final = 2
_FITTED_CELLS: Final = 1 << 10
_FIT_STEPS: Final = 20
"""Limits of cells and steps for the fits that scores are computed from."""
_REFITS: Final = 12
"""Maximum number of times that scores are computed; each time serves several choices."""


def measure_workload(measured: Measurements, workload: Sequence[Axes], rows: int) -> None:
    """Choose sets of the workload one after the other, and append them to the measurements."""
    calibration = measured.calibration
    rounds = count_rounds(calibration, rows, len(workload))
    every = rounds == len(workload)
    law = chosen_set_law(calibration, rounds, every=every)
    cached_estimates: dict[Any, IntegerArray] = {}
    remaining, scores = list(workload), np.zeros(len(workload), dtype=np.int64)
    for number in range(rounds):
        place = 0
        if not every:
            if number % -(-rounds // _REFITS) == 0:
                scores = np.array(
                    [_score(measured, axes, rows, law, cached_estimates) for axes in remaining], dtype=np.int64
                )
            noise = measured.draws.choice_noise(number, len(remaining), set_choice_law(calibration, rounds))
            place = noisy_max(scores, noise)
        measured.append(MeasuredMarginal(remaining.pop(place), law, None, unselected=every))
        scores = np.delete(scores, place)


def _score(
    measured: Measurements, axes: Axes, rows: int, law: Symmetric, cached_estimates: dict[Any, IntegerArray]
) -> int:
    """Return the score of a set, in steps: private."""
    shares = _estimate(measured, axes, rows, cached_estimates)
    return marginal_distance(measured, axes, shares, rows) - math.ceil(
        shares.size * mean_noise(law) * WEIGHT_STEPS
    )


def marginal_distance(measured: Measurements, axes: Axes, shares: IntegerArray, rows: int) -> int:
    """Return the ℓ₁ distance of a marginal from the estimated shares, in steps: private."""
    estimate = np.rint(shares * (float(rows) * WEIGHT_STEPS / float(shares.sum()))).astype(np.int64)
    return int(np.abs(measured.private(axes).tensor * WEIGHT_STEPS - estimate).sum())


def _estimate(
    measured: Measurements, axes: Axes, rows: int, cached_estimates: dict[Any, IntegerArray]
) -> IntegerArray:
    """Return the estimated shares on ``axes``: public."""
    frame = measured.connect_axes(axes, max(_FITTED_CELLS, math.prod(measured.sizes[axis] for axis in axes)))
    used = measured.indices_for_fit(frame)
    if (estimate := cached_estimates.get(key := (axes, frame, used))) is None:
        shape = [measured.sizes[axis] for axis in frame]
        marginals = average_equal_axes(measured.noisy_marginals(frame))
        if max((len(one.axes) for one in marginals), default=0) < _PAIR:
            estimate = estimate_product(shape, marginals)
        else:
            estimate = fit_distribution(shape, marginals, rows, _FIT_STEPS)
        others = tuple(place for place, axis in enumerate(frame) if axis not in axes)
        estimate = cached_estimates[key] = estimate.sum(axis=others) if others else estimate
    return estimate


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
