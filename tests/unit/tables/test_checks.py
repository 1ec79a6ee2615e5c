"""A check compares a table with its declaration: it finds and distinguishes misfits, and counts them like services."""

from __future__ import annotations

import csv
import gzip
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import Bins, Categories, Dates, Domain, Integers
from stream.formatting import describe_rows
from stream.tables.checks import NOTICE, CheckReport, FoundValue, Misfit, cell_checks, check_table, row_counts
from stream.tables.columns_table import PrivateTable
from stream.tables.demo_tables import adult_source
from stream.tables.readers import csv_files, table_parts
from stream.tables.rows import read_cells
from stream.tables.table_errors import TableDataError, UnreadableError
from tests.unit.tables.small import ATTRIBUTES, Cell, read_by_hand, rows, source, unhurried

AGE = Integers(minimum=0, maximum=9)
STRICT = Integers(minimum=0, maximum=9, outside="reject")
BMI = Bins(edges=(10.0, 20.0, 30.5))
SEX = Categories(values=("F", "M"))
DAY = Dates(kind="date", minimum="2024-01-01", maximum="2024-12-31")
WARD = Categories(values=("Pädiatrie",))
OTHER = Categories(values=("F", "M", "?"), other="?")


def check_text(
    folder: Path, text: str, attributes: Mapping[str, Domain], person: str | None = None
) -> CheckReport:
    path = folder / "table.csv"
    path.write_text(text, encoding="utf-8")
    return check_table(source(attributes), path, person)


def check_column(folder: Path, domain: Domain, cells: Sequence[str]) -> CheckReport:
    """Check one column; a second column keeps rows with an empty cell from being blank lines."""
    return check_text(folder, "x,y\n" + "".join(f"{cell},\n" for cell in cells), {"x": domain})


def found_values(misfit: Misfit) -> dict[str, int]:
    return {value.value: value.rows for value in misfit.found}


