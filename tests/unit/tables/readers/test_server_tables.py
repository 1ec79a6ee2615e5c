"""Tables that Ibis reads have the codes of a Parquet file to the last digit, need one SELECT, and show no text of an engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from schemas import Dates
from stream.errors import Missing
from stream.tables.checks import check_table
from stream.tables.readers.source_parts import open_table_parts, stamp_of
from stream.tables.table_errors import UnreadableError
from tests.unit.tables.hostile_tables import assert_reads_as_parquet, hostile_cells
from tests.unit.tables.readers.guarded import AGE, cause, reader
from tests.unit.tables.small import source

duckdb = pytest.importorskip("duckdb", reason="duckdb, the extra duckdb, is not installed")
ibis = pytest.importorskip("ibis", reason="ibis-framework, the extra duckdb, is not installed")
compilers = pytest.importorskip("ibis.backends.sql.compilers")

from stream.tables.readers import server_tables  # noqa: E402
from stream.tables.readers.server_tables import column_types, select_columns  # noqa: E402


def make_database(folder: Path, *statements: str) -> str:
    """Create a DuckDB file and return the path of its schema."""
    file = folder / "clinic.duckdb"
    with duckdb.connect(str(file)) as database:
        for statement in statements:
            database.execute(statement)
    return f"{file}/main"


def test_duckdb_table_has_codes_of_parquet_file(tmp_path: Path) -> None:
    """Nulls, NaN, -0.0, 2^53 + 1, decimals, Unicode forms, zones and empty partitions change no code."""
    cells, parquet = hostile_cells(), tmp_path / "hostile.parquet"
    cells.write_parquet(parquet)
    place = make_database(
        tmp_path,
        f"CREATE TABLE visits AS FROM '{parquet}'",
        "CREATE TABLE empty AS SELECT * FROM visits WHERE false",
        "CREATE VIEW parts AS SELECT * FROM empty UNION ALL SELECT * FROM visits UNION ALL SELECT * FROM empty",
    )
    for name in ("visits", "parts"):
        assert_reads_as_parquet(f"{place}/{name}", parquet, cells)


def test_duckdb_file_is_read_in_confined_process(tmp_path: Path) -> None:
    """A view cannot read other files, and a refusal has no text of the engine."""
    (tmp_path / "secret.csv").write_text("age\n7\n")
    place = make_database(
        tmp_path,
        "CREATE TABLE visits AS SELECT 34 AS age",
        f"CREATE VIEW others AS FROM '{tmp_path}/secret.csv'",
        "CREATE VIEW failing AS SELECT error('cell 34') AS age",
    )
    assert reader(tmp_path)(source(AGE, path=f"{place}/visits")).private_codes["age"].tolist() == [34]
    assert cause(lambda: reader(tmp_path)(source(AGE, path=f"{place}/nothing"))) == "missing"
    for name in ("others", "failing"):
        message = cause(lambda name=name: reader(tmp_path)(source(AGE, path=f"{place}/{name}")))  # type: ignore[misc]
        assert message.startswith("its database was not reached, or refused: ")
        assert "34" not in message
    assert (
        cause(lambda: reader(tmp_path / "x")(source(AGE, path=f"{place}/visits"))) == "outside SOTTO_TABLE_ROOTS"
    )


def test_duckdb_file_with_log_is_refused(tmp_path: Path) -> None:
    """The stamp is that of the file, so rows that are only in the log would be overlooked."""
    place = make_database(tmp_path, "CREATE TABLE visits AS SELECT 34 AS age")
    (tmp_path / "clinic.duckdb.wal").write_bytes(b"")
    message = cause(lambda: reader(tmp_path)(source(AGE, path=f"{place}/visits")))
    assert message == "its newest rows are not in the file; close the database, or run CHECKPOINT"


@pytest.mark.parametrize("kind", ["TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP", "TIMESTAMP_NS", "DATE"])
def test_duckdb_reads_every_time_without_error(tmp_path: Path, kind: str) -> None:
    """Each cell of a column of times is read, even a time in the far future, because a refusal would reveal something about one row."""
    latest = "2200-01-01" if kind == "TIMESTAMP_NS" else "3000-01-01"
    cells = ", ".join(f"('{cell}'::{kind})" for cell in ("2020-01-01", latest, "infinity"))
    place = make_database(tmp_path, f"CREATE TABLE visits AS SELECT * FROM (VALUES {cells}) AS v (day)")  # noqa: S608  (literals of this test)
    day = {"day": Dates(kind="date", minimum="2020-01-01", maximum="2020-01-31")}
    codes = reader(tmp_path)(source(day, path=f"{place}/visits")).private_codes["day"].tolist()
    assert codes[:2] == [0, 30]
    assert len(codes) == 3


def test_check_reads_duckdb_table(tmp_path: Path) -> None:
    """The check reads a table of a database like files."""
    place = make_database(tmp_path, "CREATE TABLE visits AS SELECT unnest([34, 200, NULL]) AS age")
    report = check_table(source(AGE, path=f"{place}/visits"))
    assert (report.rows, report.left_out, report.changed) == (3, 1, 1)


SCHEMA = {
    "age": "int64",
    "odd `\"'; --": "string",
    "id": "uuid",
    "cost": "decimal(9, 2)",
    "number": "decimal(38, 0)",
    "at": "timestamp('UTC')",
}
STATEMENTS = dict(
    line.split(": ", 1) for line in Path(__file__).with_name("server_statements.txt").read_text().splitlines()
)


@pytest.mark.parametrize("dialect", STATEMENTS)
def test_statement_selects_only_declared_columns(dialect: str) -> None:
    """Names are quoted as each dialect does; whole decimals and ids are read as text."""
    compiler: Any = getattr(compilers, f"{dialect}Compiler")()
    table = ibis.table(
        {**SCHEMA, "undeclared": "string"},
        name="visits",
        database="clinic",
        catalog=None if dialect == "ClickHouse" else "lake",
    )
    statement = compiler.to_sqlglot(select_columns(table, list(SCHEMA))).sql(compiler.dialect)
    assert statement == STATEMENTS[dialect]


def test_columns_of_other_types_are_refused_by_name() -> None:
    """A column that no attribute can have keeps the name of its type for the refusal."""
    kinds = {"a": "array<int64>", "b": "binary", "s": "struct<x: int64>", "t": "time", "big": "decimal(76, 2)"}
    found = {name: str(kind.base_type()) for name, kind in column_types(ibis.schema(kinds)).items()}
    assert found == {"a": "List", "b": "Binary", "s": "Struct", "t": "Time", "big": "String"}


def test_secret_comes_from_variable_or_owner_only_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NAME_FILE takes precedence over NAME."""
    monkeypatch.setenv("TRINO_PASSWORD", "in-the-environment")
    assert server_tables._read_setting("TRINO_PASSWORD") == "in-the-environment"
    (tmp_path / "password").write_text("in-a-file\n")
    (tmp_path / "password").chmod(0o600)
    monkeypatch.setenv("TRINO_PASSWORD_FILE", str(tmp_path / "password"))
    assert server_tables._read_setting("TRINO_PASSWORD") == "in-a-file"


