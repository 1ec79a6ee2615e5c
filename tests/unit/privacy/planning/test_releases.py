"""Plans of releases: their budgets add up, and exact tails of the noise give their errors."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from schemas import MAX_UNIVERSE, ReleaseCalibration
from stream.privacy.accuracy.noise_laws import (
    MOST_EXACT_TERMS,
    laplace_sum_alpha,
    sum_tail,
    two_sided_reach,
    weighted_reach,
)
from stream.privacy.accuracy.release_accuracy import (
    cell_alpha,
    cross_talk_reach,
    histogram_alpha,
    lazy_alpha,
    noise_alpha,
    norm_bound,
    projected_noise_reach,
    projection_alpha,
    released_norm,
)
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import realised_cost
from stream.privacy.composition.gaussian_losses import gaussian_delta
from stream.privacy.composition.losses import losses
from stream.privacy.composition.pure_rounds import optimal_delta
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration
from stream.privacy.planning.release_plans import plan_calibrations, theorem_projections
from tests.builders import parse_spec

Floats = npt.NDArray[np.float64]

SIZES: dict[str, dict[str, int]] = {
    "histogram": {},
    "lazy_histogram": {"sparsity": 10},
    "sparse_project": {"sparsity": 4, "projections": 64},
}


def plans(kind: str, facts: SourceFacts | None = None, **fields: Any) -> dict[str, ReleaseCalibration]:
    spec = parse_spec(kind, **{**SIZES[kind], **fields})
    return {one.method: one for one in plan_calibrations(spec, facts or SourceFacts(universe=1000))}


def two_sided_law(rate: float, reach: int) -> Floats:
    values = np.abs(np.arange(-reach, reach + 1))
    return np.asarray(np.exp(-rate * values) * math.tanh(rate / 2.0))


def test_weighted_reach_has_published_values_for_wide_noise() -> None:
    rate = 1e-4
    for cells, published in [(10, 28.04), (100, 74.03)]:
        assert rate * weighted_reach(rate, cells, 10_000, 0.05) == pytest.approx(published, abs=0.01)
        fractions = np.linspace(1e-4, 1.0 - 1e-4, 200_001)
        continuous = (math.log(2.0 * 10_000 / 0.05) - cells * np.log1p(-(fractions**2))) / fractions
        assert rate * weighted_reach(rate, cells, 10_000, 0.05) == pytest.approx(float(continuous.min()), rel=1e-6)


@given(
    rate=st.floats(1e-6, 50.0), cells=st.integers(2, 400), sums=st.integers(1, 10**12), beta=st.floats(1e-12, 0.5)
)
@settings(max_examples=30, deadline=None)
def test_weighted_reach_of_discrete_noise_is_below_continuous(
    rate: float, cells: int, sums: int, beta: float
) -> None:
    """Discrete noise is no worse than continuous noise, its exact tail no worse than Chernoff's bound."""
    bound = weighted_reach(rate, cells, sums, beta)
    assert sum_tail(rate, cells, max(1, math.ceil(bound))) <= beta / (2.0 * sums) * 1.01
    assert laplace_sum_alpha(rate, cells, sums, beta, full_weights=True) <= bound
    fractions = np.linspace(1e-3, 1.0 - 1e-3, 999)
    continuous = (math.log(2.0 * sums / beta) - cells * np.log1p(-(fractions**2))) / (rate * fractions)
    assert bound <= float(continuous.min()) * (1.0 + 1e-8)


