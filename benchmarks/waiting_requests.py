"""Measures what waits while a large table is read: ``python -m benchmarks.waiting_requests``.

A budget service on a private broker registers a Parquet table in DuckDB, and a worker loads it, twice: at the opening of a stream,
and after a refresh. Meanwhile other sources are registered, and questions are asked in the one partition.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from benchmarks.installation import FOLDER, private_broker
from benchmarks.programs import service
from schemas import Integers, RefreshSource, RegisterSource, TableSource, ValuesSource
from sotto import AsyncClient
from stream.kafka.topic_creation import create_topics
from stream.settings import Settings

ROWS = 30_000_000
PATIENCE = 3600.0
PAUSE = 0.2
LOADING_SECONDS = 15.0
"""Seconds within which a worker has loaded the table."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the seconds of the readings, and those of other requests and questions meanwhile."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waiting_requests", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args(arguments).rows
    with tempfile.TemporaryDirectory() as folder, private_broker(partitions=1) as settings:
        path = Path(folder) / "people.parquet"
        chance = np.random.default_rng(0)
        pl.DataFrame({"age": chance.integers(0, 100, rows, dtype=np.uint8)}).write_parquet(path)
        own = {"prefix": "bench", "table_roots": folder, "table_reading_seconds": PATIENCE}
        print(f"{rows:,} rows")
        asyncio.run(_measure(settings.model_copy(update=own), path))


async def _measure(settings: Settings, path: Path) -> None:
    await create_topics(settings)
    key, logs = secrets.token_hex(32), FOLDER / "logs"
    with service("budget", settings, key, logs / "budget-waiting.log"):
        async with AsyncClient(settings) as client:
            await _register(client, 0)
            _print("registrations before", [await _register(client, number) for number in range(1, 10)])
            numbers = count(10)
            registering = asyncio.create_task(client.request(_table(path), timeout=PATIENCE))
            _print("registrations meanwhile", await _repeat(registering, lambda: _register(client, next(numbers))))
            await client.open(_stream("beside", "feed-0", {"kind": "laplace", "answers": 1000}))
            with service("worker", settings, key, logs / "worker-waiting.log"):
                await _ask(client, "beside", value=1.0)
                await client.open(_stream("large", "people", {"kind": "laplace", "answers": 1000}))
                loading = asyncio.create_task(asyncio.sleep(LOADING_SECONDS))
                _print(
                    "questions beside a load", await _repeat(loading, lambda: _ask(client, "beside", value=1.0))
                )
                print(f"first question to the table: {await _ask(client, 'large', where='age < 10'):.1f} s")
                await client.request(RefreshSource(request="refresh", source="people"), timeout=PATIENCE)
                loading = asyncio.create_task(asyncio.sleep(LOADING_SECONDS))
                _print(
                    "questions to the table after its refresh",
                    await _repeat(loading, lambda: _ask(client, "large", where="age < 10")),
                )


def _print(what: str, seconds: list[float]) -> None:
    middle, longest = (1000 * one for one in (median(seconds), max(seconds)))
    print(f"{what}: {len(seconds)}, median {middle:.0f} ms, longest {longest:.0f} ms", flush=True)


async def _repeat(until: asyncio.Task[Any], act: Callable[[], Awaitable[float]]) -> list[float]:
    """Act again and again until a task ends; return the seconds of each time."""
    began, seconds = time.monotonic(), []
    await asyncio.sleep(PAUSE)
    while not until.done():
        seconds.append(await act())
        await asyncio.sleep(PAUSE)
    await until
    print(f"{time.monotonic() - began:.1f} s: ", end="")
    return seconds


def _table(path: Path) -> RegisterSource:
    table = TableSource(
        kind="table",
        source="people",
        neighbors="add-remove",
        epsilon=100.0,
        path=str(path),
        engine="duckdb",
        attributes={"age": Integers(minimum=0, maximum=99)},
    )
    return RegisterSource(request="people", source=table)


def _stream(name: str, source: str, mechanism: dict[str, Any]) -> dict[str, Any]:
    return {"stream": name, "source": source, "epsilon": 1.0, "mechanism": mechanism}


async def _ask(client: AsyncClient, stream: str, **question: Any) -> float:
    began = time.monotonic()
    await client.ask({"stream": stream, **question}, timeout=PATIENCE)
    return time.monotonic() - began


async def _register(client: AsyncClient, number: int) -> float:
    began = time.monotonic()
    source = ValuesSource(
        source=f"feed-{number}", neighbors="add-remove", epsilon=10.0, kind="values", sensitivity=1.0
    )
    await client.request(RegisterSource(request=f"feed-{number}", source=source), timeout=PATIENCE)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
