"""Services that start while Kafka, or a part of it, is not there: they wait, say so, and are ready when the rest is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stream.kafka.broker import LocalBroker
from stream.kafka.broker_config import HOST, choose_ports, free_port
from stream.kafka.processes import Service
from stream.kafka.topics import create_topics
from stream.noise import NoiseKey
from stream.settings import Settings
from tests.chaos.ground import crippled, installation
from tests.chaos.probes import probe

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


async def test_services_that_start_before_kafka_wait_for_it(key: NoiseKey, tmp_path: Path) -> None:
    ports = choose_ports(free_port())
    broker = LocalBroker(tmp_path / "broker")
    settings = Settings(bootstrap=f"{HOST}:{ports.clients}", prefix="late")
    await asyncio.to_thread(broker.start, ports.clients)
    try:
        await create_topics(settings)
        async with installation(settings, key, tmp_path) as ground:
            await asyncio.to_thread(broker.kill)
            metrics = free_port()
            services = [
                ground.start("budget"),
                ground.start("worker", settings=settings.model_copy(update={"metrics_port": metrics})),
            ]
            ground.injected["services started while the broker is down"] += 2
            for service in services:
                await ground.logged(service, "waiting for Kafka")
            status, reason = await asyncio.to_thread(probe, f"http://{HOST}:{metrics}/readyz")
            assert (status, "waits for Kafka" in reason) == (503, True)
            assert (await asyncio.to_thread(probe, f"http://{HOST}:{metrics}/livez"))[0] == 200
            await asyncio.to_thread(broker.start, ports.clients)
            await ground.open()
            await ground.ask(200)
            await ground.answered()
            assert [service.exit_status for service in services] == [None, None]
            # A member is looked for every two seconds, so that the first answers may come before the worker calls itself ready.
            async with asyncio.timeout(120):
                while (await asyncio.to_thread(probe, f"http://{HOST}:{metrics}/readyz"))[0] != 200:
                    await asyncio.sleep(0.2)
            await ground.verified()
    finally:
        await asyncio.to_thread(broker.stop)


async def test_services_told_to_stop_while_they_wait_for_kafka_do_so(key: NoiseKey, tmp_path: Path) -> None:
    settings = Settings(bootstrap=f"{HOST}:{free_port()}", prefix="never")
    key.save(tmp_path / "noise.key")
    with Service("worker", settings, tmp_path / "noise.key", tmp_path / "worker.log") as service:
        async with asyncio.timeout(120):
            while "waiting for Kafka" not in service.log.read_text():
                await asyncio.sleep(0.1)
        await asyncio.to_thread(service.stop)
        assert service.exit_status == 0


async def test_services_start_while_a_broker_of_several_is_down(
    settings: Settings, key: NoiseKey, tmp_path: Path
) -> None:
    """It is named in the bootstrap list and by Kafka itself, and half of all random choices fall on it."""
    dead = free_port()
    some = settings.model_copy(update={"bootstrap": f"{HOST}:{dead},{settings.bootstrap}"})
    async with installation(settings, key, tmp_path) as ground:
        with crippled(dead_port=dead):
            services = [ground.start("budget", settings=some)]
            services += [ground.start("worker", settings=some) for _ in range(4)]
        ground.injected["services started while a broker is down"] += len(services)
        await ground.open()
        for service in services:
            await ground.logged(service, "member", 60)
        await ground.ask(300)
        await ground.answered()
        assert [service.exit_status for service in services] == [None] * len(services)
        await ground.verified()
