"""Proposals depend only on columns, which a CSV file names in its first line, and on the public description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

from stream.cli.app import app
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.schema_proposals import (
    READ_PARTS,
    ColumnType,
    TableDescription,
    propose_attributes,
    read_description,
)
from stream.tables.table_errors import UnreadableError

ROOT = Path(__file__).parents[3]
CELL = "zyxwvu"
COLUMNS: dict[str, Any] = {
    "age": [71, 83],
    "cost": pl.Series(["1.25", "9.75"]).cast(pl.Decimal(10, 2)),
    "weight": [61.5, 77.5],
    "ward": [CELL, CELL],
    "seen": pl.Series(["2024-03-01", "2024-03-02"]).str.to_date(),
    "ill": [True, False],
    "notes": [[1], [2]],
}


def reader(folder: Path) -> GuardedReader:
    return GuardedReader(ReadingLimits((folder,), 1 << 30, 1 << 30, seconds=60.0, reveals_causes=True))


def test_proposal_has_types_and_leaves_ranges_open(tmp_path: Path) -> None:
    """Two tables with different values give the same proposal, which contains no value."""
    proposals = []
    for number, columns in enumerate(
        (COLUMNS, {name: list(pl.Series(name, one))[::-1] for name, one in COLUMNS.items()})
    ):
        file = tmp_path / f"{number}.parquet"
        pl.DataFrame(columns, schema_overrides={"cost": pl.Decimal(10, 2)}).write_parquet(file)
        proposals.append(propose_attributes(reader(tmp_path).columns(str(file))))
    assert proposals[0] == proposals[1]
    found = {one.name: (one.domain, one.missing) for one in proposals[0]}
    assert found == {
        "age": ({"kind": "integers"}, ("minimum", "maximum")),
        "cost": ({"kind": "decimal", "step": 0.01}, ("minimum", "maximum")),
        "weight": ({"kind": "bins"}, ("edges",)),
        "ward": ({"kind": "categories"}, ("values",)),
        "seen": ({"kind": "date", "granularity": "day"}, ("minimum", "maximum")),
        "ill": ({"kind": "categories", "values": ["false", "true"]}, ()),
        "notes": (None, ()),
    }
    for value in (CELL, "71", "83", "9.75", "77.5", "2024"):
        assert value not in str(proposals)


def test_proposal_takes_ranges_units_and_types_from_the_description(tmp_path: Path) -> None:
    """The description beside a CSV file says what its text cells mean; a field that it lacks stays open."""
    file = tmp_path / "patients.csv"
    file.write_text(f"age,sex,ward\n71,F,{CELL}\n")
    fields = [
        {"name": "age", "type": "integer", "unit": "years", "constraints": {"minimum": 0, "maximum": 120}},
        {
            "name": "sex",
            "type": "string",
            "constraints": {"enum": ["F", "M"]},
            "description": "as in the register",
        },
        {"name": "elsewhere"},
    ]
    (tmp_path / "patients.csv.schema.json").write_text(json.dumps({"fields": fields, "missingValues": [""]}))
    age, sex, ward = propose_attributes(reader(tmp_path).columns(str(file)), read_description(str(file)))
    assert (age.domain, age.missing, age.unit) == ({"kind": "integers", "minimum": 0, "maximum": 120}, (), "years")
    assert (sex.domain, sex.description) == ({"kind": "categories", "values": ["F", "M"]}, "as in the register")
    assert (ward.domain, ward.missing) == ({"kind": "categories"}, ("values",))


@pytest.mark.parametrize("first", ["71,F,a7", "ana@example.org,3", "2024-03-01,x", "zq,,xk", '"",nr'])
def test_proposal_refuses_a_first_line_that_is_a_row(tmp_path: Path, first: str) -> None:
    """The names of columns may be private values if a file has no line of names; the error quotes none."""
    file = tmp_path / "rows.csv"
    file.write_text(f"{first}\n{first}\n")
    with pytest.raises(UnreadableError, match="row: a name is empty or like a value") as refused:
        propose_attributes(reader(tmp_path).columns(str(file)))
    assert not any(cell and cell in str(refused.value) for cell in first.split(","))


def test_proposal_judges_a_long_name_by_its_start() -> None:
    """A comparison of all characters would stop all threads for seconds, as it is quadratic."""
    with pytest.raises(UnreadableError, match="looks like a row"):
        propose_attributes([ColumnType("1" * 30_000 + "x", "String")])
    assert propose_attributes([ColumnType("which of these apply? " * 20, "String")])[0].missing == ("values",)


def test_proposal_texts_say_that_the_first_line_is_shown(tmp_path: Path) -> None:
    """A row of words looks like names, so it is shown if a file has no names; the page and the docs say so."""
    file = tmp_path / "rows.csv"
    file.write_text("Anna Meier,Berlin,positive\nUlf Krause,Mainz,negative\n")
    found = propose_attributes(reader(tmp_path).columns(str(file)))
    assert [one.name for one in found] == ["Anna Meier", "Berlin", "positive"]
    page = (ROOT / "stream/monitor/static/views/register.js").read_text()
    assert READ_PARTS in page
    claim = READ_PARTS[READ_PARTS.index("The first line of a CSV file is") :]
    assert claim in " ".join((ROOT / "docs/tables.md").read_text().split())


@pytest.mark.parametrize(
    ("kind", "limits", "domain"),
    [
        ("integer", {"minimum": 0.5, "maximum": 9}, {"kind": "integers"}),
        ("integer", {"minimum": 0, "maximum": 10**9}, {"kind": "integers"}),
        ("integer", {"enum": [1, 1]}, {"kind": "integers"}),
        ("number", {"minimum": 5, "maximum": 5}, {"kind": "bins"}),
        ("integer", {"minimum": "1e999", "maximum": "nan"}, {"kind": "integers"}),
        ("integer", {"minimum": 9, "maximum": 5}, {"kind": "integers"}),
        ("number", {"minimum": "nan", "maximum": "inf"}, {"kind": "bins"}),
        ("number", {"minimum": 5, "maximum": 1}, {"kind": "bins"}),
        ("date", {"minimum": "not a date", "maximum": "2024"}, {"kind": "date", "granularity": "day"}),
        ("date", {"minimum": "2024-02-01", "maximum": "2024-01-01"}, {"kind": "date", "granularity": "day"}),
    ],
)
def test_proposal_leaves_impossible_limits_open(kind: str, limits: dict[str, Any], domain: dict[str, Any]) -> None:
    """Limits in a description that are not finite numbers or days, or that contradict each other, are not proposed."""
    description = TableDescription.model_validate(
        {"fields": [{"name": "one", "type": kind, "constraints": limits}]}
    )
    (proposed,) = propose_attributes([ColumnType("one", "String")], description)
    assert proposed.domain == domain
    assert proposed.missing
    assert "the limits of its description are not used: " in (proposed.reason or "")


@pytest.mark.parametrize(
    ("kind", "enum", "values"),
    [
        ("integer", [1, 2.0, 3], ["1", "2", "3"]),
        ("number", [1, 2.5], ["1", "2.5"]),
        ("string", [True, "no", 7], ["true", "no", "7"]),
    ],
)
def test_proposal_writes_enumerated_values_as_cells(kind: str, enum: list[Any], values: list[str]) -> None:
    """A whole number in a description stays one, because a column of integers never has a cell '1.0'."""
    description = TableDescription.model_validate_json(
        json.dumps({"fields": [{"name": "one", "type": kind, "constraints": {"enum": enum}}]})
    )
    (proposed,) = propose_attributes([ColumnType("one", "String")], description)
    assert (proposed.domain, proposed.missing) == ({"kind": "categories", "values": values}, ())


def test_proposal_reads_nothing_outside_the_roots(tmp_path: Path) -> None:
    """A file outside, a link to it, and a description that is such a link are not read."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "t.csv").write_text("name,secret\nx,y\n")
    (outside / "t.schema.json").write_text('{"fields": [{"name": "age", "unit": "years"}]}')
    (inside / "link.csv").symlink_to(outside / "t.csv")
    (inside / "own.csv").write_text("age\n71\n")
    (inside / "own.csv.schema.json").symlink_to(outside / "t.schema.json")
    for path in (outside / "t.csv", inside / "link.csv", inside / ".." / "outside" / "t.csv"):
        with pytest.raises(UnreadableError, match="SOTTO_TABLE_ROOTS"):
            reader(inside).columns(str(path))
    assert read_description(str(inside / "own.csv"), (inside,)) is None
    (inside / "own.csv.schema.json").unlink()
    (inside / "own.csv.schema.json").write_text("[]")
    with pytest.raises(UnreadableError, match="no Table Schema"):
        read_description(str(inside / "own.csv"), (inside,))


