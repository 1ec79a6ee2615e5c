"""Plans of streams that answer from an estimate, and error bounds that follow from their noise alone."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from schemas import EstimateCalibration, HypothesisCalibration
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import realised_cost, stream_cost
from stream.privacy.composition.losses import losses
from stream.privacy.noise.samplers import sampler
from stream.privacy.planning.estimate_plans import ErrorBounds, plan_laplace_estimate
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration
from stream.privacy.planning.warm_starts import warm_start_axes, warm_start_order
from tests.builders import parse_spec
from tests.unit.privacy.planning.domains import FIVE, FOURTEEN

spec = partial(parse_spec, "pmw", expected_queries=5000)


def plan(sizes: tuple[int, ...] = FIVE, neighbors: Any = "add-remove", **fields: Any) -> EstimateCalibration:
    return plan_laplace_estimate(spec(**fields), SourceFacts(sizes=sizes, neighbors=neighbors, rows=50_000))


@pytest.mark.parametrize("sizes", [FIVE, FOURTEEN, (10,), (10, 4), (3000, 3000)])
@pytest.mark.parametrize("warm_start", ["auto", 0, 1, 2])
@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_plan_parts_stay_within_epsilon(sizes: tuple[int, ...], warm_start: Any, neighbors: str) -> None:
    found = plan(sizes, neighbors, warm_start=warm_start)
    parts = losses(found)
    assert parts.total <= Fraction(1.0)
    assert float(parts.total) == pytest.approx(1.0, rel=1e-9)
    assert parts.first_loss + found.cutoff * parts.loss_per_answer == parts.total
    assert found.starts == len(warm_start_axes(sizes, warm_start_order(found)))
    assert Fraction(found.epsilon_number) < Fraction(found.sparse_vector.epsilon_answer) / found.cutoff
    assert (found.epsilon_rows == 0.0) == (neighbors == "replace")


def test_realised_cost_of_first_answer_includes_opening() -> None:
    found = plan()
    first = realised_cost(found, "pure", 1, 0)
    assert first.loss >= found.starts * found.epsilon_start * 10**12
    assert realised_cost(found, "pure", 0, 0).loss == 0
    assert realised_cost(found, "pure", 9, found.cutoff) == stream_cost(found, "pure")
    rho = stream_cost(found, "zcdp").rho / 10**12
    assert rho == pytest.approx(sum(count * float(part) ** 2 for count, part in losses(found).pure_parts) / 2)


def test_warm_start_measures_pairs_if_they_have_few_cells() -> None:
    """Pairs are measured if they have few cells, otherwise single attributes."""
    assert (plan(FIVE).warm_start, plan(FIVE).starts) == (2, 10)
    assert (plan(FOURTEEN).warm_start, plan(FOURTEEN).starts, plan(FOURTEEN).rounds) == ("workload", 14, 91)
    assert (plan((10,)).warm_start, plan((10,)).starts) == (1, 1)
    assert (plan((2,) * 6).warm_start, plan((2,) * 7).warm_start) == (2, "workload")
    # Two of the six attributes have 9,880 cells together: 15 √(9880/2) scales of noise. Two attributes alone may have so many.
    assert plan((5, 7, 8, 52, 190, 37)).warm_start == "workload"
    assert plan((2,) * 40).warm_start == 1
    assert plan((52, 190)).warm_start == 2
    assert plan((3000, 3000)).warm_start == 1
    assert (plan((1 << 19, 1 << 10, 5), warm_start=2).starts) == 1


def test_plan_alpha_covers_every_kind_of_answer() -> None:
    """α is the largest error of all kinds of answers, in inverse proportion to ε."""
    one, tenth = plan(), plan(epsilon=0.1)
    assert one.alpha == max(one.sparse_vector.alpha, one.sparse_vector.answer_alpha)
    assert tenth.alpha / one.alpha == pytest.approx(10.0, rel=0.02)
    assert one.alpha / 48_842 <= 0.015
    assert plan(FIVE, warm_start=0).alpha / 48_842 <= 0.035
    assert plan(FOURTEEN, expected_queries=3000).alpha / 48_842 <= 0.04
    assert plan(epsilon=0.25).alpha / 48_842 <= 0.05
    assert plan(epsilon=0.6).alpha / 48_842 <= 0.02


def test_plan_alpha_grows_little_with_questions_and_much_with_tops() -> None:
    assert plan(expected_queries=1_000_000).alpha < 1.6 * plan(expected_queries=5000).alpha
    assert plan(updates=20).alpha > 2 * plan(updates=5).alpha
    assert plan(expected_queries=3).cutoff == 3


def test_plan_threshold_covers_noise_of_opening() -> None:
    """If all pairs are measured, the threshold allows for the noise of their sums."""
    found = plan()
    scale = 2 * found.cutoff / found.sparse_vector.epsilon_query
    noise = 1 / found.epsilon_start
    threshold = found.threshold / 1024
    assert found.warm_start == 2
    assert found.epsilon_number == pytest.approx(0.5 * found.sparse_vector.epsilon_answer / found.cutoff)
    # A sum of half of the 1,360 cells of age and education, a standard deviation off, is a ⊤ in one of e^2.75 cases.
    assert threshold == pytest.approx(noise * math.sqrt(1360 / 2) + 2.75 * scale, abs=0.01)
    assert threshold > 3 * noise + scale * math.log(5000 / (0.2 * found.cutoff))
    # With so many questions, the threshold must be higher, so that few of them are a ⊤ because of noise.
    many = plan(expected_queries=10**9)
    scale = 2 * many.cutoff / many.sparse_vector.epsilon_query
    usual = 3 / many.epsilon_start + scale * math.log(10**9 / (0.2 * many.cutoff))
    assert many.threshold / 1024 == pytest.approx(usual, abs=0.01)
    assert usual > noise * math.sqrt(1360 / 2) + 2.75 * scale
    # Larger noise of pairs than a ⊤ measures makes no difference.
    singles, pairs = plan(FOURTEEN, warm_start=1), plan(FOURTEEN, warm_start=2)
    for one in (singles, pairs):
        each = one.sparse_vector.epsilon_answer / one.cutoff
        assert one.epsilon_number == pytest.approx(0.3 * each)
        scale = 2 * one.cutoff / one.sparse_vector.epsilon_query
        slack = 3 / (0.7 * each)
        usual = slack + scale * math.log(5000 / (0.2 * one.cutoff))
        assert one.threshold / 1024 == pytest.approx(usual, abs=0.01)


def test_plan_division_of_epsilon_has_least_error() -> None:
    found = plan()
    vector = found.sparse_vector
    wide = math.sqrt(1360 / 2) / found.epsilon_start
    rest = vector.epsilon_threshold + vector.epsilon_query

    def decisions(query: float) -> float:
        scale = 2 * found.cutoff / query
        usual = 3 / found.epsilon_start + scale * math.log(5000 / (0.2 * found.cutoff))
        return max(usual, wide + 2.75 * scale) + math.log(2 / 0.05) / (rest - query)

    assert vector.alpha == pytest.approx(decisions(vector.epsilon_query), abs=0.1)
    assert all(decisions(part / 1000 * rest) >= vector.alpha - 0.1 for part in range(1, 1000))


def test_gap_is_share_of_rows() -> None:
    assert plan(gap=0.05).threshold - plan(gap=0.01).threshold == pytest.approx(0.04 * 50_000 * 1024, rel=0.05)
    with pytest.raises(PlanError, match=r"mechanism\.rows"):
        plan_laplace_estimate(spec(gap=0.05), SourceFacts(sizes=FIVE))


def test_plan_refuses_noise_that_does_not_fit() -> None:
    with pytest.raises(PlanError, match="raise epsilon or lower updates"):
        plan(epsilon=1e-6, updates=1_000_000)


def test_worst_case_and_textbook_are_hypothesis_calibrations() -> None:
    facts = SourceFacts(sizes=(8, 4), universe=32, rows=50_000)
    assert isinstance(choose_calibration(spec(worst_case=True), facts), HypothesisCalibration)
    textbook = choose_calibration(spec(calibration="textbook"), facts)
    assert (textbook.kind, textbook.method) == ("hypothesis", "textbook")
    assert choose_calibration(spec(), facts).kind == "estimate"
    assert choose_calibration(spec(), SourceFacts(sizes=FOURTEEN, universe=math.prod(FOURTEEN))).kind == "estimate"


def test_error_bounds_hold_for_all_ranges_together() -> None:
    found = plan()
    bounds = ErrorBounds(found)
    rate = Fraction(found.epsilon_start)
    law = sampler("two_sided", rate)
    one = bounds.bound_cell_sums(law, 1, (85, 16), ranges=True)
    assert one == bounds.bound_cell_sums(law, 1, (85, 16), ranges=False)
    # All 1,360 cells at once: the exact reach, with each cell's share of the failure.
    failure = 0.5 * 0.1 * 0.05 / (found.starts + found.cutoff)
    q = math.exp(-float(rate))
    assert 2 * q ** (one + 1) / (1 + q) * 1360 <= failure * 1.001
    assert 2 * q**one / (1 + q) * 1360 > failure * 0.999
    assert (
        bounds.bound_cell_sums(law, 6, (85, 16), ranges=True)
        < bounds.bound_cell_sums(law, 6, (85, 16), ranges=False)
        == 6 * one
    )
    assert bounds.bound_cell_sums(law, 0, (85, 16), ranges=True) == 0.0
