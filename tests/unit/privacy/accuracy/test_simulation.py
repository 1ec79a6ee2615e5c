"""Simulated runs of the mechanism fail no more often than β, whatever the order of the queries.

Each assertion on a frequency would fail for a correct calibration with probability below 10⁻⁶; seeds are fixed.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from schemas import AboveThreshold, SparseVectorCalibration
from stream.privacy.accuracy.sparse_vector_accuracy import exact_alpha, noise_rates
from stream.privacy.planning.plans import plan_sparse_vectors

RUNS = 4000
QUERIES = 300
CUTOFF = 5
BETA = 0.2
STEPS = 8
FALSE_ALARM = 1e-6

Signs = NDArray[np.int64]


def draw(generator: np.random.Generator, rate: float, *, one_sided: bool) -> NDArray[np.int64]:
    stop = -np.expm1(-rate)
    noise = generator.geometric(stop, RUNS) - 1
    return noise if one_sided else noise - (generator.geometric(stop, RUNS) - 1)


def failures(calibration: SparseVectorCalibration, signs: Signs, alpha: int, seed: int) -> int:
    """Return the runs in which a query at T − α is answered ⊤ or a query at T + α is answered ⊥."""
    generator = np.random.default_rng(seed)
    threshold_rate, query_rate = noise_rates(calibration)
    one_sided = calibration.noise == "one_sided"
    barrier = draw(generator, threshold_rate, one_sided=one_sided) + calibration.shift
    tops = np.zeros(RUNS, dtype=np.int64)
    failed = np.zeros(RUNS, dtype=bool)
    for sign in signs:
        open_ = tops < calibration.cutoff
        top = sign * alpha + draw(generator, query_rate, one_sided=one_sided) >= barrier
        failed |= open_ & (top != (sign > 0))
        tops += open_ & top
        if calibration.fresh_threshold:
            fresh = draw(generator, threshold_rate, one_sided=one_sided) + calibration.shift
            barrier = np.where(top, fresh, barrier)
    return int(failed.sum())


def order(name: str) -> Signs:
    """Return the order of QUERIES queries, of which CUTOFF are high."""
    signs = np.full(QUERIES, -1, dtype=np.int64)
    match name:
        case "high last":
            signs[-CUTOFF:] = 1
        case "evenly spread":
            signs[QUERIES // CUTOFF - 1 :: QUERIES // CUTOFF] = 1
        case "high first but one":
            signs[: CUTOFF - 1] = 1
            signs[-1] = 1
        case "none high":
            pass
    return signs


ORDERS = ("high last", "evenly spread", "high first but one", "none high")


def calibrations() -> dict[str, SparseVectorCalibration]:
    mechanism = AboveThreshold(kind="above_threshold", threshold=0.0, cutoff=CUTOFF)
    found = plan_sparse_vectors(
        mechanism,
        epsilon=1.0,
        delta=1e-3,
        expected_queries=QUERIES,
        beta=BETA,
        sensitivity_steps=STEPS,
        grid=1.0 / STEPS,
    )
    return {one.method: one for one in found}


@pytest.mark.parametrize("method", ["textbook", "two_sided", "two_sided_shifted", "one_sided", "one_sided_rounds"])
def test_simulated_runs_fail_about_as_often_as_beta(method: str) -> None:
    """Runs fail at most as often as β, and not much less often."""
    calibration = calibrations()[method]
    alpha = round(exact_alpha(calibration) * STEPS)
    observed = [failures(calibration, order(name), alpha, seed) for seed, name in enumerate(ORDERS)]
    assert max(observed) <= binom.ppf(1.0 - FALSE_ALARM / len(ORDERS), RUNS, BETA)
    # With new thresholds, the bound also covers an asker who knows all thresholds in advance; no order here is so bad.
    assert max(observed) >= (0.4 if calibration.fresh_threshold else 0.7) * BETA * RUNS


@pytest.mark.parametrize("method", ["two_sided", "one_sided"])
def test_simulated_runs_with_tenth_less_error_fail_more_often(method: str) -> None:
    calibration = calibrations()[method]
    alpha = round(0.9 * exact_alpha(calibration) * STEPS)
    observed = failures(calibration, order("high last"), alpha, seed=11)
    assert observed > binom.ppf(1.0 - FALSE_ALARM, RUNS, BETA)


def test_simulated_adaptive_asker_gains_nothing() -> None:
    # After a ⊤ under the round's threshold the asker knows ρ is low and asks only low queries from then on.
    calibration = calibrations()["one_sided"]
    alpha = round(exact_alpha(calibration) * STEPS)
    generator = np.random.default_rng(23)
    threshold_rate, query_rate = noise_rates(calibration)
    barrier = draw(generator, threshold_rate, one_sided=True) + calibration.shift
    tops = np.zeros(RUNS, dtype=np.int64)
    failed = np.zeros(RUNS, dtype=bool)
    for turn in range(QUERIES):
        # A query at T itself may be answered either way; it only probes.
        probing = (turn < 10) & (tops < 1)
        offset = np.where(probing, 0, np.where(tops > 0, -alpha, alpha if turn > QUERIES - CUTOFF else -alpha))
        open_ = tops < CUTOFF
        top = offset + draw(generator, query_rate, one_sided=True) >= barrier
        failed |= open_ & ((top & (offset < 0)) | (~top & (offset > 0)))
        tops += open_ & top
    assert failed.sum() <= binom.ppf(1.0 - FALSE_ALARM, RUNS, BETA)