@pytest.mark.parametrize("quarters", [(4, 1), (3, 3, 2), (4, 4, 4, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("rate", [0.4, 1.0, 3.0])
def test_weighted_reach_bounds_convolved_sums(quarters: tuple[int, ...], rate: float) -> None:
    reach = math.ceil(40.0 / rate)
    total = np.ones(1)
    for weight in quarters:
        spread = np.zeros(2 * reach * weight + 1)
        spread[::weight] = two_sided_law(rate, reach)
        total = np.convolve(total, spread)
    values = np.abs(np.arange(len(total)) - len(total) // 2) / 4.0
    for beta in (0.2, 1e-3, 1e-6):
        bound = weighted_reach(rate, len(quarters), 1, beta)
        assert float(total[values > bound].sum()) <= beta
        assert lazy_like(rate, len(quarters), beta) >= bound


def lazy_like(rate: float, cells: int, beta: float) -> float:
    """Return the α of a lazy histogram that is asked one question."""
    calibration = plans("lazy_histogram", beta=beta, epsilon=rate, expected_queries=1)["basic"]
    return lazy_alpha(calibration, cells)


@pytest.mark.parametrize("universe", [1, 2, 1000, MAX_UNIVERSE])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 4.0])
def test_histogram_alpha_is_least_for_all_cells(universe: int, epsilon: float) -> None:
    calibration = plans("histogram", SourceFacts(universe=universe), epsilon=epsilon, beta=0.05)["basic"]

    def failure(alpha: int) -> float:
        beyond = 2.0 * math.exp(-epsilon * (alpha + 1)) / (1.0 + math.exp(-epsilon))
        return -math.expm1(universe * math.log1p(-beyond))

    alpha = int(calibration.alpha)
    assert alpha == calibration.alpha == cell_alpha(calibration, universe)
    assert failure(alpha) <= 0.045
    assert alpha == 0 or failure(alpha - 1) > 0.045


def test_histogram_alpha_of_sum_is_below_sum_of_cell_alphas() -> None:
    calibration = plans("histogram")["basic"]
    alphas = [histogram_alpha(calibration, 1000, cells) for cells in (1, 2, 10, 100, 1000)]
    assert alphas == sorted(alphas)
    assert all(
        alpha <= cells * calibration.alpha for cells, alpha in zip((1, 2, 10, 100, 1000), alphas, strict=True)
    )
    assert alphas[-1] < 0.2 * 1000 * calibration.alpha
    assert histogram_alpha(calibration, 1000, 10, 100) > histogram_alpha(calibration, 1000, 10)
    assert histogram_alpha(calibration, 1000, 0) == 0.0


def test_sum_alpha_grows_at_change_to_chernoff_bound() -> None:
    below, above = (
        laplace_sum_alpha(1.0, terms, 1000, 0.05, full_weights=True)
        for terms in (MOST_EXACT_TERMS, MOST_EXACT_TERMS + 1)
    )
    assert below < above < 1.25 * below


def test_lazy_alpha_of_one_cell_is_exact_at_any_weight() -> None:
    calibration = plans("lazy_histogram", expected_queries=1000)["basic"]
    exact = two_sided_reach(1.0, 1000, 0.05)
    assert lazy_alpha(calibration, 1) == lazy_alpha(calibration, 1, full_weights=True) == exact


@pytest.mark.parametrize(("projections", "cells"), [(1, 1), (1, 3), (2, 2), (3, 2)])
def test_noise_alpha_of_projection_bounds_enumerated_noise(projections: int, cells: int) -> None:
    rate, reach = 1.5, 30
    single = two_sided_law(rate, reach)
    total = np.zeros(2 * projections * cells * reach + 1)
    signs = [sum(row) for row in itertools.product((-1, 1), repeat=cells)]
    for weights in itertools.product(signs, repeat=projections):
        law = np.ones(1)
        for weight in weights:
            spread = np.zeros(2 * reach * abs(weight) + 1)
            spread[:: max(1, abs(weight))] = single if weight else [1.0]
            law = np.convolve(law, spread)
        start = (len(total) - len(law)) // 2
        total[start : start + len(law)] += law / len(signs) ** projections
    values = np.abs(np.arange(len(total)) - len(total) // 2) / projections
    for beta in (0.3, 1e-2, 1e-5):
        assert float(total[values > projected_noise_reach(rate, projections, cells, 1, beta)].sum()) <= beta


@pytest.mark.parametrize("projections", [1, 4, 24])
@pytest.mark.parametrize(
    ("counts", "cells"),
    [
        ([50, 0, 0], 1),
        ([0, 50, 0], 1),
        ([7, 7, 7, 7], 4),  # the question's cells are exactly those with rows, evenly distributed: the widest law
        ([1, 5, 5, 1, 9], 2),
        ([0, 0, 0, 20, 3], 3),
        ([3, 1, 4, 1, 5, 9, 2], 5),
    ],
)
def test_cross_talk_reach_bounds_enumerated_errors(projections: int, counts: list[int], cells: int) -> None:
    """This enumerates the law of one row's error over all signs of all cells, and of the sum of several rows."""
    span = cells * sum(counts)
    law = np.zeros(2 * span + 1)
    for signs in itertools.product((-1, 1), repeat=len(counts)):
        row = sum(sign * count for sign, count in zip(signs, counts, strict=True))
        error = sum(signs[x] * (row - signs[x] * counts[x]) for x in range(cells))
        law[error + span] += 0.5 ** len(counts)
    total = np.ones(1)
    for _ in range(projections):
        total = np.convolve(total, law)
    errors = np.abs(np.arange(len(total)) - len(total) // 2) / projections
    norm = math.hypot(*counts)
    for beta in (0.3, 1e-2, 1e-5):
        assert float(total[errors > cross_talk_reach(norm, projections, cells, 1, beta)].sum()) <= beta


def test_cross_talk_reach_is_at_most_twice_the_normal_bound() -> None:
    for cells in (1, 4, 16, 256):
        deviation = math.sqrt(cells / 4096)
        normal = deviation * math.sqrt(2.0 * math.log(2.0 * 100 / 0.05))
        assert normal <= cross_talk_reach(1.0, 4096, cells, 100, 0.05) <= 2.0 * normal


@pytest.mark.parametrize(("projections", "rate"), [(64, 0.01), (256, 0.5), (1024, 20.0)])
@pytest.mark.parametrize("counts", [[40], [3, 1, 4, 1, 5, 9, 2, 6], [1] * 100, [0]])
def test_norm_bound_fails_at_most_as_often_as_beta(projections: int, rate: float, counts: list[int]) -> None:
    trials, beta = 400, 0.1
    generator = np.random.default_rng(projections + len(counts))
    norm = math.hypot(*counts)
    squares = []
    for _ in range(trials):
        signs = generator.integers(0, 2, size=(projections, len(counts))) * 2 - 1
        q = math.exp(-rate)
        noise = generator.geometric(1 - q, projections) - generator.geometric(1 - q, projections)
        rows = (signs @ np.array(counts) + noise).astype(np.float64)
        squares.append(float(rows @ rows))
    # The bound grows with the squares, so it fails for the smallest ones.
    failed = bisect_left(sorted(squares), 1, key=lambda one: norm <= norm_bound(rate, projections, one, beta))
    # A bound that fails with probability 0.1 is refused once in a million runs; one that fails with 0.2, in 98 of 100 runs.
    assert failed <= binom.isf(1e-6, trials, beta)


@pytest.mark.parametrize(("projections", "rate"), [(64, 0.01), (256, 0.5), (1024, 20.0)])
def test_norm_bound_grows_with_squares(projections: int, rate: float) -> None:
    bounds = [norm_bound(rate, projections, projections * 1.1**step, 0.1) for step in range(150)]
    assert bounds == sorted(bounds)
    assert math.isfinite(bounds[-1])


def test_norm_bound_is_tight_at_default_size_and_infinite_for_few() -> None:
    """With few projections nothing is known of the norm."""
    assert 1000.0 <= norm_bound(1.0, 4096, 4096 * 1000.0**2, 0.005) <= 1100.0
    assert math.isinf(norm_bound(1.0, 4, 4 * 1000.0**2, 0.005))


def test_projection_plan_includes_cross_talk_only_if_rows_are_public() -> None:
    private = plans("sparse_project", SourceFacts(universe=1000))["basic"]
    public = plans("sparse_project", SourceFacts(universe=1000, neighbors="replace", rows=500))["basic"]
    assert private.noise_only
    assert private.alpha == noise_alpha(private, 4)
    assert not public.noise_only
    assert public.alpha == projection_alpha(public, 4, 500.0) > noise_alpha(public, 4)
    assert released_norm(public, 64 * 1e9, 500) == 500.0
    assert released_norm(private, 64 * 1e9, None) > 30_000.0


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("kind", ["histogram", "lazy_histogram"])
def test_histogram_plan_is_one_part_scaled_to_one_row_or_its_change(kind: str, neighbors: Any) -> None:
    found = plans(kind, SourceFacts(universe=1000, neighbors=neighbors), delta=1e-6)
    gaussian = found.pop("gaussian")
    assert set(found) == {"basic", "textbook"}
    moved = found["basic"].sensitivity_steps
    assert (gaussian.cutoff, gaussian.moved, float(losses(gaussian).total)) == (0, moved, 0.0)
    assert losses(gaussian).rho == Fraction(moved) / Fraction(gaussian.deviation) ** 2 / 2
    assert 0.999e-6 <= gaussian_delta(losses(gaussian).gaussian, Fraction(1)) <= gaussian.delta == 1e-6
    assert realised_cost(gaussian, "zcdp", 1, 0).unbounded == 1
    for one in found.values():
        assert (one.parts, one.epsilon_part, one.delta, one.cutoff) == (1, 1.0, 0.0, 0)
        assert one.sensitivity_steps == (1 if neighbors == "add-remove" else 2)
    assert found["textbook"].alpha >= found["basic"].alpha


@pytest.mark.parametrize(
    ("delta", "universe", "neighbors", "method"),
    [
        (0.0, 1000, "add-remove", "basic"),
        (1e-6, 1 << 20, "add-remove", "basic"),
        (1e-3, 1000, "add-remove", "basic"),
        (1e-3, 1 << 20, "add-remove", "gaussian"),
        (1e-3, 1000, "replace", "gaussian"),
    ],
)
def test_histogram_plan_uses_noise_with_less_error(
    delta: float, universe: int, neighbors: Any, method: str
) -> None:
    facts = SourceFacts(universe=universe, neighbors=neighbors, rows=500 if neighbors == "replace" else None)
    assert choose_calibration(parse_spec("histogram", delta=delta), facts).method == method


def test_textbook_has_error_of_lecture_notes() -> None:
    histogram = plans("histogram", epsilon=0.01, beta=0.01)["textbook"]
    assert histogram.alpha == pytest.approx(100.0 * math.log(1000 / 0.01), rel=0.01)
    lazy = plans("lazy_histogram", expected_queries=10_000)["textbook"]
    assert lazy.alpha == pytest.approx(10 * math.log(10 * 10_000 / 0.05))


@given(
    epsilon=st.floats(1e-3, 500.0),
    delta=st.floats(1e-12, 0.1),
    projections=st.integers(1, 1 << 16),
    pure=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_projection_parts_compose_to_epsilon_and_delta(
    epsilon: float, delta: float, projections: int, pure: bool
) -> None:
    found = plans("sparse_project", projections=projections, epsilon=epsilon, delta=0.0 if pure else delta)
    assert set(found) == ({"basic", "textbook"} if pure or projections == 1 else {"basic", "optimal", "textbook"})
    for one in found.values():
        assert one.parts == projections
        if one.delta == 0.0:
            assert projections * Fraction(one.epsilon_part) <= Fraction(epsilon)
        else:
            assert optimal_delta(one.epsilon_part, projections, epsilon) <= one.delta <= delta


def test_textbook_falls_back_if_its_theorem_does_not_hold() -> None:
    stated = plans("sparse_project", delta=1e-6)["textbook"]
    # 64 parts are too few for ε/√(8 T ln(1/δ)) to be more than ε/T.
    assert stated.epsilon_part == 1.0 / 64
    stated = plans("sparse_project", projections=4096, delta=1e-6)["textbook"]
    assert stated.epsilon_part == pytest.approx(1.0 / math.sqrt(8 * 4096 * math.log(1e6)))
    assert stated.epsilon_part < plans("sparse_project", projections=4096, delta=1e-6)["optimal"].epsilon_part
    unsound = plans("sparse_project", projections=4096, delta=1e-6, epsilon=200.0)["textbook"]
    claimed = 200.0 / math.sqrt(8 * 4096 * math.log(1e6))
    assert optimal_delta(claimed, 4096, 200.0) > 1e-6
    assert (unsound.epsilon_part, unsound.delta) == (200.0 / 4096, 0.0)


def test_theorem_projections_is_impractically_large() -> None:
    assert theorem_projections(1000, 100, 10_000, 0.05) == pytest.approx(1.1e16, rel=0.05)
    assert theorem_projections(10, 1, 1, 0.5) < theorem_projections(11, 1, 1, 0.5)


def test_histogram_plan_refuses_size_beyond_memory_with_remedy() -> None:
    with pytest.raises(PlanError, match=r"mechanism\.attributes.*lazy_histogram"):
        plans("histogram", SourceFacts(universe=MAX_UNIVERSE + 1))
    assert plans("lazy_histogram", SourceFacts(universe=1 << 80))
    assert plans("sparse_project", SourceFacts(universe=1 << 80))


@pytest.mark.parametrize("kind", sorted(SIZES))
def test_release_plan_refuses_source_without_cells(kind: str) -> None:
    with pytest.raises(PlanError, match="table"):
        plans(kind, SourceFacts(universe=None))
