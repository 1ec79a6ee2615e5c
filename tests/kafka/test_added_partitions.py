"""A topic gets more partitions while services run: partitions that all topics have continue; the others are refused and shown."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from sotto import AsyncClient
from stream.engine.group_engine import Engine
from stream.engine.health import ServiceHealth
from stream.engine.session import EngineRole
from stream.kafka.topic_layouts import worker_group
from stream.monitor.api.service_models import WorkersView
from stream.monitor.monitor_service import GroupWatch
from stream.monitor.monitor_tables import MonitorTables
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import Topics, partition_of
from stream.services.runner import table_store
from stream.settings import Settings
from stream.worker.worker_processor import QueryProcessor
from tests.builders import stream as stream_on
from tests.conftest import StartService
from tests.kafka.partitions import add_partitions
from tests.kafka.wards import VITALS
from tests.patience import SECONDS

pytestmark = pytest.mark.kafka


def worker(settings: Settings, topics: Topics, key: NoiseKey, health: ServiceHealth, name: str) -> Engine:
    tables = table_store(settings, key)
    role = EngineRole(
        name="worker",
        group=worker_group(settings),
        status_topic=topics.status,
        make_processor=lambda partition: QueryProcessor(topics, partition, key, tables),
        process=name,
    )
    return Engine(role, settings, [topics.queries, topics.control], partitions=topics.partitions, health=health)


async def test_worker_refuses_added_partitions_and_continues_others(
    settings: Settings, client: AsyncClient, start: StartService, key: NoiseKey
) -> None:
    topics = client.topics
    before, after = topics.partitions, topics.partitions + 2
    # The client may learn of the partitions at any time, and then sends questions to them.
    stream = next(
        name
        for name in map("ward-{}".format, range(1000))
        if partition_of(name.encode(), before) == partition_of(name.encode(), after)
    )
    start("budget")
    await client.register(VITALS)
    await client.open(stream_on(stream, "vitals", mechanism={"cutoff": 3}))
    healths = [ServiceHealth("worker") for _ in range(2)]
    engines = [worker(settings, topics, key, health, f"worker-{at}") for at, health in enumerate(healths)]
    async with AsyncExitStack() as stack:
        for engine in engines:
            running = asyncio.create_task(engine.run())
            stack.push_async_callback(asyncio.wait_for, running, 60)
            stack.callback(engine.stop)
        await client.ask({"stream": stream, "value": -1.0})
        await add_partitions(settings, topics.queries, after)
        async with asyncio.timeout(120):
            while set().union(*(engine.refused for engine in engines)) != {before, before + 1}:
                await asyncio.sleep(0.1)
            while any(
                bool(engine.refused) != ("another prefix" in engine.health.not_ready_reason) for engine in engines
            ):
                await asyncio.sleep(0.1)
        failing = [
            health.metrics.registry.get_sample_value("sotto_worker_failing_partitions") for health in healths
        ]
        assert failing == [len(engine.refused) for engine in engines]
        assert (await client.ask({"stream": stream, "value": -1.0})).outcome == "below"
        for engine in engines:
            assert not any(one.partition >= before for one in engine._partitions.values())


async def test_monitor_shows_added_partitions(settings: Settings, client: AsyncClient) -> None:
    shown: list[WorkersView] = []
    topics = client.topics
    await add_partitions(settings, topics.queries, topics.partitions + 2)
    groups = GroupWatch(settings, topics, MonitorTables(topics), shown.append)
    watching = asyncio.create_task(groups.run())
    async with asyncio.timeout(SECONDS):
        while (
            not shown
            or len([row for row in shown[-1].partitions if row.role == "worker"]) != topics.partitions + 2
        ):
            await asyncio.sleep(0.1)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert len([row for row in shown[-1].partitions if row.role == "budget"]) == 1
