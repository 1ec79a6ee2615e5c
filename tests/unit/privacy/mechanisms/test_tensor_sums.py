"""Sums computed from a tensor's cumulated sums equal the sums over its cells."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stream.privacy.mechanisms.estimate_questions import extent_of
from stream.privacy.mechanisms.releases import (
    MAX_CUMULATED_ENTRIES_PER_CELL,
    TensorCells,
    box_sums,
    cheapest_weighting,
    combine_weightings,
    corner_weighting,
    count_corners,
    is_cheap_to_cumulate,
    product_weighting,
    weighted_sums,
)

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(st.data())
def test_corner_weighting_equals_sum_over_cells(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    tensor = data.draw(arrays(np.int64, shape, elements=st.integers(-(1 << 41), 1 << 41)))
    weights = data.draw(arrays(np.int64, shape, elements=st.integers(-1024, 1024)))
    more = data.draw(arrays(np.int64, shape, elements=st.integers(0, 1)))
    cells, exact = TensorCells(tensor), int((tensor * weights).sum())
    assert corner_weighting(weights).weighted_sum(cells) == exact
    both = combine_weightings([(3, corner_weighting(weights)), (-2, corner_weighting(more))])
    assert both.weighted_sum(cells) == 3 * exact - 2 * int((tensor * more).sum())
    found = weighted_sums(
        [corner_weighting(weights), corner_weighting(np.zeros(shape, dtype=np.int64)), corner_weighting(more)],
        cells,
    )
    assert found.tolist() == [exact, 0, int((tensor * more).sum())]
    assert cells.total == int(tensor.sum())


@given(st.data())
def test_product_weighting_equals_sum_over_cells(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    factors = [data.draw(arrays(np.int64, size, elements=st.integers(-3, 3))) for size in shape]
    product = np.ones((), dtype=np.int64)
    for factor in factors:
        product = np.multiply.outer(product, factor)
    tensor = data.draw(arrays(np.int64, shape, elements=st.integers(-1000, 1000)))
    assert product_weighting(factors).weighted_sum(TensorCells(tensor)) == int((tensor * product).sum())


def test_corner_weighting_of_box_has_few_corners() -> None:
    inside = np.zeros((100, 100, 100), dtype=np.int64)
    inside[3:90, 5:6, 7:99] = 1
    assert len(corner_weighting(inside).indexes) == 8
    assert extent_of(inside) == (87 * 92, True)
    inside[4, 5, 8] = 0
    assert extent_of(inside) == (87 * 92 - 1, False)


@pytest.mark.parametrize("shape", [(2,) * 14, (3,) * 9, (4,) * 8])
def test_cheapest_weighting_has_at_most_one_entry_per_cell(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(7)
    cells = TensorCells(random.integers(-(2**40), 2**40, shape))
    weights, few = random.integers(-5, 6, shape), np.zeros(shape, dtype=np.int64)
    few.reshape(-1)[::101] = 1
    found = weighted_sums([cheapest_weighting(weights), cheapest_weighting(few)], cells)
    assert found.tolist() == [int((cells.tensor * weights).sum()), int((cells.tensor * few).sum())]
    assert len(cheapest_weighting(weights).indexes) <= weights.size
    assert "cumulated" not in cells.__dict__


def test_is_cheap_to_cumulate_limits_growth_of_tensor() -> None:
    assert is_cheap_to_cumulate((85, 2, 16, 5, 2))
    assert is_cheap_to_cumulate((1024, 1024))
    assert not is_cheap_to_cumulate((2,) * 20)
    assert not is_cheap_to_cumulate((4,) * 10)
    assert MAX_CUMULATED_ENTRIES_PER_CELL < (3 / 2) ** 20


@given(st.lists(st.lists(st.integers(-2, 2), min_size=1, max_size=4), min_size=1, max_size=4))
def test_count_corners_matches_product_weighting(factors: list[list[int]]) -> None:
    columns = [np.array(factor, dtype=np.int64) for factor in factors]
    assert count_corners(columns) == len(product_weighting(columns).indexes)


@given(st.data())
def test_box_sums_equal_sums_over_cells(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    tensor = data.draw(arrays(np.int64, shape, elements=st.integers(-(1 << 41), 1 << 41)))
    ends = data.draw(
        st.lists(st.tuples(*(st.tuples(*[st.integers(0, size)] * 2).map(sorted) for size in shape)), min_size=1)
    )
    lows, highs = np.array(ends).transpose(2, 0, 1)
    found = box_sums(lows, highs, TensorCells(tensor)).tolist()
    assert found == [int(tensor[tuple(slice(*side) for side in box)].sum()) for box in ends]
