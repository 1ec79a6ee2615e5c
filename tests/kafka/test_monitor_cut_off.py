"""The monitor's readers lose their connections, but new clients connect, as after a change of certificates."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from sotto import AsyncClient
from stream.kafka.broker_addresses import free_port
from stream.kafka.topic_creation import create_topics
from stream.monitor import reader_watch
from stream.monitor.monitor_alerts import AlertReader, Alerts
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.reader_watch import ReaderWatch
from stream.monitor.topic_readers import TopicReader, TrailReader
from stream.settings import Settings
from tests.builders import source
from tests.builders import stream as stream_on
from tests.chaos.proxy import Proxy, proxied_broker
from tests.conftest import StartService
from tests.patience import SECONDS

pytestmark = pytest.mark.kafka


@dataclass(frozen=True)
class Ports:
    clients: int
    behind: int
    proxy: int


@pytest.fixture
def ports(tmp_path: Path) -> Iterator[Ports]:
    broker, ports, behind, proxy = proxied_broker(tmp_path / "broker")
    broker.start(ports.clients)
    yield Ports(ports.clients, behind, proxy)
    broker.stop()


@pytest.fixture
async def settings(ports: Ports) -> Settings:
    """The settings of the services, which connect without the proxy."""
    settings = Settings(bootstrap=f"127.0.0.1:{ports.clients}", prefix="cut-off", session_timeout_ms=6000)
    await create_topics(settings)
    return settings


async def test_watch_finds_each_reader_without_connection(
    ports: Ports, settings: Settings, client: AsyncClient, start: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is written, nothing is reported; the readers continue when their connections are back."""
    monkeypatch.setattr(reader_watch, "CHECK_SECONDS", 0.2)
    changes = {"bootstrap": f"127.0.0.1:{ports.proxy}", "monitor_port": free_port()}
    proxied, topics = settings.model_copy(update=changes), client.topics
    tables = MonitorTables(topics)
    alerts = Alerts(tables)
    async with asyncio.timeout(SECONDS), Proxy(ports.proxy, ports.behind) as proxy:
        trail_reader = TrailReader(proxied, topics, tables, lambda: True)
        alert_reader = AlertReader(proxied, topics, alerts)
        async with TopicReader(proxied, topics, tables) as reader:
            watches = [ReaderWatch(settings, [one]) for one in (reader, trail_reader, alert_reader)]
            tasks = [
                asyncio.create_task(run())
                for run in (trail_reader.run, alert_reader.run, *(one.run for one in watches))
            ]
            while (reader.unread_offsets, trail_reader.unread_offsets, alerts.complete) != (0, 0, True):
                await asyncio.sleep(0.1)
            proxy.reset()
            for _ in range(20):
                await asyncio.sleep(0.1)
                assert [one.longest_wait for one in watches] == [0.0, 0.0, 0.0]
            start("budget")
            start("worker")
            await client.register(source(neighbors="add-remove", epsilon=5.0))
            await client.open(stream_on("late"))
            await client.ask({"stream": "late", "value": 1.0})
            while not all(one.longest_wait > 2.0 for one in watches):
                await asyncio.sleep(0.1)
            proxy.heal()
            while any(one.longest_wait > 0.0 for one in watches) or "late" not in tables.streams:
                await asyncio.sleep(0.1)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
