"""A release never loses more than its ε, by exact enumeration of the shipped noise.

A neighbor moves a histogram by 1 in one cell, or by 1 in each of two, and every row of a projection by 1 or by 2. The
noise of the other cells is the same under both neighbors, so that the cells moved decide.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Literal

import pytest

from schemas import ReleaseCalibration
from stream.privacy.accuracy.release_accuracy import release_law
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import EPSILON_UNITS, realised_cost
from stream.privacy.noise.samplers import TwoSidedGeometric
from stream.privacy.planning.release_plans import plan_calibrations
from tests.builders import parse_spec
from tests.privacy.exact import NO_NOISE, Law, law_of
from tests.privacy.losses import cut_tail, worst_delta

Neighbors = Literal["add-remove", "replace"]


def calibrations(
    kind: str,
    *,
    neighbors: Neighbors = "add-remove",
    epsilon: float = 1.0,
    delta: float = 0.0,
    projections: int = 2,
) -> dict[str, ReleaseCalibration]:
    size = {"projections": projections} if kind == "sparse_project" else {}
    spec = parse_spec(kind, epsilon=epsilon, delta=delta, **size)
    facts = SourceFacts(universe=8, neighbors=neighbors, rows=5 if neighbors == "replace" else None)
    return {one.method: one for one in plan_calibrations(spec, facts)}


def noise_of(calibration: ReleaseCalibration) -> Law:
    return law_of(release_law(calibration))


@pytest.mark.parametrize("kind", ["histogram", "lazy_histogram"])
@pytest.mark.parametrize("method", ["basic", "textbook"])
@pytest.mark.parametrize("epsilon", [0.25, 1.0, 3.0])
def test_added_row_loses_exactly_epsilon(kind: str, method: str, epsilon: float) -> None:
    calibration = calibrations(kind, epsilon=epsilon)[method]
    law = noise_of(calibration)
    charge = Fraction(realised_cost(calibration, "pure", 1, 0).loss, EPSILON_UNITS)
    assert charge == Fraction(epsilon)
    for move in (1, -1):
        assert worst_delta([law], [move], epsilon) <= cut_tail(1, epsilon)
        assert worst_delta([law], [move], 0.99 * epsilon) > 1e-3


@pytest.mark.parametrize("kind", ["histogram", "lazy_histogram"])
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_replaced_row_moves_two_cells_and_loses_exactly_epsilon(kind: str, epsilon: float) -> None:
    law = noise_of(calibrations(kind, neighbors="replace", epsilon=epsilon)["basic"])
    for moves in itertools.product((1, -1), repeat=2):
        assert worst_delta([law, law], moves, epsilon) <= cut_tail(2, epsilon)
        assert worst_delta([law, law], moves, 0.99 * epsilon) > 1e-3


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("method", ["basic", "textbook"])
def test_pure_projection_loses_exactly_epsilon_for_any_signs(neighbors: Neighbors, method: str) -> None:
    step = 1 if neighbors == "add-remove" else 2
    calibration = calibrations("sparse_project", neighbors=neighbors, epsilon=2.0)[method]
    assert calibration.parts * Fraction(calibration.epsilon_part) <= 2
    law = noise_of(calibration)
    for moves in itertools.product((step, -step), repeat=2):
        assert worst_delta([law, law], moves, 2.0) <= cut_tail(2, 2.0)
    assert worst_delta([law, law], (step, step), 1.98) > 1e-3


@pytest.mark.parametrize(("projections", "epsilon", "delta"), [(2, 3.0, 0.05), (2, 3.0, 0.2), (3, 9.0, 0.1)])
def test_composed_projection_uses_up_exactly_its_delta(projections: int, epsilon: float, delta: float) -> None:
    found = calibrations("sparse_project", epsilon=epsilon, delta=delta, projections=projections)
    calibration = found["optimal"]
    assert calibration.epsilon_part > found["basic"].epsilon_part
    law = noise_of(calibration)
    worst = worst_delta([law] * projections, [1] * projections, epsilon)
    assert worst <= Fraction(delta) + cut_tail(projections, epsilon)
    # The ratio of a discrete Laplace law and its neighbor is e^ε0 or e^−ε0 everywhere: composition is tight.
    assert float(worst) == pytest.approx(delta, rel=1e-6)


def test_check_finds_noise_for_one_cell_if_rows_are_replaced() -> None:
    law = noise_of(calibrations("histogram", neighbors="add-remove")["basic"])
    assert worst_delta([law, law], (1, -1), 1.0) > 0.2
    assert worst_delta([law, law], (1, -1), 1.99) > 1e-4


def test_check_finds_noise_for_one_row_of_the_projection() -> None:
    law = law_of(TwoSidedGeometric(Fraction(1)))
    assert worst_delta([law, law], (1, 1), 1.0) > 0.2


def test_check_finds_a_histogram_with_bare_empty_cells() -> None:
    noisy = noise_of(calibrations("histogram")["basic"])
    shown = 1 - noisy.probability(-1)
    # A cell with one row shows a number other than 0 with this probability; an empty cell without noise never does.
    assert NO_NOISE.probability(0) == 1
    assert shown > Fraction(3, 4)


def test_check_finds_noise_drawn_again_for_each_question() -> None:
    law = noise_of(calibrations("lazy_histogram")["basic"])
    assert worst_delta([law, law], (1, 1), 1.0) > 0.2
    assert worst_delta([law], (1,), 1.0) <= cut_tail(1, 1.0)
