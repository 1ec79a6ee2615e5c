"""In tables with several rows per person, the tests check which rows and which people count."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas import Categories, Domain, Integers, TableSource
from stream.privacy.noise.keys import NoiseKey
from stream.tables import people as people_module
from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import CountedTable
from stream.tables.encoding import siphash
from stream.tables.engine_limits import row_bytes
from stream.tables.predicates import parse
from stream.tables.readers import table_parts as parts_module
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.rows import Frame, Rows
from stream.tables.store import TableStore, fingerprint
from stream.tables.table_errors import TableDataError, UnreadableError
from tests.unit.tables import small
from tests.unit.tables.small import KEY, unhurried

OTHER = bytes(range(1, 33))
ATTRIBUTES: dict[str, Domain] = {
    "x": Integers(minimum=0, maximum=9, outside="reject"),
    "y": Categories(values=("a", "b")),
}
Row = tuple[str, int, str]
PEOPLE = st.dictionaries(
    st.sampled_from(["ann", "ben", "cid", "dee"]),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=6),
    min_size=1,
)


def source(
    contribution: int = 2, name: str = "visits", path: str = "-", person: str | None = "who", **fields: Any
) -> TableSource:
    return small.source(ATTRIBUTES, path, name, person=person, contribution=contribution, **fields)


def frame(rows: Sequence[tuple[str | None, int, str]]) -> dict[str, list[object]]:
    return {"who": [row[0] for row in rows], "x": [row[1] for row in rows], "y": [row[2] for row in rows]}


def rows_of(people: dict[str, list[tuple[int, str]]]) -> list[Row]:
    return [(who, *row) for who, own in people.items() for row in own]


def counted_rows(table: CountedTable) -> Counter[tuple[int, ...]]:
    """Return the codes of the rows that count, in any order."""
    blocks = table.private_code_blocks(list(table.attributes))
    return Counter(row for block in blocks for row in zip(*(column.tolist() for column in block), strict=True))


def load_table(
    rows: Sequence[tuple[str | None, int, str]], contribution: int = 2, key: bytes = KEY
) -> PrivateTable:
    return PrivateTable.load(source(contribution), frame(rows), key)


@pytest.mark.parametrize(
    ("length", "published"), [(0, "310e0edd47db6f72"), (8, "6224939a79f5f593"), (16, "db9bc2577fcc2a3f")]
)
def test_siphash_has_published_values(length: int, published: str) -> None:
    def words(data: bytes) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
        return np.frombuffer(data, dtype="<u8").reshape(1, -1).astype(np.uint64)

    found = siphash(words(bytes(range(16))), words(bytes(range(length))))
    assert found.astype("<u8").tobytes().hex() == published


@unhurried
@given(PEOPLE, st.integers(1, 4))
def test_chosen_rows_of_person_are_independent_of_others(
    people: dict[str, list[tuple[int, str]]], contribution: int
) -> None:
    """At most the contribution of each person's rows counts; no person's rows change another's choice."""
    whole = counted_rows(load_table(rows_of(people), contribution))
    parts = [counted_rows(load_table([(who, *row) for row in own], contribution)) for who, own in people.items()]
    assert sum(parts, Counter()) == whole
    for own, chosen in zip(people.values(), parts, strict=True):
        assert chosen.total() == min(contribution, len(own))
        assert chosen <= Counter((x, "ab".index(y)) for x, y in own)


@unhurried
@given(PEOPLE, st.integers(1, 4), st.randoms())
def test_chosen_rows_are_independent_of_row_order(
    people: dict[str, list[tuple[int, str]]], contribution: int, chance: Any
) -> None:
    rows = rows_of(people)
    shuffled = list(rows)
    chance.shuffle(shuffled)
    one, other = load_table(rows, contribution), load_table(shuffled, contribution)
    assert counted_rows(one) == counted_rows(other)
    declared = source(contribution)
    assert fingerprint(one, declared, KEY) == fingerprint(other, declared, KEY)


