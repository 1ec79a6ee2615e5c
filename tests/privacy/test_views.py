"""The lemma of views holds for all small databases: each person's rows are the same without all other people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations_with_replacement, product
from typing import Any

import polars as pl
import pytest

from stream.tables.readers import view_rows as reading
from stream.tables.readers.view_parser import parse_view
from stream.tables.readers.view_rows import ViewPlan, column_label
from stream.tables.table_errors import ColumnError
from tests.views import Row, view_rows, view_source

Frames = dict[str, pl.DataFrame]

VISITS = pl.Schema({"who": pl.String, "place": pl.String, "cost": pl.Int64})
STAYS = pl.Schema({"id": pl.String, "days": pl.Int64})
PLACES = pl.Schema({"code": pl.String, "zone": pl.String})
PEOPLE = ("a", "b", None)
LOOKUPS: tuple[list[Row], ...] = ([], [("p", "east")], [("p", "east"), ("q", "east"), (None, "west")])

TABLES: dict[str, Any] = {
    "visits": {"person": "who", "columns": {"place": "text", "cost": "integer"}},
    "stays": {"person": "id", "columns": {"days": "integer"}},
    "places": {"key": ["code"], "columns": {"code": "text", "zone": "text"}},
}
VIEWS = {
    "rows": "SELECT who, place, cost * 2 AS cost FROM visits WHERE cost > 0",
    "lookup": "SELECT v.who, p.zone AS place, v.cost FROM visits v JOIN places p ON p.code = v.place",
    "outer lookup": "SELECT v.who, COALESCE(p.zone, 'none') AS place, v.cost FROM visits v "
    "LEFT JOIN places p ON p.code = v.place WHERE p.zone IS NULL OR v.cost = 1",
    "people": "SELECT v.who, v.place, s.days AS cost FROM visits v JOIN stays s ON s.id = v.who",
    "outer people": "SELECT v.who, v.place, s.days AS cost FROM visits v LEFT JOIN stays s ON v.who = s.id",
    "self": "SELECT v.who, w.place, v.cost - w.cost AS cost FROM visits v JOIN visits w ON w.who = v.who",
    "all": "SELECT v.who, p.zone AS place, s.days AS cost FROM visits v LEFT JOIN stays s ON s.id = v.who "
    "JOIN places p ON p.code = v.place WHERE s.days IS NULL OR v.cost < s.days",
}


def plan_of(view: str) -> ViewPlan:
    used = {name: table for name, table in TABLES.items() if name in VIEWS[view]}
    return parse_view(view_source(VIEWS[view], used, ["place", "cost"], person="who"))


def multisets(rows: list[Row], most: int) -> Iterator[tuple[Row, ...]]:
    for size in range(most + 1):
        yield from combinations_with_replacement(rows, size)


def databases() -> Iterator[dict[str, tuple[Row, ...]]]:
    """Yield the tables of people: up to two visits and two stays, each of one of two people or of nobody."""
    visits = list(multisets(list(product(PEOPLE, ("p",), (0, 1))), 2))
    visits += [
        (("a", "p", 0), ("b", "q", 1)),
        (("a", "q", 1), ("a", None, 0)),
        (("a", "p", None), ("b", "p", 0), ("b", "q", 1)),
    ]
    stays = list(multisets(list(product(("a", "b"), (0, 1))), 2))
    for one, other in product(visits, stays):
        yield {"visits": one, "stays": other}


def frames_of(tables: Mapping[str, tuple[Row, ...]], lookup: list[Row]) -> Frames:
    schemas = {"visits": VISITS, "stays": STAYS, "places": PLACES}
    rows = {**tables, "places": tuple(lookup)}
    return {name: pl.DataFrame(list(rows[name]), schema=schemas[name], orient="row") for name in schemas}


def finds_leak(plan: ViewPlan, lookups: list[list[Row]]) -> bool:
    """Return whether some person's rows depend on others, or some row is of another person than its first row."""
    names = list(plan.outputs)
    place = names.index("who")
    alone: dict[Any, Counter[Row]] = {}
    for lookup, tables in product(lookups, databases()):
        if not any(use.name == "stays" for use in plan.uses) and tables["stays"]:
            continue
        found = view_rows(plan, frames_of(tables, lookup))
        expected: Counter[Row] = Counter()
        for person in PEOPLE:
            own = {name: tuple(row for row in rows if row[0] == person) for name, rows in tables.items()}
            key = (str(lookup), str(own))
            if key not in alone:
                alone[key] = view_rows(plan, frames_of(own, lookup))
            if any(row[place] != person for row in alone[key]):
                return True
            expected += alone[key]
        if found != expected:
            return True
    return False


