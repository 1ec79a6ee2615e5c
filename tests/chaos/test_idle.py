"""Spares that wait, and batches that take, longer than the client library's limit between two fetches."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer

from schemas import OpenStream
from stream.kafka.broker_addresses import free_port
from stream.kafka.broker_process import HOST
from stream.kafka.topic_creation import create_topics
from stream.privacy.noise.keys import NoiseKey
from stream.processing.protocol import Outputs
from stream.services.processes import RoleName, Service
from stream.services.runner import build_worker_engine
from stream.settings import Settings
from stream.worker.admission import QueryBatch
from stream.worker.worker_processor import QueryProcessor
from tests.chaos.load import specs
from tests.chaos.loaded_installation import POLL_MS, LoadedInstallation, crippled, open_installation
from tests.chaos.probes import probe
from tests.kafka.wards import FEED, ward

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]

IDLE_SECONDS = 4 * POLL_MS / 1000


async def started(installation: LoadedInstallation, role: RoleName) -> tuple[Service, str]:
    """Start a service, wait until it has joined its group, and return it with the address of its probes."""
    port = free_port()
    service = installation.start(role, settings=installation.settings.model_copy(update={"metrics_port": port}))
    await installation.logged(service, "assigned")
    return service, f"http://{HOST}:{port}"


async def with_a_spare(installation: LoadedInstallation, role: RoleName) -> tuple[list[Service], list[str]]:
    """Start services until one is a spare; return the services with partitions, and the addresses of all services."""
    services = [await started(installation, role)]
    while len(services) < 6:
        services.append(await started(installation, role))
        if not any(installation.assigned(services[-1][0])):
            return [service for service, _ in services[:-1]], [address for _, address in services]
    raise AssertionError("nobody remained a spare")


@pytest.fixture
async def narrow(bootstrap: str) -> Settings:
    """Create topics with one partition, so that its owner fetches nothing while it works."""
    settings = Settings(bootstrap=bootstrap, prefix=f"idle-{uuid.uuid4().hex[:8]}", partitions=1)
    await create_topics(settings)
    return settings


async def test_spares_answer_after_a_long_wait(narrow: Settings, key: NoiseKey, tmp_path: Path) -> None:
    with crippled(poll_ms=POLL_MS):
        async with open_installation(narrow, key, tmp_path) as installation:
            doomed, addresses = [], []
            for role in ("worker", "budget"):
                had, all_of_them = await with_a_spare(installation, role)
                doomed += had
                addresses += all_of_them
            await installation.open()
            await installation.ask(200)
            await installation.answered()
            await asyncio.sleep(IDLE_SECONDS)
            for address in addresses:
                assert await asyncio.to_thread(probe, f"{address}/readyz") == (200, "ok\n")
                assert await asyncio.to_thread(probe, f"{address}/livez") == (200, "ok\n")
            for service in doomed:
                service.kill()
                installation.injected["SIGKILL, after spares had waited"] += 1
            more = specs()[1].model_copy(update={"stream": "more", "epsilon": 0.01})
            [receipt] = await installation.client.requests([OpenStream(request="more", stream=more)], 60)
            assert receipt.outcome == "opened"
            await installation.ask(500)
            await installation.answered()
            figures = (await asyncio.to_thread(probe, f"{addresses[-1]}/metrics"))[1]
            assert "sotto_budget_member 1.0" in figures
            assert "sotto_budget_partitions 1.0" in figures
            await installation.verified()


async def test_long_batch_does_not_cost_a_worker_its_group(
    narrow: Settings, key: NoiseKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AIOKafkaConsumer.__init__.__kwdefaults__, "max_poll_interval_ms", POLL_MS)
    process = QueryProcessor.process
    batches: list[int] = []

    def slow(self: QueryProcessor, batch: QueryBatch) -> Outputs:
        if not batches:
            batches.append(len(batch.records))
            time.sleep(IDLE_SECONDS)
        return process(self, batch)

    async with open_installation(narrow, key, tmp_path) as installation:
        client = installation.client
        installation.start("budget")
        await client.register(FEED)
        await client.open(ward(), acknowledge=True)
        engine = build_worker_engine(narrow, client.topics, key)
        running = asyncio.create_task(engine.run())

        async def ask(identifier: str) -> Any:
            return await client.ask({"id": identifier, "stream": "ward", "value": 1.0}, outcomes=True)

        try:
            assert (await ask("first")).outcome == "below"
            session = engine._partitions[0].session
            assert session is not None
            monkeypatch.setattr(QueryProcessor, "runs_in_thread", True)
            monkeypatch.setattr(QueryProcessor, "process", slow)
            assert (await ask("slow")).outcome == "below"
            assert batches
            assert (await ask("last")).outcome == "below"
            # The worker has kept its partition during the whole batch.
            assert engine.metrics.failures._value.get() == 0
            assert engine._partitions[0].session is session
            async with asyncio.timeout(120):
                while engine.health.not_ready_reason:
                    await asyncio.sleep(0.1)
        finally:
            engine.stop()
            await running