def test_propose_command_prints_a_definition_to_fill_in(tmp_path: Path) -> None:
    """Standard output has the definition with nulls; standard error lists open fields and the files that were read."""
    file = tmp_path / "patients.csv"
    file.write_text(f"age,ward\n71,{CELL}\n")
    (tmp_path / "patients.csv.schema.json").write_text(
        json.dumps({"fields": [{"name": "age", "type": "integer", "unit": "years"}]})
    )
    result = CliRunner().invoke(app, ["source", "propose", str(file)], catch_exceptions=False)
    assert json.loads(result.stdout) == {
        "source": "patients",
        "kind": "table",
        "path": str(file),
        "neighbors": "add-remove",
        "epsilon": None,
        "attributes": {
            "age": {"kind": "integers", "minimum": None, "maximum": None},
            "ward": {"kind": "categories", "values": None},
        },
    }
    assert "age: fill in minimum, maximum in years" in result.stderr
    assert READ_PARTS in result.stderr
    assert (
        "a CSV file has no types: choose the kind of each attribute first (integers, decimal, date …)"
        in result.stderr
    )
    assert CELL not in result.output


def test_propose_takes_kinds_and_the_person_from_options(tmp_path: Path) -> None:
    """A CSV file has no types, so its owner names the person and the kinds; without them the command says so."""
    file = tmp_path / "visits.csv"
    file.write_text(f"patient,age,day,note\n7,71,2024-01-01,{CELL}\n")
    command = ["source", "propose", str(file)]
    kinds = [f"--kind={one}" for one in ("age=integers", "day=date", "note=text")]
    result = CliRunner().invoke(app, [*command, "--person", "patient", *kinds], catch_exceptions=False)
    proposed = json.loads(result.stdout)
    assert (proposed["person"], proposed["contribution"]) == ("patient", None)
    assert proposed["attributes"] == {
        "age": {"kind": "integers", "minimum": None, "maximum": None},
        "day": {"kind": "date", "granularity": "day", "minimum": None, "maximum": None},
        "note": {"kind": "text"},
    }
    assert "contribution: fill in the most rows of one person that count" in result.stderr
    plain = CliRunner().invoke(app, command)
    assert "each row is taken as one person" in plain.stderr
    assert "--kind COLUMN=KIND" in plain.stderr
    assert CELL not in result.output + plain.output
    for wrong, words in (
        ("--person=patent", "did you mean 'patient'?"),
        ("--kind=age=number", "'age=number' is not COLUMN=KIND"),
        ("--kind=agee=integers", "did you mean 'age'?"),
    ):
        assert words in str(CliRunner().invoke(app, [*command, wrong]).exception)
