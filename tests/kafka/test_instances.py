"""A killed process that restarts with its name has its partitions at once; two processes with one name lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import RoleName, Service
from stream.settings import Settings
from tests.chaos.live import live_topic
from tests.chaos.loaded_installation import LoadedInstallation, open_installation
from tests.chaos.windows import YESTERDAY

pytestmark = pytest.mark.kafka

SESSION_MS = 60_000
"""The session timeout: a killed process keeps its partitions for longer than any of these tests waits."""
PATIENCE = 45.0


@pytest.fixture
async def installation(settings: Settings, key: NoiseKey, tmp_path: Path) -> AsyncIterator[LoadedInstallation]:
    slow = settings.model_copy(update={"session_timeout_ms": SESSION_MS})
    async with open_installation(slow, key, tmp_path) as made:
        yield made


def start(installation: LoadedInstallation, role: RoleName, name: str) -> Service:
    return installation.start(role, settings=installation.settings.model_copy(update={"instance": name}))


async def wait_until_owned(installation: LoadedInstallation, service: Service, count: int) -> set[int]:
    """Wait until a service owns so many partitions, and return them."""
    async with asyncio.timeout(PATIENCE):
        while not (given := installation.assigned(service)) or len(given[-1]) != count:
            assert service.exit_status is None, service.log.read_text()
            await asyncio.sleep(0.1)
    return set(given[-1])


async def start_two_workers(installation: LoadedInstallation) -> tuple[Service, Service]:
    """Start two named workers that share the partitions."""
    installation.start("budget")
    first = start(installation, "worker", "one")
    everything = installation.settings.partitions
    await wait_until_owned(installation, first, everything)
    second = start(installation, "worker", "two")
    await wait_until_owned(installation, second, everything // 2)
    await wait_until_owned(installation, first, everything // 2)
    return first, second


async def test_restarted_named_worker_gets_its_partitions_back(
    installation: LoadedInstallation,
) -> None:
    """The other worker keeps its partitions without a rebalance."""
    killed, other = await start_two_workers(installation)
    await installation.open()
    await installation.ask(200)
    before, heard = set(installation.assigned(killed)[-1]), len(installation.assigned(other))
    killed.kill()
    installation.injected["SIGKILL named worker"] += 1
    await installation.ask(200)
    again = start(installation, "worker", "one")
    assert await wait_until_owned(installation, again, len(before)) == before
    await installation.answered(seconds=PATIENCE)
    assert len(installation.assigned(other)) == heard
    await installation.verified()


async def test_later_worker_of_same_name_takes_over_and_other_ends(
    installation: LoadedInstallation,
) -> None:
    first, _ = await start_two_workers(installation)
    await installation.open()
    await installation.ask(200)
    twin = start(installation, "worker", "one")
    installation.injected["two workers with one name"] += 1
    async with asyncio.timeout(PATIENCE):
        while first.exit_status is None:
            await asyncio.sleep(0.1)
    assert first.exit_status == 1
    log = first.log.read_text()
    assert "another process has joined group" in log
    assert "SOTTO_INSTANCE" in log
    await installation.ask(200)
    await installation.answered(seconds=PATIENCE)
    assert twin.exit_status is None
    await installation.verified()


async def test_stopped_named_worker_releases_partitions_at_once(
    installation: LoadedInstallation,
) -> None:
    leaving, other = await start_two_workers(installation)
    await asyncio.to_thread(leaving.stop)
    assert leaving.exit_status == 0
    await wait_until_owned(installation, other, installation.settings.partitions)


async def test_killed_named_feed_continues_windows_under_its_name(
    installation: LoadedInstallation,
) -> None:
    services = [installation.start("budget"), installation.start("worker"), start(installation, "feed", "feed-a")]
    topic = await live_topic(installation.settings, installation.client, "marks", begins=YESTERDAY)
    topic.services = services
    feed = services[-1]
    try:
        for step in range(9):
            now = YESTERDAY + 1000 * step
            await topic.send(now, 6000, 40)
            await topic.mark(now)
            if step in {3, 6}:
                feed.kill()
                feed = start(installation, "feed", "feed-a")
                topic.services.append(feed)
            await asyncio.sleep(0.3)
        async with asyncio.timeout(PATIENCE):
            await topic.settled(YESTERDAY + 8000)
    finally:
        await topic.producer.stop()
