"""How long other requests wait while a large table is registered: ``python -m benchmarks.waiting_requests``.

A budget service on a private broker registers a Parquet table in DuckDB. Meanwhile other sources are registered, one after another.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import polars as pl

from benchmarks.installation import FOLDER, private_broker
from benchmarks.programs import service
from schemas import Integers, RegisterSource, TableSource, ValuesSource
from sotto import AsyncClient
from stream.kafka.topics.creation import create_topics
from stream.settings import Settings

ROWS = 30_000_000
PATIENCE = 3600.0
PAUSE = 0.2


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the seconds of the registration, and those of the other requests."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waiting_requests", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args(arguments).rows
    with tempfile.TemporaryDirectory() as folder, private_broker() as settings:
        path = Path(folder) / "people.parquet"
        chance = np.random.default_rng(0)
        pl.DataFrame({"age": chance.integers(0, 100, rows, dtype=np.uint8)}).write_parquet(path)
        own = {"prefix": "bench", "table_roots": folder, "table_reading_seconds": PATIENCE}
        alone, slow, others = asyncio.run(_measure(settings.model_copy(update=own), path))
    print(
        f"{rows:,} rows registered in {slow:.1f} s; another registration takes {alone * 1000:.0f} ms before that"
    )
    print(
        f"{len(others)} meanwhile: median {median(others) * 1000:.0f} ms, longest {max(others) * 1000:.0f} ms",
        flush=True,
    )


async def _measure(settings: Settings, path: Path) -> tuple[float, float, list[float]]:
    await create_topics(settings)
    with service("budget", settings, secrets.token_hex(32), FOLDER / "logs" / "budget-waiting.log"):
        async with AsyncClient(settings) as client:
            await _register(client, 0)
            alone = median([await _register(client, number) for number in range(1, 10)])
            table = TableSource(
                kind="table",
                source="people",
                neighbors="add-remove",
                epsilon=1.0,
                path=str(path),
                engine="duckdb",
                attributes={"age": Integers(minimum=0, maximum=99)},
            )
            began = time.monotonic()
            others: list[float] = []
            request = RegisterSource(request="people", source=table)
            registering = asyncio.create_task(client.request(request, timeout=PATIENCE))
            await asyncio.sleep(PAUSE)
            while not registering.done():
                others.append(await _register(client, 10 + len(others)))
                await asyncio.sleep(PAUSE)
            if (receipt := await registering).outcome != "registered":
                raise RuntimeError(receipt.reason)
            return alone, time.monotonic() - began, others


async def _register(client: AsyncClient, number: int) -> float:
    began = time.monotonic()
    source = ValuesSource(
        source=f"feed-{number}", neighbors="add-remove", epsilon=1.0, kind="values", sensitivity=1.0
    )
    await client.request(RegisterSource(request=f"feed-{number}", source=source), timeout=PATIENCE)
    return time.monotonic() - began


if __name__ == "__main__":
    main()
