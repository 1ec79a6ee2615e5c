from __future__ import annotations

import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from weakref import ref

import polars as pl
import pytest

from schemas import Categories, Domain, Integers, TableSource
from stream.tables import store as store_module
from stream.tables.columns_table import PrivateTable
from stream.tables.rows import Frame, Rows
from stream.tables.store import TableStore, fingerprint
from stream.tables.table_errors import PredicateError, TableDataError, UnreadableError
from tests.unit.tables.small import KEY, source

ATTRIBUTES: dict[str, Domain] = {"x": Integers(minimum=0, maximum=9), "y": Categories(values=("a", "b"))}
COLUMNS: dict[str, Sequence[object]] = {"x": [1, 2, 3], "y": ["a", "b", "a"]}
SOURCE = source(ATTRIBUTES)


def digest(
    attributes: dict[str, Domain] = ATTRIBUTES,
    x: tuple[int, ...] = (1, 2, 3),
    y: tuple[str, ...] = ("a", "b", "a"),
    key: bytes = KEY,
    name: str = "small",
) -> str:
    declared = source(attributes, name=name)
    return fingerprint(PrivateTable.load(declared, {"x": x, "y": y}), declared, key)


def test_fingerprint_of_equal_data_is_equal() -> None:
    """It has 64 hexadecimal digits."""
    assert digest() == digest()
    assert len(bytes.fromhex(digest())) == 32
    reordered = dict(reversed(ATTRIBUTES.items()))
    assert digest(reordered) == digest()


def test_fingerprint_is_stable() -> None:
    assert digest() == "d473e6aae93dda7a16dd53835a1147d1a14ffb4da1590a4d0aa9d74708ce8020"


@pytest.mark.parametrize(
    "other",
    [
        digest(x=(1, 2, 4)),
        digest(y=("a", "b", "b")),
        digest(x=(1, 3, 2)),
        digest(x=(1, 2), y=("a", "b")),
        digest(key=bytes(32)),
        digest(name="other"),
        digest({**ATTRIBUTES, "x": Integers(minimum=0, maximum=10)}),
        digest({**ATTRIBUTES, "x": Integers(minimum=0, maximum=9, outside="reject")}),
        digest({**ATTRIBUTES, "y": Categories(values=("b", "a"))}),
        digest({"x": ATTRIBUTES["x"]}),
    ],
)
def test_fingerprint_changes_with_cell_key_name_and_schema(other: str) -> None:
    assert other != digest()


@pytest.mark.parametrize("path", ["table.csv", "postgresql://db/clinic/public/visits"])
def test_fingerprint_covers_omitted_rows_if_size_is_public(path: str) -> None:
    rule: dict[str, Domain] = {"x": Integers(minimum=0, maximum=9)}
    private = source(rule, path=path)
    public = private.model_copy(update={"neighbors": "replace"})

    def digests(declared: TableSource) -> list[str]:
        files: list[list[int | None]] = [[2, 3], [2, 3, None], [2, 3, None, None]]
        return [fingerprint(PrivateTable.load(declared, {"x": cells}), declared, KEY) for cells in files]

    assert len(set(digests(public))) == 3
    assert digests(private) == [digests(public)[0]] * 3


