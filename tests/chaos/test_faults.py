"""Faults beyond a plain kill: the broker's own, storms of rebalances, restores cut short, compaction."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from stream.client import Client
from stream.kafka.broker import LocalBroker
from stream.kafka.processes import RoleName, Service
from stream.kafka.topics import create_topics
from stream.noise import NoiseKey
from stream.settings import Settings
from tests.chaos.checker import committed
from tests.chaos.load import answered, open_streams, publish, settled
from tests.conftest import StartService

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


async def test_a_worker_told_to_stop_hands_over_faster_than_its_session_would_end(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    start("budget")
    leaving = start("worker")
    start("worker")
    await open_streams(client)
    asked = await publish(client, range(4000))
    await answered(client, 1000, 30)
    began = time.monotonic()
    await asyncio.to_thread(leaving.stop)
    asked += await publish(client, range(4000, 8000))
    assert await answered(client, len(asked), 60) == len(asked)
    seconds = time.monotonic() - began
    print(f"SIGTERM: all partitions answered by the other worker {seconds:.1f} s later")  # noqa: T201
    assert leaving.exit_status == 0
    assert (await settled(settings, client, key, asked)).violations == []


async def test_a_storm_of_rebalances_loses_and_doubles_nothing(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    start("budget")
    start("worker")
    await open_streams(client)
    asked: list[str] = []
    for _ in range(4):
        passing = start("worker")
        asked += await publish(client, range(len(asked), len(asked) + 1500))
        await asyncio.sleep(1.5)
        await asyncio.to_thread(passing.stop)
        asked += await publish(client, range(len(asked), len(asked) + 1500))
    assert await answered(client, len(asked), 60) == len(asked)
    assert (await settled(settings, client, key, asked)).violations == []


async def test_workers_killed_while_they_restore_lose_and_double_nothing(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    start("budget")
    first = start("worker")
    await open_streams(client)
    asked = await publish(client, range(6000))
    await answered(client, 3000, 30)
    first.kill()
    for delay in (0.8, 1.2, 1.6):
        restoring = start("worker")
        await asyncio.sleep(delay)
        restoring.kill()
    start("worker")
    asked += await publish(client, range(6000, 8000))
    assert await answered(client, len(asked), 90) == len(asked)
    assert (await settled(settings, client, key, asked)).violations == []


async def test_a_compacted_changelog_with_control_records_at_its_tail_restores_all(
    settings: Settings,
    client: Client,
    key: NoiseKey,
    start: StartService,
) -> None:
    start("budget")
    worker = start("worker")
    await open_streams(client)
    await _compact_eagerly(settings, client)
    asked: list[str] = []
    before = 0
    for _ in range(6):
        asked += await publish(client, range(len(asked), len(asked) + 1000))
        assert await answered(client, len(asked), 60) == len(asked)
        await asyncio.sleep(1.0)
    async with asyncio.timeout(60):
        while True:
            records = [
                record
                for partition in range(client.topics.partitions)
                for record in await committed(settings, client.topics.state, partition)
            ]
            before = max(before, len(records))
            if len(records) < before or len(records) < 6 * 24:
                break
            await asyncio.sleep(1.0)
    print(f"compaction left {len(records)} checkpoints")  # noqa: T201
    worker.kill()
    start("worker")
    asked += await publish(client, range(len(asked), len(asked) + 1000))
    assert await answered(client, len(asked), 60) == len(asked)
    assert (await settled(settings, client, key, asked)).violations == []


async def test_a_broker_killed_in_the_middle_of_transactions_loses_and_doubles_nothing(
    tmp_path: Path,
    key: NoiseKey,
) -> None:
    broker = LocalBroker(tmp_path / "broker")
    info = broker.start()
    try:
        settings = Settings(bootstrap=info.bootstrap, prefix="outage", session_timeout_ms=6000)
        await create_topics(settings)
        with _services(tmp_path, settings, key) as services:
            async with Client(settings) as client:
                await open_streams(client)
                asked = await publish(client, range(4000))
                await answered(client, 1000, 30)
                pending = asyncio.create_task(publish(client, range(4000, 12000)))
                await asyncio.sleep(0.3)
                await asyncio.to_thread(broker.kill)
                await asyncio.sleep(2.0)
                await asyncio.to_thread(broker.start, info.port)
                asked += await pending
                assert await answered(client, len(asked), 120) == len(asked)
                assert [service.exit_status for service in services] == [None] * 3
                findings = await settled(settings, client, key, asked)
                assert findings.violations == []
    finally:
        broker.stop()


@contextmanager
def _services(folder: Path, settings: Settings, key: NoiseKey) -> Iterator[list[Service]]:
    key.save(folder / "noise.key")
    roles: list[RoleName] = ["budget", "worker", "worker"]
    services = [
        Service(role, settings, folder / "noise.key", folder / f"{number}.log")
        for number, role in enumerate(roles)
    ]
    try:
        yield services
    finally:
        for service in services:
            service.stop()


async def _compact_eagerly(settings: Settings, client: Client) -> None:
    eager = {"segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "cleanup.policy": "compact"}
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, client.topics.state, eager)])
    finally:
        await admin.close()
