"""Tables in an engine give the same numbers as in memory, to the last digit, for hostile tables."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import TableSource
from stream.tables import code_database, stored_table
from stream.tables import people as people_module
from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import CountedTable
from stream.tables.engine_limits import (
    CancelledStepError,
    EngineLimits,
    EngineStatementError,
    StatementRunner,
    current_cancellation,
)
from stream.tables.expressions import FALSE, TRUE, Codes, Predicate, conjunction, disjunction, make_leaf, negation
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits, build_table, read_rows
from stream.tables.rows import StoredRows
from stream.tables.store import TableStore, fingerprint
from stream.tables.stored_table import StoredTable
from stream.tables.table_errors import TableDataError, UnreadableError
from tests.unit.tables.readers.guarded import cause
from tests.unit.tables.small import KEY

ATTRIBUTES: dict[str, Any] = {
    "whole": {"kind": "integers", "minimum": -3, "maximum": 9, "outside": "reject"},
    "money": {"kind": "decimal", "minimum": -1, "maximum": 5, "step": 0.01},
    "bin": {"kind": "bins", "edges": [-1.0, 0.0, 0.5, 10.0], "outside": "clamp"},
    "letter": {"kind": "categories", "values": ["a", "ä", "A", "?"], "other": "?"},
    "day": {"kind": "date", "minimum": "2024-01-01", "maximum": "2024-12-31", "outside": "clamp"},
    "hour": {"kind": "timestamp", "granularity": "hour-of-day", "zone": "Europe/Berlin"},
    "note": {"kind": "text", "max_length": 4},
}
COLUMNS: dict[str, list[Any]] = {
    "whole": [None, -4, -3, 0, 9, 10, 2**53 + 1, -(2**63), 2**63 - 1],
    "money": [None, float("nan"), -0.0, 0.005, -1.0, 4.995, 1e300, float("inf"), -float("inf"), 2.675],
    "bin": [None, float("nan"), -0.0, 0.0, 0.49999999999999994, 0.5, 10.0, -1.5, float(2**53 + 1)],
    "letter": [None, "", "a", "ä", "a\u0308", "A", " a", "?", "'; DROP TABLE table0; --", "\0"],
    "day": [None, date(2024, 1, 1), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31)],
    "hour": [
        None,
        datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
        datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        datetime(2024, 10, 27, 1, 30, tzinfo=UTC),
        datetime(2024, 7, 1, 12, tzinfo=UTC) + timedelta(microseconds=1),
    ],
    "note": [None, "", "x", "ä", "a\u0308", "toolong", "xy\n", "\0"],
    "who": [None, "", " ", "ann", "Ann", " ann ", "1", "1.0", "01", "bob"],
}
TYPES = {"whole": pl.Int64, "money": pl.Float64, "bin": pl.Float64, "day": pl.Date}
"""Types of columns; all other columns are texts, except ``hour``, which is an instant."""

cells = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in COLUMNS.items()})
tables = st.lists(cells, max_size=30)


def frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    kinds = {name: TYPES.get(name, pl.String) for name in COLUMNS} | {"hour": pl.Datetime("us", "UTC")}
    return pl.DataFrame({name: [row[name] for row in rows] for name in COLUMNS}, schema=kinds)


def source(engine: str = "duckdb", path: str = "-", **fields: Any) -> TableSource:
    fields = {"neighbors": "add-remove", "epsilon": 4, "attributes": ATTRIBUTES, **fields}
    return TableSource.model_validate(
        {"source": "hostile", "kind": "table", "path": path, "engine": engine, **fields}
    )


def predicates(declared: TableSource) -> st.SearchStrategy[Predicate]:
    sizes = {name: domain.size for name, domain in declared.attributes.items()}

    def leaves(name: str) -> st.SearchStrategy[Predicate]:
        ends = st.lists(st.integers(0, sizes[name]), min_size=2, max_size=6)
        return ends.map(lambda cuts: make_leaf(name, sizes[name], cuts if len(cuts) % 2 == 0 else cuts[1:]))

    leaf = st.one_of(st.sampled_from([TRUE, FALSE]), st.sampled_from(sorted(sizes)).flatmap(leaves))
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            inner.map(negation),
            st.lists(inner, min_size=1, max_size=4).map(conjunction),
            st.lists(inner, min_size=1, max_size=4).map(disjunction),
        ),
        max_leaves=6,
    )


PREDICATES = predicates(source())
GROUPS = [["letter"], ["whole", "bin"], ["hour", "letter", "bin"], ["day"]]


def load_both(rows: pl.DataFrame, **fields: Any) -> tuple[CountedTable, CountedTable]:
    made = []
    for engine in ("memory", "duckdb"):
        declared = source(engine, **fields)
        made.append(build_table(read_rows(declared, rows), declared, KEY))
    return made[0], made[1]


def numbers(table: CountedTable, asked: Sequence[Predicate]) -> list[object]:
    """Return all numbers that a worker reads from a table, for some predicates."""
    found: list[object] = [table.private_row_count, table.public_size]
    sums = [(name, one) for one in asked for name in ("whole", "money")]
    table.count_together(asked, sums)
    found += [table.count(one) for one in asked]
    found += [table.total(*one) for one in sums]
    found += [table.total("money", asked[0], center=7)]
    for one in asked[:2]:
        found += [table.people_count(one, least) for least in (1, 2)]
        found += [table.person_total("whole", one, bound) for bound in (1, 5, 10**9)]
        for names in GROUPS:
            found += [
                table.group_counts(names, one).tolist(),
                table.group_counts(names, one, people=True).tolist(),
            ]
        for declared in ([], ["letter"], ["letter", "whole"]):
            for people in (False, True):
                groups = table.text_groups("note", one, declared, people=people)
                found.append(sorted(zip(groups.private_names(), groups.private_counts.tolist(), strict=True)))
    found.append(table.cell_counts(["letter", "bin"], [(0, 0), (1, 2), (3, 1), (0, 0)]).tolist())
    blocks = table.private_code_blocks(["whole", "letter"])
    found.append(sorted(row for block in blocks for row in zip(*(one.tolist() for one in block), strict=True)))
    return found


@settings(max_examples=12, deadline=None)
@given(tables, st.lists(PREDICATES, min_size=1, max_size=4), st.sampled_from([None, 1, 2]))
def test_stored_table_gives_the_numbers_of_memory(
    rows: list[dict[str, Any]], asked: list[Predicate], contribution: int | None
) -> None:
    """Each number is equal, for nulls, NaN, -0.0, 2^53 + 1, forms of Unicode, zones and several rows per person."""
    fields = {} if contribution is None else {"person": "who", "contribution": contribution}
    memory, stored = load_both(frame(rows), **fields)
    assert isinstance(memory, PrivateTable)
    assert isinstance(stored, StoredTable)
    assert numbers(stored, asked) == numbers(memory, asked)


def table_of_many_rows(rows: int = 400) -> pl.DataFrame:
    """A table in which each value occurs, and some people have many rows."""
    return frame(
        [
            {
                name: values[(row * (place + 3) + row // 7) % len(values)]
                for place, (name, values) in enumerate(COLUMNS.items())
            }
            for row in range(rows)
        ]
    )


def test_stored_table_chooses_same_rows_in_ranges_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are inserted and chosen in several parts, and the same ones count."""
    monkeypatch.setattr(people_module, "_MAX_ROWS_AT_ONCE", 50)
    monkeypatch.setattr(stored_table, "_INSERTED_ROWS", 7)
    memory, stored = load_both(table_of_many_rows(), person="who", contribution=3)
    asked = [TRUE, make_leaf("whole", 13, (2, 9))]
    assert numbers(stored, asked) == numbers(memory, asked)


