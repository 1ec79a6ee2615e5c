"""Groups by attributes, and cells."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Bins, Categories, Domain, Integers
from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import CellReader, cell_mask
from stream.tables.expressions import FALSE, TRUE, attributes_of
from stream.tables.predicates import parse
from stream.tables.table_errors import PredicateError, TableDataError
from tests.unit.tables.small import (
    ATTRIBUTES,
    Cell,
    PredicateCase,
    code_by_hand,
    columns,
    predicates,
    read_by_hand,
    rows,
    source,
    unhurried,
)

Rows = list[Mapping[str, Cell]]
tables = st.lists(rows, max_size=60)
some_names = st.lists(st.sampled_from(sorted(ATTRIBUTES)), min_size=1, unique=True)
moderate = predicates.filter(lambda said: said.text.count("(") < 14)

ANY = PredicateCase("TRUE", lambda _: True)


def load(table: Rows) -> PrivateTable:
    return PrivateTable.load(source(), columns(table))


def counted_by_hand(table: Rows, names: list[str], said: PredicateCase = ANY) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(code_by_hand(ATTRIBUTES[name], row[name]) for name in names)
        for row in map(read_by_hand, table)
        if row is not None and said.test(row)
    )


@unhurried
@given(table=tables, names=some_names, said=moderate)
def test_group_counts_equal_row_by_row_count(table: Rows, names: list[str], said: PredicateCase) -> None:
    expected = np.zeros([ATTRIBUTES[name].size for name in names], dtype=np.int64)
    for cell, count in counted_by_hand(table, names, said).items():
        expected[cell] = count
    grouped = load(table).group_counts(names, parse(said.text, ATTRIBUTES))
    assert grouped.dtype == np.int64
    assert grouped.flags.c_contiguous
    assert np.array_equal(grouped, expected)


@unhurried
@given(table=tables, said=moderate)
def test_predicate_over_grouped_attributes_selects_cells(table: Rows, said: PredicateCase) -> None:
    loaded, predicate = load(table), parse(said.text, ATTRIBUTES)
    names = sorted(attributes_of(predicate)) or ["sex"]
    inside = cell_mask(predicate, {name: ATTRIBUTES[name].size for name in names})
    everyone = loaded.group_counts(names, TRUE)
    assert np.array_equal(loaded.group_counts(names, predicate), everyone * inside)
    assert everyone[inside].sum() == loaded.count(predicate)


def test_group_counts_are_cached_by_order_and_predicate_and_read_only() -> None:
    attributes: dict[str, Domain] = {"x": Integers(minimum=0, maximum=1), "y": Integers(minimum=0, maximum=2)}
    table = PrivateTable.load(source(attributes), {"x": [0, 1, 1], "y": [2, 0, 0]})
    for _ in range(2):
        assert table.group_counts(["x", "y"], TRUE).tolist() == [[0, 0, 1], [2, 0, 0]]
        assert table.group_counts(["y", "x"], TRUE).tolist() == [[0, 2], [0, 0], [1, 0]]
        assert table.group_counts(["x", "y"], parse("x = 0", attributes)).tolist() == [[0, 0, 1], [0, 0, 0]]
        assert table.group_counts(["x", "y"], FALSE).tolist() == [[0, 0, 0], [0, 0, 0]]
    with pytest.raises(ValueError, match="read-only"):
        table.group_counts(["x", "y"], TRUE)[0, 0] = 1


def test_group_counts_limit_of_cells_is_exact() -> None:
    attributes: dict[str, Domain] = {"x": Integers(minimum=0, maximum=9), "y": Integers(minimum=0, maximum=2)}
    table = PrivateTable.load(source(attributes), {"x": [4], "y": [1]})
    assert table.group_counts(["x", "y"], TRUE, max_cells=30).sum() == 1
    with pytest.raises(
        TableDataError, match="at most 29 cells of 64 attributes are allowed; group by fewer or smaller ones"
    ):
        table.group_counts(["x", "y"], TRUE, max_cells=29)


def test_group_counts_refuse_more_axes_than_arrays_have() -> None:
    attributes: dict[str, Domain] = {f"x{place}": Integers(minimum=0, maximum=0) for place in range(65)}
    table = PrivateTable.load(source(attributes), {name: [0, 0] for name in attributes})
    assert table.group_counts(list(attributes)[:64], TRUE).sum() == 2
    with pytest.raises(
        TableDataError,
        match=r"of 65 attributes, and at most .* cells of 64 attributes are allowed; group by fewer",
    ):
        table.group_counts(list(attributes), TRUE)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "name at least one"),
        (["age", "sexes"], "name 2 is no attribute of the table"),
        (["age", "sex", "age"], "'age' is named twice"),
    ],
)
def test_group_counts_refuse_invalid_attributes(names: list[str], message: str) -> None:
    table = load([])
    with pytest.raises(TableDataError, match=message):
        table.group_counts(names, TRUE)
    with pytest.raises(TableDataError, match=message):
        table.cell_counts(names, [])


@unhurried
@given(table=tables, names=some_names, data=st.data())
def test_cell_counts_equal_row_by_row_count(table: Rows, names: list[str], data: st.DataObject) -> None:
    expected = counted_by_hand(table, names)
    anywhere = st.tuples(*(st.integers(0, ATTRIBUTES[name].size - 1) for name in names))
    asked = [*expected, *data.draw(st.lists(anywhere, max_size=20))]
    loaded = load(table)
    assert loaded.cell_counts(names, asked).tolist() == [expected[cell] for cell in asked]
    assert loaded.cell_counts(names, asked[::-1]).tolist() == [expected[cell] for cell in asked[::-1]]


def test_cell_counts_distinguish_wide_codes() -> None:
    attributes: dict[str, Domain] = {
        "x": Integers(minimum=0, maximum=999),
        "y": Integers(minimum=0, maximum=99_999),
    }
    people = [(0, 0), (0, 256), (0, 65_535), (0, 65_536), (255, 1), (256, 0), (257, 99_999), (513, 0)]
    columns = dict(zip(attributes, zip(*reversed(people), strict=True), strict=True))
    table = PrivateTable.load(source(attributes), columns)
    assert table.cell_counts(["x", "y"], [*people, (0, 1), (1, 0), (256, 1)]).tolist() == [1] * 8 + [0] * 3


HUGE: dict[str, Domain] = {
    **{f"bit {place}": Integers(minimum=0, maximum=1) for place in range(70)},
    **{f"number {place}": Integers(minimum=0, maximum=(1 << 20) - 1) for place in range(5)},
    **{f"short {place}": Integers(minimum=0, maximum=999) for place in range(5)},
}
# Keys of rows consist of the codes' bytes, so codes at the ends of bytes are tested; the other attributes have code 0.
CORNERS = st.dictionaries(
    st.sampled_from(list(HUGE)), st.sampled_from([1, 255, 256, 65_535, 65_536, (1 << 20) - 1]), max_size=4
).map(lambda some: tuple(min(some.get(name, 0), domain.size - 1) for name, domain in HUGE.items()))


@unhurried
@given(people=st.lists(CORNERS, min_size=1, max_size=6), place=st.integers(0, len(HUGE) - 1))
def test_cell_counts_distinguish_cells_of_huge_product(people: list[tuple[int, ...]], place: int) -> None:
    assert math.prod(domain.size for domain in HUGE.values()) > 1 << 200
    changed = [(*person[:place], person[place] ^ 1, *person[place + 1 :]) for person in people]
    everyone = [*people, *people, *changed[1:]]
    table = PrivateTable.load(source(HUGE), dict(zip(HUGE, zip(*everyone, strict=True), strict=True)))
    expected = Counter(everyone)
    asked = [*people, *changed]
    assert table.cell_counts(list(HUGE), asked).tolist() == [expected[cell] for cell in asked]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ((1,), "1 codes for 2 attributes"),
        ((1, 1, 1), "3 codes for 2 attributes"),
        ((10, 0), "code of 'age' is not from 0 to 9"),
        ((0, 3), "code of 'sex' is not from 0 to 2"),
        ((-1, 0), "code of 'age'"),
    ],
)
def test_cell_counts_refuse_codes_outside_domain(cell: tuple[int, ...], message: str) -> None:
    with pytest.raises(TableDataError, match=message):
        load([]).cell_counts(["age", "sex"], [(9, 2), cell])


def test_cell_counts_of_no_cells_are_empty() -> None:
    assert load([]).cell_counts(["age", "sex"], []).tolist() == []


@unhurried
@given(person=rows, names=some_names)
def test_cell_codes_of_row_values_are_codes_of_row(person: Mapping[str, Cell], names: list[str]) -> None:
    values = read_by_hand(person)
    private = load([person]).private_codes
    if values is None:
        assert len(private["age"]) == 0
        return
    named = {name: values[name] for name in reversed(names)}
    codes = CellReader({name: ATTRIBUTES[name] for name in names}).read(named)
    assert codes == tuple(int(private[name][0]) for name in names)


READ: dict[str, Domain] = {
    "number": Integers(minimum=-3, maximum=3),
    "category": Categories(values=("a", "1", ""), other="a"),
    "bin": Bins(edges=(-1.5, 0.0, 10.0)),
}
FITTING: dict[str, str | float] = {"number": 0, "category": "", "bin": 0}


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        *(("number", -3, 0), ("number", 3.0, 6), ("number", -0.0, 3)),
        *(("category", "a", 0), ("category", "1", 1), ("category", "", 2)),
        *(("bin", -1.5, 0), ("bin", -1e-300, 0), ("bin", 0, 1), ("bin", 10, 1), ("bin", 10.0, 1)),
    ],
)
def test_cell_reader_reads_value_in_domain(name: str, value: str | float, code: int) -> None:
    read = dict(zip(READ, CellReader(READ).read({**FITTING, name: value}), strict=True))
    assert read == {"number": 3, "category": 2, "bin": 1, name: code}


@pytest.mark.parametrize("domain_outside", ["clamp", "reject"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("number", value) for value in (4, -4, 0.5, "1", True, math.nan, math.inf, -math.inf, 10**4000)),
        *(("category", value) for value in ("b", "A", " a", 1, 1.0, True)),
        *(("bin", value) for value in (-1.6, 10.001, "1", False, math.nan, math.inf, -math.inf, 10**4000)),
    ],
)
def test_cell_codes_refuse_value_outside_domain_by_name(
    name: str, value: str | float, domain_outside: str
) -> None:
    attributes = {
        key: domain if domain.kind == "categories" else domain.model_copy(update={"outside": domain_outside})
        for key, domain in READ.items()
    }
    with pytest.raises(PredicateError, match=f"'{name}'"):
        CellReader(attributes).read({**FITTING, name: value})


def test_cell_codes_need_exactly_one_value_per_attribute() -> None:
    with pytest.raises(PredicateError, match="no value for 'bin'; give it one"):
        CellReader(READ).read({"number": 0, "category": "a"})
    with pytest.raises(
        PredicateError, match="name 4 is no attribute of these cells, which have 'number', 'category', 'bin'"
    ):
        CellReader(READ).read({**FITTING, "age": 1})


def test_cell_mask_refuses_predicate_outside_axes() -> None:
    with pytest.raises(
        PredicateError, match="attribute 'sex' is not one of the stream's attributes, which are 'age'"
    ):
        cell_mask(parse("age = 20 OR sex = 'F'", ATTRIBUTES), {"age": 10})
    with pytest.raises(PredicateError, match="declares 'age' with other values"):
        cell_mask(parse("age = 20", ATTRIBUTES), {"age": 11})
