"""Sums of noisy cells are exact, and different cells have different names."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import ReleaseCalibration
from stream.privacy.accuracy.release_accuracy import release_law
from stream.privacy.mechanisms.releases import cell_bytes, sum_to_marginal, weighted_sum
from stream.privacy.noise.samplers import TwoSidedGeometric
from stream.privacy.planning.hypothesis_plans import steps_of_limited_weight


def test_release_law_has_rate_of_part_over_sensitivity() -> None:
    calibration = ReleaseCalibration(
        method="basic",
        parts=3,
        epsilon_part=0.25,
        epsilon=0.75,
        delta=0.0,
        grid=1.0,
        sensitivity_steps=2,
        cutoff=0,
        expected_queries=10,
        beta=0.1,
        alpha=1.0,
    )
    assert release_law(calibration) == TwoSidedGeometric(Fraction(1, 8))


@given(st.data(), st.integers(1, 5))
def test_cell_bytes_are_equal_only_for_equal_cells(data: st.DataObject, attributes: int) -> None:
    codes = st.lists(st.integers(0, 2**20), min_size=attributes, max_size=attributes)
    cells = data.draw(st.lists(codes, min_size=1, max_size=20))
    names = cell_bytes(cells)
    assert len(names) == len(cells)
    assert len(set(names)) == len({tuple(cell) for cell in cells})
    assert names == [cell_bytes([cell])[0] for cell in cells]


@given(st.integers(0, 1024))
def test_weights_on_grid_are_whole_steps(steps: int) -> None:
    assert steps_of_limited_weight(steps / 1024) == steps


@pytest.mark.parametrize("weight", [-1 / 1024, 1.0 + 1 / 1024, float("nan"), float("inf")])
def test_weights_out_of_range_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        steps_of_limited_weight(weight)


@pytest.mark.parametrize("weight", [0.3, 1 / 4096, 0.9999])
def test_weights_between_steps_are_refused_without_quoting_them(weight: float) -> None:
    with pytest.raises(ValueError, match=r"^weights are multiples of 1/1024; round it to one$"):
        steps_of_limited_weight(weight)


@given(
    st.lists(st.tuples(st.integers(0, 1024), st.integers(-(2**60), 2**60)), min_size=1, max_size=50),
    st.integers(1, 2**16),
)
def test_weighted_sum_is_rounded_once(parts: list[tuple[int, int]], divisor: int) -> None:
    steps, values = zip(*parts, strict=True)
    exact = sum(Fraction(step, 1024) * value for step, value in parts) / divisor
    assert weighted_sum(steps, values, divisor) == float(exact)


@pytest.mark.parametrize("axes", [axes for count in range(4) for axes in permutations(range(3), count)])
def test_sum_to_marginal_keeps_order_of_axes(axes: tuple[int, ...]) -> None:
    release = np.arange(-30, 30, dtype=np.int64).reshape(3, 4, 5) ** 3
    found = sum_to_marginal(release, axes)
    assert found.shape == tuple(release.shape[axis] for axis in axes)
    expected = np.zeros(found.shape, dtype=np.int64)
    for cell in np.ndindex(release.shape):
        expected[tuple(cell[axis] for axis in axes)] += release[cell]
    assert np.array_equal(found, expected)
