"""Views over files have the same rows in a service's process, and have public sizes and stamps like one table."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from schemas import TableSource
from stream.cli.app import app
from stream.formatting import describe_rows
from stream.questions.source_warnings import warn_about_shared_data
from stream.tables.checks import FoundValue, ViewRows, check_table
from stream.tables.checks.row_counts import UnreadableCells, ViewTableRows
from stream.tables.columns_table import PrivateTable
from stream.tables.expressions import TRUE
from stream.tables.readers import view_rows as reading
from stream.tables.readers.source_parts import stamp_of_source
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits, build_table
from stream.tables.readers.view_parser import parse_view
from stream.tables.readers.view_syntax import ViewError
from stream.tables.rows import Rows
from stream.tables.store import fingerprint
from stream.tables.table_errors import ColumnError, UnreadableError
from stream.testing import Driver
from tests.unit.tables.small import KEY
from tests.views import view_frame, view_rows, view_source

FLIGHTS = "tail,origin,delay\nA,EWR,5\nA,LGA,70\nB,JFK,\nB,SFO,80\n,LGA,90\nC,SFO,3\n 1.0,EWR,61\n"
AIRPORTS = "code,state\nEWR,NJ\nJFK,NY\nLGA,NY\n"
VIEW = """
SELECT f.tail, a.state, CASE WHEN f.delay > 60 THEN 'late' ELSE 'fine' END AS late, p.seats
FROM flights AS f JOIN airports AS a ON a.code = f.origin LEFT JOIN planes AS p ON p.tail = f.tail
WHERE f.delay IS NOT NULL
"""
ROWS_VIEW = "SELECT a.state FROM flights f JOIN airports a ON a.code = f.origin WHERE f.delay > 60"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "flights.csv").write_text(FLIGHTS)
    (tmp_path / "airports.csv").write_text(AIRPORTS)
    for year, rows in (("1", {"tail": ["A", "1"], "seats": [100, 50]}), ("2", {"tail": ["A"], "seats": [180]})):
        part = tmp_path / "planes" / f"year={year}" / "planes.parquet"
        part.parent.mkdir(parents=True)
        pl.DataFrame(rows).write_parquet(part)
    return tmp_path


def tables(folder: Path, *, person: bool = True) -> dict[str, Any]:
    people: dict[str, Any] = {"person": "tail"} if person else {}
    found: dict[str, Any] = {
        "flights": {"path": f"{folder}/flights.csv", "columns": {"origin": "text", "delay": "number"}, **people},
        "airports": {"path": f"{folder}/airports.csv", "key": ["code"], "columns": {"code": "text"}},
    }
    if person:
        found["planes"] = {"path": f"{folder}/planes/", "person": "tail"}
    return found


def people_source(folder: Path, **fields: Any) -> TableSource:
    attributes = {
        "state": ["NJ", "NY"],
        "late": ["late", "fine"],
        "seats": {"kind": "categories", "values": ["100", "180", "50", "?"], "other": "?"},
    }
    given = {"person": "tail", "contribution": 2, "attributes": attributes, **fields}
    return view_source(VIEW, tables(folder), [], **given)


def rows_source(folder: Path, **fields: Any) -> TableSource:
    return view_source(ROWS_VIEW, tables(folder, person=False), [], attributes={"state": ["NJ", "NY"]}, **fields)


def guarded_reader(folder: Path, *, reveals_causes: bool = True) -> GuardedReader:
    return GuardedReader(ReadingLimits((folder,), 1 << 23, 400 << 20, 60.0, reveals_causes))


def codes(rows: Rows) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in rows.private_codes.values()), strict=True))


def test_service_reads_a_view_in_its_confined_process(folder: Path) -> None:
    """A reading process joins CSV and Parquet files; a person's name is the same in each of them."""
    read = guarded_reader(folder)(people_source(folder))
    assert codes(read) == [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1), (0, 0, 2)]
    assert codes(read) == codes(Rows.load(people_source(folder)))
    assert read.people is not None
    assert read.people.private_numbers.tolist()[:4] == [0, 0, 0, 0]


