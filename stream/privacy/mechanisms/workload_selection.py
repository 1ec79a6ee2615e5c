"""Selection of the marginals that a warm start measures for a workload of expected questions.

Round by round, the set of attributes is chosen on which the estimate differs most from the table,
and its marginal is measured. A choice is a noisy maximum: each set's score, in whole steps, is the
ℓ₁ distance of its marginal from the estimate minus the noise that measuring it would add. The
number of rounds follows from the plan and the public (or noisy) number of rows. Key, stream and table
determine all results, with the same bits on every machine. Proofs: docs/proofs/pmw.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stream.privacy.mechanisms.maximum_entropy import average_equal_axes, estimate_product, fit_distribution
from stream.privacy.mechanisms.measurements import Axes, MeasuredMarginal, Measurements
from stream.privacy.mechanisms.selection import noisy_max
from stream.privacy.noise import Symmetric
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.workload_plans import chosen_set_law, count_rounds, mean_noise, set_choice_law

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
