"""Series keep the values that rates and charts need, in bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.monitor.entries import Series

GROWING = st.lists(st.tuples(st.floats(0.0, 50.0), st.integers(0, 5)), min_size=1, max_size=200)


def series(steps: list[tuple[float, int]], *, keeps_oldest: bool) -> tuple[Series, list[tuple[float, int]]]:
    kept = Series(width=2, spacing=1.0, limit=16, keeps_oldest=keeps_oldest)
    rows, time, total = [], 1000.0, 0
    for pause, news in steps:
        time, total = time + pause, total + news
        rows.append((time, total))
        kept.add((time, total))
    return kept, rows


@given(GROWING, st.booleans())
def test_series_is_limited_ordered_and_ends_with_latest_row(steps: list[tuple[float, int]], life: bool) -> None:
    kept, rows = series(steps, keeps_oldest=life)
    listed = [tuple(row) for row in kept]
    assert len(kept) == len(listed) <= 16
    assert listed == sorted(listed)
    assert listed[-1] == rows[-1]
    assert set(listed) <= set(rows)


@given(GROWING)
def test_series_that_keeps_oldest_has_first_row(steps: list[tuple[float, int]]) -> None:
    kept, rows = series(steps, keeps_oldest=True)
    assert tuple(next(iter(kept))) == rows[0]


@given(GROWING, st.floats(900.0, 12_000.0))
def test_series_row_at_time_is_last_row_before_it(steps: list[tuple[float, int]], time: float) -> None:
    kept, _ = series(steps, keeps_oldest=False)
    rows = [tuple(row) for row in kept]
    before = [row for row in rows if row[0] <= time]
    found = kept.row_at(time)
    assert found is not None
    assert tuple(found) == (before[-1] if before else rows[0])


def test_series_moves_row_of_past_to_last_time() -> None:
    kept = Series(width=2, spacing=1.0, limit=4)
    for row in ((10.0, 1.0), (20.0, 2.0), (15.0, 3.0)):
        kept.add(row)
    assert [tuple(row) for row in kept] == [(10.0, 1.0), (20.0, 3.0)]


def test_empty_series_has_no_row() -> None:
    assert Series(width=2, spacing=1.0, limit=4).row_at(0.0) is None


@pytest.mark.parametrize("life", [False, True])
def test_series_merges_rows_of_one_slot(life: bool) -> None:
    kept = Series(width=2, spacing=10.0, limit=8, keeps_oldest=life)
    for number in range(100):
        kept.add((float(number), float(number)))
    assert len(kept) <= 8
    assert [row[1] for row in kept][-1] == 99.0
