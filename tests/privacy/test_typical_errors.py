"""Typical errors never lose more than their charge, by exact probabilities on small tables.

The shipped figures are computed on both of two neighboring tables for the same public measurements. The published
number is a function of the mean distance plus noise, so its loss is that of the noise at the distance of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest

from schemas import EstimateCalibration
from stream.privacy.composition.losses import losses
from stream.privacy.mechanisms.measurements import Axes, Measurements
from stream.privacy.mechanisms.releases import TensorCells
from stream.privacy.mechanisms.selection import ErrorScale, TypicalErrors, unevenness
from stream.privacy.noise.samplers import Symmetric, TwoSidedGeometric
from stream.privacy.planning.warm_starts import compared_orders, typical_law
from tests.privacy.pmw_transcripts import FLOATS, STEPS, Integers, NoMemory, calibration, count_cells, two_sided

SIZES = (2, 3, 2)
SETS = {order: tuple(combinations(range(3), order)) for order in (1, 2, 3)}
Row = tuple[int, ...]
EVERYONE: list[Row] = list(product(*map(range, SIZES)))
ROWS = 3
EPSILON = 0.5


def plan(*, replace: bool) -> EstimateCalibration:
    return calibration("numbers", replace=replace).model_copy(update={"epsilon_typical": EPSILON})


def cells_of(rows: Sequence[Row], axes: Axes) -> TensorCells:
    return TensorCells(count_cells(rows, SIZES, axes))


class GivenNoise:
    """Noise that is given, and recorded with its law."""

    def __init__(self, noise: int = 0) -> None:
        self.noise = noise
        self.laws: list[Symmetric] = []

    def typical_error_noise(self, order: int, law: Symmetric) -> int:
        del order
        self.laws.append(law)
        return self.noise


def compute_typical_errors(
    rows: Sequence[Row], plan: EstimateCalibration, draws: Any, weights: Integers
) -> TypicalErrors:
    """Return the figures of a table for one public estimate on all attributes."""

    def shares(axes: Axes) -> TensorCells:
        others = tuple(axis for axis in range(len(SIZES)) if axis not in axes)
        return TensorCells(weights.sum(axis=others))

    opening = Measurements(SIZES, plan, partial(cells_of, rows), draws, NoMemory())
    return TypicalErrors(opening, SETS, ROWS, shares)


def find_neighbors(rows: Sequence[Row], *, replace: bool) -> list[list[Row]]:
    if not replace:
        return [[*rows, row] for row in EVERYONE]
    return [[*rows[:place], row, *rows[place + 1 :]] for place in range(len(rows)) for row in EVERYONE]


def estimates() -> list[Integers]:
    rng = np.random.default_rng(2)
    uneven = [rng.integers(0, 1 << 20, SIZES) for _ in range(2)]
    one_cell = np.zeros(SIZES, dtype=np.int64)
    one_cell[0, 0, 0] = 1 << 30
    return [np.full(SIZES, 1 << 30, dtype=np.int64), one_cell, *uneven]


@pytest.mark.parametrize("replace", [False, True])
def test_mean_distance_moves_by_at_most_its_sensitivity(replace: bool) -> None:
    """This tests all tables of up to two rows, and all their neighbors, for four public estimates."""
    made, most = plan(replace=replace), 0
    for weights in estimates():
        known: dict[tuple[Row, ...], list[int]] = {}

        def distances(
            rows: Sequence[Row], weights: Integers, known: dict[tuple[Row, ...], list[int]]
        ) -> list[int]:
            key = tuple(sorted(rows))
            if key not in known:
                found = compute_typical_errors(key, made, GivenNoise(), weights)
                known[key] = [found._mean_distance(SETS[order]) for order in SETS]
            return known[key]

        for count in (1, 2) if replace else (0, 1):
            for rows in combinations_with_replacement(EVERYONE, count):
                here = distances(rows, weights, known)
                for other in find_neighbors(rows, replace=replace):
                    there = distances(other, weights, known)
                    most = max(most, *(abs(one - two) for one, two in zip(here, there, strict=True)))
    sensitivity = made.marginal_sensitivity * STEPS
    assert most == sensitivity


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("wrong", [1.0, 2.0])
def test_all_orders_together_lose_their_charge_and_no_more(replace: bool, wrong: float) -> None:
    """For a table far from the estimate, one row moves every order fully; the check reveals half the noise."""
    made = plan(replace=replace)
    weights = np.zeros(SIZES, dtype=np.int64)
    weights[0, 0, 0] = 1 << 30
    rows = [(1, 1, 1)] * ROWS
    other = [(0, 0, 0), *rows[1:]] if replace else [*rows, (1, 1, 1)]
    here, there = (compute_typical_errors(one, made, GivenNoise(), weights) for one in (rows, other))
    orders = compared_orders(0, SETS)
    total = 0.0
    for order in orders:
        law = typical_law(made, orders, order)
        assert isinstance(law, TwoSidedGeometric)
        moved = here._mean_distance(SETS[order]) - there._mean_distance(SETS[order])
        assert abs(moved) == made.marginal_sensitivity * STEPS
        rate = wrong * float(law.rate)
        published = range(-4 * STEPS, 4 * STEPS, 97)
        total += max(abs(two_sided(value, rate) - two_sided(value - moved, rate)) for value in published)
    assert total == pytest.approx(wrong * EPSILON)
    assert (total <= EPSILON * FLOATS) == (wrong == 1.0)


def test_typical_errors_are_charged_with_the_first_answer() -> None:
    paid, without = (
        losses(plan(replace=False)),
        losses(plan(replace=False).model_copy(update={"epsilon_typical": 0.0})),
    )
    assert float(paid.first_loss - without.first_loss) == EPSILON
    assert float(paid.total - without.total) == EPSILON
    assert paid.loss_per_answer == without.loss_per_answer


def test_figure_adds_noise_of_the_law_once_and_is_never_below_it() -> None:
    made, weights = plan(replace=False), np.full(SIZES, 1 << 30, dtype=np.int64)
    low, high = GivenNoise(-(1 << 40)), GivenNoise(1 << 20)
    least, found = (compute_typical_errors([(0, 0, 0)], made, draws, weights) for draws in (low, high))
    [axes] = SETS[3]
    floor, raised = (one.error_scale(axes, one.warm_start, one.estimate_on) for one in (least, found))
    assert floor is not None
    assert raised is not None
    [law] = low.laws
    assert floor.scale == pytest.approx(float(1 / law.rate) / STEPS / 12**0.5, rel=1e-5)  # type: ignore[union-attr]
    distance = found._mean_distance([axes]) + (1 << 20)
    assert raised.scale == pytest.approx(distance / STEPS / 12**0.5, rel=1e-5)
    found.error_scale(axes, found.warm_start, found.estimate_on)
    assert len(high.laws) == 1


@pytest.mark.parametrize("factor", [None, 1.0, 4.0])
def test_typical_error_of_all_or_no_cells_is_zero(factor: float | None) -> None:
    scale = ErrorScale(60.0, factor)
    assert scale.error_of_sums(1.0, [900.0], 1000) == scale.error_of_sums(0.0, [0.0], 1000) == 0.0


def test_typical_error_of_measured_noise_follows_the_share_of_cells() -> None:
    assert ErrorScale(60.0, None).error_of_sums(0.5, [2.0], 1000) == 30.0


@pytest.mark.parametrize(("measured", "expected"), [(1e6, 60.0 * 0.16**0.5), (20.0, 10.0)])
def test_later_measurement_never_raises_the_typical_error(measured: float, expected: float) -> None:
    """The noise of a coarse measurement is larger than the error of the estimate from the warm start."""
    scale = ErrorScale(60.0, 1.0, measured)
    assert scale.error_of_sums(0.5, [200.0], 1000) == pytest.approx(expected)


def test_typical_error_of_estimates_follows_their_share_of_rows() -> None:
    """In a uniform estimate the shares of cells and rows are equal, and so are both errors."""
    uniform = ErrorScale(60.0, unevenness(TensorCells(np.full((4, 5), 1 << 30, dtype=np.int64))))
    assert uniform.unevenness == pytest.approx(1.0, rel=1e-6)
    assert uniform.error_of_sums(0.05, [50.0], 1000) == pytest.approx(60.0 * (0.05 * 0.95) ** 0.5, rel=1e-6)
    one_cell = np.zeros((4, 25), dtype=np.int64)
    one_cell[0, :4] = 1 << 30
    assert unevenness(TensorCells(one_cell)) == pytest.approx(5.0, rel=1e-6)
    many = ErrorScale(60.0, 5.0)
    assert many.error_of_sums(0.01, [250.0], 1000) == pytest.approx(300.0 * (0.25 * 0.75) ** 0.5)
    assert many.error_of_sums(0.01, [0.0], 1000) == many.error_of_sums(0.01, [1.0], 1000) > 0.0
    assert many.error_of_sums(0.01, [250.0, 0.0, 0.0], 1000) == many.error_of_sums(0.01, [250.0], 1000)


def test_unevenness_does_not_depend_on_the_order_of_cells() -> None:
    cells = np.random.default_rng(1).integers(0, 1 << 40, 5000)
    assert unevenness(TensorCells(cells)) == unevenness(TensorCells(cells[::-1].copy()))