def test_engines_count_a_view_alike(folder: Path) -> None:
    """A view counts alike in memory and in DuckDB."""
    for source in (people_source(folder), people_source(folder, engine="duckdb")):
        table = build_table(guarded_reader(folder).read(source), source, KEY)
        assert (table.count(TRUE), table.private_row_count) == (3, 3)
        assert table.group_counts(["state"], TRUE).sum() == 3


def test_public_size_of_a_view_counts_the_rows_that_it_leaves_out(folder: Path) -> None:
    """Under ``replace``, the public size is that of the table after FROM: its rows, or its people and its rows without a name."""
    rows = PrivateTable.load(rows_source(folder, neighbors="replace"))
    assert (rows.public_size, rows.private_row_count) == (7, 3)
    people = PrivateTable.load(people_source(folder, neighbors="replace", contribution=1))
    assert people.public_size == 5
    (folder / "airports.csv").write_text("code,state\n")
    assert PrivateTable.load(rows_source(folder, neighbors="replace")).public_size == 7
    assert PrivateTable.load(people_source(folder, neighbors="replace", contribution=1)).public_size == 5


def test_stamp_and_fingerprint_cover_every_table_of_a_view(folder: Path) -> None:
    """The stamp changes with each table, and the fingerprint with the rows."""
    source, reader = rows_source(folder), guarded_reader(folder)
    stamp = reader.stamp(source)
    assert stamp == stamp_of_source(source)
    first = fingerprint(PrivateTable.load(source), source, KEY)
    (folder / "airports.csv").write_text(AIRPORTS.replace("LGA,NY", "LGA,NJ"))
    assert reader.stamp(source) != stamp
    assert fingerprint(PrivateTable.load(source), source, KEY) != first
    (folder / "airports.csv").unlink()
    assert len(reader.stamp(source)) == len(stamp_of_source(source)) == 1


def test_repeated_key_of_a_lookup_table_is_refused_by_name(folder: Path) -> None:
    """A lookup table is public: a service that hides causes names the key that is repeated."""
    (folder / "airports.csv").write_text(AIRPORTS + "JFK,NJ\n")
    with pytest.raises(
        ColumnError, match=r"^key: column 'airports\.code' of a lookup table has one value in several"
    ):
        guarded_reader(folder, reveals_causes=False).read(rows_source(folder))