def record_statements(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets the expressions of all later statements."""
    made: list[Any] = []
    run = code_database.CodeDatabase.run

    def recording(database: code_database.CodeDatabase, expression: Any) -> Any:
        made.append(expression)
        return run(database, expression)

    monkeypatch.setattr(code_database.CodeDatabase, "run", recording)
    return made


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_count_together_is_exact_with_and_without_cubes(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A batch reads counts from one grouping, or from one statement of many sums; both are exact."""
    monkeypatch.setattr(stored_table, "_CUBE_CELLS", most)
    memory, stored = load_both(table_of_many_rows())
    asked = [make_leaf("whole", 13, (low, low + 3)) for low in range(10)]
    asked += [conjunction([one, make_leaf("letter", 4, (0, 2))]) for one in asked]
    statements = record_statements(monkeypatch)
    stored.count_together(asked, [("money", TRUE), ("whole", asked[0])])
    assert len(statements) <= 2
    assert stored.counts(asked).tolist() == memory.counts(asked).tolist()
    assert stored.total("money", TRUE) == memory.total("money", TRUE)
    assert len(statements) <= 2


def test_long_predicate_does_not_nest_too_deeply() -> None:
    """Hundreds of ranges and parts become a balanced expression."""
    memory, stored = load_both(table_of_many_rows())
    days = make_leaf("day", 366, range(366))
    parts = disjunction(
        conjunction([make_leaf("day", 366, (n, n + 2)), make_leaf("whole", 13, (n % 12, 13))]) for n in range(300)
    )
    for one in (days, parts):
        assert stored.count(one) == memory.count(one)


def test_long_predicates_are_split_into_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement has a limited number of ranges, unless one predicate has more; the numbers are equal."""
    monkeypatch.setattr(stored_table, "_RANGES_AT_ONCE", 20)
    memory, stored = load_both(table_of_many_rows())
    pair = [
        conjunction([make_leaf("day", 366, (n, n + 2)), make_leaf("whole", 13, (n % 12, 13))]) for n in range(30)
    ]
    asked = [disjunction(pair[n : n + 4]) for n in range(10)] + [disjunction(pair)] + pair
    statements = record_statements(monkeypatch)
    monkeypatch.setattr(stored_table, "_CUBE_CELLS", 1)
    stored.count_together(asked, [("money", asked[0])])
    assert [len(one.columns) for one in statements] == [2] * 5 + [1] + [10] * 3 + [1]
    assert stored.counts(asked).tolist() == memory.counts(asked).tolist()
    assert stored.total("money", asked[0]) == memory.total("money", asked[0])


def test_stored_table_refuses_other_predicates_as_memory_does() -> None:
    """Both tables raise the same errors."""
    memory, stored = load_both(table_of_many_rows(20))
    cases: list[Callable[[CountedTable], object]] = [
        lambda table: table.count(Codes("whole", 5, (1, 2))),
        lambda table: table.count(Codes("nobody", 5, (1, 2))),
        lambda table: table.total("letter", TRUE),
        lambda table: table.total("nobody", TRUE),
        lambda table: table.group_counts(["note"], TRUE),
        lambda table: table.group_counts(["whole", "whole"], TRUE),
        lambda table: table.group_counts(["day"], TRUE, max_cells=10),
        lambda table: table.cell_counts(["whole"], [(13,)]),
        lambda table: table.text_groups("whole", TRUE),
        lambda table: table.person_total("day", TRUE, 1),
    ]
    for fails in cases:
        messages = set()
        for table in (memory, stored):
            with pytest.raises(TableDataError) as refused:
                fails(table)
            messages.add(str(refused.value))
        assert len(messages) == 1


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_guarded_reader_fills_the_database(tmp_path: Path, suffix: str) -> None:
    """Files, folders with an empty file and empty partitions give the numbers of memory."""
    folder = tmp_path / "visits"
    for year, part in (
        ("2023", table_of_many_rows(100)),
        ("2024", table_of_many_rows(0)),
        ("__HIVE_DEFAULT_PARTITION__", table_of_many_rows(3)),
    ):
        target = folder / f"year={year}" / f"part.{suffix}"
        target.parent.mkdir(parents=True)
        part.write_csv(target) if suffix == "csv" else part.write_parquet(target)
    limits = ReadingLimits((tmp_path,), 8 << 20, 1 << 30, 60.0, engine=EngineLimits(str(tmp_path / "codes")))
    reader = GuardedReader(limits)
    found = []
    for engine in ("memory", "duckdb"):
        declared = source(engine, f"{folder}/", person="who", contribution=2)
        store = TableStore(KEY, read=reader.read, stamp=reader.stamp)
        found.append(numbers(store.get(declared, store.fingerprint(declared)), [TRUE]))
    assert found[0] == found[1]


def test_disk_limit_bounds_the_rows_of_an_engine(tmp_path: Path) -> None:
    """A table with more codes than the disk limit is unreadable; files may be larger than the memory limit."""
    table_of_many_rows(4000).write_parquet(tmp_path / "t.parquet")
    declared = source(path=str(tmp_path / "t.parquet"))
    limits = ReadingLimits((tmp_path,), 1 << 20, 1 << 30, 60.0, engine=EngineLimits(disk_bytes=4 << 20))
    assert GuardedReader(limits).read(declared).private_row_count > 0
    small = ReadingLimits((tmp_path,), 1 << 20, 1 << 30, 60.0, engine=EngineLimits(disk_bytes=1000))
    with pytest.raises(UnreadableError) as refused:
        GuardedReader(small).read(declared)
    assert refused.value.cause == "larger than SOTTO_ENGINE_DISK_BYTES"


def test_stored_table_fingerprint_ignores_only_row_order() -> None:
    """Any changed cell, person or version changes the fingerprint; the order of rows does not."""
    declared = source(person="who", contribution=2)

    def fingerprint_of(rows: pl.DataFrame, version: int = 1, key: bytes = KEY) -> str:
        return fingerprint(build_table(read_rows(declared, rows), declared, key), declared, key, version)

    usual = {
        "whole": 0,
        "money": 1.0,
        "bin": 0.5,
        "letter": "a",
        "day": date(2024, 1, 1),
        "note": "x",
        "who": "dee",
    }
    rows = pl.concat([table_of_many_rows(60), frame([{**usual, "hour": COLUMNS["hour"][1]}])])
    first = fingerprint_of(rows)
    assert fingerprint_of(rows.sample(fraction=1.0, shuffle=True, seed=1)) == first
    others = [fingerprint_of(rows, 2), fingerprint_of(rows, key=bytes(32)), fingerprint_of(rows[:-1])]
    for name, value in {"whole": 1, "letter": "A", "note": "z", "who": "cid"}.items():
        others.append(
            fingerprint_of(
                pl.concat([rows[:-1], rows[-1:].with_columns(pl.lit(value, rows[name].dtype).alias(name))])
            )
        )
    assert len({first, *others}) == 1 + len(others)


def test_stored_table_chooses_rows_of_older_key() -> None:
    """A stream under an older noise key counts the rows that this key chose."""
    declared, memory = source(person="who", contribution=1), source("memory", person="who", contribution=1)
    old, new = (TableStore(key, overrides={"hostile": table_of_many_rows()}) for key in (KEY, bytes(32)))
    registered = old.fingerprint(declared)
    both_keys = TableStore(bytes(32), KEY, overrides={"hostile": table_of_many_rows()})
    table = both_keys.get(declared, registered)
    expected = TableStore(KEY, overrides={"hostile": table_of_many_rows()}).get(memory)
    assert numbers(table, [TRUE]) == numbers(expected, [TRUE])
    assert numbers(new.get(declared), [TRUE]) != numbers(table, [TRUE])


def test_database_is_removed_with_its_table(tmp_path: Path) -> None:
    """No file with codes stays when the table is freed, nor one that an ended process has left."""
    abandoned = tmp_path / f"{code_database._FOLDER_PREFIX}old"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    declared = source()
    rows = read_rows(declared, table_of_many_rows(20), EngineLimits(str(tmp_path)))
    assert not abandoned.exists()
    assert list(tmp_path.rglob("*.duckdb"))
    del rows
    assert not list(tmp_path.rglob("*.duckdb"))


def _endless(table: CountedTable) -> None:
    """Run a statement that no machine finishes in the time of a test."""
    assert isinstance(table, StoredTable)
    rows = table.rows()
    expression = rows.table.expression
    joined = expression
    for _ in range(6):
        joined = joined.cross_join(expression.view())
        joined = joined.select(joined[joined.columns[0]].name("c0"))
    rows.database.run(joined.aggregate(n=joined.c0.cast("int64").sum()))


def test_long_statement_is_interrupted_and_names_the_setting() -> None:
    """A statement over its time fails without the engine's text, and the next one works."""
    declared = source()
    rows = read_rows(declared, table_of_many_rows(), EngineLimits(seconds=0.2))
    table = build_table(rows, declared, KEY)
    with pytest.raises(EngineStatementError, match="longer than SOTTO_ENGINE_SECONDS"):
        _endless(table)
    assert table.count(TRUE) == table.private_row_count


def test_statement_limit_doubles_with_each_retry() -> None:
    """A question that takes longer than the limit is answered after some attempts; others keep their limit."""
    interrupted = threading.Event()
    runner = StatementRunner(EngineLimits(seconds=0.01), interrupted.set)

    def fail_when_interrupted() -> None:
        interrupted.clear()
        interrupted.wait()
        raise ValueError

    for _ in range(3):
        with pytest.raises(EngineStatementError, match="SOTTO_ENGINE_SECONDS"), runner.limit_statement("long"):
            fail_when_interrupted()
    assert (runner._extended_seconds.get("long"), runner._extended_seconds.get("other")) == (0.08, None)
    with runner.limit_statement("long"):
        pass
    assert runner._extended_seconds.get("long") is None


def test_statement_of_a_given_up_partition_is_cancelled() -> None:
    """Cancelling a partition interrupts its statement and refuses others until it is taken again."""
    declared, cancelled = source(), threading.Event()
    table = build_table(read_rows(declared, table_of_many_rows()), declared, KEY)
    token = current_cancellation.set(cancelled)
    try:
        threading.Timer(0.2, cancelled.set).start()
        with pytest.raises(CancelledStepError):
            _endless(table)
        with pytest.raises(CancelledStepError):
            table.count(TRUE)
        cancelled.clear()
        assert table.count(TRUE) == table.private_row_count
    finally:
        current_cancellation.reset(token)


def test_failed_statement_has_no_text_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the kind of failure only, since an engine's text may quote a cell."""
    declared = source()
    table = build_table(read_rows(declared, table_of_many_rows(20)), declared, KEY)
    assert isinstance(table, StoredTable)

    def fail(_: object) -> None:
        raise ValueError("Conversion Error: 'Alice'")

    monkeypatch.setattr(table.rows().database, "_make_relation", fail)
    with pytest.raises(EngineStatementError) as failed:
        table.count(TRUE)
    assert str(failed.value) == "the engine failed: ValueError"
    assert failed.value.__cause__ is None


def test_statement_takes_its_slot_after_its_sql_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the SQL text, which nothing interrupts, holds no slot for which other tables wait."""
    limits = EngineLimits(statements=1)
    table = build_table(read_rows(source(), table_of_many_rows(20), limits), source(), KEY)
    make_sql, free = code_database._make_sql, []

    def probe(expression: Any) -> str:
        free.append(limits.slots.acquire(blocking=False))
        limits.slots.release()
        return make_sql(expression)

    monkeypatch.setattr(code_database, "_make_sql", probe)
    assert table.count(TRUE) == table.private_row_count
    assert free == [True]


def test_statements_that_wait_for_their_table_hold_no_slots() -> None:
    """Even if many questions wait for a slow table, the other slots are free for other tables."""
    limits = EngineLimits(statements=2)
    slow = StatementRunner(limits, lambda: None)
    waits, released = threading.Event(), threading.Event()

    class NoticedLock:
        def acquire(self, timeout: float) -> bool:
            waits.set()
            return released.wait(timeout)

        def release(self) -> None:
            pass

    def wait_for_table() -> None:
        with slow.limit_statement("a statement"):
            pass

    with slow.limit_statement("a statement"):
        slow._lock = NoticedLock()  # type: ignore[assignment]
        waiting = threading.Thread(target=wait_for_table)
        waiting.start()
        waits.wait()
        assert limits.slots.acquire(blocking=False)
        limits.slots.release()
    released.set()
    waiting.join()


def test_missing_engine_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services refuse the source, and their log names the extra."""
    table_of_many_rows(5).write_parquet(tmp_path / "t.parquet")
    for module in ("stream.tables.code_database", "stream.tables.stored_table"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    read = GuardedReader(ReadingLimits((tmp_path,), 1 << 20, 1 << 30, 60.0)).read
    found = cause(lambda: read(source(path=str(tmp_path / "t.parquet"))))
    assert found == "duckdb is not installed; run: pip install 'sotto-dp[duckdb]'"


def test_stored_segments_are_uncompressed() -> None:
    """Plans and times do not depend on whether all rows have one code: DuckDB is faster over constants."""
    attributes = {"x": {"kind": "integers", "minimum": 0, "maximum": 9}, "y": ["a", "b"]}
    declared = source(attributes=attributes)
    rows = read_rows(declared, {"x": [3] * 300_000, "y": ["a"] * 300_000})
    assert isinstance(rows, StoredRows)
    connection = rows.database._connection
    connection.sql("CHECKPOINT")
    stored = connection.sql(
        "SELECT column_name, compression FROM pragma_storage_info('table0') WHERE segment_type <> 'VALIDITY'"
    ).fetchall()
    assert {kind for name, kind in stored if name in {"c0", "c1", "real"}} == {"Uncompressed"}
    assert connection.sql("SELECT min(c0), max(c0), min(c1), max(c1) FROM table0").fetchall() == [(0, 9, 0, 1)]
    assert build_table(rows, declared, KEY).count(TRUE) == 300_000
