"""``sotto source check`` shows a table's owner the misfits, says that they are private, and sends them nowhere."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from schemas import TableSource
from stream.cli.app import app
from stream.tables.checks import NOTICE, check_table

SOURCE: dict[str, Any] = {
    "source": "patients",
    "kind": "table",
    "neighbors": "add-remove",
    "epsilon": 4,
    "path": "patients.csv",
    "attributes": {
        "age": {"kind": "integers", "minimum": 0, "maximum": 120},
        "sex": ["F", "M"],
        "bmi": {"kind": "bins", "edges": [10, 18.5, 25, 60], "outside": "reject"},
    },
}
GOOD = "age,sex,bmi,who\n40,F,22,a\n50,M,31,b\n"
BAD = "age,sex,bmi,who\n140,F,22,a\n50,x,31,b\n,M,9,c\n60,F,30,a\n"


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a table, on a machine without network."""

    def unreachable(*_: object, **__: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", unreachable)
    monkeypatch.setattr(socket, "create_connection", unreachable)
    monkeypatch.setattr(asyncio, "run", unreachable)
    monkeypatch.setenv("SOTTO_BOOTSTRAP", "127.0.0.1:1")


def check(table: str | bytes, *arguments: str, source: dict[str, Any] = SOURCE) -> Result:
    Path("patients.csv").write_bytes(table if isinstance(table, bytes) else table.encode())
    return CliRunner().invoke(app, ["source", "check", json.dumps(source), *arguments], env={"COLUMNS": "200"})


def test_fitting_table_has_status_0() -> None:
    result = check(GOOD, "--person", "who")
    assert result.exit_code == 0, result.exception
    assert "unchanged: 2 (100 %)" in result.stdout
    assert "the table fits its declaration" in result.stdout
    taken = "each row is taken as one person; if a person has several rows, declare 'person' and 'contribution'"
    assert taken not in result.stdout
    assert taken in check(GOOD).stdout
    assert taken not in check(GOOD, source={**SOURCE, "person": "who", "contribution": 2}).stdout


def test_misfitting_table_has_status_1_and_lists_every_misfit() -> None:
    result = check(BAD, "--person", "who")
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    for expected in (
        "patients: 4 rows in patients.csv",
        "unchanged: 1 (25 %); with a changed cell: 1 (25 %); left out for a cell: 2 (50 %)",
        "age │ missing │ 1 │ 25 % │ left out",
        "age │ above │ 1 │ 25 % │ 120 (clamped) │ farthest: 140",
        "sex │ undeclared │ 1 │ 25 % │ left out │ 'x' 1×",
        "bmi │ below │ 1 │ 25 % │ left out │ farthest: 9",
        "clamping values above the range changes the sum of age by -20 over all rows, also those left out",
        "people (by who) in the rows that fit: 1, with several rows: 1; most rows of one: 2; rows beyond the contribution of 1: 1; rows without a person: 0",
        "the table does not fit its declaration",
    ):
        assert expected in text, expected
    two = "age,sex,bmi,who\n140,F,22,a\n130,F,22,a\n"
    beyond = check(two, source={**SOURCE, "person": "who"}).stdout
    assert "left out for a cell: 0 (0 %)" in beyond
    assert "by -30 over all rows, also those left out" in beyond, "a row is beyond the contribution bound"


def test_missing_columns_are_reported_with_the_found_ones() -> None:
    """The report names the separator too."""
    result = check(BAD.replace(",", ";"))
    assert result.exit_code == 1
    assert "missing columns: 'age', 'sex', 'bmi'; the file has 'age;sex;bmi;who'" in result.stdout
    assert "separated by semicolons; services read commas only" in result.stdout
    assert "unchanged: " not in result.stdout


@pytest.mark.parametrize("table", [GOOD, BAD, BAD.replace(",", ";")])
def test_output_always_says_that_it_is_private(table: str) -> None:
    assert check(table).stdout.startswith(f"{NOTICE}\n")
    document = json.loads(check(table, "--json").stdout)
    assert next(iter(document)) == "private"
    assert document["private"] == NOTICE
    assert NOTICE.startswith("PRIVATE")


def test_json_has_the_whole_report_and_the_same_status() -> None:
    result = check(BAD, "--json", "--person", "who")
    assert (result.exit_code, check(GOOD, "--json").exit_code) == (1, 0)
    document = json.loads(result.stdout)
    assert (document["rows"], document["as_declared"], document["changed"], document["left_out"]) == (4, 1, 1, 2)
    assert {(one["attribute"], one["what"], one["rows"]) for one in document["misfits"]} == {
        ("age", "missing", 1),
        ("age", "above", 1),
        ("sex", "undeclared", 1),
        ("bmi", "below", 1),
    }
    bounds = [{"contribution": 2, "rows_beyond": 0}]
    figures = {"people": 1, "most_rows": 2, "with_several": 1, "rows_without": 0, "alike": 0, "spellings": []}
    assert document["people"] == {
        "column": "who",
        **figures,
        "contribution": 1,
        "rows_beyond": 1,
        "bounds": bounds,
    }
    assert document["fits"] is False


def test_check_sends_its_report_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    """The command makes no connection, log line or file; the fixture makes any connection fail."""
    with caplog.at_level(logging.DEBUG):
        result = check(BAD)
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert (result.stderr, caplog.records) == ("", [])
    assert [path.name for path in Path().iterdir()] == ["patients.csv"]


def test_table_option_replaces_a_table_on_another_machine() -> None:
    result = check(GOOD, "--table", "patients.csv", source={**SOURCE, "path": "/data/on/the/server.csv"})
    assert result.exit_code == 0, result.exception


def test_cells_cannot_control_the_terminal() -> None:
    result = check(BAD.replace("x", "\x1b[2Jx"))
    assert "\x1b" not in result.stdout
    assert "\\x1b[2Jx" in result.stdout
    assert "\x1b" not in check(BAD.replace("x", "\x1b[2Jx"), "--json").stdout


@pytest.mark.parametrize(
    ("arguments", "source", "message"),
    [
        (["--table", "missing.csv"], SOURCE, "table: missing.csv cannot be read: missing; give a well-formed"),
        (
            ["--person", "name"],
            SOURCE,
            "--person: the table has no column 'name'; name one of 'age', 'sex', 'bmi'",
        ),
        (["--person", "bmy"], SOURCE, "--person: the table has no column 'bmy'; did you mean 'bmi'?"),
        ([], {"source": "v", "kind": "records", "epsilon": 1}, "v has no table, its questions carry the values"),
        (
            [],
            {
                "source": "v",
                "kind": "values",
                "neighbors": "replace",
                "epsilon": 1,
                "sensitivity": 1,
                "maximum": 9,
            },
            "carry the values; values outside -1e+15 … 9 count as the nearer end, and values are rounded",
        ),
    ],
)
def test_table_that_cannot_be_checked_is_refused(
    arguments: list[str], source: dict[str, Any], message: str
) -> None:
    result = check(GOOD, *arguments, source=source)
    assert result.exit_code == 1
    assert message in str(result.exception)
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("repeated", "status", "words"), [("sex", 1, "rename the others"), ("who", 0, "none is read")]
)
def test_repeated_column_is_a_fault_if_it_is_read(repeated: str, status: int, words: str) -> None:
    """Services would read the first of the columns, and the owner may mean another one."""
    lines = GOOD.splitlines()
    result = check("\n".join([f"{lines[0]},{repeated}", *(f"{line},F" for line in lines[1:])]) + "\n")
    assert result.exit_code == status
    text = " ".join(result.stdout.split())
    assert f"several columns are called '{repeated}'; " in text
    assert words in text


