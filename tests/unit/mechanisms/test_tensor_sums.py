"""Sums over a tensor by its cumulated sums are the sums over its cells."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from stream.mechanisms.estimate_questions import extent_of
from stream.mechanisms.tensor_sums import Cells, added, corners, product_corners, values

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(st.data())
def test_any_weighting_of_any_tensor(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    tensor = data.draw(arrays(np.int64, shape, elements=st.integers(-(1 << 41), 1 << 41)))
    weights = data.draw(arrays(np.int64, shape, elements=st.integers(-1024, 1024)))
    more = data.draw(arrays(np.int64, shape, elements=st.integers(0, 1)))
    cells, exact = Cells(tensor), int((tensor * weights).sum())
    assert corners(weights).value(cells) == exact
    both = added([(3, corners(weights)), (-2, corners(more))])
    assert both.value(cells) == 3 * exact - 2 * int((tensor * more).sum())
    found = values([corners(weights), corners(np.zeros(shape, dtype=np.int64)), corners(more)], cells)
    assert found.tolist() == [exact, 0, int((tensor * more).sum())]
    assert cells.total == int(tensor.sum())


@given(st.data())
def test_products_of_weightings(data: st.DataObject) -> None:
    shape = data.draw(shapes)
    factors = [data.draw(arrays(np.int64, size, elements=st.integers(-3, 3))) for size in shape]
    product = np.ones((), dtype=np.int64)
    for factor in factors:
        product = np.multiply.outer(product, factor)
    tensor = data.draw(arrays(np.int64, shape, elements=st.integers(-1000, 1000)))
    assert product_corners(factors).value(Cells(tensor)) == int((tensor * product).sum())


def test_a_range_of_every_axis_has_few_corners() -> None:
    inside = np.zeros((100, 100, 100), dtype=np.int64)
    inside[3:90, 5:6, 7:99] = 1
    assert len(corners(inside).places) == 8
    assert extent_of(inside) == (87 * 92, True)
    inside[4, 5, 8] = 0
    assert extent_of(inside) == (87 * 92 - 1, False)
