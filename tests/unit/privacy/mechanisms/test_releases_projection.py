"""The projection is a histogram times a public matrix of signs, exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.privacy.mechanisms.releases import cell_bytes, inner_products, matrix_columns, matrix_seed, project

SEED = matrix_seed("0" * 32)


def signs(cells: list[list[int]], projections: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return 2 * matrix_columns(SEED, cell_bytes(cells), projections).astype(np.int64) - 1


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=600),
    st.sampled_from([1, 7, 8, 64, 100]),
)
@settings(max_examples=25, deadline=None)
def test_project_is_sum_of_columns_of_rows(rows: list[list[int]], projections: int) -> None:
    codes = np.array(rows, dtype=np.uint8).reshape(len(rows), 2)
    found = project(SEED, codes, projections)
    expected = signs(rows, projections).sum(axis=0) if rows else np.zeros(projections)
    assert np.array_equal(found, expected)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=30),
    st.lists(st.integers(0, 3), min_size=2, max_size=2),
)
@settings(max_examples=25, deadline=None)
def test_project_moves_each_coordinate_by_one_for_one_row(rows: list[list[int]], row: list[int]) -> None:
    before = project(SEED, np.array(rows, dtype=np.int64).reshape(len(rows), 2), 50)
    after = project(SEED, np.array([*rows, row], dtype=np.int64), 50)
    assert set(np.abs(after - before).tolist()) == {1}


def test_inner_product_with_own_column_gives_count() -> None:
    cells = [[1, 2], [3, 0]]
    bits = matrix_columns(SEED, cell_bytes(cells), 512)
    release = project(SEED, np.array([cells[0]] * 7), 512)
    assert inner_products(bits, release)[0] == 7 * 512
    other = int((signs(cells, 512)[0] * signs(cells, 512)[1]).sum())
    assert inner_products(bits, release)[1] == 7 * other


@pytest.mark.parametrize("size", [1, 2**44])
def test_inner_products_are_exact_for_any_noise(size: int) -> None:
    release = np.array([size, -size, size - 1, 3], dtype=np.int64)
    bits = matrix_columns(SEED, cell_bytes([[value] for value in range(20)]), 4)
    expected = [
        sum((1 if bit else -1) * int(value) for bit, value in zip(row, release, strict=True)) for row in bits
    ]
    assert inner_products(bits, release) == expected


def test_matrix_depends_on_incarnation_and_has_balanced_signs() -> None:
    names = cell_bytes(np.arange(2000)[:, None])
    ours = matrix_columns(SEED, names, 512)
    others = matrix_columns(matrix_seed("0" * 31 + "1"), names, 512)
    # 7.5 standard deviations over a million coin tosses.
    for bits in (ours, ours ^ others, ours[1:] ^ ours[:-1], ours[:, 1:] ^ ours[:, :-1]):
        assert abs(int(bits.sum()) - bits.size / 2) < 7.5 * 0.5 * bits.size**0.5
    assert np.array_equal(matrix_columns(SEED, names[:3], 100), ours[:3, :100])
