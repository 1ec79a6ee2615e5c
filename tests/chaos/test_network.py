"""The network to the broker fails, or the broker itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import create_topics
from stream.privacy.noise.keys import NoiseKey
from stream.settings import Settings
from tests.chaos.loaded_installation import open_installation
from tests.chaos.proxy import Proxy, proxied_broker

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


@dataclass(frozen=True)
class Cluster:
    """A separate broker with a listener behind a proxy."""

    broker: LocalBroker
    port: int
    behind: int
    proxy: int

    def settings(self, port: int, prefix: str) -> Settings:
        return Settings(bootstrap=f"127.0.0.1:{port}", prefix=prefix, session_timeout_ms=6000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    broker, ports, behind, proxy = proxied_broker(tmp_path_factory.mktemp("proxied"))
    broker.start(ports.clients)
    yield Cluster(broker, ports.clients, behind, proxy)
    broker.stop()


async def test_worker_cut_off_beyond_its_session_does_no_harm(
    cluster: Cluster, key: NoiseKey, tmp_path: Path
) -> None:
    """Its connections are cut, then reset."""
    settings = cluster.settings(cluster.port, "cut")
    await create_topics(settings)
    async with (
        Proxy(cluster.proxy, cluster.behind) as proxy,
        open_installation(settings, key, tmp_path) as installation,
    ):
        installation.start("budget")
        installation.start("worker")
        behind = installation.start("worker", settings=cluster.settings(cluster.proxy, "cut"))
        await installation.open()
        await installation.ask(1500)
        await installation.answered(missing=1000)
        assert proxy.connections > 0
        proxy.silence()
        await installation.ask(1500)
        await installation.answered()
        assert proxy.swallowed > 0
        proxy.heal()
        installation.injected["network silent past the session"] += 1
        await asyncio.sleep(2.0)
        for _ in range(3):
            await installation.ask(400)
            proxy.reset()
            await asyncio.sleep(0.5)
            proxy.heal()
            installation.injected["connections reset"] += 1
            await asyncio.sleep(1.0)
        await installation.answered()
        assert behind.exit_status is None
        await installation.verified()


async def test_broker_killed_during_transactions_loses_nothing(
    cluster: Cluster, key: NoiseKey, tmp_path: Path
) -> None:
    """Nothing is doubled either."""
    settings = cluster.settings(cluster.port, "outage")
    await create_topics(settings)
    async with open_installation(settings, key, tmp_path) as installation:
        services = [installation.start("budget"), installation.start("worker"), installation.start("worker")]
        await installation.open()
        await installation.ask(1000)
        await installation.answered(missing=500)
        pending = asyncio.create_task(installation.ask(4000))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(cluster.broker.kill)
        installation.injected["SIGKILL broker under load"] += 1
        await asyncio.sleep(1.0)
        await asyncio.to_thread(cluster.broker.start, cluster.port)
        await pending
        await installation.answered(seconds=180)
        assert [service.exit_status for service in services] == [None] * 3
        await installation.verified()
