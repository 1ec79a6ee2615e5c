"""Values meet the grid exactly, so that rounding takes no two of them further apart than the sensitivity says."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from stream.mechanisms.grid import MAX_STEPS, to_steps

grids = st.one_of(
    st.floats(1e-12, 1e12),
    st.integers(-39, 39).map(lambda exponent: 2.0**exponent),
    st.sampled_from([0.1, 0.2, 0.3, 0.01, 1 / 3, 2 / 3, 0.7, 5.0, 10.0, 1e-12, 1e12, math.pi]),
)
values = st.one_of(
    st.floats(-1e15, 1e15), st.floats(allow_nan=False, allow_infinity=False), st.integers(-100, 100).map(float)
)


def steps(value: float, grid: float) -> int:
    return int(to_steps([value], grid)[0])


def exact(value: float, grid: float) -> int:
    """floor(x/γ + 1/2) in rational arithmetic, clamped."""
    nearest = math.floor(Fraction(value) / Fraction(grid) + Fraction(1, 2))
    return min(max(nearest, -MAX_STEPS), MAX_STEPS)


@st.composite
def beside_a_tie(draw: st.DrawFn) -> tuple[float, float]:
    """Doubles at (k + 1/2)γ and just beside it, where a rounding error would show."""
    grid = draw(grids)
    multiple = draw(st.one_of(st.integers(-1000, 1000), st.integers(-MAX_STEPS, MAX_STEPS)))
    value = (multiple + draw(st.sampled_from([0.0, 0.5]))) * grid
    for _ in range(draw(st.integers(0, 2))):
        value = math.nextafter(value, draw(st.sampled_from([-math.inf, math.inf])))
    return value, grid


@given(value=values, grid=grids)
@settings(deadline=None, max_examples=500)
@example(value=0.3, grid=0.1)
@example(value=-0.5, grid=1.0)
@example(value=1e15, grid=1e-12)
def test_rounding_is_exact(value: float, grid: float) -> None:
    assert steps(value, grid) == exact(value, grid)


@given(case=beside_a_tie())
@settings(deadline=None, max_examples=1000)
def test_rounding_is_exact_beside_ties(case: tuple[float, float]) -> None:
    value, grid = case
    assert steps(value, grid) == exact(value, grid)


def test_ties_go_upwards() -> None:
    assert to_steps([-1.5, -0.5, 0.5, 1.5, 2.5], 1.0).tolist() == [-1, 0, 1, 2, 3]


def test_a_quotient_of_doubles_just_below_a_tie_is_not_taken_for_the_tie() -> None:
    # The double 0.1 is above 1/10, so that 0.25 is less than two and a half of them; float division says otherwise.
    assert Fraction(0.25) / Fraction(0.1) < Fraction(5, 2)
    assert math.floor(0.25 / 0.1 + 0.5) == 3
    assert steps(0.25, 0.1) == 2


@given(value=values, grid=grids, sensitivity=st.floats(1e-12, 1e12), fraction=st.floats(-1.0, 1.0))
@settings(deadline=None, max_examples=1000)
def test_neighbours_stay_within_the_sensitivity_in_steps(
    value: float, grid: float, sensitivity: float, fraction: float
) -> None:
    other = value + fraction * sensitivity
    assume(math.isfinite(other))
    assume(abs(Fraction(value) - Fraction(other)) <= Fraction(sensitivity))
    limit = math.ceil(Fraction(sensitivity) / Fraction(grid))
    assert abs(steps(value, grid) - steps(other, grid)) <= limit


@given(case=beside_a_tie(), multiple=st.integers(1, 20))
@settings(deadline=None, max_examples=500)
def test_neighbours_a_whole_sensitivity_apart_stay_within_it(case: tuple[float, float], multiple: int) -> None:
    value, grid = case
    sensitivity = multiple * grid
    other = value + sensitivity
    if abs(Fraction(other) - Fraction(value)) > Fraction(sensitivity):
        other = math.nextafter(other, value)
    assert abs(Fraction(other) - Fraction(value)) <= Fraction(sensitivity)
    limit = math.ceil(Fraction(sensitivity) / Fraction(grid))
    assert abs(steps(value, grid) - steps(other, grid)) <= limit


@given(first=values, second=values, grid=grids)
@settings(deadline=None)
def test_order_is_kept(first: float, second: float, grid: float) -> None:
    low, high = sorted([first, second])
    assert steps(low, grid) <= steps(high, grid)


@given(many=st.lists(values, max_size=8), grid=grids)
@settings(deadline=None)
def test_each_value_of_an_array_is_rounded_as_if_alone(many: list[float], grid: float) -> None:
    together = to_steps(np.array(many, dtype=np.float64), grid)
    assert together.dtype == np.int64
    assert together.tolist() == [steps(value, grid) for value in many]


@pytest.mark.parametrize("grid", [1e-12, 0.1, 1.0, 1e12])
def test_what_lies_beyond_the_last_step_is_clamped(grid: float) -> None:
    largest = np.finfo(np.float64).max
    assert to_steps([largest, -largest], grid).tolist() == [MAX_STEPS, -MAX_STEPS]