@unhurried
@given(PEOPLE, st.integers(1, 4), st.sampled_from(["x <= 1", "y = 'a'", "x = 2 AND y = 'b'", "TRUE", "FALSE"]))
def test_people_count_uses_all_rows_of_person(
    people: dict[str, list[tuple[int, str]]], contribution: int, text: str
) -> None:
    tests: dict[str, Callable[[int, str], bool]] = {
        "x <= 1": lambda x, _: x <= 1,
        "y = 'a'": lambda _, y: y == "a",
        "x = 2 AND y = 'b'": lambda x, y: (x, y) == (2, "b"),
        "TRUE": lambda _, __: True,
        "FALSE": lambda _, __: False,
    }
    holds = tests[text]
    table = load_table(rows_of(people), contribution)
    assert table.people_count(parse(text, ATTRIBUTES)) == sum(
        any(holds(*row) for row in own) for own in people.values()
    )


def test_person_with_many_rows_moves_counts_by_contribution() -> None:
    others = [(f"p{number}", number % 10, "ab"[number % 2]) for number in range(50) for _ in range(3)]
    flood = [("flood", number % 10, "a") for number in range(10_000)]
    for contribution in (1, 7):
        without, having = load_table(others, contribution), load_table(others + flood, contribution)
        for text in ("TRUE", "x = 3", "y = 'a'"):
            predicate = parse(text, ATTRIBUTES)
            assert 0 <= having.count(predicate) - without.count(predicate) <= contribution
            assert 0 <= having.people_count(predicate) - without.people_count(predicate) <= 1
        moved = having.group_counts(["x", "y"], parse("TRUE", ATTRIBUTES)) - without.group_counts(
            ["x", "y"], parse("TRUE", ATTRIBUTES)
        )
        assert np.abs(moved).sum() == contribution
        assert having.public_size == without.public_size + 1


def test_chosen_rows_depend_on_key_and_source_and_are_uniform() -> None:
    people = [(f"p{number}", x, "a") for number in range(2000) for x in range(4)]
    found = counted_rows(load_table(people, 1))
    assert found != counted_rows(load_table(people, 1, OTHER))
    assert found != counted_rows(PrivateTable.load(source(1, name="others"), frame(people), KEY))
    # Each of four rows is chosen for about 500 of 2000 people; 8 standard deviations are 155.
    assert found.total() == 2000
    assert all(abs(count - 500) < 155 for count in found.values())


def test_equal_rows_of_person_are_distinct() -> None:
    assert counted_rows(load_table([("ann", 1, "a")] * 5, 3)) == Counter({(1, 0): 3})
    mixed = [counted_rows(load_table([(f"p{n}", 1, "a")] * 9 + [(f"p{n}", 2, "b")], 1)) for n in range(200)]
    # One of ten rows differs, so it is chosen for about a tenth of the people.
    assert 4 <= sum(one[2, 1] for one in mixed) <= 40


@pytest.mark.parametrize("kind", ["memory", "csv", "parquet"])
@pytest.mark.parametrize("nobody", [None, "", "  "])
def test_public_size_counts_rows_without_a_name(nobody: str | None, kind: str, tmp_path: Path) -> None:
    """If neighbors replace a person, a row that loses its name does not change the public number of people."""
    sizes, fingerprints = [], []
    for last in ("dee", nobody):
        cells = pl.DataFrame(frame([("ann", 1, "a"), ("ben", 2, "b"), ("ben", 3, "b"), (last, 1, "a")]))
        declared = source(1, neighbors="replace")
        rows = Rows.load(declared, cells)
        if kind != "memory":
            path = tmp_path / f"visits.{kind}"
            cells.write_csv(path) if kind == "csv" else cells.write_parquet(path)
            declared = source(1, neighbors="replace", path=str(path))
            rows = GuardedReader(ReadingLimits((tmp_path,), 1 << 20, 1 << 30, 60.0))(declared)
        table = PrivateTable.from_rows(rows, declared, KEY)
        assert table.private_row_count == (3 if last == "dee" else 2)
        sizes.append(table.public_size)
        sizes.append(PrivateTable.from_rows(table.rows(), declared, OTHER).public_size)
        fingerprints.append(fingerprint(table, declared, KEY))
    assert sizes == [3] * 4
    assert len(set(fingerprints)) == 2


