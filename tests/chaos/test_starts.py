"""Services that start without Kafka, or without a part of it, wait, report this, and become ready when it is complete."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest
from aiokafka.errors import KafkaError

from stream.kafka.broker_addresses import choose_ports, free_port
from stream.kafka.broker_process import HOST
from stream.kafka.client.client_patches import GroupObserver
from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import create_topics
from stream.kafka.topic_layouts import alerts_group
from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import Service
from stream.settings import Settings
from tests.chaos.loaded_installation import crippled, open_installation
from tests.chaos.probes import probe

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


async def test_services_wait_for_kafka_at_their_start(key: NoiseKey, tmp_path: Path) -> None:
    ports = choose_ports(free_port())
    broker = LocalBroker(tmp_path / "broker")
    settings = Settings(bootstrap=f"{HOST}:{ports.clients}", prefix="late")
    await asyncio.to_thread(broker.start, ports.clients)
    try:
        await create_topics(settings)
        async with open_installation(settings, key, tmp_path) as installation:
            await asyncio.to_thread(broker.kill)
            metrics = free_port()
            services = [
                installation.start("budget"),
                installation.start("worker", settings=settings.model_copy(update={"metrics_port": metrics})),
            ]
            installation.injected["services started while the broker is down"] += 2
            for service in services:
                await installation.logged(service, "waiting for Kafka")
            status, reason = await asyncio.to_thread(probe, f"http://{HOST}:{metrics}/readyz")
            assert (status, "waits for Kafka" in reason) == (503, True)
            assert (await asyncio.to_thread(probe, f"http://{HOST}:{metrics}/livez"))[0] == 200
            await asyncio.to_thread(broker.start, ports.clients)
            await installation.open()
            await installation.ask(200)
            await installation.answered()
            assert [service.exit_status for service in services] == [None, None]
            # The worker checks its membership every two seconds, so the first answers may come before it reports ready.
            async with asyncio.timeout(120):
                while (await asyncio.to_thread(probe, f"http://{HOST}:{metrics}/readyz"))[0] != 200:
                    await asyncio.sleep(0.2)
            await installation.verified()
    finally:
        await asyncio.to_thread(broker.stop)


async def test_services_that_wait_for_kafka_stop_on_request(key: NoiseKey, tmp_path: Path) -> None:
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
    """The bootstrap list and Kafka's metadata name the broker that is down, and half of all random choices select it."""
    dead = free_port()
    some = settings.model_copy(update={"bootstrap": f"{HOST}:{dead},{settings.bootstrap}"})
    async with open_installation(settings, key, tmp_path) as installation:
        with crippled(dead_port=dead):
            services = [installation.start("budget", settings=some)]
            services += [installation.start("worker", settings=some) for _ in range(4)]
        installation.injected["services started while a broker is down"] += len(services)
        await installation.open()
        for service in services:
            await installation.logged(service, "member", 60)
        await installation.ask(300)
        await installation.answered()
        assert [service.exit_status for service in services] == [None] * len(services)
        await installation.verified()


async def test_alerts_outlast_an_outage_longer_than_their_sessions(key: NoiseKey, tmp_path: Path) -> None:
    """Twenty targets join their groups again after the broker was away for two session timeouts and fetches had paused."""
    ports = choose_ports(free_port())
    broker = LocalBroker(tmp_path / "broker")
    names = [f"target-{number}" for number in range(20)]
    secret = tmp_path / "secret"
    secret.write_text(f"whsec_{base64.b64encode(bytes(32)).decode()}")
    secret.chmod(0o600)
    url = f"http://{HOST}:{free_port()}/"
    targets = [{"name": name, "kind": "webhook", "url": url, "secret_files": [str(secret)]} for name in names]
    file = tmp_path / "alerts.json"
    file.write_text(json.dumps({"targets": targets}))
    file.chmod(0o600)
    settings = Settings(
        bootstrap=f"{HOST}:{ports.clients}", prefix="outage", session_timeout_ms=6000, alerts_file=str(file)
    )
    await asyncio.to_thread(broker.start, ports.clients)
    try:
        await create_topics(settings)
        async with open_installation(settings, key, tmp_path) as installation:
            alerts = installation.start("alerts")
            await installation.logged(alerts, "alerts are up")
            await _joined(settings, names)
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(2.0 * settings.session_timeout_ms / 1000)
            await asyncio.to_thread(broker.start, ports.clients)
            await _joined(settings, names)
            assert alerts.exit_status is None, alerts.log.read_text()[-2000:]
    finally:
        await asyncio.to_thread(broker.kill)


async def _joined(settings: Settings, names: list[str]) -> None:
    """Wait until the group of each target has its member."""
    observer = GroupObserver(bootstrap_servers=settings.bootstrap)
    try:
        async with asyncio.timeout(180):
            for name in names:
                while not await _members(observer, alerts_group(settings, name)):
                    await asyncio.sleep(0.5)
    finally:
        await observer.close()


async def _members(observer: GroupObserver, group: str) -> frozenset[str]:
    try:
        return await observer.members(group)
    except KafkaError:
        return frozenset()
