from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Bins, Categories, Domain, Integers
from stream.tables.columns_table import PrivateTable
from stream.tables.expressions import FALSE, TRUE
from stream.tables.predicates import parse
from stream.tables.readers.table_reading import build_table, read_rows
from stream.tables.sensitivity import restrict_domain, sum_sensitivity
from stream.tables.table_errors import TableDataError
from tests.unit.tables.small import (
    ATTRIBUTES,
    KEY,
    Cell,
    PredicateCase,
    columns,
    predicates,
    read_by_hand,
    rows,
    source,
    unhurried,
)

Rows = list[Mapping[str, Cell]]
SUMMED = st.sampled_from(["age", "education-num"])


@unhurried
@given(
    table=st.lists(rows, max_size=80),
    said=predicates.filter(lambda said: said.text.count("(") < 14),
    name=SUMMED,
    centers=st.lists(st.integers(-(10**20), 10**20), max_size=2),
)
def test_total_equals_row_by_row_sum(table: Rows, said: PredicateCase, name: str, centers: list[int]) -> None:
    loaded, predicate = PrivateTable.load(source(), columns(table)), parse(said.text, ATTRIBUTES)
    values = [int(row[name]) for row in map(read_by_hand, table) if row is not None and said.test(row)]
    assert loaded.total(name, predicate) == sum(values)
    for center in centers:
        assert loaded.total(name, predicate, center) == sum(value - center for value in values)


