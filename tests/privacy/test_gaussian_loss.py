"""Gaussian noise is within its (ε, δ), by exact sums of the sampler's fixed-point probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from schemas import AnswersCalibration, Calibration, EstimateCalibration, ReleaseCalibration
from stream.privacy.accuracy.release_accuracy import release_law
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.losses import losses
from stream.privacy.noise.samplers import Sampler, gaussian
from stream.privacy.planning.answer_plans import answer_law
from stream.privacy.planning.plans import choose_calibration, name_of, plan_calibrations
from stream.privacy.planning.warm_starts import marginal_law, warm_start_law
from tests.builders import parse_spec
from tests.privacy.exact import law_of
from tests.privacy.losses import cut_tail, worst_delta


def gaussian_plan(mechanism: dict[str, Any], epsilon: float, delta: float, **facts: Any) -> Calibration:
    """Return the calibration with Gaussian noise, even if another one is better."""
    spec = parse_spec(**mechanism, epsilon=epsilon, delta=delta)
    [found] = [one for one in plan_calibrations(spec, SourceFacts(**facts)) if name_of(one).endswith("gaussian")]
    return found


def delta_of(laws: Sequence[Sampler], moves: Sequence[int], epsilon: float) -> Fraction:
    return worst_delta([law_of(law) for law in laws], moves, epsilon)


def keeps(laws: Sequence[Sampler], moves: Sequence[int], epsilon: float, delta: float, share: float) -> bool:
    """Return whether the exact δ is within ``delta``, and at least ``share`` of it, so that the noise is not wider than necessary."""
    found = delta_of(laws, moves, epsilon)
    return share * delta <= found <= Fraction(delta) + cut_tail(len(laws), epsilon)


@pytest.mark.parametrize("kind", ["histogram", "lazy_histogram"])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-6), (1.0, 1e-2), (0.25, 1e-3)])
def test_released_cell_uses_up_exactly_its_delta(kind: str, epsilon: float, delta: float) -> None:
    found = gaussian_plan({"kind": kind, "attributes": ["a"]}, epsilon, delta, universe=100)
    assert isinstance(found, ReleaseCalibration)
    law = release_law(found)
    for move in (1, -1):
        assert keeps([law], [move], epsilon, delta, 0.5)
    assert delta_of([gaussian(Fraction(found.deviation) ** 2 * Fraction(3, 4))], [1], epsilon) > delta


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-2), (2.0, 1e-4)])
def test_replaced_row_moves_two_cells_and_uses_up_delta(epsilon: float, delta: float) -> None:
    facts = {"universe": 100, "neighbors": "replace", "rows": 50}
    found = gaussian_plan({"kind": "histogram", "attributes": ["a"]}, epsilon, delta, **facts)
    assert isinstance(found, ReleaseCalibration)
    assert keeps([release_law(found)] * 2, [1, -1], epsilon, delta, 0.3)


@pytest.mark.parametrize(
    ("width", "moves"),
    [
        (1, [1]),  # a count
        (7, [7]),  # a sum
        (2, [1, 1]),  # a share's or a mean's count and number of rows
        (2, [1, -1]),  # groups of a replaced row
        (3, [1, 1, -1]),  # a vector of trusted values
    ],
)
def test_one_answer_uses_up_exactly_its_part_for_any_question(width: int, moves: list[int]) -> None:
    epsilon, delta = 1.0, 0.002
    mechanism = {"kind": "laplace", "answers": 1, "dimensions": 3}
    found = gaussian_plan(mechanism, epsilon, delta)
    assert isinstance(found, AnswersCalibration)
    law = answer_law(found, width, len(moves))
    assert keeps([law] * len(moves), moves, epsilon, delta, 0.2)


def test_answers_together_use_up_exactly_delta() -> None:
    epsilon, delta = 1.0, 0.02
    found = gaussian_plan({"kind": "laplace", "answers": 3}, epsilon, delta)
    assert isinstance(found, AnswersCalibration)
    law = answer_law(found, 1, 1)
    assert keeps([law] * 3, [1, -1, 1], epsilon, delta, 0.3)
    assert delta_of([answer_law(found, 1, 1)] * 3, [2, 1, 1], epsilon) > delta


def test_opening_and_marginal_use_up_the_rest_of_the_comparisons() -> None:
    asked = parse_spec(
        "pmw", attributes=["a", "b"], warm_start=1, updates=1, epsilon=3.0, delta=0.05, expected_queries=50
    )
    found = choose_calibration(asked, SourceFacts(sizes=(10, 4)))
    assert isinstance(found, EstimateCalibration)
    assert (found.noise, found.starts, found.cutoff) == ("gaussian", 2, 1)
    left = float(Fraction(found.epsilon) - losses(found).total)
    laws = [warm_start_law(found), warm_start_law(found), marginal_law(found, numbered=False)]
    assert keeps(laws, [1, 1, 1], left, found.delta, 0.3)