def test_store_refuses_other_public_number_of_rows(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("x,y\n1,a\n")
    declared = source(ATTRIBUTES, path, neighbors="replace")
    registered = TableStore(KEY).fingerprint(declared)
    path.write_text("x,y\n1,a\n,a\n,a\n")
    with pytest.raises(TableDataError, match="differs"):
        TableStore(KEY).get(declared, registered)


def test_fingerprint_refuses_table_of_other_schema() -> None:
    table = PrivateTable.load(SOURCE, COLUMNS)
    with pytest.raises(TableDataError, match="not encoded for source"):
        fingerprint(table, source({"x": ATTRIBUTES["x"]}), KEY)


def test_store_loads_table_once_for_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def count_loads(source: TableSource, frame: Frame | None = None) -> Rows:
        loads.append(source.source)
        return Rows.load(source, frame)

    monkeypatch.setattr(store_module, "read_rows", count_loads)
    store = TableStore(KEY, overrides={"small": pl.DataFrame(COLUMNS)})
    expected = store.fingerprint(SOURCE)
    with ThreadPoolExecutor(8) as pool:
        tables = list(pool.map(lambda _: store.get(SOURCE.model_copy(), expected), range(100)))
    assert all(table is tables[0] for table in tables)
    assert store.get(SOURCE) is tables[0]
    assert loads == ["small"]


def test_store_refuses_unregistered_data_without_difference() -> None:
    store = TableStore(KEY, overrides={"small": COLUMNS})
    registered = store.fingerprint(SOURCE)
    store.put("small", {**COLUMNS, "x": [1, 2, 4]})
    fresh = TableStore(KEY, overrides={"small": {**COLUMNS, "x": [1, 2, 4]}})
    with pytest.raises(
        TableDataError,
        match=r"^source data differs from what was registered for 'small', or the noise key of that registration",
    ):
        fresh.get(SOURCE, registered)
    assert fresh.get(SOURCE, store.fingerprint(SOURCE)).private_row_count == 3


def test_store_names_removed_key_as_a_cause_of_a_difference() -> None:
    """Equal data is refused after its key was retired, until it is registered with a key that remains."""
    registered = TableStore(KEY, overrides={"small": COLUMNS}).fingerprint(SOURCE)
    assert TableStore(bytes(32), KEY, overrides={"small": COLUMNS}).get(SOURCE, registered).private_row_count == 3
    retired = TableStore(bytes(32), overrides={"small": COLUMNS})
    with pytest.raises(
        TableDataError, match="or the noise key of that registration was removed; restore the data or the key"
    ):
        retired.get(SOURCE, registered)
    assert retired.get(SOURCE, retired.fingerprint(SOURCE)).private_row_count == 3


def test_store_keeps_registered_table_after_file_change(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("x,y\n1,a\n")
    declared = source(ATTRIBUTES, path=str(path))
    store = TableStore(KEY)
    before = store.fingerprint(declared)
    held = store.get(declared, before)
    path.write_text("x,y\n1,a\n2,b\n")
    after = store.fingerprint(declared)
    assert before != after
    assert store.get(declared, before) is held
    assert held.private_row_count == 1
    assert store.get(declared, after).private_row_count == store.get(declared).private_row_count == 2
    with pytest.raises(TableDataError, match="differs"):
        TableStore(KEY).get(declared, before)
    path.write_text("x,y\n1,a\n")
    assert TableStore(KEY).get(declared, before).private_row_count == 1


def test_store_keeps_latest_and_referenced_versions(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    declared, store, held = source(ATTRIBUTES, path=str(path)), TableStore(KEY), []
    versions = []
    for version in range(1, 5):
        path.write_text("x,y\n" + "1,a\n" * version)
        table = store.get(declared, store.fingerprint(declared, version), version)
        versions.append(ref(table))
        if version == 2:
            held.append(table)
        del table
    gc.collect()
    assert [one() is not None for one in versions] == [False, True, False, True]


def test_store_that_keeps_nothing_releases_tables_and_knows_fingerprints(tmp_path: Path) -> None:
    """With ``keeps_tables=False`` no table outlives its fingerprint, and equal data is neither read nor fingerprinted again."""
    path = tmp_path / "table.csv"
    path.write_text("x,y\n1,a\n")
    declared, reads = source(ATTRIBUTES, path=str(path)), []

    def read(asked: TableSource) -> Rows:
        rows = Rows.load(asked)
        reads.append(ref(rows.private_codes["x"]))
        return rows

    store = TableStore(KEY, read=read, keeps_tables=False)
    made = [store.fingerprint(declared, version) for version in (1, 1, 2, 2)]
    assert made == [TableStore(KEY).fingerprint(declared, version) for version in (1, 1, 2, 2)]
    assert len(reads) == 2
    gc.collect()
    assert [one() for one in reads] == [None] * 2
    path.write_text("x,y\n2,a\n")
    assert store.fingerprint(declared) != made[0]


def test_store_separates_tables_of_different_schemas() -> None:
    store = TableStore(KEY, overrides={"small": COLUMNS})
    first = store.get(SOURCE, store.fingerprint(SOURCE))
    narrower = source({"x": ATTRIBUTES["x"]})
    assert list(store.get(narrower).attributes) == ["x"]
    with pytest.raises(TableDataError, match="differs"):
        store.get(narrower, fingerprint(first, SOURCE, KEY))


def test_store_reads_missing_file_once_it_exists(tmp_path: Path) -> None:
    store, path = TableStore(KEY), tmp_path / "table.csv"
    with pytest.raises(UnreadableError):
        store.get(source(ATTRIBUTES, path=str(path)))
    path.write_text("x,y\n1,a\n")
    assert store.get(source(ATTRIBUTES, path=str(path))).private_row_count == 1


def test_store_rereads_unreadable_file_only_after_change(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    path.write_bytes(b"a bomb")
    reads: list[str] = []

    def read(declared: TableSource) -> Rows:
        reads.extend(declared.paths)
        return Rows.load(declared)

    store = TableStore(KEY, read=read)
    for _ in range(3):
        with pytest.raises(UnreadableError):
            store.get(source(ATTRIBUTES, path=str(path)))
    assert len(reads) == 1
    pl.DataFrame(COLUMNS).write_parquet(path)
    assert store.get(source(ATTRIBUTES, path=str(path))).private_row_count == 3
    assert len(reads) == 2


def test_store_returns_table_while_another_is_read(tmp_path: Path) -> None:
    for name in ("slow", "quick"):
        pl.DataFrame(COLUMNS).write_parquet(tmp_path / f"{name}.parquet")
    slow, quick = (source(ATTRIBUTES, tmp_path / f"{name}.parquet", name) for name in ("slow", "quick"))
    begun, had = Event(), Event()

    def read(declared: TableSource) -> Rows:
        if declared == slow:
            begun.set()
            assert had.wait(60)
        return Rows.load(declared)

    store = TableStore(KEY, read=read)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, slow)
        assert begun.wait(60)
        assert store.get(quick).private_row_count == 3
        had.set()
        assert waiting.result(60).private_row_count == 3


def test_store_parses_predicate_once_per_schema() -> None:
    store = TableStore(KEY)
    first = store.predicate(SOURCE, "x = 1")
    assert store.predicate(SOURCE, "x = 1") is first
    assert store.predicate(SOURCE.model_copy(deep=True), "x = 1") is first
    wider = source({"x": Integers(minimum=0, maximum=99)})
    assert store.predicate(wider, "x = 1") != first
    assert store.predicate(SOURCE, "x = 1") == first


def test_store_repeats_refusal_of_predicate() -> None:
    store = TableStore(KEY)
    messages = []
    for _ in range(2):
        with pytest.raises(PredicateError) as refused:
            store.predicate(SOURCE, "y = 'c'")
        messages.append(str(refused.value))
    assert messages[0] == messages[1]
    assert "declared are 'a', 'b'" in messages[0]
