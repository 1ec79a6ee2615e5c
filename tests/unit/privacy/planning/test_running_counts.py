from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

import pytest

from schemas import RunningCountCalibration, StreamSpec
from stream.privacy.accuracy.noise_laws import sum_tail, variance_of
from stream.privacy.accuracy.source_facts import GroupSensitivity, SourceFacts
from stream.privacy.composition.costs import Cost, realised_cost, stream_cost
from stream.privacy.composition.gaussian_losses import gaussian_delta
from stream.privacy.composition.losses import losses
from stream.privacy.planning.choices import rank_mechanisms
from stream.privacy.planning.form_accuracy import PlanGoal
from stream.privacy.planning.inverse_plans import needed_epsilon, plan_extension
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration, plan_calibrations
from stream.privacy.planning.promises import promises
from stream.privacy.planning.release_plans import answer_alpha, node_law, tree_of
from tests.builders import parse_spec

spec = partial(parse_spec, "running_count")


def plans(one: StreamSpec, facts: SourceFacts | None = None) -> dict[str, RunningCountCalibration]:
    found = plan_calibrations(one, facts or SourceFacts())
    return {plan.method: plan for plan in found if isinstance(plan, RunningCountCalibration)}


@pytest.mark.parametrize("steps", [1, 3, 24, 365, 8760, 1 << 20])
def test_plan_tree_errs_no_more_than_dyadic_tree(steps: int) -> None:
    found = plans(spec(steps=steps))
    basic, textbook = found["basic"], found["textbook"]
    assert textbook.levels == steps.bit_length()
    assert basic.alpha <= answer_alpha(textbook, textbook.nodes)
    assert choose_calibration(spec(steps=steps), SourceFacts()) == basic
    for plan in found.values():
        assert plan.nodes == tree_of(plan).max_nodes
        assert plan.alpha >= answer_alpha(plan, plan.nodes)


def test_plan_tree_for_year_of_days_errs_less_than_half() -> None:
    found = plans(spec(steps=365))
    exact = answer_alpha(found["textbook"], found["textbook"].nodes)
    assert found["basic"].alpha < 0.5 * exact


@pytest.mark.parametrize("method", ["basic", "textbook"])
def test_answer_alpha_fails_with_exact_part_of_beta(method: str) -> None:
    plan = plans(spec(steps=50), SourceFacts(universe=4))[method]
    rate, allowed = float(node_law(plan).rate), plan.beta / 200  # type: ignore[union-attr]
    for nodes in {len(tree_of(plan).nodes(windows)) for windows in range(1, 51)}:
        alpha = int(answer_alpha(plan, nodes))
        assert 2.0 * sum_tail(rate, nodes, alpha + 1) <= allowed < 2.0 * sum_tail(rate, nodes, alpha)


def test_node_law_covers_movement_of_one_person_in_all_levels() -> None:
    moved = GroupSensitivity(each=5, together=10, spread=2, numbers=10)
    plan = plans(spec(steps=50, epsilon=0.5), SourceFacts(horizon=moved))["basic"]
    assert 1 / node_law(plan).rate == plan.levels * 10 / Fraction(1, 2)  # type: ignore[union-attr]


def test_running_count_is_charged_once_with_first_answer() -> None:
    plan = plans(spec(steps=50, epsilon=0.5))["basic"]
    assert stream_cost(plan, "pure") == Cost(loss=5 * 10**11)
    spent = [realised_cost(plan, "pure", answered, answered).loss for answered in (0, 1, 30, 50)]
    assert spent == [0, *[5 * 10**11] * 3]
    concentrated = [realised_cost(plan, "zcdp", answered, answered).rho for answered in (0, 1, 50)]
    assert concentrated == [0, *[125 * 10**9] * 2]


def test_gaussian_plan_covers_all_levels_and_uses_delta() -> None:
    moved = GroupSensitivity(each=5, together=10, spread=2, numbers=10)
    plan = plans(spec(steps=50, delta=1e-6), SourceFacts(horizon=moved))["gaussian"]
    together, apart = losses(plan).gaussian_first
    assert together.precision == Fraction(plan.levels * 50) / Fraction(plan.deviation) ** 2
    assert together.count + apart.count == 10 * plan.levels
    found = gaussian_delta((together, apart), Fraction(1))
    assert 0.999e-6 < found <= 1e-6
    assert realised_cost(plan, "pure", 0, 0) == Cost()
    assert realised_cost(plan, "pure", 1, 1) == realised_cost(plan, "pure", 50, 50) == stream_cost(plan, "pure")


def test_gaussian_plan_is_chosen_if_delta_is_large() -> None:
    assert choose_calibration(spec(steps=8760, delta=1e-3), SourceFacts()).method == "gaussian"
    assert choose_calibration(spec(steps=8760, delta=1e-12), SourceFacts()).method == "basic"


def test_promises_cover_all_windows_and_groups_together() -> None:
    plan = plans(spec(steps=365), SourceFacts(universe=12))["basic"]
    [promise] = promises(spec(steps=365), plan)
    assert (promise.alpha, promise.over) == (plan.alpha, "over all 365 windows and 12 groups")
    assert plan.expected_queries == plan.cutoff == 365 * 12
    assert plan.alpha > plans(spec(steps=365))["basic"].alpha


def test_extension_of_horizon_is_refused() -> None:
    plan = plans(spec(steps=365))["basic"]
    with pytest.raises(PlanError, match="exactly 365 windows, which are charged once, so it cannot be extended"):
        plan_extension(spec(steps=365), plan, (), "ab" * 32, 1.0, 0.0)


def test_plan_refuses_noise_that_fits_no_integer_with_remedy() -> None:
    moved = GroupSensitivity(each=10**12, together=10**12, spread=1, numbers=1)
    with pytest.raises(PlanError, match="raise epsilon, or register a source with a smaller total"):
        plan_calibrations(spec(steps=1000, epsilon=1e-3), SourceFacts(horizon=moved))


def test_needed_epsilon_of_running_count_keeps_error() -> None:
    needed = needed_epsilon(spec(steps=365), SourceFacts(), 30.0)
    assert choose_calibration(spec(steps=365, epsilon=needed), SourceFacts()).alpha <= 30.0
    assert choose_calibration(spec(steps=365, epsilon=0.97 * needed), SourceFacts()).alpha > 30.0


@pytest.mark.parametrize(("groups", "windows"), [(1, 2), (1, 365), (7, 24)])
def test_rank_mechanisms_prefers_running_count_to_noisy_windows(groups: int, windows: int) -> None:
    facts = SourceFacts(universe=groups, horizon=GroupSensitivity(1, 1, 1, 1))
    first, second = rank_mechanisms(
        PlanGoal("running", windows, 1.0, None, 0.05, 0.0, facts, fields={}),
    )[:2]
    assert [first.kind, second.kind] == ["running_count", "laplace"]
    assert first.alpha is not None
    assert second.alpha is not None
    assert second.calibration is not None
    # Each of the windows' answers has a part of ε in their number.
    assert second.calibration.epsilon_answer == pytest.approx(1 / (windows * groups))  # type: ignore[union-attr]
    assert second.alpha > 1.4 * first.alpha


def test_plan_deviation_follows_from_levels_and_nodes() -> None:
    plan = plans(spec(steps=1000))["basic"]
    variance = variance_of(node_law(plan))
    assert math.sqrt(variance * plan.nodes) == pytest.approx(math.sqrt(2 * plan.nodes) * plan.levels)
