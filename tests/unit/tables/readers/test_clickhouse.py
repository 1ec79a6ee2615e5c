"""Tables of ClickHouse, in the form that its engine sends."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest

from stream.tables.checks import check_table
from stream.tables.readers.table_files import parse_roots
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from tests.unit.tables.hostile_tables import assert_reads_as_parquet, hostile_cells
from tests.unit.tables.readers.guarded import AGE, cause
from tests.unit.tables.small import source


@pytest.fixture(autouse=True)
def _plain(clickhouse: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reader use HTTP without TLS, like the test's server."""
    monkeypatch.setenv("CLICKHOUSE_SECURE", "0")
    execute(clickhouse, "CREATE DATABASE IF NOT EXISTS clinic ENGINE = Atomic")


def execute(clickhouse: str, statement: str) -> None:
    urlopen(f"http://{clickhouse}/", data=statement.encode(), timeout=600).close()


def reader(clickhouse: str) -> GuardedReader:
    return GuardedReader(ReadingLimits(parse_roots(f"clickhouse://{clickhouse}/clinic"), 8 << 20, 1 << 30, 120.0))


def test_clickhouse_table_has_codes_of_parquet_file(clickhouse: str, tmp_path: Path) -> None:
    """This includes all columns except times without a zone, which ClickHouse lacks."""
    cells, parquet = hostile_cells(timestamps_without_zone=False), tmp_path / "hostile.parquet"
    cells.write_parquet(parquet)
    execute(clickhouse, "DROP TABLE IF EXISTS clinic.hostile")
    execute(
        clickhouse,
        f"CREATE TABLE clinic.hostile ENGINE = MergeTree ORDER BY tuple() AS SELECT * FROM file('{parquet}', Parquet)",  # noqa: S608
    )
    read = reader(clickhouse)
    path = f"clickhouse://{clickhouse}/clinic/hostile"
    assert_reads_as_parquet(path, parquet, cells, read=read.read, stamp=read.stamp)


@pytest.mark.filterwarnings("ignore")  # the driver's own
def test_check_reads_clickhouse_table(clickhouse: str) -> None:
    """The check counts the rows that a declaration leaves out."""
    execute(clickhouse, "CREATE OR REPLACE VIEW clinic.ages AS SELECT arrayJoin([34, 200, NULL]) AS age")
    report = check_table(source(AGE, path=f"clickhouse://{clickhouse}/clinic/ages"))
    assert (report.rows, report.left_out, report.changed) == (3, 1, 1)


def test_clickhouse_refusal_has_no_text_of_server(clickhouse: str) -> None:
    """The log has the kind of the error, and clients get the same text as for all other causes."""
    execute(clickhouse, "CREATE OR REPLACE VIEW clinic.failing AS SELECT throwIf(1, 'cell 34') AS age")
    causes = {
        "nothing": "missing",
        "failing": "its database was not reached, or refused: DatabaseError",
    }
    for table, message in causes.items():
        asked = source(AGE, path=f"clickhouse://{clickhouse}/clinic/{table}")
        assert cause(partial(reader(clickhouse), asked)) == message