@pytest.mark.parametrize("size", [1, 2, 3, 256, 257, 65_536, 65_537, 1 << 20])
@pytest.mark.parametrize("minimum", [-(2**53), -7, 0, 2**53 - 2**20])
def test_total_is_exact_for_domain_of_any_size(size: int, minimum: int) -> None:
    domain = Integers(minimum=minimum, maximum=minimum + size - 1)
    values = [minimum, *range(minimum, minimum + size, 1 + size // 90), minimum + size - 1]
    table = PrivateTable.load(source({"x": domain}), {"x": values})
    assert table.total("x", TRUE) == sum(values)
    assert table.total("x", TRUE, center=minimum) == sum(value - minimum for value in values)
    assert table.total("x", FALSE) == 0


@pytest.mark.parametrize("person", ["who", None])
@pytest.mark.parametrize("engine", ["memory", "duckdb"])
@pytest.mark.parametrize(
    "minimum",
    [-(2**53), -(2**32) - 1, -(2**31) - 2**20, -(2**20), -500_000, 0, 2**31 - 1, 2**32 + 1, 2**53 - 2**20 + 1],
)
def test_person_total_is_exact_for_the_largest_values(minimum: int, engine: str, person: str | None) -> None:
    """Clamped sums equal those of Python's integers, also where a person's sum has more than 64 bits."""
    ends = minimum, minimum + 2**20 - 1
    values = [ends[0]] * 1_500 + [ends[1]] * 4_500 + [*ends, ends[1]]
    people = ["ann"] * 1_500 + ["ben"] * 4_500 + ["cid", "cid", "dee"]
    fields: dict[str, Any] = {"person": person, "contribution": 1} if person else {}
    declared = source({"x": Integers(minimum=ends[0], maximum=ends[1])}, engine=engine, **fields)
    table = build_table(read_rows(declared, pl.DataFrame({"x": values, "who": people})), declared, KEY)
    names = people if person else map(str, range(len(people)))
    owned = list(zip(names, values, strict=True))
    assert person or table.total("x", TRUE) == sum(values)
    for text, matching in (("TRUE", ends), (f"x = {ends[1]}", ends[1:]), ("FALSE", ())):
        sums = Counter[str]()
        for who, value in owned:
            sums[who] += value * (value in matching)
        for bound in (1, 10, 2**31 - 1):
            low, high = (-bound if ends[0] < 0 else 0), (bound if ends[1] > 0 else 0)
            exact = sum(min(max(one, low), high) for one in sums.values())
            assert table.person_total("x", parse(text, declared.attributes), bound) == exact


def test_total_is_independent_of_cache_size() -> None:
    attributes: dict[str, Domain] = {"x": Integers(minimum=-300, maximum=300)}
    values = [number * 7 % 601 - 300 for number in range(500)]
    codes = {"x": (np.array(values) + 300).astype(np.uint16)}
    small, usual = PrivateTable(attributes, codes, bitmap_cache_bytes=100), PrivateTable(attributes, codes)
    for limit in (0, 5, 0, 600, -300, 5):
        predicate = parse(f"x < {limit}", attributes)
        expected = sum(value for value in values if value < limit)
        assert small.total("x", predicate) == usual.total("x", predicate) == expected
        assert usual.count(predicate) == sum(value < limit for value in values)


def test_total_of_table_without_rows_is_zero() -> None:
    table = PrivateTable.load(source({"x": Integers(minimum=5, maximum=9)}), {"x": []})
    assert table.total("x", TRUE) == table.total("x", FALSE, center=7) == 0


NOT_SUMMED: list[Domain] = [Categories(values=("1", "2")), Bins(edges=(0.0, 1.0))]


@pytest.mark.parametrize("domain", NOT_SUMMED)
def test_total_needs_integers(domain: Domain) -> None:
    table = PrivateTable.load(source({"x": domain}), {"x": ["1"]})
    with pytest.raises(TableDataError, match="attribute 'x' has no sum; declare it as integers"):
        table.total("x", TRUE)
    with pytest.raises(TableDataError, match="no sum; declare it as integers"):
        sum_sensitivity(domain, "add-remove")


def test_total_refuses_unknown_attribute_and_other_schema() -> None:
    table = PrivateTable.load(source({"x": Integers(minimum=0, maximum=9)}), {"x": [1]})
    with pytest.raises(TableDataError, match="name 1 is no attribute of the table"):
        table.total("y", TRUE)
    with pytest.raises(TableDataError, match="declares 'x' with other values"):
        table.total("x", parse("x = 1", {"x": Integers(minimum=0, maximum=99)}))


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize("center", [-5, -1, 0, 1, 2, 6])
@pytest.mark.parametrize(("minimum", "maximum"), [(0, 0), (0, 3), (-3, 0), (-2, 1), (2, 4), (-4, -2), (1, 1)])
def test_sum_sensitivity_is_largest_difference_of_neighbors(
    neighbors: Literal["add-remove", "replace"],
    minimum: int,
    maximum: int,
    center: int,
) -> None:
    domain = Integers(minimum=minimum, maximum=maximum)
    attributes: dict[str, Domain] = {"x": domain, "asked": Categories(values=("yes", "no"))}
    predicate = parse("asked = 'yes'", attributes)

    def total(*people: tuple[int, str]) -> int:
        frame: dict[str, list[object]] = {
            "x": [value for value, _ in people],
            "asked": [asked for _, asked in people],
        }
        return PrivateTable.load(source(attributes), frame).total("x", predicate, center)

    # One value beyond each end as well: clamping is part of what is bounded.
    possible = [(value, asked) for value in range(minimum - 1, maximum + 2) for asked in ("yes", "no")]
    others = ((minimum, "yes"), (maximum, "no"))
    with_one = [total(*others, person) for person in possible]
    nearby = [total(*others)] if neighbors == "add-remove" else with_one
    largest = max(abs(one - another) for one in with_one for another in nearby)
    assert largest == sum_sensitivity(domain, neighbors, center)


@unhurried
@given(table=st.lists(rows, max_size=12), person=rows, other=rows, name=SUMMED, center=st.integers(-40, 40))
def test_sum_sensitivity_bounds_totals_of_neighbors(
    table: Rows,
    person: Mapping[str, Cell],
    other: Mapping[str, Cell],
    name: str,
    center: int,
) -> None:
    predicate = parse("sex <> 'F' AND age < 24", ATTRIBUTES)
    without, having, replaced = (
        PrivateTable.load(source(), columns([*table, *more])).total(name, predicate, center)
        for more in ([], [person], [other])
    )
    assert abs(having - without) <= sum_sensitivity(ATTRIBUTES[name], "add-remove", center)
    assert abs(having - replaced) <= sum_sensitivity(ATTRIBUTES[name], "replace", center)


@unhurried
@given(
    table=st.lists(rows, max_size=6),
    person=rows,
    other=rows,
    said=predicates.filter(lambda said: said.text.count("(") < 14),
    name=SUMMED,
    centered=st.booleans(),
)
def test_sum_sensitivity_of_restricted_domain_bounds_totals(
    table: Rows,
    person: Mapping[str, Cell],
    other: Mapping[str, Cell],
    said: PredicateCase,
    name: str,
    *,
    centered: bool,
) -> None:
    predicate, domain = parse(said.text, ATTRIBUTES), ATTRIBUTES[name]
    assert isinstance(domain, Integers)
    left = restrict_domain(domain, name, predicate)
    center = (left.minimum + left.maximum) // 2 if centered else 0
    without, having, replaced = (
        PrivateTable.load(source(), columns([*table, *more])).total(name, predicate, center)
        for more in ([], [person], [other])
    )
    assert abs(having - without) <= sum_sensitivity(left, "add-remove", center)
    assert abs(having - replaced) <= sum_sensitivity(left, "replace", center)
    row = read_by_hand(person)
    if row is not None and said.test(row):
        assert left.minimum <= int(row[name]) <= left.maximum


@pytest.mark.parametrize(
    ("where", "least", "most"),
    [
        ("TRUE", -5, 94),
        ("x BETWEEN 20 AND 22", 20, 22),
        ("x < 10 AND asked = 'yes'", -5, 9),
        ("x < 10 OR asked = 'yes'", -5, 94),
        ("NOT (x < 90) OR x = 3", 3, 94),
        ("x > 90 AND (x < 92 OR asked = 'no')", 91, 94),
        ("(x < 3 AND asked = 'yes') OR (x IN (5, 7) AND asked = 'no')", -5, 7),
        ("x > 200", -5, 94),
        ("FALSE", -5, 94),
    ],
)
def test_restrict_domain_keeps_range_left_by_predicate(where: str, least: int, most: int) -> None:
    domain = Integers(minimum=-5, maximum=94, outside="reject")
    attributes: dict[str, Domain] = {"x": domain, "asked": Categories(values=("yes", "no"))}
    left = restrict_domain(domain, "x", parse(where, attributes))
    assert (left.minimum, left.maximum, left.outside) == (least, most, "reject")
