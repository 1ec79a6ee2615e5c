"""On real Kafka, neither slow table files nor malicious ones stop a service."""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import signal
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from schemas import Answer, OpenStream, RegisterSource
from sotto import AsyncClient, Refused, Timeout
from stream.engine.group_engine import Engine
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import partition_of
from stream.services.runner import build_budget_engine, build_worker_engine
from stream.settings import Settings
from stream.tables.readers.table_reading import READING_PROCESS, GuardedReader
from tests.builders import parse_source, parse_stream, source, stream
from tests.conftest import StartService
from tests.patience import SECONDS

pytestmark = pytest.mark.kafka


def reading_process_of(pid: int) -> int | None:
    """Return the process that reads a table for a service, if there is one."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process may have ended
            _, parent, *_ = status.read_text().rpartition(")")[2].split()
            # The service waits for a process that does not run its own program yet.
            if int(parent) == pid and READING_PROCESS in status.with_name("cmdline").read_text():
                return int(status.parent.name)
    return None


def people(name: str, file: Path) -> dict[str, Any]:
    """Return the definition of a table of ages in a file."""
    return source(name, "table", epsilon=2.0, path=str(file), attributes={"age": 100})


async def test_slow_table_delays_neither_heartbeats_nor_other_partitions(
    settings: Settings,
    client: AsyncClient,
    key: NoiseKey,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "people.csv"
    pl.DataFrame({"age": [20, 30, 40] * 10_000}).write_csv(path)
    load, loads, takes = GuardedReader.read, [], []
    seconds = settings.session_timeout_ms / 1000 + 1.5

    def slow_load(*arguments: Any) -> Any:
        loads.append(arguments)
        time.sleep(seconds)
        return load(*arguments)

    take = Engine.start_partitions

    async def count_start(self: Engine, *arguments: Any) -> None:
        takes.append(arguments)
        await take(self, *arguments)

    monkeypatch.setattr(GuardedReader, "read", slow_load)
    monkeypatch.setattr(Engine, "start_partitions", count_start)
    services = [
        build_budget_engine(settings, client.topics, key),
        build_worker_engine(settings, client.topics, key),
    ]
    running = [asyncio.create_task(service.run()) for service in services]
    try:
        await client.register(people("people", path))
        await client.open(stream("adults", "people", mechanism={"threshold": 10_000.0}))
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


async def test_budget_service_killed_while_it_reads_decides_once(
    client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    """While it reads a table, it decides requests for others; after a kill it reads the table again, and decides each request once."""
    path = tmp_path / "people.csv"
    path.write_text("age\n" + "20\n30\n" * 1_000_000)
    registration = RegisterSource(request="slow", source=parse_source(people("people", path)))
    opening = OpenStream(request="open", stream=parse_stream(stream("adults", "people", expected_queries=10)))
    budget = start("budget")
    asking = asyncio.create_task(client.requests([registration, opening]))
    async with asyncio.timeout(SECONDS):
        while (reading := reading_process_of(budget.pid)) is None:
            await asyncio.sleep(0.01)
    os.kill(reading, signal.SIGSTOP)
    with pytest.raises(Timeout, match="a table is being read"):
        await client.request(registration, timeout=3.0)
    await client.register(source("feed"))
    await client.open(stream("s"))
    assert not asking.done()
    budget.kill()
    os.kill(reading, signal.SIGKILL)
    start("budget")
    assert [receipt.outcome for receipt in await asking] == ["registered", "opened"]
    again = await client.request(registration)
    assert (again.outcome, again.sequence) == ("registered", (await asking)[0].sequence)
    decided = [entry.request async for entry in client.trail() if entry.kind == "request"]
    assert decided.count("slow") == decided.count("open") == 1


async def test_worker_answers_other_streams_while_it_loads(
    client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    """While a worker loads a table, it answers another stream of the same partition."""
    path = tmp_path / "people.csv"
    path.write_text("age\n" + "20\n30\n" * 1_000_000)
    start("budget")
    await client.register(people("people", path))
    await client.register(source("feed"))
    home = partition_of(b"adults", client.topics.partitions)
    names = map("beside-{}".format, count())
    beside = next(name for name in names if partition_of(name.encode(), client.topics.partitions) == home)
    await client.open(stream(beside, mechanism={"cutoff": 2}))
    worker = start("worker")
    assert (await client.ask({"stream": beside, "value": 1e9}, outcomes=True)).outcome == "above"
    await client.open(stream("adults", "people", mechanism={"threshold": 10_000.0}))
    async with asyncio.timeout(SECONDS):
        while (reading := reading_process_of(worker.pid)) is None:
            await asyncio.sleep(0.01)
    os.kill(reading, signal.SIGSTOP)
    assert (await client.ask({"stream": beside, "value": 1e9}, outcomes=True)).outcome == "above"
    os.kill(reading, signal.SIGCONT)
    assert (await client.ask({"stream": "adults", "where": "age >= 18"}, outcomes=True)).outcome == "above"


async def test_decompression_bomb_table_is_refused_and_stops_no_service(
    client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    path, sound = tmp_path / "bomb.csv.gz", tmp_path / "sound.csv"
    with gzip.open(path, "wb", 9) as bomb:
        bomb.write(b"age\n")
        for _ in range(200):
            bomb.write(b"1\n" * 500_000)
    sound.write_text("age\n" + "20\n" * 300)
    services = [start("budget"), start("worker")]

    async def answer(name: str) -> Answer:
        return await client.ask({"stream": f"{name}-alarm", "where": "age < 50"}, outcomes=True)

    with pytest.raises(Refused, match="no table can be read there"):
        await client.register(people("bomb", path))
    with pytest.raises(Refused, match="no table can be read there"):
        await client.register(people("passwords", Path("/etc/passwd")))
    for name in ("people", "others"):
        file = tmp_path / f"{name}.csv"
        shutil.copy(sound, file)
        await client.register(people(name, file))
        await client.open(stream(f"{name}-alarm", name, mechanism={"threshold": 200.0}))
    # The registered file becomes a bomb, and all services restart.
    path.replace(tmp_path / "others.csv")
    for service in services:
        service.kill()
    start("budget")
    start("worker")
    assert (await answer("people")).outcome == "above"
    assert (await answer("others")).outcome == "halted"


async def test_view_is_answered_and_its_faults_are_refused_by_name(
    client: AsyncClient, start: StartService, tmp_path: Path
) -> None:
    """A restarted worker answers from a view; receipts refuse a join that is not on a key, and a repeated key."""
    (tmp_path / "visits.csv").write_text("ward,days\n" + "a,5\nb,1\n" * 300)
    wards = tmp_path / "wards.csv"
    wards.write_text("code,town\na,Bern\nb,Basel\nb,Genf\n")
    tables = {
        "visits": {"path": f"{tmp_path}/visits.csv", "columns": {"ward": "text", "days": "integer"}},
        "wards": {"path": str(wards), "key": ["code"], "columns": {"code": "text", "town": "text"}},
    }
    select = "SELECT w.town FROM visits AS v JOIN wards AS w ON w.code = v.ward WHERE v.days * 2 > 1"
    declared = people("visits", tmp_path) | {"attributes": {"town": ["Bern", "Basel"]}}
    del declared["path"]

    def view(text: str) -> dict[str, Any]:
        return declared | {"view": {"select": text, "tables": tables}}

    start("budget")
    worker = start("worker")
    with pytest.raises(
        Refused, match="view: line 1, column 51: the lookup table 'wards' is not joined on its key"
    ):
        await client.register(view(select.replace("w.code", "w.town")))
    with pytest.raises(
        Refused, match=r"key: column 'wards\.code' of a lookup table has one value in several rows"
    ):
        await client.register(view(select))
    wards.write_text("code,town\na,Bern\nb,Basel\n")
    await client.register(view(select))
    await client.open(stream("towns", "visits", mechanism={"threshold": 200.0}))
    worker.kill()
    start("worker")
    asked = {"stream": "towns", "where": "town = 'Bern'"}
    assert (await client.ask(asked, outcomes=True)).outcome == "above"
