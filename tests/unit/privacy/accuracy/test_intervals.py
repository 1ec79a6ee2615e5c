"""Half-widths and quotients' intervals, checked against the exact laws of the noise."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.signal import fftconvolve

from stream.privacy.accuracy.intervals import (
    CONFIDENCE,
    MISS_PROBABILITY,
    SECOND_MISS_PROBABILITY,
    NoisyNumber,
    half_width,
    ratio_bounds,
    weighted_half_width,
    widen_interval,
)
from stream.privacy.accuracy.noise_laws import sum_tail
from stream.privacy.mechanisms.private_values import published_interval
from stream.privacy.noise.samplers import Gaussian, Symmetric, gaussian, sampler

MOST = 0.96
"""An interval that covers more is too wide, unless an interval that is one step narrower covers too little."""

_REACH = 20_000

Masses = npt.NDArray[np.float64]


def laplace(rate: str) -> Symmetric:
    return sampler("two_sided", Fraction(rate))


def masses(law: Symmetric) -> Masses:
    """Return the probabilities of −R … R, R at least 36; the rest has less than 1e−12."""
    if isinstance(law, Gaussian):
        values = np.arange(math.ceil(8.0 * math.sqrt(law.variance)) + 36)
        weights = np.exp(-values * values / (2.0 * float(law.variance)))
    else:
        values = np.arange(math.ceil(30.0 / float(law.rate)) + 36)
        weights = np.exp(-float(law.rate) * values)
    both = np.concatenate((weights[:0:-1], weights))
    found: Masses = both / both.sum()
    return found


def law_of_sum(law: Symmetric, terms: int) -> Masses:
    """Return the probabilities of a sum, by repeated convolution."""
    found, power = np.ones(1), masses(law)
    while terms:
        if terms & 1:
            found = fftconvolve(found, power)
        terms >>= 1
        if terms:
            power = fftconvolve(power, power)
            middle = len(power) // 2
            power = power[max(0, middle - _REACH) : middle + _REACH + 1]
    return found


def coverage(probabilities: Masses, half: int) -> float:
    middle = len(probabilities) // 2
    return float(probabilities[middle - half : middle + half + 1].sum()) if half >= 0 else 0.0


@pytest.mark.parametrize(
    ("law", "terms"),
    [
        *product((laplace("1"), laplace("1/3"), laplace("1/50")), (1, 2, 7, 64, 65, 130)),
        *product((gaussian(Fraction(3)), gaussian(Fraction(30)), gaussian(Fraction(90_001, 7))), (1, 2, 9)),
        (laplace("1/2"), 5000),
    ],
)
def test_half_width_covers_95_percent_and_hardly_more(law: Symmetric, terms: int) -> None:
    probabilities, half = law_of_sum(law, terms), half_width(law, terms)
    assert coverage(probabilities, half) >= CONFIDENCE
    assert coverage(probabilities, half) <= MOST or coverage(probabilities, half - 1) < CONFIDENCE


@pytest.mark.parametrize("law", [laplace("2"), laplace("1/7"), gaussian(Fraction(2)), gaussian(Fraction(1, 9))])
def test_half_width_of_one_draw_is_the_least(law: Symmetric) -> None:
    half = half_width(law)
    assert coverage(masses(law), half) >= CONFIDENCE > coverage(masses(law), half - 1)


@pytest.mark.parametrize(("rate", "terms"), [("1/40000", 64), ("1/5000", 1000), ("1/5000", 3000)])
def test_half_width_of_wide_sums_covers_95_percent(rate: str, terms: int) -> None:
    half = half_width(laplace(rate), terms)
    assert MISS_PROBABILITY - 0.012 <= 2.0 * sum_tail(float(Fraction(rate)), terms, half + 1) <= MISS_PROBABILITY


def test_half_width_grows_with_number_of_draws() -> None:
    law = laplace("1/4")
    found = [half_width(law, terms) for terms in range(300)]
    assert found[0] == 0
    assert found == sorted(found)


def test_weighted_half_width_covers_95_percent() -> None:
    law, weights = laplace("1/2"), (1, 2, 5)
    single = masses(law)
    values = np.arange(len(single)) - len(single) // 2
    at: npt.NDArray[np.integer[Any]] = np.zeros(1, dtype=np.int64)
    chance: npt.NDArray[Any] = np.ones(1)
    for weight in weights:
        sums = (at[:, None] + weight * values[None, :]).ravel()
        at, place = np.unique(sums, return_inverse=True)
        chance = np.bincount(place, (chance[:, None] * single[None, :]).ravel())
    half = weighted_half_width(law, weights)
    assert float(chance[np.abs(at) <= half].sum()) >= CONFIDENCE
    assert weighted_half_width(law, (3, -3, 0)) == 3 * half_width(law, 2)
    assert weighted_half_width(law, (0, 0)) == 0


@pytest.mark.parametrize(
    ("top", "bottom", "truth"),
    [
        (laplace("1/2"), laplace("1/2"), (30, 40)),
        (laplace("1/3"), laplace("1"), (-20, 30)),
        (laplace("1/2"), laplace("1/3"), (0, 9)),
        (gaussian(Fraction(30)), gaussian(Fraction(9)), (25, 50)),
        (gaussian(Fraction(4)), gaussian(Fraction(30)), (8, 12)),
    ],
)
def test_ratio_bounds_cover_the_quotient(top: Symmetric, bottom: Symmetric, truth: tuple[int, int]) -> None:
    """The probability over all pairs of draws is at least 95 %; the bound for the lattice adds little."""
    first, second, quotient = masses(top), masses(bottom), truth[0] / truth[1]
    hit = 0.0
    for x, y in product(range(-18, 19), range(-18, 19)):
        chance = first[len(first) // 2 + x] * second[len(second) // 2 + y]
        low, high = ratio_bounds(NoisyNumber(truth[0] + x, top), NoisyNumber(truth[1] + y, bottom), -2.0, 2.0)
        hit += chance * (low <= quotient <= high)
    assert hit >= CONFIDENCE - 0.004  # draws beyond ±18 count as misses
    assert hit <= 0.992


def test_ratio_bounds_are_the_range_if_the_denominator_is_noise() -> None:
    law = laplace("1/10")
    assert ratio_bounds(NoisyNumber(40, law), NoisyNumber(25, law), -1.0, 2.0) == (-1.0, 2.0)
    low, high = ratio_bounds(NoisyNumber(400, law), NoisyNumber(2500, law), -1.0, 2.0)
    assert low < 0.16 < high
    assert high - low < 0.03


def test_ratio_bounds_outside_the_range_are_its_nearest_end() -> None:
    law = laplace("1/10")
    assert ratio_bounds(NoisyNumber(5000, law), NoisyNumber(2500, law), 0.0, 1.0) == (1.0, 1.0)


@pytest.mark.parametrize("law", [laplace("1/5"), laplace("1/200"), gaussian(Fraction(400))])
def test_widen_interval_leaves_part_of_the_probability(law: Symmetric) -> None:
    half = half_width(law)
    low, high = widen_interval(-half, half)
    assert 1.0 - coverage(masses(law), math.floor(min(-low, high))) <= MISS_PROBABILITY - SECOND_MISS_PROBABILITY


def test_published_interval_ends_on_grid_within_public_limits() -> None:
    assert published_interval(10, 4, 0.1) == (0.6, 1.4)
    assert published_interval(10, 4, 0.1, rounded=True) == (0.55, 1.45)
    assert published_interval(2, 4, 1.0, low=0.0) == (0.0, 6.0)
    assert published_interval(-9, 4, 1.0, low=0.0) == (0.0, 0.0)
    assert published_interval(98, 4, 1.0, 100, low=0.0, high=1.0) == (0.94, 1.0)