def test_secret_file_readable_by_others_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log says what to change, and has no secret."""
    pytest.importorskip("clickhouse_connect", reason="clickhouse-connect, the extra clickhouse, is not installed")
    (tmp_path / "password").write_text("in-a-file\n")
    (tmp_path / "password").chmod(0o644)
    monkeypatch.setenv("CLICKHOUSE_PASSWORD_FILE", str(tmp_path / "password"))
    with pytest.raises(UnreadableError) as refused:
        list(open_table_parts("clickhouse://127.0.0.1:1/clinic/visits"))
    assert str(tmp_path / "password") in refused.value.cause
    assert "in-a-file" not in refused.value.cause


@pytest.mark.parametrize("scheme", server_tables.SERVER_KINDS)
def test_missing_server_driver_names_extra(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra of a server has the name of its scheme."""
    [package, *_] = server_tables.SERVER_KINDS[scheme].driver.split(".")
    monkeypatch.setitem(sys.modules, package, None)
    parts = ("clinic", "visits") if scheme in {"bigquery", "clickhouse"} else ("lake", "clinic", "visits")
    for module in [one for one in sys.modules if one.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, module)
    path = f"{scheme}://server/{'/'.join(parts)}"
    with pytest.raises(Missing, match=rf"pip install 'sotto-dp\[{scheme}\]'"):
        list(open_table_parts(path))
    assert stamp_of(path) != stamp_of(path)
