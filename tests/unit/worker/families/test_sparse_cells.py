"""Questions, exact values and hypotheses over the cells of sparse multiplicative weights."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import Cell, SparsePmw
from sotto import Driver
from stream.privacy.mechanisms.multiplicative_weights import CellQuestion
from stream.processing.dead_letters import Rejection
from stream.tables.columns_table import PrivateTable
from stream.worker.families.tensors import CellSpace
from tests.builders import KEY, parse_source, source, stream

SOURCE = parse_source(
    source(
        "s", "table", epsilon=1.0, path="none.csv", attributes={"zip": 1 << 20, "code": 1 << 20, "sex": ["F", "M"]}
    )
)
TABLE = PrivateTable.load(
    SOURCE, pl.DataFrame({"zip": [1, 1, 1, 7], "code": [2, 2, 3, 9], "sex": ["F", "F", "M", "M"]})
)
MECHANISM = SparsePmw(kind="sparse_pmw", attributes=("code", "zip"), sparsity=3)
SPACE = CellSpace(SOURCE, lambda: TABLE, MECHANISM, 0.5, 1024)


def cell(code: int, zip_code: int, weight: float = 1.0) -> Cell:
    return Cell(at={"code": code, "zip": zip_code}, weight=weight)


def test_question_is_its_cells_in_the_mechanisms_attribute_order() -> None:
    """Weights are in steps."""
    asked = (cell(9, 7, 0.5), cell(2, 1), cell(4, 4, 0.0))
    assert SPACE.parse_question(asked) == CellQuestion(((2, 1), (9, 7)), (1024, 512))


def test_true_values_are_exact_for_many_questions_at_once() -> None:
    asked = [
        SPACE.parse_question(cells)
        for cells in [(cell(2, 1),), (cell(2, 1, 0.25), cell(3, 1), cell(8, 8)), (cell(8, 8),)]
    ]
    assert SPACE.exact_values(asked).tolist() == [2 * 1024, 2 * 256 + 1024, 0]
    assert SPACE.exact_values([]).tolist() == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1024)), min_size=1, max_size=3, unique_by=lambda p: p[0])
)
@settings(deadline=None)
def test_equal_questions_have_equal_keys_in_any_notation(parts: list[tuple[int, int]]) -> None:
    if not any(weight for _, weight in parts):
        return
    written = tuple(cell(code, 1, weight / 1024) for code, weight in parts)
    question = SPACE.parse_question(written)
    assert question.key == SPACE.parse_question(written[::-1]).key
    heavier = CellQuestion(question.cells, (question.steps[0] % 1024 + 1, *question.steps[1:]))
    assert heavier.key != question.key


def test_questions_of_different_lengths_have_different_keys() -> None:
    keys = {
        SPACE.parse_question(cells).key
        for cells in [(cell(0, 0),), (cell(0, 0), cell(0, 1)), (cell(0, 1),), (cell(0, 0), cell(0, 1), cell(1, 0))]
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (tuple(cell(number, 0) for number in range(4)), "cells: 4 cells, and the stream takes at most 3"),
        ((cell(1, 1), cell(1, 1, 0.5)), "cells: one cell is named twice"),
        ((cell(1, 1, 0.0),), "cells: no weight is above 0"),
        ((cell(1, 1, 1 / 3),), "cells: weights are multiples of 1/1024"),
        ((Cell(at={"code": 1, "sex": "F"}),), "cells: name 2 is no attribute of these cells"),
    ],
)
def test_unsuitable_questions_are_refused_by_their_field(cells: Any, reason: str) -> None:
    with pytest.raises(Rejection) as refused:
        SPACE.parse_question(cells)
    assert refused.value.message.startswith(reason)


def test_fresh_hypothesis_is_uniform_over_its_places() -> None:
    """If there are fewer cells than places, it is uniform over all cells."""
    question = SPACE.parse_question((cell(5, 5),))
    assert SPACE.uniform_hypothesis().estimate_answers([question], 1 << 20).tolist() == [1 << 20]
    few = CellSpace(
        SOURCE, lambda: TABLE, SparsePmw(kind="sparse_pmw", attributes=("sex",), sparsity=3), 0.5, 1024
    )
    [women] = (
        few.uniform_hypothesis().estimate_answers([few.parse_question((Cell(at={"sex": "F"}),))], 1 << 20).tolist()
    )
    assert women == 1 << 29


def test_stream_over_a_huge_universe_learns_its_heavy_cells() -> None:
    """It continues after a crash."""
    driver = Driver(KEY, partitions=1)
    names = [f"a{number}" for number in range(4)]
    attributes = dict.fromkeys(names, 1 << 20)
    driver.register(
        source("huge", "table", neighbors="replace", epsilon=100.0, path="huge.csv", attributes=attributes),
        {name: [5] * 60_000 + [number % 1000 for number in range(40_000)] for name in names},
    )
    mechanism = {"kind": "sparse_pmw", "attributes": names, "sparsity": 4, "updates": 2000}
    driver.open(stream("s", "huge", mechanism=mechanism, epsilon=50.0))

    def ask(code: int) -> Any:
        [answer] = driver.ask_many([{"id": "q", "stream": "s", "cells": [{"at": dict.fromkeys(names, code)}]}])
        return answer

    first = ask(5)
    assert first.tops_left == 1999
    assert abs((first.estimate or 0.0) - 60_040) <= (first.alpha or 0.0)
    answers = [ask(code) for code in [5] * 60 + [6, 1 << 19]]
    left = [answer.tops_left for answer in answers]
    assert 1900 < left[40] == left[-1]
    assert answers[40].estimate == answers[59].estimate
    for answer, count in [(answers[40], 60_040), (answers[-2], 40), (answers[-1], 0)]:
        assert abs((answer.estimate or 0.0) - count) <= (answer.alpha or 0.0) < 20_000
    driver.crash()
    assert [ask(code).estimate for code in (5, 6, 1 << 19)] == [answers[at].estimate for at in (40, -2, -1)]
