"""Losses of broken and of correct variants from the literature, by numerical integration with Laplace noise.

Lyu, Su & Li 2017 ("LSL") number the variants. ε = Δ = 1 and T = 0 throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from scipy.integrate import trapezoid

Floats = npt.NDArray[np.float64]

STEPS_PER_UNIT = 2000
REACH = 160
GRID = np.linspace(-REACH, REACH, 2 * REACH * STEPS_PER_UNIT + 1)


def density(x: Floats, scale: float) -> Floats:
    return np.exp(-np.abs(x) / scale) / (2 * scale)


def below(x: Floats, scale: float) -> Floats:
    """P(Lap(scale) < x)."""
    half = 0.5 * np.exp(-np.abs(x) / scale)
    return np.where(x > 0, 1 - half, half)


@dataclass(frozen=True)
class Noise:
    """The scales of the threshold's and of the queries' noise."""

    threshold: float
    query: float

    def bottom(self, value: float) -> Floats:
        """P(⊥ | ρ) over the grid of ρ."""
        return below(GRID - value, self.query)

    def top(self, value: float) -> Floats:
        """Return P(⊤ | ρ); far from 0, 1 − P(⊥ | ρ) would lose all digits."""
        return below(value - GRID, self.query)

    def probability(self, bottoms: Sequence[float], tops: Sequence[float], released: float | None = None) -> float:
        """P(⊥ for the first values and ⊤ for the others); ``released`` is the last ⊤'s noisy value, as a density."""
        integrand = density(GRID, self.threshold)
        for value in bottoms:
            integrand = integrand * self.bottom(value)
        for value in tops[:-1] if released is not None else tops:
            integrand = integrand * self.top(value)
        if released is not None:
            at_value = float(density(np.array([released - tops[-1]]), self.query)[0])
            integrand = np.where(released >= GRID, integrand, 0.0) * at_value
        return float(trapezoid(integrand, GRID))


def loss(one: float, other: float) -> float:
    return math.log(one / other)


@pytest.mark.parametrize("m", [3, 6, 9])
def test_releasing_the_compared_value_loses_half_epsilon_per_query(m: int) -> None:
    """LSL Algorithm 3."""
    noise = Noise(threshold=2, query=2)
    lost = loss(noise.probability([0] * m, [1], released=0), noise.probability([1] * m, [0], released=0))
    assert lost == pytest.approx((m - 1) / 2, rel=0.01)


def test_query_noise_that_ignores_the_cutoff_loses_over_2_epsilon() -> None:
    """LSL Algorithm 4, cutoff 2."""
    noise = Noise(threshold=4, query=4 / 3)
    one, other = noise.probability([0, 0], [1, 1]), noise.probability([1, 1], [0, 0])
    assert one == pytest.approx(0.041, rel=0.02)
    assert loss(one, other) == pytest.approx(2.19, rel=0.01)


def test_loss_without_query_noise_is_infinite() -> None:
    """LSL Algorithm 5: ⊥ on 0 and ⊤ on 1 needs ρ in (0, 1]; ⊥ on 1 and ⊤ on 0 needs ρ > 1 and ρ <= 0."""
    weights = density(GRID, 2)
    one = trapezoid(weights * ((GRID > 0) & (GRID <= 1)), GRID)
    other = trapezoid(weights * ((GRID > 1) & (GRID <= 0)), GRID)
    assert one == pytest.approx(0.5 * (1 - math.exp(-0.5)), rel=0.01)
    assert other == 0.0


def test_loss_without_a_cutoff_grows() -> None:
    """LSL Algorithm 6."""
    noise = Noise(threshold=2, query=2)
    one, other = noise.probability([0] * 3, [0] * 3), noise.probability([1] * 3, [-1] * 3)
    assert one == pytest.approx(0.0071, rel=0.02)
    assert loss(one, other) == pytest.approx(2.62, rel=0.01)
    longer = loss(noise.probability([0] * 6, [0] * 6), noise.probability([1] * 6, [-1] * 6))
    assert longer > 1.8 * loss(one, other)


def test_new_threshold_for_each_query_loses_more_with_each() -> None:
    noise = Noise(threshold=2, query=4)
    each = loss(noise.probability([0], []), noise.probability([1], []))
    assert 6 * each == pytest.approx(1.07, rel=0.01)
    # Far above the threshold it approaches ε/4 per ⊥.
    assert loss(noise.probability([30], []), noise.probability([31], [])) == pytest.approx(0.25, rel=0.01)


def test_textbook_above_threshold_loses_exactly_epsilon() -> None:
    noise = Noise(threshold=2, query=4)
    for high in (0, 10, 20, 30):
        lost = loss(noise.probability([high] * 12, [-30]), noise.probability([high + 1] * 12, [-31]))
        assert lost <= 1.0 + 1e-6
    assert lost == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("cutoff", [2, 3])
def test_one_threshold_for_all_tops_loses_exactly_epsilon(cutoff: int) -> None:
    """LSL Algorithm 7 without numbers, with ε divided equally."""
    noise = Noise(threshold=2, query=4 * cutoff)
    one = noise.probability([40] * 40, [-10] * cutoff)
    other = noise.probability([41] * 40, [-11] * cutoff)
    assert loss(one, other) <= 1.0 + 1e-6
    assert loss(one, other) == pytest.approx(1.0, rel=0.01)
