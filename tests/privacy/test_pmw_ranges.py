"""One person moves the error of a sum or a mean by at most a row's steps, for any predicate on the attribute's range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement, product
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest

from schemas import Categories, Integers, Term
from stream.privacy.mechanisms.estimate_questions import MeanQuestion
from stream.privacy.mechanisms.releases import TensorCells
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.tables.store import TableStore
from stream.worker.families.estimate_reader import QuestionReader
from tests.builders import OTHER_KEY, parse_source, source

Neighbors = Literal["add-remove", "replace"]

LEAST, SIZE = -1, 5
ATTRIBUTES = {"x": Integers(minimum=LEAST, maximum=LEAST + SIZE - 1), "g": Categories(values=("a", "b"))}
WHERES: dict[str, Callable[[int, str], bool]] = {
    "TRUE": lambda _x, _g: True,
    "x < 1": lambda x, _: x < 1,
    "x BETWEEN 1 AND 2": lambda x, _: 1 <= x <= 2,
    "x > 2": lambda x, _: x > 2,
    "x = 0 AND g = 'a'": lambda x, g: x == 0 and g == "a",
    "x > 1 AND g = 'b'": lambda x, g: x > 1 and g == "b",
    "x < 0 OR x > 2": lambda x, _: x < 0 or x > 2,
    "g = 'a'": lambda _, g: g == "a",
}
"""Predicates, each with its meaning in Python."""


def reader(neighbors: Neighbors = "replace") -> QuestionReader:
    people = parse_source(source("people", "table", neighbors=neighbors, epsilon=1.0, attributes=ATTRIBUTES))
    return QuestionReader(people, TableStore.keyed_by(OTHER_KEY), ("x", "g"))


def mean_of(where: str) -> MeanQuestion:
    question = reader().parse_question("mean", SimpleNamespace(mean="x", where=where)).question
    assert isinstance(question, MeanQuestion)
    return question


def cells(people: tuple[int, ...], axes: tuple[int, ...]) -> TensorCells:
    """Return people's cells over the attributes of a question, from the numbers of their cells over both attributes."""
    whole = np.bincount(people, minlength=2 * SIZE).reshape(SIZE, 2)
    along = tuple(axis for axis in range(2) if axis not in axes)
    return TensorCells(whole.sum(axis=along).astype(np.int64))


def find_neighbors(*relations: Neighbors) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield tables of two people, with one person more or with one person replaced."""
    for people in combinations_with_replacement(range(2 * SIZE), 2):
        for other in range(2 * SIZE):
            if "add-remove" in relations:
                yield people, (*people, other)
            if "replace" in relations:
                yield people, (people[0], other)


@pytest.mark.parametrize("where", WHERES)
def test_person_moves_the_error_of_a_mean_by_the_steps_of_a_row(where: str) -> None:
    question = mean_of(where)
    published = list(product((-3, 0, 2, 7), (-WEIGHT_STEPS, 0, 700, 3 * WEIGHT_STEPS)))
    for one, other in find_neighbors("add-remove", "replace"):
        mine, theirs = (question.compute_numbers(cells(people, question.axes)) for people in (one, other))
        for estimates in published:
            assert (
                abs(question.compute_error(mine, estimates) - question.compute_error(theirs, estimates))
                <= WEIGHT_STEPS
            )


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("where", WHERES)
def test_person_moves_a_sum_by_its_width(where: str, neighbors: Neighbors) -> None:
    """The person moves the sum's error by the steps of a row."""
    question = reader(neighbors).resolve_total("x", [Term(where=where)])
    moved = 0
    for one, other in find_neighbors(neighbors):
        mine, theirs = (question.compute_numbers(cells(people, question.axes)) for people in (one, other))
        moved = max(moved, abs(mine[0] - theirs[0]))
        for estimate in (-7, 0, 3, 50):
            assert (
                abs(question.compute_error(mine, (estimate,)) - question.compute_error(theirs, (estimate,)))
                <= WEIGHT_STEPS
            )
    assert max(moved, 1) == question.width


def test_sum_with_noise_for_all_values_is_another_question() -> None:
    where = [Term(where="x BETWEEN 1 AND 2")]
    narrow, wide = reader().resolve_total("x", where), reader().resolve_total("x", where, narrow=False)
    assert (narrow.width, wide.width) == (2, SIZE - 1)
    assert narrow.key != wide.key
    assert reader().resolve_total("x", []).key == reader().resolve_total("x", [], narrow=False).key


@pytest.mark.parametrize("where", WHERES)
def test_mean_of_exact_numbers_is_the_mean_within_its_range(
    where: str,
) -> None:
    """The range is that of the values that the predicate allows."""
    question = mean_of(where)
    chosen = {(x, g) for x, g in product(range(SIZE), range(2)) if WHERES[where](LEAST + x, "ab"[g])}
    values = [LEAST + x for x, _ in chosen]
    assert question.minimum <= min(values)
    assert max(values) <= question.minimum + question.range
    for people in combinations_with_replacement(range(2 * SIZE), 3):
        inside = [LEAST + one // 2 for one in people if (one // 2, one % 2) in chosen]
        numbers = question.compute_numbers(cells(people, question.axes))
        if inside:
            assert question.mean(numbers) == pytest.approx(sum(inside) / len(inside), abs=1 / WEIGHT_STEPS)
        assert question.minimum <= question.mean(numbers) <= question.minimum + question.range