def test_failures_of_one_table_name_it_in_the_log_alone(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A table that cannot be read is named in the log; callers of a service get the same text for all causes."""
    (folder / "airports.csv").write_text('code,state\n"EWR,NJ\n')
    with pytest.raises(UnreadableError) as refused, capture_logs() as logged:
        guarded_reader(folder, reveals_causes=False).read(rows_source(folder))
    assert "airports" not in str(refused.value)
    assert logged[0]["file"] == "airports"
    outside = tables(folder, person=False)
    outside["airports"]["path"] = f"{tmp_path_factory.mktemp('elsewhere')}/airports.csv"
    Path(outside["airports"]["path"]).write_text(AIRPORTS)
    with pytest.raises(UnreadableError, match="outside SOTTO_TABLE_ROOTS"):
        guarded_reader(folder).read(view_source(ROWS_VIEW, outside, ["state"]))
    (folder / "airports.csv").write_text("kode,state\n")
    with pytest.raises(ColumnError, match=r"the table has no column 'airports\.code'"):
        guarded_reader(folder, reveals_causes=False).read(rows_source(folder))


def test_invalid_view_is_refused_before_any_table_is_read(folder: Path) -> None:
    """A service refuses a view's SQL at its place, without starting a reading process."""
    source = rows_source(folder)
    assert source.view is not None
    broken = source.model_copy(
        update={"view": source.view.model_copy(update={"select": "SELECT COUNT(*) FROM flights"})}
    )
    with pytest.raises(ViewError, match=r"^view: line 1, column 8: 'COUNT' in a view"):
        guarded_reader(folder / "nowhere").read(broken)


def test_joined_rows_of_one_person_are_bounded_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows of a person are joined in any order of the file, and batches of any size give the same rows."""
    monkeypatch.setattr(reading, "_BATCH_ROWS", 64)
    spec = {"f": {"person": "who"}, "g": {"person": "who", "columns": {"n": "integer"}}}
    plan = parse_view(
        view_source("SELECT f.who, g.n FROM f LEFT JOIN g ON g.who = f.who", spec, ["n"], person="who")
    )
    first = pl.DataFrame({"who": ["a", "b", None, "a", "c"] * 3})
    numbers = list(range(reading.MAX_JOINED_ROWS + 500))
    found = []
    for rows in (1, 4, 1 << 16):
        random.Random(rows).shuffle(numbers)
        second = pl.DataFrame({"who": ["a"] * len(numbers) + ["b"], "n": [*numbers, 7]})
        found.append(view_rows(plan, {"f": first, "g": second}, rows))
        largest = max(frame.height for frame in view_frame(plan, {"f": first, "g": second}, rows).iter_slices())
        assert largest <= 6 * reading.MAX_JOINED_ROWS + 9
    assert found[0] == found[1] == found[2]
    assert found[0].total() == 6 * reading.MAX_JOINED_ROWS + 3 + 3 + 3
    assert found[0]["a", 0, True] == 6


def test_view_bounds_one_persons_joined_rows_over_all_tables() -> None:
    """Two joined tables of people multiply their rows, so each table has a lower bound than a single one."""
    spec = {"f": {"person": "who"}, "g": {"person": "who"}, "h": {"person": "who"}}
    select = "SELECT f.who, g.n FROM f JOIN g ON g.who = f.who JOIN h ON h.who = f.who"
    plan = parse_view(view_source(select, spec, ["n"], person="who"))
    rows = pl.DataFrame({"who": ["a"] * 2000, "n": range(2000)})
    found = view_rows(plan, {"f": pl.DataFrame({"who": ["a"]}), "g": rows, "h": rows}, 1 << 16)
    assert found.total() == 31 * 31
    assert [reading.limit_joined_rows(tables) for tables in range(5)] == [1000, 1000, 31, 10, 5]


def test_selected_column_of_several_types_is_refused(folder: Path) -> None:
    """A joined table whose files differ in a column's type needs a declared kind for the column."""
    pl.DataFrame({"tail": ["B"], "seats": ["many"]}).write_parquet(folder / "planes" / "more.parquet")
    with pytest.raises(UnreadableError, match=r"'planes': its files have several types for one column; declare"):
        Rows.load(people_source(folder))
    spec = tables(folder)
    spec["planes"]["columns"] = {"seats": "text"}
    assert Rows.load(view_source(VIEW, spec, ["seats"], person="tail")).file_row_count == 9


def test_check_of_a_view_shows_its_rows(folder: Path) -> None:
    """``sotto source check`` checks the rows that a view keeps, and names the place of an error in its SQL."""
    source = people_source(folder).model_dump(mode="json", exclude_unset=True)
    result = CliRunner().invoke(app, ["source", "check", json.dumps(source)], env={"COLUMNS": "200"})
    assert "view: 6 rows in the view" in result.stdout
    assert "people (by tail) in the rows that fit: 2" in result.stdout
    source["view"]["select"] = "SELECT tail\nFROM flights ORDER BY tail"
    result = CliRunner().invoke(app, ["source", "check", json.dumps(source)], env={"COLUMNS": "200"})
    assert str(result.exception).startswith("view: line 2, column 14: 'ORDER BY' in a view")


def test_check_of_a_view_reports_left_out_rows_and_unread_cells(folder: Path) -> None:
    """The owner learns the rows that JOIN and WHERE leave out, and the cells of another kind, which do not fit."""

    def check() -> tuple[int, str]:
        result = CliRunner().invoke(
            app,
            ["source", "check", rows_source(folder).model_dump_json(exclude_unset=True)],
            env={"COLUMNS": "200"},
        )
        return result.exit_code, result.stdout

    (folder / "flights.csv").write_text("tail,origin,delay\nA,EWR,75\nB,SFO,80\nC,LGA,5\nD,LGA,\n")
    status, shown = check()
    assert (status, "the table fits its declaration" in shown) == (0, True)
    assert "flights: 4 rows read\nairports: 3 rows read; JOIN leaves out 1 row without a match\n" in shown
    assert "WHERE leaves out 2 rows" in shown
    (folder / "flights.csv").write_text('tail,origin,delay\nA,EWR,75\nB,JFK,"62,50"\nC,LGA,n/a\nD,LGA,\n')
    status, shown = check()
    assert (status, "the table does not fit its declaration" in shown) == (1, True)
    assert "WHERE leaves out 3 rows" in shown
    [line] = [line for line in shown.splitlines() if "flights.delay" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == [
        "flights.delay",
        "number",
        "2",
        "'62,50' 1×, 'n/a' 1×",
    ]
    assert check_table(rows_source(folder)).view == ViewRows(
        tables=(ViewTableRows("flights", 4, 0), ViewTableRows("airports", 3, 0)),
        filtered=3,
        unreadable=(
            UnreadableCells("flights", "delay", "number", 2, (FoundValue("62,50", 1), FoundValue("n/a", 1))),
        ),
    )


def test_stream_on_a_view_is_answered(folder: Path) -> None:
    """A source with a view is registered, and its stream answers; users see which rows the view leaves out."""
    driver = Driver(noise_key=bytes(32))
    driver.register(rows_source(folder).model_copy(update={"epsilon": 1000.0}))
    laplace = {"kind": "laplace", "answers": 2}
    driver.open({"stream": "late", "source": "view", "epsilon": 1000, "mechanism": laplace})
    [row] = driver.sql("SELECT COUNT(*) FROM late WHERE state = 'NJ'")
    assert 1 in row.values()
    assert describe_rows(rows_source(folder))[0] == (
        "its rows are those of SELECT a.state FROM flights f JOIN airports a ON a.code = f.origin WHERE f.delay > 60"
    )


def test_shared_people_of_two_sources_are_remarked(folder: Path) -> None:
    """A view of a table of people that another source reads gets a warning; a common lookup table gets none."""
    driver = Driver(noise_key=bytes(32))
    driver.register(rows_source(folder))
    record = driver.budget("view")
    view = view_source(
        "SELECT f.tail FROM flights f", {"flights": {"path": f"{folder}/flights.csv"}}, ["tail"], source="again"
    )
    assert "again has the same data as 'view'" in (warn_about_shared_data(view, [record]) or "")
    own = record.model_copy(update={"source": view, "population": "travellers"})
    other = record.model_copy(update={"population": "travellers"})
    assert warn_about_shared_data(view, [own, other]) is None  # both sources have joined the population since
    join = "add both to one population with 'sotto source join'"
    assert join in (warn_about_shared_data(view, [own, record]) or "")
    split = warn_about_shared_data(view, [own, record.model_copy(update={"population": "patients"})]) or ""
    assert "; the spending of both adds up for the same people; end the streams of one" in split, (
        "neither can join"
    )
    airports = view_source(
        "SELECT a.state FROM a", {"a": {"path": f"{folder}/airports.csv"}}, ["state"], source="again"
    )
    assert warn_about_shared_data(airports, [record]) is None
    people = {
        "a": {"path": f"{folder}/airports.csv"},
        "f": {"path": f"{folder}/flights.csv", "key": ["tail"], "columns": {"tail": "text"}},
    }
    friends = view_source("SELECT a.state FROM a JOIN f ON f.tail = 'A'", people, ["state"], source="again")
    assert "a lookup table of again has the path of 'view'" in (warn_about_shared_data(friends, [record]) or "")
