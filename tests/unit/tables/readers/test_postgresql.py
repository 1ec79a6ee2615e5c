"""Tables in PostgreSQL are read in one snapshot and in any order of rows, by a role that may only read."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from schemas import Address, Bins, Categories, Domain, Integers, TableSource
from stream.tables.checks import check_table
from stream.tables.readers import postgresql as postgresql_module
from stream.tables.readers.source_parts import open_table_parts, stamp_of
from stream.tables.readers.table_files import parse_roots
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.rows import Rows
from stream.tables.store import TableStore
from stream.tables.table_errors import TableDataError, UnreadableError
from tests.unit.tables.hostile_tables import assert_reads_as_parquet, hostile_cells
from tests.unit.tables.readers import guarded
from tests.unit.tables.readers.guarded import rows_of
from tests.unit.tables.readers.servers import READER, Database, let_into_the_database
from tests.unit.tables.small import KEY, source
from tests.views import view_source

_BROKE_OFF = "PostgreSQL ended the connection while it sent rows"
ATTRIBUTES: dict[str, Domain] = {
    "age": Integers(minimum=0, maximum=120),
    "Sex": Categories(values=("F", "M", "?"), other="?"),
    "bmi": Bins(edges=(10.0, 18.5, 25.0, 30.0)),
    "paid": Integers(minimum=0, maximum=1000, outside="reject"),
    "insured": Categories(values=("true", "false")),
}


@pytest.fixture
def clinic(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """The server, with credentials in a file that a variable names, as in a deployment."""
    let_into_the_database(database, tmp_path, monkeypatch)
    return database


def fill(database: Database, *rows: str, table: str = "visits") -> None:
    database.execute(
        f"DROP TABLE IF EXISTS {table} CASCADE",
        f'CREATE TABLE {table} (who uuid, age smallint, "Sex" char(3), bmi double precision, paid numeric, insured boolean)',
        *([f"INSERT INTO {table} VALUES {', '.join(rows)}"] if rows else []),  # noqa: S608
    )


ANN, BEN = ("'11111111-1111-1111-1111-111111111111'", "'22222222-2222-2222-2222-222222222222'")
ROWS = (
    f"({ANN}, 34, 'F', 17.5, 10.0, true)",
    f"({ANN}, 200, 'M', 25, 999, false)",
    f"({BEN}, -3, 'x', 'NaN', 1, true)",
    f"({BEN}, NULL, 'F', 20, 1, true)",
    f"({BEN}, 51, NULL, 'Infinity', 7.00, true)",
    "(NULL, 51, 'F', 12, 7.5, true)",
    "(NULL, 52, 'F', 12, 1e40, true)",
    "(NULL, 53, 'F', 12, 1000, true)",
)


cause = partial(guarded.cause, secret=READER)


def reader(root: str) -> GuardedReader:
    return GuardedReader(ReadingLimits(parse_roots(root), 8 << 20, 1 << 30, 120.0))


def declared(database: Database, table: str = "visits", person: str | None = None) -> TableSource:
    return source(ATTRIBUTES, database.address(table), person=person, contribution=1 if person is None else 2)


def test_view_joins_a_table_of_a_server_to_a_file(clinic: Database, tmp_path: Path) -> None:
    """A view joins a table in PostgreSQL, in its snapshot, to a lookup table in a file."""
    fill(clinic, *ROWS)
    (tmp_path / "sexes.csv").write_text("code,name\nF,women\nM,men\n")
    address = f"postgresql://127.0.0.1:{clinic.port}/clinic/public/visits"
    tables = {
        "visits": {"path": address, "person": "who", "columns": {"Sex": "text", "age": "integer"}},
        "sexes": {"path": f"{tmp_path}/sexes.csv", "key": ["code"], "columns": {"code": "text"}},
    }
    select = 'SELECT v.who, s.name FROM visits v JOIN sexes s ON s.code = TRIM(v."Sex") WHERE v.age > 30'
    declared = view_source(select, tables, [], person="who", contribution=9, attributes={"name": ["women", "men"]})
    limits = ReadingLimits.parse(f"{tmp_path}:{address}", table_bytes=1 << 23, reading_bytes=1 << 30, seconds=60.0)
    reader = GuardedReader(limits)
    rows = reader(declared)
    assert sorted(rows_of(rows)) == [(0,), (1,)]
    assert (rows.file_row_count, rows.private_unnamed) == (8, 3)
    assert reader.stamp(declared) == reader.stamp(declared)


def test_postgresql_cells_are_read_like_cells_of_files(clinic: Database) -> None:
    fill(clinic, *ROWS)
    rows = reader(f"postgresql://127.0.0.1:{clinic.port}/clinic/public/")(declared(clinic))
    assert sorted(rows_of(rows)) == [(34, 0, 0, 10, 0), (51, 2, 2, 7, 0), (53, 0, 0, 1000, 0), (120, 1, 2, 999, 1)]
    assert rows.file_row_count == len(ROWS)


def test_postgresql_credentials_may_come_from_service_file(
    clinic: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(clinic, *ROWS)
    services = tmp_path / "pg_service.conf"
    services.write_text(f"[clinic]\nhost=nowhere.invalid\nport=1\ndbname=other\nuser=reader\npassword={READER}\n")
    services.chmod(0o440)
    monkeypatch.delenv("PGPASSFILE")
    monkeypatch.delenv("PGUSER")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    monkeypatch.setenv("PGSERVICE", "clinic")
    rows = reader(f"postgresql://127.0.0.1:{clinic.port}/clinic/public/")(declared(clinic))
    assert rows.file_row_count == len(ROWS)


def test_postgresql_fingerprint_ignores_row_order_only(clinic: Database) -> None:
    store, orders = TableStore(KEY), (ROWS, ROWS[::-1])
    others: list[tuple[str, ...]] = [
        ROWS[1:],
        (*ROWS, ROWS[0]),
        (ROWS[0].replace("34", "35"), *ROWS[1:]),
        (),
    ]
    for person in (None, "who"):
        found = set()
        for rows in orders:
            fill(clinic, *rows)
            found.add(store.fingerprint(declared(clinic, person=person)))
        assert len(found) == 1
        for other in others:
            fill(clinic, *other)
            found.add(store.fingerprint(declared(clinic, person=person)))
        assert len(found) == 5


def test_postgresql_table_with_unregistered_rows_is_refused(clinic: Database) -> None:
    fill(clinic, *ROWS)
    registered = TableStore(KEY).fingerprint(declared(clinic, person="who"))
    assert TableStore(KEY).get(declared(clinic, person="who"), registered).public_size == 2 + 3
    clinic.execute("UPDATE visits SET age = 35 WHERE age = 34")
    with pytest.raises(TableDataError, match="differs from what was registered"):
        TableStore(KEY).get(declared(clinic, person="who"), registered)


def test_postgresql_rows_are_of_one_snapshot(clinic: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(clinic)
    clinic.execute("INSERT INTO visits SELECT NULL, 1, repeat('M', 1), 20, 1, true FROM generate_series(1, 50000)")
    monkeypatch.setattr(postgresql_module, "_BATCH_BYTES", 1 << 16)
    parts = open_table_parts(clinic.address("visits"))
    part = next(parts)
    batches = part.batches(["age"])
    next(batches)
    found = [next(batches)]
    clinic.execute("UPDATE visits SET age = 2", "INSERT INTO visits SELECT * FROM visits")
    found.extend(batches)
    assert len(found) > 2
    assert sum(batch.height for batch in found) == 50_000
    assert {age for batch in found for age in batch["age"]} == {1}
    # A second query in the snapshot gives the same rows, although others have committed meanwhile.
    assert {age for batch in part.batches(["age"]) for age in batch["age"]} == {1}
    assert list(parts) == []


def test_postgresql_stamp_changes_with_commits(clinic: Database) -> None:
    fill(clinic, *ROWS)
    # The server itself commits sometimes, so it suffices if one of several pairs agrees.
    assert any(stamp_of(clinic.address("visits")) == stamp_of(clinic.address("visits")) for _ in range(20))
    before = stamp_of(clinic.address("visits"))
    clinic.execute("UPDATE visits SET age = 35 WHERE age = 34")
    assert stamp_of(clinic.address("visits")) != before
    guarded = reader(f"postgresql://127.0.0.1:{clinic.port}").stamp(declared(clinic))
    assert (guarded[0], len(guarded)) == (clinic.address("visits"), 3)


def test_postgresql_view_cannot_write(clinic: Database) -> None:
    fill(clinic, *ROWS)
    clinic.execute(
        "CREATE TABLE IF NOT EXISTS marks (at int)",
        "GRANT INSERT ON marks TO reader",
        "CREATE OR REPLACE FUNCTION mark() RETURNS int LANGUAGE sql AS 'INSERT INTO marks VALUES (1) RETURNING at'",
        "CREATE VIEW marking AS SELECT mark() AS age",
    )
    asked = source({"age": ATTRIBUTES["age"]}, path=clinic.address("marking"))
    read = reader(f"postgresql://127.0.0.1:{clinic.port}/clinic")
    assert cause(lambda: read(asked)) == _BROKE_OFF
    clinic.execute("DO $$ BEGIN IF (SELECT count(*) FROM marks) > 0 THEN RAISE 'written'; END IF; END $$")


def test_postgresql_error_code_is_only_in_log(
    clinic: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fill(clinic, *ROWS)
    clinic.execute(
        "CREATE TABLE IF NOT EXISTS hidden (age int)",
        "REVOKE ALL ON hidden FROM reader",
        "CREATE VIEW dividing AS SELECT 1 / (age - 34) AS age FROM visits",
    )
    root = f"postgresql://127.0.0.1:{clinic.port}/clinic/public"

    def cause_at(table: str, at: str = root) -> str:
        return cause(partial(reader(at), source({"age": ATTRIBUTES["age"]}, path=clinic.address(table))))

    assert cause_at("nothing") == "missing"
    assert cause_at("hidden") == "PostgreSQL refused: 42501 (a right is missing)"
    assert cause_at("dividing") == _BROKE_OFF
    for other in ("postgresql://127.0.0.1", f"{root}2", "postgresql://localhost", f"{root}/visits2"):
        assert cause_at("visits", other) == "outside SOTTO_TABLE_ROOTS"
    with pytest.raises(TableDataError, match="no column 'height'"):
        reader(root)(source({"height": ATTRIBUTES["age"]}, path=clinic.address("visits")))
    (tmp_path / "pgpass").write_text("")
    assert cause_at("visits").startswith("PostgreSQL was not reached, or refused the login; check ")
    monkeypatch.setenv("PGPASSWORD", "wrong-" + READER)
    assert cause_at("visits").startswith("PostgreSQL was not reached, or refused the login; check ")


def test_postgresql_column_names_are_quoted(clinic: Database) -> None:
    name = 'it\'s "x"; DROP TABLE visits; --'
    clinic.execute("DROP TABLE IF EXISTS odd", f'CREATE TABLE odd ("{name.replace(chr(34), 2 * chr(34))}" int)')
    clinic.execute("INSERT INTO odd VALUES (3)")
    rows = Rows.load(source({name: ATTRIBUTES["age"]}, path=clinic.address("odd")))
    assert rows.private_codes[name].tolist() == [3]


def test_check_reads_postgresql_table(clinic: Database) -> None:
    fill(clinic, *ROWS)
    report = check_table(declared(clinic), person="who")
    assert (report.rows, report.left_out, report.as_declared) == (8, 4, 2)
    assert report.people is not None
    assert (report.people.people, report.people.rows_without) == (2, 1)


def test_postgresql_catalog_query_binds_names(clinic: Database) -> None:
    """A table's name is a value of the query for its columns, and no part of the query's text."""
    clinic.execute(
        'DROP TABLE IF EXISTS "o\'brien"',
        'CREATE TABLE "o\'brien" (age int)',
        'GRANT SELECT ON "o\'brien" TO reader',
    )
    address = Address("postgresql", "127.0.0.1", clinic.port, ("clinic", "public", "o'brien"), is_folder=False)
    [part] = postgresql_module.open_postgresql_table(address)
    assert list(part.types) == ["age"]


def test_postgresql_table_has_codes_of_parquet_file(clinic: Database, tmp_path: Path) -> None:
    """Nulls, NaN, -0.0, 2^53 + 1, decimals, Unicode forms and zones change no code."""
    cells, parquet = hostile_cells(), tmp_path / "hostile.parquet"
    cells.write_parquet(parquet)
    kinds = ("text", "bigint", "double precision", "real", "numeric", "numeric(9,5)", "text", "boolean", "date")
    columns = dict(zip(cells.columns, (*kinds, "timestamptz", "timestamp"), strict=True))
    rows = [
        ", ".join("NULL" if cell is None else "'" + str(cell).replace("'", "''") + "'" for cell in row)
        for row in cells.iter_rows()
    ]
    clinic.execute(
        "DROP TABLE IF EXISTS hostile",
        f"CREATE TABLE hostile ({', '.join(f'{name} {kind}' for name, kind in columns.items())})",
        f"INSERT INTO hostile VALUES {', '.join(f'({row})' for row in rows)}",  # noqa: S608
    )
    assert_reads_as_parquet(clinic.address("hostile"), parquet, cells)


def test_postgresql_role_that_may_write_is_refused_to_services(clinic: Database) -> None:
    """The rights are checked at each reading; a check by the owner may use the owner's role."""
    fill(clinic, *ROWS)
    read = reader(f"postgresql://127.0.0.1:{clinic.port}")
    for right in ("INSERT", "UPDATE", "DELETE", "TRUNCATE"):
        clinic.execute(f"GRANT {right} ON visits TO reader")
        message = cause(lambda: read(declared(clinic)))
        assert message == "its role may change the table; give the services one that may only SELECT"
        assert check_table(declared(clinic)).rows == len(ROWS)
        clinic.execute(f"REVOKE {right} ON visits FROM reader")
    assert read(declared(clinic)).file_row_count == len(ROWS)


def test_postgresql_statement_ends_after_reading_time(clinic: Database) -> None:
    """The server ends a statement by itself, even if the reading process is gone."""
    clinic.execute("CREATE OR REPLACE VIEW slow AS SELECT 1 AS age FROM pg_sleep(60)")
    address = Address.parse_table(clinic.address("slow"))
    assert address is not None
    parts = postgresql_module.open_postgresql_table(address, 0.2)
    part = next(parts)
    with pytest.raises(UnreadableError, match=r"57014|ended the connection"):
        list(part.batches(["age"]))