def is_as_found(row: Mapping[str, Cell], values: Mapping[str, Any]) -> bool:
    for name, domain in ATTRIBUTES.items():
        cell = row[name]
        same = cell == values[name] if isinstance(domain, Categories) else float(cell or 0) == float(values[name])
        if not same:
            return False
    return True


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@unhurried
@given(table=st.lists(rows, max_size=12))
def test_check_counts_rows_by_declared_rules(kind: str, table: list[Mapping[str, Cell]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"table.{kind}")
        texts = [["" if row[name] is None else str(row[name]) for name in ATTRIBUTES] for row in table]
        if kind == "csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows([list(ATTRIBUTES), *texts])
        else:
            pl.DataFrame(texts, schema=dict.fromkeys(ATTRIBUTES, pl.String), orient="row").write_parquet(path)
        report = check_table(source(path=str(path)))
        loaded = PrivateTable.load(source(path=str(path)))
    read = [(row, read_by_hand(row)) for row in table]
    as_declared = sum(values is not None and is_as_found(row, values) for row, values in read)
    assert report.rows == len(table) == loaded.public_size
    assert report.left_out == sum(values is None for _, values in read)
    assert loaded.private_row_count == report.rows - report.left_out
    assert report.as_declared == as_declared
    assert report.changed == len(table) - report.left_out - as_declared
    assert report.fits == (as_declared == len(table))


def test_check_reports_each_kind_of_misfit_with_values(tmp_path: Path) -> None:
    cells = ["3", "", " ", "-4", "-1", "12", "1e3", "inf", "x", "x", "1_0", "nan", "2.5"]
    missing, unread, broken, below, above = check_column(tmp_path, AGE, cells).misfits
    assert (missing.what, missing.rows, missing.fate, missing.found) == ("missing", 2, "left out", ())
    assert (unread.what, unread.rows, unread.fate, unread.different) == ("not a number", 4, "left out", 3)
    assert found_values(unread) == {"x": 2, "1_0": 1, "nan": 1}
    assert (broken.what, found_values(broken), broken.fate) == ("not whole", {"2.5": 1}, "left out")
    assert (below.what, below.rows, below.fate, below.becomes, below.farthest) == (
        "below",
        2,
        "clamped",
        "0",
        "-4",
    )
    assert (above.what, above.rows, above.fate, above.becomes, above.farthest) == (
        "above",
        3,
        "clamped",
        "9",
        "inf",
    )
    assert (below.sum_moved, above.sum_moved) == (5.0, 9 - 12 + 9 - 1000)


def test_check_counts_distinct_dates_outside_the_range(tmp_path: Path) -> None:
    (above,) = check_column(tmp_path, DAY, ["2024-12-31", "2025-01-01", "2025-01-01", "2025-01-02"]).misfits
    assert (above.what, above.rows, above.different) == ("above", 3, 2)


def test_check_of_bins_and_rejected_ranges_has_no_moved_sum(tmp_path: Path) -> None:
    below, above = check_column(tmp_path, BMI, ["9", "30.5", "31", "10"]).misfits
    assert (below.becomes, below.farthest, below.sum_moved) == ("10 … 20", "9", None)
    assert (above.becomes, above.farthest, above.sum_moved) == ("20 … 30.5", "31", None)
    below, above = check_column(tmp_path, STRICT, ["-1", "10"]).misfits
    assert {(misfit.fate, misfit.becomes, misfit.sum_moved) for misfit in (below, above)} == {
        ("left out", None, None)
    }


@pytest.mark.parametrize(("domain", "fate", "becomes"), [(SEX, "left out", None), (OTHER, "other", "?")])
def test_check_distinguishes_missing_and_undeclared_categories(
    tmp_path: Path, domain: Categories, fate: str, becomes: str | None
) -> None:
    report = check_column(tmp_path, domain, ["F", "", "m", "X", "X", "M"])
    missing, undeclared = report.misfits
    assert (missing.what, missing.rows, undeclared.what, undeclared.rows) == ("missing", 1, "undeclared", 3)
    assert (found_values(undeclared), undeclared.different) == ({"X": 2, "m": 1}, 2)
    assert {(misfit.fate, misfit.becomes) for misfit in report.misfits} == {(fate, becomes)}
    assert (report.left_out, report.changed) == ((4, 0) if fate == "left out" else (0, 4))


def test_check_accepts_empty_text_as_category(tmp_path: Path) -> None:
    assert check_column(tmp_path, Categories(values=("", "F")), ["", "F"]).fits


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_check_names_other_separator_and_found_columns(tmp_path: Path, sign: str) -> None:
    text = f"age{sign}sex\n3{sign}F\n"
    report = check_text(tmp_path, text, {"age": AGE, "sex": SEX})
    assert report.columns.separator == sign
    assert report.columns.missing == ("age", "sex")
    assert report.columns.found == (text.splitlines()[0],)
    assert (report.as_declared, report.changed, report.left_out, report.fits) == (None, None, None, False)
    assert any("services read commas only" in line for line in report.suggestions)
    for quoted in (f'age{sign}"sex"\n3{sign}F\n', f'age{sign}sex\n3{sign}"F"\n'):
        with pytest.raises(UnreadableError) as refused:
            check_text(tmp_path, quoted, {"age": AGE, "sex": SEX})
        assert f"separated by {csv_files.SEPARATORS[sign]}" in refused.value.cause


def test_check_names_missing_column_and_checks_others(tmp_path: Path) -> None:
    report = check_text(tmp_path, "Age,sex,note\n3,X,\n", {"age": AGE, "sex": SEX})
    assert (report.columns.missing, report.columns.found) == (("age",), ("Age", "sex", "note"))
    assert report.columns.undeclared == ("Age", "note")
    assert [misfit.attribute for misfit in report.misfits] == ["sex"]
    assert not report.fits
    assert any("'Age' may be the declared 'age'" in line for line in report.suggestions)


@pytest.mark.parametrize(
    ("text", "attributes", "said"),
    [
        ("3,F\n4,M\n", {"age": AGE, "sex": SEX}, "check that the first line"),
        ("age,age\n3,4\n", {"age": AGE}, "several columns are called 'age'"),
        ('age,rate\n1,"2,5"\n', {"rate": BMI}, "decimal comma"),
        ('age,rate\n1,"1,007"\n', {"rate": BMI}, "numbers have thousands separators; write '1,007' as 1007"),
        ('age,rate\n1,"-1,234,567.5"\n', {"rate": BMI}, "write '-1,234,567.5' as -1234567.5"),
        ("age,rate\n1,12 345\n", {"rate": BMI}, "thousands separators; write '12 345' as 12345"),
        ('age,rate\n1,"0,125"\n', {"rate": BMI}, "decimal comma"),
        ('age,rate\n1,"1.234,5"\n', {"rate": BMI}, "decimal comma"),
        ('age,rate\n1,"1,007"\n2,"2,5"\n', {"rate": BMI}, "decimal comma"),
        ("age,rate\n1,25 kg\n", {"rate": BMI}, "unit"),
        ("age,rate\n1.5,25\n", {"age": AGE}, "declare decimals with a step such as 0.01 or bins"),
        ("age,sex\n1, f\n", {"sex": SEX}, "' f' is the declared 'F' except for spaces or case"),
        ("age,sex\n1,F\xa0\n", {"sex": SEX}, r"'F\xa0' is the declared 'F' except for spaces or case"),
        (
            "ward\nPa\u0308diatrie\n",
            {"ward": WARD},
            "is the declared 'Pädiatrie' except for Unicode normalization",
        ),
        (
            "ward\npa\u0308diatrie\n",
            {"ward": WARD},
            "'Pädiatrie' except for spaces, case or Unicode normalization",
        ),
        (
            "wa\u0308rd,age\nA,1\n",
            {"wärd": WARD, "age": AGE},
            "character by character (they differ in Unicode normalization)",
        ),
        ("day\n03.04.2024\n", {"day": DAY}, "write dates as 2024-03-31"),
        ("day\n2024-04-03T23:30:00-05:00\n", {"day": DAY}, "declare the kind timestamp with a zone"),
        ("day\n2024-04-03T23:30:00-05:00\n2024-4-3\n", {"day": DAY}, "declare the kind timestamp with a zone"),
        ("day\n2024-04-03T23:30:00-05:00\n2024-4-3\n", {"day": DAY}, "write dates as 2024-03-31"),
        ("age,sex\n1,X\n", {"sex": SEX}, 'declare the field \'other\', as "other": "VALUE", to keep'),
        ("age,sex\n11,F\n", {"age": AGE}, "a declaration is public"),
        ("age,sex\n1,F,X\n", {"age": AGE}, "too many cells"),
    ],
)
def test_check_suggests_remedies(tmp_path: Path, text: str, attributes: dict[str, Domain], said: str) -> None:
    report = check_text(tmp_path, text, attributes)
    assert any(said in line for line in report.suggestions), report.suggestions


def test_check_names_the_files_of_a_folder_that_lack_a_column(tmp_path: Path) -> None:
    """A declared column that some files of a folder lack is missing, and the check names the first of these files."""
    for day, text in {"a": "age,sex\n1,F\n", "b": "sex\nF\n", "c": "sex\nM\n"}.items():
        (tmp_path / f"{day}.csv").write_text(text)
    report = check_table(source({"age": AGE, "sex": SEX}), f"{tmp_path}/")
    assert (report.columns.missing, report.columns.lacking) == (("age",), {"age": ("b.csv", "c.csv")})
    said = "some files have column 'age', and 'b.csv' and 1 more do not"
    assert any(said in line for line in report.suggestions), report.suggestions


def test_check_reports_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes("sex,place\nF,Orléans\n".encode("latin-1"))
    report = check_table(source({"place": Categories(values=("Orléans",))}), path)
    assert any("not UTF-8" in line for line in report.suggestions)


def test_check_counts_lines_with_surplus_cells(tmp_path: Path) -> None:
    """Trailing commas are no surplus cells."""
    report = check_text(tmp_path, "age,sex\n1,F\n2,F,X\n3,M,\n4\n5,M,,7\n", {"age": AGE})
    assert (report.rows, report.as_declared, report.surplus_lines, report.fits) == (5, 5, 1, False)


def test_check_names_column_of_unreadable_type(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pl.DataFrame({"age": [[1], [2]], "sex": ["F", "M"]}).write_parquet(path)
    report = check_table(source({"age": AGE, "sex": SEX}), path)
    assert list(report.columns.unusable) == ["age"]
    assert "type List, not numbers" in report.columns.unusable["age"]
    assert (report.rows, report.as_declared, report.fits) == (2, None, False)


def test_check_names_the_file_of_an_unreadable_type(tmp_path: Path) -> None:
    """A column that only a later file has in an unreadable type is reported with that file, and so is a person's column."""
    (tmp_path / "a.csv").write_text("age,sex,who\n1,F,a\n")
    pl.DataFrame({"age": [[1]], "sex": ["F"], "who": [[1]]}).write_parquet(tmp_path / "b.parquet")
    declared = source({"age": AGE, "sex": SEX}, path=f"{tmp_path}/")
    report = check_table(declared)
    wanted = "column 'age' of file 'b.parquet' has type List, not numbers, text or booleans; write it as numbers"
    assert report.columns.unusable == {"age": wanted}
    assert (report.rows, report.as_declared, report.fits) == (2, None, False)
    for read in (lambda: PrivateTable.load(declared), lambda: read_cells(declared, f"{tmp_path}/")):
        with pytest.raises(TableDataError) as refused:
            read()
        assert str(refused.value) == wanted
    with pytest.raises(TableDataError, match=r"^column 'who' of file 'b\.parquet' has type List, not text"):
        check_table(declared, person="who")


def test_check_counts_rows_per_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = ["a", "b", "a", "", "c", "a", "b", " "]
    text = "age,who\n" + "".join(f"1,{name}\n" for name in named)
    monkeypatch.setattr(row_counts, "_ROWS_PER_PASS", 3)  # several passes
    report = check_text(tmp_path, text, {"age": AGE}, "who")
    people = report.people
    assert people is not None
    assert report.columns.undeclared == ()
    assert (people.people, people.most_rows, people.with_several, people.rows_without) == (3, 3, 2, 2)


def test_check_warns_of_one_person_under_several_spellings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that differ in leading zeros, case, spaces or composition are counted and shown, wherever they are in the table."""
    named = ["1", "ann", "7", "01", "1.0", " 7", "Ann", "a nn", "Pa\u0308r", "10", "1", "P\u00e4r", ""]
    text = "age,who\n" + "".join(f"1,{name}\n" for name in named)
    monkeypatch.setattr(row_counts, "_ROWS_PER_PASS", 5)  # several passes
    report = check_text(tmp_path, text, {"age": AGE}, "who")
    people = report.people
    assert people is not None
    assert (people.people, people.alike) == (9, 3)
    assert set(people.spellings) == {("1", "01"), ("ann", "Ann", "a nn"), ("Pa\u0308r", "P\u00e4r")}
    assert any("3 names in 'who' have several spellings" in line for line in report.suggestions)
    assert any("'1' and '01'" in line for line in report.suggestions)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "3 times the ε;"),
        ({"delta": 1e-6}, "3 times the ε and more than as many times the δ"),
        ({"delta": 1e-6, "accountant": "zcdp"}, "9 times the ρ"),
    ],
)
def test_check_states_cost_of_several_rows_per_person(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text("age,who\n1,a\n2,a\n3,a\n4,b\n")
    wanted = source({"age": AGE}, **more)
    report = check_table(wanted, path, "who")
    assert (report.as_declared, report.fits) == (4, False)
    assert any(said in line for line in report.suggestions), report.suggestions


@pytest.mark.parametrize(
    ("more", "public"),
    [
        ({"neighbors": "replace"}, "rows in the file"),
        ({"neighbors": "replace", "person": "who"}, "people plus rows without a 'who'"),
        ({"neighbors": "replace", "person": "who", "contribution": 3}, None),
        ({"neighbors": "add-remove"}, None),
    ],
)
def test_check_names_public_number_if_rows_are_left_out(
    tmp_path: Path, more: dict[str, Any], public: str | None
) -> None:
    """Only a number that all neighbors share is called public, on registration too."""
    path = tmp_path / "table.csv"
    path.write_text("age,who\nx,a\n")
    wanted = source({"age": AGE}, **more)
    said = [line for line in check_table(wanted, path).suggestions if " is public, " in line]
    expected = [] if public is None else [f"under 'replace' the number of {public} is public"]
    assert [line.partition(", and includes those left out; ")[0] for line in said] == expected
    assert [line for line in describe_rows(wanted) if " is public" in line] == expected


def test_check_accepts_shipped_table() -> None:
    report = check_table(adult_source(1.0))
    assert (report.fits, report.rows, report.as_declared, report.misfits) == (True, 48842, 48842, ())


@pytest.mark.parametrize("name", ["missing.csv", "table.txt", "broken.csv", "empty.csv", "broken.parquet"])
def test_check_refuses_unreadable_file(tmp_path: Path, name: str) -> None:
    contents = {"table.txt": b"age\n", "broken.csv": b'age,x\n1,"2\n', "empty.csv": b"", "broken.parquet": b"PAR1"}
    if name in contents:
        (tmp_path / name).write_bytes(contents[name])
    with pytest.raises(UnreadableError):
        check_table(source({"age": AGE}), tmp_path / name)


def test_check_refuses_unknown_person_column(tmp_path: Path) -> None:
    with pytest.raises(TableDataError, match="--person: the table has no column 'who'; name one of 'age', 'sex'"):
        check_text(tmp_path, "age,sex\n1,F\n", {"age": AGE}, "who")
    with pytest.raises(TableDataError, match="no column 'who'; the columns seem to be separated by semicolons"):
        check_text(tmp_path, "age;who\n1;a\n", {"age": AGE}, "who")


def test_check_report_as_json_begins_with_notice(tmp_path: Path) -> None:
    document = check_column(tmp_path, AGE, ["3"]).to_json()
    assert list(document)[:2] == ["private", "fits"]
    assert document["private"] == NOTICE


def test_value_counts_are_exact_up_to_limit_then_most_frequent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cell_checks, "MAX_VALUES", 20)
    counted = cell_checks.ValueCounts()
    law = [f"rare {number}" for number in range(20)]
    counted.add(pl.Series(law))
    assert counted.distinct_count() == 20
    counted.add(pl.Series([*["often"] * 9, *["x" * 1000] * 8, None]))
    assert counted.distinct_count() is None
    assert counted.most_frequent()[0] == FoundValue("often", 9)
    assert max(map(len, counted)) == 60
    assert len(list(counted)) <= 20


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
def test_check_keeps_one_batch_of_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / f"table.{kind}"
    frame = pl.DataFrame({"x": [number % 13 for number in range(1000)], "who": range(1000)})
    if kind == "parquet":
        frame.write_parquet(path)
    else:
        text = frame.write_csv().encode()
        path.write_bytes(gzip.compress(text) if kind == "csv.gz" else text)
    heights: list[int] = []
    read = row_counts.TableScan.batches

    def record_height(file: row_counts.TableScan, names: Sequence[str], *_: object) -> Iterator[pl.DataFrame]:
        for batch in read(file, names):
            heights.append(batch.height)
            yield batch

    def refuse_whole_read(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(table_parts, "BATCH_ROWS", 7)
    monkeypatch.setattr(row_counts.TableScan, "batches", record_height)
    monkeypatch.setattr(pl.LazyFrame, "collect", refuse_whole_read)
    report = check_table(source({"x": AGE}), path, "who")
    (above,) = report.misfits
    assert (report.rows, above.rows) == (1000, sum(number % 13 > 9 for number in range(1000)))
    assert report.people is not None
    assert report.people.people == 1000
    assert max(heights) <= 7
    assert sum(heights) == 2000  # once for the cells and once for the people