@pytest.mark.parametrize("view", VIEWS)
def test_view_adds_rows_of_one_person_only(view: str) -> None:
    """The rows of a view are the rows of each person alone, together; adding a person adds only that person's rows."""
    plan = plan_of(view)
    lookups = list(LOOKUPS) if any(use.table.key for use in plan.uses) else [[]]
    assert not finds_leak(plan, lookups)


def join_on_another_column(plan: ViewPlan) -> ViewPlan:
    """Join visits of equal cost, even of different people."""
    join = plan.joins[0]
    return replace(plan, joins=(replace(join, on={"cost": pl.col(column_label("v", "cost"))}),))


def filter_by_an_aggregate(plan: ViewPlan) -> ViewPlan:
    """Keep visits that cost at least the mean of all."""
    cost = pl.col(column_label("visits", "cost"))
    return replace(plan, where=cost >= cost.mean())


def number_the_rows(plan: ViewPlan) -> ViewPlan:
    """Select the number of each row in the table."""
    return replace(plan, outputs={**plan.outputs, "cost": pl.int_range(pl.len())})


def take_the_other_person(plan: ViewPlan) -> ViewPlan:
    """Select the place as the person."""
    return replace(plan, outputs={**plan.outputs, "who": pl.col(column_label("visits", "place"))})


@pytest.mark.parametrize(
    ("view", "broken"),
    [
        ("self", join_on_another_column),
        ("rows", filter_by_an_aggregate),
        ("rows", number_the_rows),
        ("rows", take_the_other_person),
    ],
)
def test_enumeration_finds_broken_views(view: str, broken: Callable[[ViewPlan], ViewPlan]) -> None:
    """The enumeration finds each view that the parser must refuse."""
    assert finds_leak(broken(plan_of(view)), [[]])


def test_enumeration_finds_a_common_bound_of_joined_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of joined rows holds for each person; the enumeration reveals a common bound for all people."""
    monkeypatch.setattr(reading, "MAX_JOINED_ROWS", 1)
    assert not finds_leak(plan_of("people"), [[]])
    monkeypatch.setattr(reading, "bound_rows", lambda rows, *_: rows.head(1))
    assert finds_leak(plan_of("people"), [[]])


ROWS_TABLES: dict[str, Any] = {
    "visits": {"columns": {"place": "text", "cost": "integer"}},
    "places": {"key": ["code"], "columns": {"code": "text", "zone": "text"}},
}
ROWS_VIEWS = (
    "SELECT v.cost, p.zone AS place FROM visits v LEFT JOIN places p ON p.code = v.place WHERE v.cost > 0",
    "SELECT v.cost, q.zone AS place FROM visits v JOIN places p ON p.code = v.place JOIN places q ON q.code = p.code",
)


def gives_several_rows(plan: ViewPlan, lookup: list[Row]) -> bool:
    """Return whether a row without a person gives no row or several rows, or depends on another row."""
    rows = list(product((None,), ("p", "q", None), (0, 1, None)))
    frames = [frames_of({"visits": (row,), "stays": ()}, lookup) for row in rows]
    alone = {row: view_rows(plan, frame) for row, frame in zip(rows, frames, strict=True)}
    if any(found.total() != 1 for found in alone.values()):
        return True
    pairs = combinations_with_replacement(rows, 2)
    return any(
        view_rows(plan, frames_of({"visits": pair, "stays": ()}, lookup)) != alone[pair[0]] + alone[pair[1]]
        for pair in pairs
    )


@pytest.mark.parametrize("select", ROWS_VIEWS)
def test_view_of_rows_has_one_row_for_each(select: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without persons, each row gives exactly one row; a lookup table with a repeated key, which would give two, is refused."""
    plan = parse_view(view_source(select, ROWS_TABLES, ["place", "cost"]))
    for lookup in LOOKUPS:
        assert not gives_several_rows(plan, list(lookup))
    repeated: list[Row] = [("p", "east"), ("p", "west")]
    with pytest.raises(
        ColumnError, match=r"^key: column 'places\.code' of a lookup table has one value in several rows"
    ):
        gives_several_rows(plan, repeated)
    monkeypatch.setattr(reading, "require_unique", lambda *_: None)
    assert gives_several_rows(plan, repeated)
    [join, *others] = plan.joins
    other = replace(
        join,
        on={"zone": pl.col(column_label("v", "place"))},
        use=replace(join.use, columns={"code": "text", "zone": "text"}),
    )
    assert gives_several_rows(replace(plan, joins=(other, *others)), [("p", "p"), ("q", "p")])
