"""Measures questions about a table in memory and in DuckDB: ``python -m benchmarks.engines``.

A made-up Parquet file of six attributes with Zipf-like values is loaded as a worker loads it, each engine in its own
process. Beside each count in DuckDB is DuckDB's own time for the same condition, over the Parquet file ("at source") and
over the codes. ``--address`` names a PostgreSQL table with these columns instead, which is asked at its source, too.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final

import adbc_driver_postgresql.dbapi as postgresql
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.estimates import measure_questions
from schemas import Address, Domain, Integers, TableSource
from sotto import Driver
from stream.privacy.noise.keys import NoiseKey
from stream.tables.counted_table import CountedTable
from stream.tables.engine_limits import EngineLimits
from stream.tables.expressions import TRUE, Predicate, conjunction, make_leaf
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.store import TableStore
from stream.tables.stored_table import StoredTable

ROWS: Final = (1_000_000, 10_000_000, 100_000_000)
CHUNK_ROWS: Final = 1 << 20
SIZES: Final[Mapping[str, int]] = {"a": 2, "b": 7, "c": 24, "d": 100, "e": 366, "f": 1000}
GIB: Final = 1 << 30
MIB: Final = 1 << 20
REPEATS: Final = 5
BATCH: Final = 100
BATCH_PAIRS: Final = (("a", "f"), ("b", "f"), ("c", "e"), ("b", "e"), ("c", "f"))
"""Each batch is about other attributes, so that no cache has their cells."""


def main() -> None:
    """Print a line for each number of rows and engine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--engines", nargs="+", choices=("memory", "duckdb"), default=["memory", "duckdb"])
    parser.add_argument("--address", help="a table in PostgreSQL with columns a to f, instead of made-up files")
    parser.add_argument("--folder", type=Path, help="where the tables and databases are made, and removed again")
    parser.add_argument("--service", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.service is not None:
        print(json.dumps(_measure(**json.loads(told.service))))
        return
    names = ("loaded", "count", "100 counts", "sum", "group-by", "at source", "DuckDB: codes")
    heads = "".join(f"{name:>15}" for name in names)
    print(f"rows          engine  {heads}   pmw, known      service      reading         disk")
    for rows in told.rows if told.address is None else (0,):
        with tempfile.TemporaryDirectory(dir=told.folder) as folder:
            path = told.address or str(Path(folder, "table.parquet"))
            if told.address is None:
                _write(Path(path), rows)
            for engine in told.engines:
                request = json.dumps({"path": path, "engine": engine, "folder": folder})
                command = [sys.executable, "-m", "benchmarks.engines", "--service", request]
                found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                times = "".join(f"{_shown(found.get(name)):>15}" for name in names)
                sizes = "".join(f"{found[name] / MIB:9,.0f} MiB" for name in ("service", "reading", "disk"))
                print(f"{found['rows']:13,} {engine:8}{times} {found['pmw']:10,.0f}/s{sizes}", flush=True)


def _shown(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:,.2f} s" if seconds >= 1 else f"{seconds * 1000:,.1f} ms"


def _measure(path: str, engine: str, folder: str) -> dict[str, float]:
    """Return the time and memory that a worker's process needs to load the table and to answer."""
    address = Address.parse_table(path)
    limits = ReadingLimits(
        (Path(folder) if address is None else address,),
        16 * GIB,
        16 * GIB,
        3600.0,
        engine=EngineLimits(folder, 2 * GIB, 64 * GIB, 3600.0),
    )
    reader = GuardedReader(limits)
    attributes: dict[str, Domain] = {name: Integers(minimum=0, maximum=size - 1) for name, size in SIZES.items()}
    source = TableSource(
        kind="table",
        source="made-up",
        neighbors="add-remove",
        epsilon=10.0,
        path=path,
        attributes=attributes,
        engine=engine,  # type: ignore[arg-type]
    )
    driver = Driver(bytes(32), partitions=1)
    tables = driver._tables = TableStore.keyed_by(NoiseKey(bytes(32)), read=reader.read, stamp=reader.stamp)  # noqa: SLF001
    driver.crash()  # its services restart with this store
    began = time.perf_counter()
    driver.register(source)
    found = {"loaded": time.perf_counter() - began, "reading": float(_children_peak())}
    table = tables.get(source)
    found["rows"] = table.private_row_count
    table.count(TRUE)  # the first statement imports parts of Ibis
    found["count"] = _median(lambda turn: table.count(_condition(turn + 3)))
    found["100 counts"] = _median(lambda turn: _count_batch(table, turn))
    found["sum"] = _median(lambda turn: table.total("f", _condition(turn + 800)))
    found["group-by"] = _median(lambda turn: table.group_counts(["d", "e"], _condition(turn + 3)))
    if isinstance(table, StoredTable):
        own = table.rows().database._connection  # noqa: SLF001
        found["DuckDB: codes"] = _median(lambda turn: _ask(own, "table0", "c0", "c5", turn))
    if address is not None:
        with postgresql.connect(f"postgresql://{address.host}:{address.port}/{address.parts[0]}") as server:
            found["at source"] = _median(lambda turn: _ask_server(server, ".".join(address.parts[1:]), turn))
    elif isinstance(table, StoredTable):
        with duckdb.connect(config={"memory_limit": "4GiB"}) as fresh:
            found["at source"] = _median(lambda turn: _ask(fresh, f"'{path}'", "a", "f", turn))
    found["service"] = _peak()
    found["pmw"] = measure_questions(driver, source.source, {name: SIZES[name] for name in ("b", "c", "d")})[1]
    found["disk"] = sum(file.stat().st_size for file in Path(folder).rglob("*.duckdb"))
    return found


def _count_batch(table: CountedTable, turn: int) -> None:
    first, last = BATCH_PAIRS[turn]
    batch = [
        conjunction([make_leaf(first, SIZES[first], (1, 2)), make_leaf(last, SIZES[last], (0, place + 2))])
        for place in range(BATCH)
    ]
    table.count_together(batch, ())
    table.counts(batch)


def _condition(below: int) -> Predicate:
    return conjunction([make_leaf("a", SIZES["a"], (1, 2)), make_leaf("f", SIZES["f"], (0, below % 990 + 1))])


def _ask(connection: duckdb.DuckDBPyConnection, table: str, first: str, last: str, turn: int) -> object:
    return connection.sql(f"SELECT count(*) FROM {table} WHERE {first} = 1 AND {last} < {turn + 4}").fetchall()  # noqa: S608


def _ask_server(server: postgresql.Connection, table: str, turn: int) -> object:
    with server.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table} WHERE a = 1 AND f < {turn + 4}")  # noqa: S608
        return cursor.fetchall()


def _median(step: Callable[[int], object]) -> float:
    """The median time of several different questions, so that no cache has them."""
    times = []
    for turn in range(REPEATS):
        began = time.perf_counter()
        step(turn)
        times.append(time.perf_counter() - began)
    return median(times)


def _peak() -> int:
    """The most memory that this process had."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def _children_peak() -> int:
    """The most memory that the reading process had."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def _write(path: Path, rows: int) -> None:
    """Write a table whose k-th value is 1/k as frequent as the first."""
    chance = np.random.default_rng(1)
    shares = {name: np.cumsum(1 / np.arange(1, size + 1)) for name, size in SIZES.items()}
    schema = pa.schema([(name, pa.int16()) for name in SIZES])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK_ROWS):
            count = min(CHUNK_ROWS, rows - start)
            columns: dict[str, Any] = {
                name: share.searchsorted(chance.random(count, dtype=np.float32) * share[-1])
                .clip(max=len(share) - 1)
                .astype(np.int16)
                for name, share in shares.items()
            }
            writer.write_table(pa.table(columns, schema=schema))


if __name__ == "__main__":
    main()
