"""Each calibration's noise has the rates of the privacy proof."""

from __future__ import annotations

from fractions import Fraction

import pytest

from schemas import SparseVectorCalibration
from stream.privacy.mechanisms.above_threshold import query_sampler, threshold_sampler
from stream.privacy.noise.samplers import Geometric, TwoSidedGeometric

CALIBRATION = SparseVectorCalibration(
    method="one_sided",
    noise="one_sided",
    fresh_threshold=False,
    epsilon_threshold=0.25,
    epsilon_query=0.75,
    shift=3,
    sensitivity_steps=5,
    grid=0.2,
    cutoff=4,
    monotone=False,
    epsilon=1.0,
    delta=0.0,
    expected_queries=100,
    beta=0.05,
    alpha=1.0,
)


def test_threshold_sampler_has_rate_of_proof() -> None:
    assert threshold_sampler(CALIBRATION) == Geometric(Fraction(1, 20))


@pytest.mark.parametrize(
    ("fresh", "monotone", "rate"),
    [
        (False, False, Fraction(3, 4) / (2 * 4 * 5)),
        (False, True, Fraction(3, 4) / (4 * 5)),
        (True, False, Fraction(3, 4) / (2 * 5)),
        (True, True, Fraction(3, 4) / 5),
    ],
)
def test_query_sampler_widens_with_cutoff_unless_thresholds_are_fresh(
    fresh: bool, monotone: bool, rate: Fraction
) -> None:
    calibration = CALIBRATION.model_copy(update={"fresh_threshold": fresh, "monotone": monotone})
    assert query_sampler(calibration) == Geometric(rate)


def test_two_sided_sampler_is_discrete_laplace() -> None:
    calibration = CALIBRATION.model_copy(update={"noise": "two_sided"})
    assert threshold_sampler(calibration) == TwoSidedGeometric(Fraction(1, 20))
    assert isinstance(query_sampler(calibration), TwoSidedGeometric)


def test_sampler_rate_is_exact_for_doubles() -> None:
    calibration = CALIBRATION.model_copy(update={"epsilon_threshold": 0.1})
    assert threshold_sampler(calibration) == Geometric(Fraction(0.1) / 5) != Geometric(Fraction(1, 50))
