"""Measure how fast ADBC and Ibis (psycopg) read a table of PostgreSQL: ``python -m benchmarks.postgresql_readers``.

Needs PostgreSQL's programs, and ``pip install 'ibis-framework[postgres]' psycopg-binary``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import ibis
import polars as pl
import pytest

from schemas import Address
from stream.tables.readers.postgresql import open_postgresql_table
from stream.tables.readers.server_tables import select_columns
from stream.tables.readers.table_parts import BATCH_ROWS
from tests.unit.tables.readers.servers import READER, database_server, let_into_the_database

COLUMNS = ("age", "ward", "cost", "visited", "patient")


def read_by_adbc(address: Address) -> Iterator[pl.DataFrame]:
    """Yield the batches of the reader in use."""
    for part in open_postgresql_table(address):
        yield from part.batches(COLUMNS)


def read_by_ibis(address: Address) -> Iterator[pl.DataFrame]:
    """Yield the batches that Ibis makes of psycopg's rows."""
    backend = ibis.postgres.connect(
        host=address.host, port=address.port, user="reader", password=READER, database=address.parts[0]
    )
    selected = select_columns(backend.table("visits"), COLUMNS)
    yield from map(pl.DataFrame, backend.to_pyarrow_batches(selected, chunk_size=BATCH_ROWS))


def main(rows: int) -> None:
    """Fill a table, and print the best of three times of each reader."""
    with (
        database_server() as server,
        tempfile.TemporaryDirectory() as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        let_into_the_database(server, Path(folder), patch)
        server.execute(
            "CREATE TABLE visits AS SELECT (i % 100)::smallint AS age, 'ward ' || i % 10 AS ward, "
            "(i % 100000 / 100.0)::numeric(9,2) AS cost, date '2025-01-01' + i % 365 AS visited, i::bigint AS patient "
            "FROM generate_series(1, ROWS) AS i".replace("ROWS", str(rows)),
            "GRANT SELECT ON visits TO reader",
        )
        address = Address.parse_table(server.address("visits"))
        if address is None:
            raise SystemExit("no address")
        for read in (read_by_adbc, read_by_ibis):
            times = []
            for _ in range(3):
                begin = perf_counter()
                found = sum(batch.height for batch in read(address))
                times.append(perf_counter() - begin)
            print(f"{read.__name__}: {found:,} rows in {min(times):.2f} s ({os.cpu_count()} processors)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
