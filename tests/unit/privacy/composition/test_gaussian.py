"""The cost of Gaussian noise: its bounds are little above exact sums, and agree with another accountant; tail bounds hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld

from stream.privacy.accuracy.noise_laws import noise_reach, sum_alpha, variance_of
from stream.privacy.composition.gaussian_losses import (
    SMOOTHINGS,
    GaussianNumbers,
    gaussian_delta,
    gaussian_rho,
    least_epsilon,
    least_noise_factor,
    rough_epsilon,
    widen_noise,
)
from stream.privacy.noise.samplers import gaussian, sampler

Floats = npt.NDArray[np.float64]


def mass(deviation: float) -> Floats:
    """Return the discrete Gaussian law, as far out as doubles are positive."""
    far = math.ceil(14 * deviation)
    weights = np.exp(-0.5 * (np.arange(-far, far + 1) / deviation) ** 2)
    return np.asarray(weights / weights.sum())


def law_of_sum(deviation: float, count: int) -> Floats:
    found = mass(deviation)
    for _ in range(count - 1):
        found = np.convolve(found, mass(deviation))
    return found


def exact_delta(parts: Sequence[tuple[int, float]], epsilon: float) -> float:
    """Return δ of so many numbers of each deviation, each moved by 1; the losses are sums of noise and a constant."""
    losses, chances = np.zeros(1), np.ones(1)
    for count, deviation in parts:
        law = law_of_sum(deviation, count)
        values = (np.arange(len(law)) - len(law) // 2 - count / 2.0) / deviation**2
        losses = np.add.outer(losses, values).ravel()
        chances = np.multiply.outer(chances, law).ravel()
    return float(np.sum(chances * np.maximum(np.exp(losses) - math.exp(epsilon), 0.0)))


def numbers_moved_by_one(parts: Sequence[tuple[int, float]]) -> list[GaussianNumbers]:
    return [GaussianNumbers(count, 1, Fraction(deviation) ** 2) for count, deviation in parts]


@pytest.mark.parametrize(
    ("parts", "epsilon", "slack"),
    [
        ([(1, 2.0)], 1.0, 2.0),
        ([(1, 5.0)], 0.5, 1.2),
        ([(2, 12.0)], 0.4, 1.05),
        ([(10, 20.0)], 0.8, 1.03),
        ([(3, 10.0), (2, 16.0)], 1.0, 1.1),
        ([(20, 40.0)], 0.5, 1.01),
    ],
)
def test_gaussian_delta_is_slightly_above_exact_delta(
    parts: list[tuple[int, float]], epsilon: float, slack: float
) -> None:
    exact, bound = exact_delta(parts, epsilon), gaussian_delta(numbers_moved_by_one(parts), Fraction(epsilon))
    assert exact <= bound <= slack * exact


@pytest.mark.parametrize(("count", "deviation", "epsilon"), [(1, 6.0, 0.5), (8, 25.0, 0.6)])
def test_gaussian_delta_agrees_with_dp_accounting(count: int, deviation: float, epsilon: float) -> None:
    single = pld.from_discrete_gaussian_mechanism(deviation, value_discretization_interval=1e-4)
    theirs = single.self_compose(count).get_delta_for_epsilon(epsilon)
    ours = gaussian_delta(numbers_moved_by_one([(count, deviation)]), Fraction(epsilon))
    assert ours == pytest.approx(theirs, rel=0.05)


def test_smoothings_have_stated_ripples() -> None:
    for smoothing, ripple in SMOOTHINGS:
        exact = 2.0 * sum(math.exp(-2.0 * math.pi**2 * float(smoothing) * j * j) for j in range(1, 20))
        assert exact <= float(ripple) <= 1.1 * exact


@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.3, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_least_noise_factor_is_minimal(epsilon: float, delta: float) -> None:
    shape = [
        GaussianNumbers(12, 1, Fraction(4)),
        GaussianNumbers(5, 1, Fraction(9)),
        GaussianNumbers(5, 0, Fraction(9)),
    ]
    factor = least_noise_factor(shape, Fraction(epsilon), Fraction(delta))
    assert gaussian_delta(widen_noise(shape, factor), Fraction(epsilon)) <= delta
    narrower = widen_noise(shape, factor * (1 - 1e-6))
    smallest = min(one.variance for one in narrower)
    assert gaussian_delta(narrower, Fraction(epsilon)) > delta or smallest < 3
    if smallest >= 3:
        # zCDP gives a larger loss for the same noise.
        assert least_epsilon(gaussian_rho(widen_noise(shape, factor)), Fraction(delta)) > epsilon


def test_rough_epsilon_is_near_exact_delta() -> None:
    for precision in (1e-6, 1e-2, 1.0):
        wide = GaussianNumbers(1, 10**12, 10**12 / Fraction(precision))
        epsilon = rough_epsilon(precision, 1e-6)
        assert gaussian_delta([wide], Fraction(epsilon)) == pytest.approx(1e-6, rel=1e-3)


def test_gaussian_delta_is_1_for_unsupported_parameters() -> None:
    """No bound is given for a small variance or a negative ε; no noise suffices for ε = 0."""
    assert gaussian_delta([], Fraction(0)) == 0.0
    assert gaussian_delta([GaussianNumbers(1, 1, Fraction(2))], Fraction(1)) == 1.0
    assert gaussian_delta([GaussianNumbers(1, 1, Fraction(9))], Fraction(-1)) == 1.0
    assert least_noise_factor([GaussianNumbers(1, 1, Fraction(9))], Fraction(0), Fraction(1, 10)) == math.inf


def test_gaussian_delta_is_positive_at_any_size() -> None:
    one = [GaussianNumbers(1, 1, Fraction(10**4))]
    assert 0.0 < gaussian_delta(one, Fraction(1, 2)) < 1e-300
    assert gaussian_delta(one, Fraction(5)) == 5e-324


@pytest.mark.parametrize("deviation", [0.4, 2.0, 30.0])
@pytest.mark.parametrize("draws", [1, 1000])
def test_noise_reach_of_gaussian_covers_all_draws(deviation: float, draws: int) -> None:
    law = mass(deviation)
    far = noise_reach(gaussian(Fraction(deviation) ** 2), draws, 0.05)
    middle = len(law) // 2
    inside = law[max(0, middle - far) : middle + far + 1].sum()
    assert 1.0 - inside**draws <= 0.05
    if deviation > 1.0:
        narrower = law[middle - far + 2 : middle + far - 1].sum()
        assert 1.0 - narrower**draws > 0.05


@pytest.mark.parametrize("terms", [2, 30])
@pytest.mark.parametrize("deviation", [1.0, 2.0, 12.0])
def test_sum_alpha_of_gaussian_covers_all_sums(terms: int, deviation: float) -> None:
    law = law_of_sum(deviation, terms)
    noise = gaussian(Fraction(deviation) ** 2)
    middle = len(law) // 2
    for whole in (True, False):
        far = math.floor(sum_alpha(noise, terms, 10, 0.05, full_weights=whole))
        assert 10 * (1.0 - law[middle - far : middle + far + 1].sum()) <= 0.05
    assert sum_alpha(noise, 0, 10, 0.05, full_weights=True) == 0.0
    assert (
        sum_alpha(noise, terms, 10, 0.05, full_weights=True)
        <= sum_alpha(noise, terms, 10, 0.05, full_weights=False) + 1
    )


def test_variance_of_sampler_is_that_of_its_law() -> None:
    assert variance_of(gaussian(Fraction(7))) == 7.0
    assert variance_of(sampler("two_sided", Fraction(1, 10))) == pytest.approx(200.0)
