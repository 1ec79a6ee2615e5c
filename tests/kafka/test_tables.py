"""Tables on real Kafka: a load that takes longer than a session does not cost the worker its partitions."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stream.client import Client
from stream.data import Table
from stream.kafka.engine import Engine
from stream.kafka.services import budget, worker
from stream.noise import NoiseKey
from stream.settings import Settings

pytestmark = pytest.mark.kafka


async def test_a_slow_table_holds_up_neither_heartbeats_nor_the_other_partitions(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "people.csv"
    pl.DataFrame({"age": [20, 30, 40] * 10_000}).write_csv(path)
    load, loads, takes = Table.load, [], []
    seconds = settings.session_timeout_ms / 1000 + 1.5

    def slow_load(*arguments: Any) -> Table:
        loads.append(arguments)
        time.sleep(seconds)
        return load(*arguments)

    take = Engine.take

    async def counted_take(self: Engine, *arguments: Any) -> None:
        takes.append(arguments)
        await take(self, *arguments)

    monkeypatch.setattr(Table, "load", slow_load)
    monkeypatch.setattr(Engine, "take", counted_take)
    services = [budget(settings, client.topics, key), worker(settings, client.topics, key)]
    running = [asyncio.create_task(service.run()) for service in services]
    try:
        source = {
            "source": "people",
            "kind": "table",
            "neighbors": "add-remove",
            "epsilon": 2.0,
            "path": str(path),
        }
        await client.register({**source, "attributes": {"age": 100}})
        mechanism = {"kind": "above_threshold", "threshold": 10_000.0, "cutoff": 1}
        await client.open({"stream": "adults", "source": "people", "mechanism": mechanism, "epsilon": 1.0})
        answers = [
            await asyncio.wait_for(client.ask({"stream": "adults", "where": where}), 60)
            for where in ("age > 90", "age >= 18")
        ]
    finally:
        for service in services:
            service.stop()
        await asyncio.gather(*running)
    assert [answer.outcome for answer in answers] == ["below", "above"]
    assert len(loads) == 2
    assert len(takes) == len(services)
