"""Measures the time and memory of a service that loads a table: ``python -m benchmarks.tables``.

Made-up tables of five attributes are read as a service reads them, in a process of its own, until the fingerprint is known.
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
from typing import Any, Final

import numpy as np
import polars as pl

from schemas import Bins, Categories, Domain, Integers, TableSource
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from stream.tables.store import TableStore

ROWS: Final = 100_000_000
ROWS_A_PERSON: Final = 5
CHUNK_ROWS: Final = 1 << 20
GIB: Final = 1 << 30
MIB: Final = 1 << 20

REGIONS: Final = tuple(f"region {number}" for number in range(40))
ATTRIBUTES: Final[Mapping[str, Domain]] = {
    "age": Integers(minimum=0, maximum=120),
    "sex": Categories(values=("F", "M", "other"), other="other"),
    "bmi": Bins(edges=(10.0, 18.5, 25.0, 30.0, 60.0), outside="reject"),
    "region": Categories(values=REGIONS),
    "hours": Integers(minimum=0, maximum=99),
}


def main() -> None:
    """Print one line for each kind of file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--folder", type=Path, help="where the tables are made, and removed again")
    parser.add_argument("--service", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.service is not None:
        print(json.dumps(_load(json.loads(told.service))))
        return
    print("table                    rows     size   seconds      rows/s  processor  service  reading process")
    for case in told.cases:
        with tempfile.TemporaryDirectory(dir=told.folder) as folder:
            path = CASES[case](Path(folder), told.rows)
            size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
            request = json.dumps({"path": path, "root": folder, "person": case == "persons"})
            command = [sys.executable, "-m", "benchmarks.tables", "--service", request]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
            found = json.loads(done.stdout)
        print(
            f"{case:16} {told.rows:12,} {size / MIB:5,.0f} MiB {found['seconds']:9.1f} {told.rows / found['seconds']:11,.0f}"
            f" {found['processor'] / told.rows * 1e9:7.0f} ns {found['service'] / MIB:4,.0f} MiB {found['reading'] / MIB:12,.0f} MiB",
            flush=True,
        )


def _load(request: dict[str, Any]) -> dict[str, float]:
    """Load a table like a service at a registration; return the time, and the memory of the service and its reading process."""
    limits = ReadingLimits((Path(request["root"]),), 8 * GIB, 16 * GIB, 3600.0)
    reader = GuardedReader(limits)
    source = TableSource(
        kind="table",
        source="made-up",
        neighbors="add-remove",
        epsilon=1.0,
        path=request["path"],
        person="person" if request["person"] else None,
        contribution=2 if request["person"] else 1,
        attributes=dict(ATTRIBUTES),
    )
    store = TableStore(bytes(32), read=reader, stamp=reader.stamp)
    begun = time.perf_counter()
    store.fingerprint(source)
    seconds = time.perf_counter() - begun
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return {
        "seconds": seconds,
        "processor": own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime,
        "service": _peak(),
        "reading": children.ru_maxrss * 1024,
    }


def _peak() -> int:
    """The most memory that this process had; getrusage begins with that of whoever started it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def _cells(rows: int, people: int, chance: np.random.Generator) -> pl.DataFrame:
    texts = pl.Series(REGIONS)
    return pl.DataFrame(
        {
            "person": chance.integers(0, people, rows),
            "age": chance.integers(0, 125, rows),
            "sex": pl.Series(["F", "M", "other"]).gather(chance.integers(0, 3, rows)),
            "bmi": chance.uniform(9.0, 61.0, rows).round(1),
            "region": texts.gather(chance.integers(0, len(texts), rows)),
            "hours": chance.integers(0, 100, rows).astype(np.int32),
        }
    )


def _parquet(path: Path, rows: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    people = max(1, rows // ROWS_A_PERSON)
    chunks = [min(CHUNK_ROWS, rows - start) for start in range(0, rows, CHUNK_ROWS)]

    def made(chunk: int) -> pl.LazyFrame:
        return pl.LazyFrame({"rows": [chunk]}).map_batches(
            lambda _: _cells(chunk, people, chance), schema=_cells(0, 1, chance).schema
        )

    pl.concat(map(made, chunks)).sink_parquet(path, row_group_size=CHUNK_ROWS)


def _file(folder: Path, rows: int) -> str:
    path = folder / "table.parquet"
    _parquet(path, rows, seed=1)
    return str(path)


def _folder(folder: Path, rows: int) -> str:
    parts = 20
    for part in range(parts):
        inside = folder / f"month={part}"
        inside.mkdir()
        _parquet(inside / "part.parquet", rows // parts, seed=part)
    return f"{folder}/"


def _csv(folder: Path, rows: int) -> str:
    path = folder / "table.csv"
    chance = np.random.default_rng(1)
    with path.open("wb") as file:
        for start in range(0, rows, CHUNK_ROWS):
            cells = _cells(min(CHUNK_ROWS, rows - start), rows, chance)
            cells.write_csv(file, include_header=start == 0)
    return str(path)


CASES: Final[Mapping[str, Callable[[Path, int], str]]] = {
    "parquet": _file,
    "parquet folder": _folder,
    "csv": _csv,
    "persons": _file,
}


if __name__ == "__main__":
    main()
