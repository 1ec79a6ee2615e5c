"""The least error is the one that a search by halves finds, to the step, with fewer bounds computed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.privacy.accuracy import sparse_vector_accuracy
from stream.privacy.accuracy.sparse_vector_accuracy import Failing, RunLayout, alpha_of, failure_bound, negligible


def by_halves(layout: RunLayout, shift: int, beta: float, resolution: int) -> int:
    def fails(alpha: int) -> bool:
        return failure_bound(layout, alpha, shift, tail=negligible(layout, beta)) > beta

    low, high = 0, max(1, abs(shift))
    while fails(high):
        low, high = high, 2 * high
    while high - low > 1 + high // resolution:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return high


@st.composite
def layouts(draw: st.DrawFn) -> RunLayout:
    rate = math.exp(draw(st.floats(-14.0, 2.0)))
    tops = draw(st.integers(1, 50))
    return RunLayout(
        one_sided=draw(st.booleans()),
        threshold_rate=rate,
        query_rate=rate * math.exp(draw(st.floats(-5.0, 1.0))),
        fresh=tops > 1 and draw(st.booleans()),
        tops=tops,
        queries=tops * draw(st.integers(1, 10_000)),
        numbers=draw(st.sampled_from(("none", "fresh", "gap"))),
        answer_rate=rate * math.exp(draw(st.floats(-3.0, 3.0))),
    )


@given(
    layout=layouts(),
    lean=st.floats(-0.5, 2.0),
    beta=st.sampled_from((0.3, 0.05, 1e-9)),
    resolution=st.sampled_from((64, 4096, 2**20)),
)
def test_the_least_error_is_that_of_a_search_by_halves(
    layout: RunLayout, lean: float, beta: float, resolution: int
) -> None:
    shift = round(lean * math.log(layout.queries / beta) / layout.query_rate)
    assert alpha_of(layout, shift, beta, resolution=resolution) == by_halves(layout, shift, beta, resolution)


def test_few_bounds_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []

    def counted(layout: RunLayout, alpha: int, *rest: int, blocks: int, tail: float) -> float:
        computed.append(alpha)
        return failure_bound(layout, alpha, *rest, blocks=blocks, tail=tail)

    monkeypatch.setattr(sparse_vector_accuracy, "failure_bound", counted)
    layout = RunLayout(one_sided=True, threshold_rate=1e-6, query_rate=5e-6, fresh=False, tops=20, queries=1000)
    alpha_of(layout, 0, 0.05)
    assert len(computed) == len(set(computed)) <= 20


def test_bounds_that_are_out_of_order_near_beta_are_asked_one_by_one() -> None:
    bounds = {7: 0.0999, 8: 0.10001, 9: 0.09999, 10: 0.09998}
    fails = Failing(lambda alpha: bounds.get(alpha, 1.0 if alpha < 7 else 0.0), 0.1)
    fails.look_near(8.0, (1, 2**60), 2**20)
    assert [fails(alpha) for alpha in (6, 7, 8, 9, 10, 11)] == [True, False, True, False, False, False]
