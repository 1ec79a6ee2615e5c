"""Intervals of shares with noisy parts, checked against the exact laws of the noise."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stream.privacy.accuracy.intervals import CONFIDENCE, NoisyNumber, half_width
from stream.privacy.accuracy.rate_intervals import NoiseSum, rate_bounds_of_sums, share_bounds_of_rows
from stream.privacy.noise.samplers import Symmetric, gaussian
from tests.unit.privacy.accuracy.test_intervals import Masses, laplace, law_of_sum

Interval = Callable[[int, int], bool]
"""Returns whether the interval contains the share for two draws of noise."""
LAWS = (laplace("1/12"), laplace("2"), gaussian(Fraction(100)), gaussian(Fraction(3)))


def coverage(contains: Interval, slope: float, first: Masses, second: Masses) -> float:
    """Return the probability of pairs of noise with which the interval contains the share.

    For each x these are the y of a range around ``slope`` · x, where the noise cancels.
    """
    found = 0.0
    for place, chance in enumerate(first.tolist()):
        if chance < 1e-9:
            continue
        x, most = place - len(first) // 2, len(second) // 2
        middle = min(most, max(-most, round(slope * x)))
        if contains(x, middle):
            low, high = (last_within(contains, x, middle, sign * most) for sign in (-1, 1))
            found += chance * float(second[most + low : most + high + 1].sum())
    return found


def last_within(contains: Interval, x: int, inside: int, outside: int) -> int:
    if contains(x, outside):
        return outside
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        inside, outside = (middle, outside) if contains(x, middle) else (inside, middle)
    return inside


@pytest.mark.parametrize(("law", "draws", "share"), [*product(LAWS, ((1, 1), (3, 9)), (0.1, 0.6))])
def test_rate_bounds_of_sums_cover_the_share(law: Symmetric, draws: tuple[int, int], share: float) -> None:
    """The probability over both noises is at least 95 %."""
    hits, misses = round(40_000 * share), round(40_000 * (1.0 - share))

    def contains(x: int, y: int) -> bool:
        low, high = rate_bounds_of_sums(hits + x, misses + y, law, draws)
        return low <= share <= high

    assert (
        coverage(contains, 1.0 / share - 1.0, law_of_sum(law, draws[0]), law_of_sum(law, draws[1])) >= CONFIDENCE
    )


@pytest.mark.parametrize(("law", "draws"), [(laplace("1/5"), 1), (laplace("1/12"), 6), (laplace("2"), 3)])
def test_share_bounds_of_rows_cover_the_share(law: Symmetric, draws: int) -> None:
    """The probability over the noise of the count and of the rows is at least 95 %."""
    of_rows = laplace("1/30")
    for hits, rows in ((300, 30_000), (20_000, 30_000)):

        def contains(x: int, y: int, hits: int = hits, rows: int = rows) -> bool:
            noise, number = NoiseSum(law, draws), NoisyNumber(rows + y, of_rows)
            low, high = share_bounds_of_rows(hits + x, noise, number, 1)
            return low <= hits / rows <= high

        assert coverage(contains, rows / hits, law_of_sum(law, draws), law_of_sum(of_rows, 1)) >= CONFIDENCE


@pytest.mark.parametrize("draws", [(5, 11), (16, 16), (8, 136)])
def test_share_of_sums_is_no_wider_than_its_count(draws: tuple[int, int]) -> None:
    """If the smaller of hits and misses has fewer cells, the rate's interval is no wider than that of the hits alone."""
    law, misses = laplace("1/20"), 18_000
    hits = misses * draws[0] // draws[1]
    low, high = rate_bounds_of_sums(hits, misses, law, draws)
    assert (high - low) * (hits + misses) <= 2.06 * half_width(law, draws[0])


def test_rate_bounds_without_rows_or_cells_are_all_shares() -> None:
    law = laplace("1/3")
    assert rate_bounds_of_sums(-4, 1, law, (2, 3)) == (0.0, 1.0)
    assert rate_bounds_of_sums(0, 0, law, (0, 0)) == (0.0, 1.0)
    low, high = rate_bounds_of_sums(-60, 5000, law, (1, 4))
    assert 0.0 <= low <= high < 0.01
    assert np.isfinite(high)