def test_check_of_a_table_in_duckdb_says_how_long_questions_take(tmp_path: Path) -> None:
    """The database is temporary; a table in memory has no times."""
    folder = tmp_path / "codes"
    source = {**SOURCE, "engine": "duckdb"}
    Path("patients.csv").write_text(GOOD)
    environment = {"COLUMNS": "200", "SOTTO_ENGINE_FOLDER": str(folder)}
    result = CliRunner().invoke(app, ["source", "check", json.dumps(source)], env=environment)
    assert result.exit_code == 0, result.exception
    assert "duckdb on this machine: loaded in " in result.stdout
    assert not list(folder.rglob("*.duckdb"))
    found = CliRunner().invoke(app, ["source", "check", json.dumps(source), "--json"], env=environment)
    assert json.loads(found.stdout)["times"]["engine"] == "duckdb"
    assert json.loads(check(GOOD, "--json").stdout)["times"] is None


@pytest.mark.parametrize("engine", ["memory", "duckdb"])
def test_check_names_the_engine_that_fits_with_room_to_grow(tmp_path: Path, engine: str) -> None:
    """Memory fits a table if it has room for twice its rows."""
    path = tmp_path / "t.csv"
    path.write_text("age\n" + "1\n" * 100)
    declared = TableSource.model_validate(
        {**SOURCE, "path": str(path), "attributes": {"age": 100}, "engine": engine}
    )
    found = {room: check_table(declared, table_bytes=room).suggestions for room in (199, 200)}
    wrong = 199 if engine == "memory" else 200
    assert found[399 - wrong] == ()
    [advice] = found[wrong]
    assert advice.startswith(f"engine: memory has room for {wrong} rows (SOTTO_TABLE_BYTES), and ")
    assert ('declare "engine": "duckdb"' in advice) is (engine == "memory")


def test_rounded_decimals_are_a_warning_and_exit_with_0() -> None:
    """Rounding to the declared step moves a cell by less than the step; a clamped cell is a misfit."""
    attributes = {"price": {"kind": "decimal", "minimum": 0, "maximum": 10, "step": 0.5}}
    source = {**SOURCE, "attributes": attributes}
    result = check("price\n1.5\n2.3\n", source=source)
    assert result.exit_code == 0, result.stdout
    assert "between steps" in result.stdout
    assert "rounding changes the sum of price by +0.2\n" in result.stdout
    assert "the table fits its declaration; warning: cells are rounded" in result.stdout
    assert check("price\n1.5\n2.3\n11.2\n", source=source).exit_code == 1
