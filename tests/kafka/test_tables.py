"""Tables on real Kafka: neither slow files nor files made to harm their readers stop a service."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas import Answer
from sotto import AsyncClient, Refused
from stream.data import GuardedReader, Rows
from stream.kafka.engine import Engine
from stream.kafka.keyed import budget, worker
from stream.noise import NoiseKey
from stream.settings import Settings
from tests.conftest import StartService

pytestmark = pytest.mark.kafka


async def test_a_slow_table_holds_up_neither_heartbeats_nor_the_other_partitions(
    settings: Settings,
    client: AsyncClient,
    key: NoiseKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "people.csv"
    pl.DataFrame({"age": [20, 30, 40] * 10_000}).write_csv(path)
    load, loads, takes = GuardedReader.__call__, [], []
    seconds = settings.session_timeout_ms / 1000 + 1.5

    def slow_load(*arguments: Any) -> Rows:
        loads.append(arguments)
        time.sleep(seconds)
        return load(*arguments)

    take = Engine.take

    async def counted_take(self: Engine, *arguments: Any) -> None:
        takes.append(arguments)
        await take(self, *arguments)

    monkeypatch.setattr(GuardedReader, "__call__", slow_load)
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
            await client.ask({"stream": "adults", "where": where}, outcomes=True)
            for where in ("age > 90", "age >= 18")
        ]
    finally:
        for service in services:
            service.stop()
        await asyncio.gather(*running)
    assert [answer.outcome for answer in answers] == ["below", "above"]
    assert len(loads) == 2
    assert len(takes) == len(services)


async def test_a_table_that_unfolds_into_much_is_refused_and_stops_neither_services_nor_their_next_start(
    client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    path, sound = tmp_path / "bomb.csv.gz", tmp_path / "sound.csv"
    with gzip.open(path, "wb", 9) as bomb:
        bomb.write(b"age\n")
        for _ in range(200):
            bomb.write(b"1\n" * 500_000)
    sound.write_text("age\n" + "20\n" * 300)
    services = [start("budget"), start("worker")]

    def source(name: str, file: Path) -> dict[str, Any]:
        declared = {"source": name, "kind": "table", "neighbors": "add-remove", "epsilon": 2.0, "path": str(file)}
        return {**declared, "attributes": {"age": 100}}

    def stream(name: str) -> dict[str, Any]:
        mechanism = {"kind": "above_threshold", "threshold": 200.0, "cutoff": 1}
        return {"stream": f"{name}-alarm", "source": name, "mechanism": mechanism, "epsilon": 1.0}

    async def answer(name: str) -> Answer:
        return await client.ask({"stream": f"{name}-alarm", "where": "age < 50"}, outcomes=True)

    with pytest.raises(Refused, match="no table can be read there"):
        await client.register(source("bomb", path))
    with pytest.raises(Refused, match="no table can be read there"):
        await client.register(source("passwords", Path("/etc/passwd")))
    for name in ("people", "others"):
        file = tmp_path / f"{name}.csv"
        shutil.copy(sound, file)
        await client.register(source(name, file))
        await client.open(stream(name))
    # The registered file becomes a bomb, and everybody starts again.
    path.replace(tmp_path / "others.csv")
    for service in services:
        service.kill()
    start("budget")
    start("worker")
    assert (await answer("people")).outcome == "above"
    assert (await answer("others")).outcome == "halted"
