"""Decisions about whole arrays equal the decisions about one query after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.privacy.mechanisms.above_threshold import ABOVE, BELOW, HALTED, Decisions, decide_queries


@dataclass
class OneStream:
    """AboveThreshold of the textbook, one query at a time."""

    barriers: list[int]
    tops_left: int
    fresh: bool
    asked: int = 0
    tops: int = 0

    def ask(self, margin: int) -> tuple[int, int, int]:
        """Return the code of a query's outcome, and the numbers of queries and ⊤s before it."""
        place, tops = self.asked, self.tops
        self.asked += 1
        if self.tops == self.tops_left:
            return HALTED, place, tops
        if margin >= self.barriers[self.tops if self.fresh else 0]:
            self.tops += 1
            return ABOVE, place, tops
        return BELOW, place, tops


@dataclass
class Case:
    """Queries to several streams, interleaved. ``barriers`` has one barrier per round of each stream."""

    margins: list[int]
    streams: list[int]
    barriers: list[list[int]]
    tops_left: list[int]
    fresh: list[bool]
    rounds_asked: list[tuple[int, int]] = field(default_factory=list)

    def one_by_one(self) -> tuple[list[tuple[int, int, int]], list[int]]:
        rows = [
            OneStream(barriers, left, fresh)
            for barriers, left, fresh in zip(self.barriers, self.tops_left, self.fresh, strict=True)
        ]
        answers = [rows[stream].ask(margin) for margin, stream in zip(self.margins, self.streams, strict=True)]
        return answers, [row.tops_left - row.tops for row in rows]

    def decide(self, start: int, end: int, tops: list[int]) -> Decisions:
        """Decide queries ``start`` to ``end`` after so many ⊤s of each stream."""

        def next_barrier(row: int, more: int) -> int:
            self.rounds_asked.append((row, tops[row] + more))
            return self.barriers[row][tops[row] + more]

        return decide_queries(
            np.array(self.margins[start:end], dtype=np.int64),
            np.array(self.streams[start:end], dtype=np.intp),
            np.array(
                [
                    rounds[out if fresh else 0]
                    for rounds, out, fresh in zip(self.barriers, tops, self.fresh, strict=True)
                ],
                dtype=np.int64,
            ),
            np.array(self.tops_left, dtype=np.int64) - np.array(tops, dtype=np.int64),
            next_barrier,
            np.array(self.fresh, dtype=np.bool_),
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw margins and barriers from so small a range that ties and ⊤s are common."""
    streams = draw(st.integers(1, 5))
    queries = draw(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, streams - 1)), min_size=1, max_size=40))
    tops_left = draw(st.lists(st.integers(0, 4), min_size=streams, max_size=streams))
    barriers = [draw(st.lists(st.integers(-4, 4), min_size=left + 1, max_size=left + 1)) for left in tops_left]
    fresh = draw(st.lists(st.booleans(), min_size=streams, max_size=streams))
    return Case([margin for margin, _ in queries], [stream for _, stream in queries], barriers, tops_left, fresh)


@given(case=cases())
@settings(deadline=None, max_examples=100)
def test_decide_queries_equals_one_query_after_another(case: Case) -> None:
    answers, left = case.one_by_one()
    decisions = case.decide(0, len(case.margins), [0] * len(case.tops_left))
    columns = (decisions.outcomes, decisions.position, decisions.tops_before)
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == answers
    assert decisions.tops_left.tolist() == left


@given(case=cases(), cuts=st.lists(st.integers(0, 40), max_size=5))
@settings(deadline=None, max_examples=100)
def test_decide_queries_is_independent_of_batch_boundaries(case: Case, cuts: list[int]) -> None:
    answers, left = case.one_by_one()
    size = len(case.margins)
    bounds = sorted({0, size, *(min(cut, size) for cut in cuts)})
    tops = [0] * len(case.tops_left)
    asked = [0] * len(case.tops_left)
    found: list[tuple[int, int, int]] = []
    remaining = case.tops_left
    for start, end in pairwise(bounds):
        decisions = case.decide(start, end, tops)
        columns = zip(
            decisions.outcomes.tolist(), decisions.position.tolist(), decisions.tops_before.tolist(), strict=True
        )
        for (code, place, before), stream in zip(columns, case.streams[start:end], strict=True):
            found.append((code, asked[stream] + place, tops[stream] + before))
        for stream in case.streams[start:end]:
            asked[stream] += 1
        remaining = decisions.tops_left.tolist()
        tops = [whole - rest for whole, rest in zip(case.tops_left, remaining, strict=True)]
    assert found == answers
    assert remaining == left


@given(case=cases())
@settings(deadline=None, max_examples=50)
def test_decide_queries_draws_threshold_only_for_started_round(case: Case) -> None:
    _, left = case.one_by_one()
    case.decide(0, len(case.margins), [0] * len(case.tops_left))
    for row, round_number in case.rounds_asked:
        assert case.fresh[row]
        assert 0 < round_number < case.tops_left[row]
        assert round_number <= case.tops_left[row] - left[row]


@given(case=cases())
@settings(deadline=None)
def test_decide_queries_leaves_inputs_unchanged(case: Case) -> None:
    margins, streams = np.array(case.margins, dtype=np.int64), np.array(case.streams, dtype=np.intp)
    barrier = np.array([rounds[0] for rounds in case.barriers], dtype=np.int64)
    tops_left, fresh = np.array(case.tops_left, dtype=np.int64), np.array(case.fresh, dtype=np.bool_)
    inputs = (margins, streams, barrier, tops_left, fresh)
    before = [one.copy() for one in inputs]
    decide_queries(margins, streams, barrier, tops_left, lambda row, tops: case.barriers[row][tops], fresh)
    assert all(np.array_equal(was, now) for was, now in zip(before, inputs, strict=True))


def test_decide_queries_counts_equal_margin_as_above() -> None:
    ones, row = np.ones(1, dtype=np.int64), np.zeros(1, dtype=np.intp)
    assert decide_queries(ones, row, ones, ones).outcomes.tolist() == [ABOVE]
    assert decide_queries(ones - 1, row, ones, ones).outcomes.tolist() == [BELOW]


def test_decide_queries_halts_stream_without_tops_left() -> None:
    margins = np.array([5, -5], dtype=np.int64)
    zeros = np.zeros(1, dtype=np.int64)
    decisions = decide_queries(margins, np.zeros(2, dtype=np.intp), zeros, zeros)
    assert decisions.outcomes.tolist() == [HALTED, HALTED]
    assert decisions.tops_left.tolist() == [0]


@pytest.mark.parametrize("fresh", [None, np.array([True, False])])
def test_decide_queries_of_empty_batch_changes_nothing(fresh: npt.NDArray[np.bool_] | None) -> None:
    empty = np.zeros(0, dtype=np.int64)
    left = np.array([2, 0], dtype=np.int64)
    decisions = decide_queries(
        empty, empty.astype(np.intp), np.zeros(2, dtype=np.int64), left, lambda _, tops: tops, fresh
    )
    assert len(decisions.outcomes) == 0
    assert decisions.tops_left.tolist() == [2, 0]
