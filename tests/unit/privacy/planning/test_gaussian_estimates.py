"""Plans that measure with Gaussian noise have the stated privacy, and are used only if they are better than those with Laplace noise."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest

from schemas import EstimateCalibration
from stream.privacy.accuracy.noise_laws import variance_of
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import NO_COST, Cost, realised_cost, stream_cost
from stream.privacy.composition.gaussian_losses import gaussian_delta, gaussian_rho
from stream.privacy.composition.losses import is_pure, losses
from stream.privacy.noise.samplers import Gaussian, gaussian
from stream.privacy.planning.estimate_plans import ErrorBounds
from stream.privacy.planning.plans import choose_calibration, name_of, plan_calibrations
from stream.privacy.planning.warm_starts import marginal_law, number_law, warm_start_law
from tests.builders import parse_spec
from tests.unit.privacy.planning.domains import FIVE, FOURTEEN

STEPS = 1024


def plan(
    delta: float = 1e-6, *, sizes: tuple[int, ...] = FIVE, epsilon: float = 1.0, **more: Any
) -> EstimateCalibration:
    neighbors = more.pop("neighbors", "add-remove")
    spec = parse_spec("pmw", expected_queries=5000, epsilon=epsilon, delta=delta, **more)
    found = choose_calibration(spec, SourceFacts(sizes=sizes, neighbors=neighbors, rows=50_000))
    assert isinstance(found, EstimateCalibration)
    return found


def test_gaussian_plan_measures_pairs_if_wide_sums_stay_below_threshold() -> None:
    small = (2,) * 14
    better = plan(sizes=small, warm_start=2)
    assert better.starts == 91
    assert better.alpha < plan(sizes=small, warm_start=1).alpha
    # The promise of pairs is smaller here too, but half of one pair's 10,000 cells would err by five times the threshold.
    pairs = plan(sizes=FOURTEEN, warm_start=2)
    assert pairs.alpha < plan(sizes=FOURTEEN, warm_start=1).alpha
    assert pairs.deviation_start * math.sqrt(10_000) / 2 > 5 * pairs.threshold * pairs.grid
    chosen = plan(sizes=FOURTEEN)
    assert (chosen.warm_start, chosen.noise, chosen.epsilon_chosen) == ("workload", "gaussian", 0.0)
    assert chosen.deviation_chosen > 0


@pytest.mark.parametrize("sizes", [FIVE, FOURTEEN])
@pytest.mark.parametrize("warm_start", ["auto", 0])
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_gaussian_plan_has_less_error_and_keeps_delta(
    sizes: tuple[int, ...], warm_start: Any, neighbors: str, epsilon: float
) -> None:
    better = plan(sizes=sizes, warm_start=warm_start, neighbors=neighbors, epsilon=epsilon)
    pure = plan(0.0, sizes=sizes, warm_start=warm_start, neighbors=neighbors, epsilon=epsilon)
    assert (better.noise, pure.noise) == ("gaussian", "laplace")
    factor = better.alpha / pure.alpha
    assert factor < 0.9
    assert better.alpha == max(better.sparse_vector.alpha, better.sparse_vector.answer_alpha)
    assert better.warm_start == pure.warm_start
    if pure.starts:
        assert (better.cutoff, better.starts) == (pure.cutoff, pure.starts)
        noise = variance_of(warm_start_law(better)) / variance_of(warm_start_law(pure))
        assert math.sqrt(noise) == pytest.approx(factor, rel=1e-2)
    parts = losses(better)
    delta = gaussian_delta(parts.gaussian, Fraction(better.epsilon) - parts.total)
    assert 0.999e-6 <= delta <= better.delta == pytest.approx(1e-6)


def test_gaussian_plan_is_not_chosen_if_laplace_errs_less() -> None:
    pairs = plan(1e-6, sizes=(10, 4))
    assert pairs.noise == "laplace"
    assert pairs == plan(0.0, sizes=(10, 4))
    assert plan(1e-6, epsilon=100.0) == plan(0.0, epsilon=100.0)


def test_gaussian_plan_is_listed_beside_laplace_plan() -> None:
    listed = [name_of(one) for one in plan_calibrations(parse_spec("pmw", delta=1e-6), SourceFacts(sizes=FIVE))]
    assert [name for name in listed if name != "textbook"] == ["maximum_entropy", "maximum_entropy, gaussian"]


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_gaussian_number_and_marginal_share_precision_of_marginal(neighbors: str) -> None:
    """A number and its marginal have together the precision of a marginal alone."""
    found = plan(sizes=(10, 8, 4, 5, 17), neighbors=neighbors)
    cells = found.marginal_sensitivity
    alone, beside = (marginal_law(found, numbered=numbered) for numbered in (False, True))
    assert isinstance(alone, Gaussian)
    assert isinstance(beside, Gaussian)
    for width in (1, STEPS, 99_999):
        number = number_law(found, width)
        assert isinstance(number, Gaussian)
        assert width**2 / number.variance + cells / beside.variance == cells / alone.variance
    # The bound on δ uses the variances of all these as if they were the marginal's alone.
    assert number_law(found, 1).variance >= alone.variance <= beside.variance  # type: ignore[union-attr]
    charged = losses(found).gaussian_charged
    assert sum(one.precision for one in charged) == found.cutoff * cells / alone.variance
    assert sum(one.count for one in charged) == found.cutoff * (cells + 1)


def test_gaussian_plan_raises_threshold_by_gap() -> None:
    wide, narrow = plan(gap=0.05), plan(gap=0.01)
    assert wide.threshold - narrow.threshold == pytest.approx(0.04 * 50_000 * STEPS, rel=0.05)


def test_gaussian_stream_costs_epsilon_and_delta_or_rho() -> None:
    found = plan()
    assert not is_pure(found)
    whole = stream_cost(found, "pure")
    assert whole.loss == 10**12
    assert whole.delta == pytest.approx(1e24, rel=1e-9)
    assert realised_cost(found, "pure", 1, 0) == whole
    assert realised_cost(found, "pure", 0, 0) == NO_COST
    parts = losses(found)
    rho = sum(count * each**2 for count, each in parts.pure_parts) / 2 + gaussian_rho(parts.gaussian)
    under_zcdp = stream_cost(found, "zcdp")
    assert under_zcdp == Cost(under_zcdp.loss, rho=math.ceil(rho * 10**12), unbounded=1)
    assert realised_cost(found, "zcdp", 1, 0).unbounded == 1


def test_gaussian_stream_adds_up_epsilon_until_first_gaussian_draw() -> None:
    found = plan(warm_start=0)
    before, after = (realised_cost(found, "zcdp", 5, tops) for tops in (0, 1))
    assert (before.unbounded, after.unbounded) == (0, 1)
    assert before.loss == math.ceil(losses(found).first_loss * 10**12)
    assert before.rho == after.rho == stream_cost(found, "zcdp").rho


def test_gaussian_error_bounds_are_gaussian_tails() -> None:
    found = plan()
    bounds, law = ErrorBounds(found), warm_start_law(found)
    one = bounds.bound_cell_sums(law, 1, (85, 16), ranges=True)
    failure = 0.5 * 0.1 * 0.05 / (found.starts + found.cutoff)
    assert 1360 * math.erfc(one / found.deviation_start / math.sqrt(2)) <= failure * 1.001
    assert 1360 * math.erfc((one - 1) / found.deviation_start / math.sqrt(2)) > failure * 0.999
    six = bounds.bound_cell_sums(law, 6, (85, 16), ranges=True)
    assert six < bounds.bound_cell_sums(law, 6, (85, 16), ranges=False) == 6 * one
    assert six == pytest.approx(math.sqrt(6) * one, rel=0.25)


def test_estimate_calibration_without_noise_field_means_laplace() -> None:
    record = plan(0.0).model_dump(
        mode="json", exclude={"noise", "deviation_start", "deviation_answer", "deviation_number"}
    )
    assert EstimateCalibration.model_validate(record) == plan(0.0)


def test_gaussian_sampler_fits_sums_of_wide_attributes() -> None:
    assert gaussian(Fraction(plan(epsilon=1e-3).deviation_number) ** 2 * (STEPS * 100_000) ** 2).words <= 6