@pytest.mark.parametrize("nobody", [None, "", "  "])
def test_rows_without_name_are_left_out(nobody: str | None) -> None:
    table = load_table([("ann", 1, "a"), (nobody, 2, "a"), (nobody, 3, "a")])
    assert counted_rows(table) == Counter({(1, 0): 1})
    assert (table.public_size, table.people_count(parse("TRUE", ATTRIBUTES))) == (3, 1)


def test_rows_outside_domain_use_no_contribution() -> None:
    table = load_table([("ann", 77, "a")] * 50 + [("ann", 1, "a"), ("ben", 77, "b")], 1)
    assert counted_rows(table) == Counter({(1, 0): 1})
    assert table.public_size == 2, "neighbors replace whoever the file names"


def test_numeric_names_equal_their_text() -> None:
    def table(names: Sequence[object]) -> PrivateTable:
        cells = {"who": pl.Series(names), "x": pl.Series([1, 2, 3, 4]), "y": pl.Series(["a"] * 4)}
        return PrivateTable.load(source(1), pl.DataFrame(cells), KEY)

    tables = [table([1, 1, 2, None]), table([1.0, 1.0, 2.0, float("nan")]), table(["1", "1", "2", None])]
    assert len({fingerprint(one, source(1), KEY) for one in tables}) == 1
    assert tables[0].public_size == 3


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_person_has_one_name_in_every_form_of_a_number(tmp_path: Path, kind: str) -> None:
    """Spaces around a name and ``.0`` after a whole number make no other person; leading zeros and other text do."""
    names = ["1", "1.0", " 1", "1 ", "1.00", "-2.0", "-2", "01", "1.5", "ann", "ann ", "ann.0", "1.0.0", " "]
    cells = pl.DataFrame({"who": names, "x": [1] * len(names), "y": ["a"] * len(names)})
    path = tmp_path / f"visits.{kind}"
    cells.write_csv(path) if kind == "csv" else cells.write_parquet(path)
    table = PrivateTable.load(source(1, path=str(path)), key=KEY)
    assert table.public_size == 8
    assert counted_rows(table) == Counter({(1, 0): 7})
    floats = PrivateTable.load(source(1), cells.with_columns(who=pl.Series([1.0] * 13 + [None])), KEY)
    assert floats.public_size == 2


def test_fingerprint_covers_people_and_contribution() -> None:
    rows = [("ann", 1, "a"), ("ann", 2, "a"), ("ben", 1, "a")]
    moved = [("ann", 1, "a"), ("ben", 2, "a"), ("ben", 1, "a")]
    plain = small.source(ATTRIBUTES, "-", "visits")
    found = {
        fingerprint(load_table(rows), source(), KEY),
        fingerprint(load_table(moved), source(), KEY),
        fingerprint(load_table(rows, 1), source(1), KEY),
        fingerprint(load_table([("cid" if who == "ben" else who, x, y) for who, x, y in rows]), source(), KEY),
        fingerprint(PrivateTable.load(plain, frame(rows)), plain, KEY),
    }
    assert len(found) == 5
    with pytest.raises(TableDataError, match="load it again"):
        fingerprint(load_table(rows), source(1), KEY)


def test_table_under_older_key_has_rows_chosen_by_older_key() -> None:
    older, newer = NoiseKey(KEY), NoiseKey(OTHER, (NoiseKey(KEY),))
    people = frame([(f"p{number}", x, "a") for number in range(100) for x in range(4)])
    stores = [TableStore.keyed_by(key) for key in (older, newer, NoiseKey(OTHER))]
    for store in stores:
        store.put("visits", people)
    first = stores[0].fingerprint(source(1))
    assert stores[1].fingerprint(source(1)) != first
    assert counted_rows(stores[1].get(source(1), first)) == counted_rows(stores[0].get(source(1)))
    assert counted_rows(stores[1].get(source(1))) != counted_rows(stores[0].get(source(1)))
    with pytest.raises(TableDataError, match="differs"):
        stores[2].get(source(1), first)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_guarded_reader_gives_same_people_and_rows(kind: str, tmp_path: Path) -> None:
    rows = [(f"p{number % 7}", number % 12, "ab"[number % 2]) for number in range(300)]
    cells = pl.DataFrame({name: list(map(str, column)) for name, column in frame(rows).items()})
    path = tmp_path / f"visits.{kind}"
    cells.write_csv(path) if kind == "csv" else cells.write_parquet(path)
    declared = source(3, path=str(path))
    limits = ReadingLimits(
        (tmp_path,), table_bytes=300 * (2 * 2 + 32) + 7 * 44, reading_bytes=1 << 30, seconds=60.0
    )
    here, there = Rows.load(declared), GuardedReader(limits)(declared)
    made = [fingerprint(PrivateTable.from_rows(one, declared, KEY), declared, KEY) for one in (here, there)]
    assert made[0] == made[1]
    with pytest.raises(TableDataError, match=r"^person: the table has no column 'pid'"):
        GuardedReader(limits)(source(3, path=str(path), person="pid"))
    with pytest.raises(UnreadableError) as refused:
        GuardedReader(ReadingLimits((tmp_path,), limits.table_bytes - 50 * 36 - 1, 1 << 30, 60.0))(declared)
    assert refused.value.cause == "larger than SOTTO_TABLE_BYTES"


