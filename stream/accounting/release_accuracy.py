"""Errors of numbers that are read off one noisy release: single cells, and sums of cells.

All bounds are for classes of questions fixed before the release's noise is known, as in the accuracy definition of Blum &
Roth 2011; only a single cell's bound also holds for whoever chooses questions by earlier answers. Derivations:
docs/proofs/histogram.md, docs/proofs/lazy-histogram.md.
"""

from __future__ import annotations

from fractions import Fraction

from schemas import ReleaseCalibration
from stream.accounting.laws import reach, sum_alpha
from stream.noise import Symmetric, gaussian, sampler

SUMS_SHARE = 0.1
"""Share of β that sums of a histogram's cells may fail with; the rest is that of its single cells."""


def release_law(calibration: ReleaseCalibration) -> Symmetric:
    """The law of each number's noise: Gaussian, or Laplace of the rate ε of one part over what one person moves it by."""
    if calibration.method == "gaussian":
        return gaussian(Fraction(calibration.deviation) ** 2)
    return sampler("two_sided", Fraction(calibration.epsilon_part) / calibration.sensitivity_steps)


def cell_alpha(calibration: ReleaseCalibration, universe: int) -> float:
    """The error of every cell of a histogram at once, whatever is asked and how often; exact.

    It fails with all of β but the share that is kept for sums of cells.
    """
    return float(reach(release_law(calibration), universe, (1.0 - SUMS_SHARE) * calibration.beta))


def histogram_alpha(
    calibration: ReleaseCalibration, universe: int, cells: int, numbers: int = 1, *, whole: bool = True
) -> float:
    """The error of each of ``numbers`` numbers in one answer, sums of up to ``cells`` cells each.

    With probability 1 − β the answers to all ``expected_queries`` questions keep to their own α. A sum is never further
    off than its cells together are, whoever asks.
    """
    sums = numbers * calibration.expected_queries
    chosen = sum_alpha(release_law(calibration), cells, sums, SUMS_SHARE * calibration.beta, whole=whole)
    return min(cells * cell_alpha(calibration, universe), chosen)


def lazy_alpha(calibration: ReleaseCalibration, cells: int, *, whole: bool = False) -> float:
    """The error of one question of ``cells`` cells to a lazy histogram, with probability 1 − β over ``expected_queries``."""
    return sum_alpha(release_law(calibration), cells, calibration.expected_queries, calibration.beta, whole=whole)
