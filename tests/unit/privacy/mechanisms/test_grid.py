"""Decimals are rounded exactly to the grid, so that rounding puts no two of them further apart than the sensitivity."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from stream.privacy.accuracy.source_facts import MAX_STEPS, clamping_range
from stream.privacy.composition.costs import shortest_decimal
from stream.privacy.mechanisms.private_values import THRESHOLD_STEPS, Grid
from stream.privacy.planning.plans import sensitivity_steps

WIDE = Context(prec=400)

grids = st.one_of(
    st.floats(1e-12, 1e12),
    st.integers(-39, 39).map(lambda exponent: 2.0**exponent),
    st.sampled_from([0.1, 0.2, 0.3, 0.01, 0.001, 1 / 3, 2 / 3, 0.7, 1.0, 5.0, 10.0, 1e-12, 1e12, math.pi]),
)
numbers = st.one_of(
    st.floats(-1e15, 1e15).map(shortest_decimal),
    st.floats(allow_nan=False, allow_infinity=False).map(shortest_decimal),
    st.integers(-100, 100).map(Decimal),
    st.integers(-(10**9), 10**9).map(lambda number: Decimal(number).scaleb(-3)),
    st.decimals(-(10**15), 10**15, allow_nan=False, places=30),
    st.sampled_from(["1e300", "-1e300", "1e-400", "-0.0", "0.049999999999999999999999", "1e-20"]).map(Decimal),
)


def round_one(number: Decimal, grid: Grid) -> int:
    return int(grid.round_private([float(number)], lambda _: number)[0])


def steps(number: Decimal, grid: float) -> int:
    return round_one(number, Grid(shortest_decimal(grid)))


def exact(number: Decimal, grid: Decimal, end: int = MAX_STEPS) -> int:
    """Return floor(v/γ + 1/2) in rational arithmetic, clamped."""
    nearest = math.floor(Fraction(number) / Fraction(grid) + Fraction(1, 2))
    return min(max(nearest, -end), end)


@st.composite
def beside_a_tie(draw: st.DrawFn) -> tuple[Decimal, float]:
    """Draw decimals at (k + 1/2)γ and beside it, nearer than doubles can express or as near as they can."""
    grid = draw(grids)
    multiple = draw(st.one_of(st.integers(-1000, 1000), st.integers(-MAX_STEPS, MAX_STEPS)))
    tie = WIDE.multiply(shortest_decimal(grid), Decimal(2 * multiple + 1) / 2)
    if draw(st.booleans()):
        return shortest_decimal(float(tie)), grid
    digits = draw(st.integers(1, 40))
    return WIDE.add(tie, (shortest_decimal(grid) * draw(st.integers(-3, 3))).scaleb(-digits, WIDE)), grid


@given(number=numbers, grid=grids)
@settings(deadline=None, max_examples=50)
@example(number=Decimal("0.3"), grid=0.1)
@example(number=Decimal("-0.5"), grid=1.0)
@example(number=Decimal("1e15"), grid=1e-12)
def test_rounding_is_exact(number: Decimal, grid: float) -> None:
    assert steps(number, grid) == exact(number, shortest_decimal(grid))


@given(case=beside_a_tie())
@settings(deadline=None, max_examples=100)
@example(case=(Decimal("-0.55"), 0.1))
@example(case=(Decimal("1.35"), 0.1))
@example(case=(Decimal("562949953421312.4999999999999999999"), 1.0))
def test_rounding_is_exact_beside_ties(case: tuple[Decimal, float]) -> None:
    number, grid = case
    assert steps(number, grid) == exact(number, shortest_decimal(grid))


@given(case=st.one_of(beside_a_tie(), st.tuples(numbers, grids)))
@settings(deadline=None, max_examples=50)
def test_round_public_uses_shortest_decimal_of_threshold(case: tuple[Decimal, float]) -> None:
    threshold, grid = float(case[0]), case[1]
    assert int(Grid(shortest_decimal(grid)).round_public([threshold])[0]) == exact(
        shortest_decimal(threshold), shortest_decimal(grid), THRESHOLD_STEPS
    )


def test_rounding_of_ties_is_upward() -> None:
    ties = [Decimal(text) for text in ("-0.15", "-0.05", "0.05", "0.15", "0.25", "0.35", "0.45")]
    assert [steps(tie, 0.1) for tie in ties] == [-1, 0, 1, 2, 3, 4, 5]


def test_rounding_of_doubles_alone_would_exceed_sensitivity() -> None:
    """As doubles, two decimals that are one step apart would be two steps apart."""
    one, other = Decimal("-0.55"), Decimal("-0.45")
    assert Fraction(float(other)) - Fraction(float(one)) > Fraction(0.1)
    grid = float("0.1")
    assert exact(Decimal(float(other)), Decimal(grid)) - exact(Decimal(float(one)), Decimal(grid)) == 2
    assert steps(other, 0.1) - steps(one, 0.1) == 1


@given(
    case=st.one_of(beside_a_tie(), st.tuples(numbers, grids)),
    sensitivity=st.one_of(st.floats(1e-12, 1e12), st.sampled_from([0.05, 0.1, 0.3, 1.0, 10.0])),
    part=st.one_of(st.sampled_from([-1, 1]), st.decimals(-1, 1, allow_nan=False)),
)
@settings(deadline=None, max_examples=100)
def test_rounding_keeps_neighbors_within_sensitivity_steps(
    case: tuple[Decimal, float], sensitivity: float, part: Decimal | int
) -> None:
    number, grid = case
    assume(abs(number) < Decimal(10) ** 30)
    other = WIDE.add(number, WIDE.multiply(Decimal(part), shortest_decimal(sensitivity)))
    limit = math.ceil(Fraction(shortest_decimal(sensitivity)) / Fraction(shortest_decimal(grid)))
    assert abs(steps(number, grid) - steps(other, grid)) <= limit


@given(
    multiple=st.integers(1, 2000),
    digits=st.integers(0, 12),
    leading=st.sampled_from([1, 2, 3, 7]),
    half=st.integers(),
)
def test_rounding_moves_ties_by_whole_sensitivity_steps(
    multiple: int, digits: int, leading: int, half: int
) -> None:
    grid = float(f"{leading}e-{digits}")
    sensitivity = WIDE.multiply(shortest_decimal(grid), Decimal(multiple))
    assert sensitivity_steps(float(sensitivity), grid) == multiple
    tie = WIDE.multiply(shortest_decimal(grid), Decimal(2 * (half % 10**6) + 1) / 2)
    assert steps(WIDE.add(tie, sensitivity), grid) - steps(tie, grid) == multiple


@given(first=numbers, second=numbers, grid=grids)
@settings(deadline=None)
def test_rounding_is_monotone(first: Decimal, second: Decimal, grid: float) -> None:
    low, high = sorted([first, second])
    assert steps(low, grid) <= steps(high, grid)


@given(many=st.lists(numbers, max_size=8), grid=grids)
@settings(deadline=None)
def test_rounding_of_array_equals_single_rounding(many: list[Decimal], grid: float) -> None:
    together = Grid(shortest_decimal(grid)).round_private(np.array([float(one) for one in many]), many.__getitem__)
    assert together.dtype == np.int64
    assert together.tolist() == [steps(number, grid) for number in many]


def test_round_private_reads_decimal_text_only_beside_ties() -> None:
    asked: list[int] = []

    def exactly(place: int) -> Decimal:
        asked.append(place)
        return shortest_decimal(doubles[place])

    doubles = [0.0, 1.0, -7.0, 1e6, 1e14, 0.1, 0.49, 12.3, 99.99, 1e300, -1e300, 0.5, 17.5]
    Grid(Decimal(1)).round_private(doubles, exactly)
    assert asked == [11, 12]
    asked.clear()
    Grid(Decimal("0.01")).round_private(doubles, exactly)
    assert asked == []


@pytest.mark.parametrize("grid", [1e-12, 0.1, 1.0, 1e12])
def test_rounding_clamps_beyond_last_step(grid: float) -> None:
    for number in (
        Decimal("1e300"),
        Decimal(10) ** 29,
        WIDE.multiply(shortest_decimal(grid), Decimal(MAX_STEPS + 1)),
    ):
        assert steps(number, grid) == MAX_STEPS
        assert steps(-number, grid) == -MAX_STEPS


def test_feed_grid_clamps_values_but_not_thresholds() -> None:
    feed = Grid.for_values(0.5, -1.0, 100.0)
    assert [round_one(Decimal(number), feed) for number in ("-1.3", "-1", "99.9", "100.2", "1e300")] == [
        *(-2, -2, 200, 200, 200)
    ]
    assert feed.round_public([150.0, -3.0]).tolist() == [300, -6]


def test_clamping_range_is_limited_by_contract_or_grid() -> None:
    assert clamping_range(1.0, None, None) == (Decimal(-(10**15)), Decimal(10**15))
    reach = Decimal("0.1") * MAX_STEPS
    assert clamping_range(0.1, None, None) == (-reach, reach)
    assert clamping_range(0.1, 0.0, None) == (Decimal(0), reach)
    whole = Grid.for_values(1.0)
    assert [round_one(Decimal(text), whole) for text in ("1e15", "1000000000000001", "1e300")] == [10**15] * 3