def test_contribution_needs_person_and_its_column() -> None:
    with pytest.raises(ValidationError, match="name it in person"):
        source(2, person=None)
    cells: dict[str, list[object]] = {"x": [1], "y": ["a"]}
    lacking: Frame
    for lacking in (cells, pl.DataFrame(cells)):
        with pytest.raises(
            TableDataError, match=r"^person: the table has no column 'who'; add it, or name the column"
        ):
            PrivateTable.load(source(), lacking)


@unhurried
@given(PEOPLE, st.integers(1, 4), st.integers(1, 7))
def test_chosen_rows_are_independent_of_block_size(
    people: dict[str, list[tuple[int, str]]], contribution: int, rows: int
) -> None:
    whole = load_table(rows_of(people), contribution)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(people_module, "_MAX_ROWS_AT_ONCE", rows)
        parted = load_table(rows_of(people), contribution)
    for name, column in whole.private_codes.items():
        assert parted.private_codes[name].tolist() == column.tolist()
    assert fingerprint(parted, source(contribution), KEY) == fingerprint(whole, source(contribution), KEY)
    text = "x <= 1"
    assert parted.people_count(parse(text, ATTRIBUTES)) == whole.people_count(parse(text, ATTRIBUTES))


def test_equal_rows_of_one_person_stay_within_memory_limit(tmp_path: Path) -> None:
    """The choice among two million equal rows of one person is made in parts, within the memory that the limit allows."""
    path, count = tmp_path / "visits.parquet", 2_000_000
    pl.select(pl.repeat(1, count).alias("who"), pl.repeat(3, count).alias("x"), y=pl.lit("a")).write_parquet(path)
    program = (
        "import json, resource, sys; from schemas import TableSource; from stream.tables import people; from stream.tables.columns_table import PrivateTable; from stream.tables.rows import Rows; "
        "people._GROUP_ROWS = 1 << 17; asked = TableSource.model_validate(json.loads(sys.argv[1])); rows = [Rows.load(asked)]; "
        "most = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10; begun = most(); "
        "table = PrivateTable.from_rows(rows.pop(), asked, bytes(range(32))); print(table.private_row_count, most() - begun)"
    )
    asked = source(3, path=str(path)).model_dump_json()
    done = subprocess.run([sys.executable, "-c", program, asked], check=True, capture_output=True, text=True)
    counted, grown = map(int, done.stdout.split())
    assert counted == 3
    assert grown < count * row_bytes(source(3)) + (32 << 20)


def test_people_are_the_same_across_batches_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(name, number % 4, "ab"[number % 2]) for number in range(40) for name in ("ann", "bén", "7", None)]
    whole = frame(rows)
    monkeypatch.setattr(parts_module, "BATCH_ROWS", 7)
    for part in range(4):
        cells = {name: column[part * 40 : part * 40 + 40] for name, column in whole.items()}
        pl.DataFrame(cells, strict=False).write_parquet(tmp_path / f"{part}.parquet")
    declared = source(2, path=f"{tmp_path}/")
    table = PrivateTable.load(declared, key=KEY)
    assert (table.public_size, table.private_row_count) == (43, 6)
    assert fingerprint(table, declared, KEY) == fingerprint(PrivateTable.load(declared, whole, KEY), declared, KEY)
