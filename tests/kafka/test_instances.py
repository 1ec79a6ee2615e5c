"""A process that is killed and comes back under its name has its partitions at once, and two of one name lose nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import RoleName, Service
from stream.settings import Settings
from tests.chaos.ground import Ground, installation
from tests.chaos.live import live_topic
from tests.chaos.windows import YESTERDAY

pytestmark = pytest.mark.kafka

SESSION_MS = 60_000
"""Whoever is killed keeps its partitions for so long: longer than any of these tests waits for them."""
PATIENCE = 45.0


@pytest.fixture
async def ground(settings: Settings, key: NoiseKey, tmp_path: Path) -> AsyncIterator[Ground]:
    slow = settings.model_copy(update={"session_timeout_ms": SESSION_MS})
    async with installation(slow, key, tmp_path) as made:
        yield made


def start(ground: Ground, role: RoleName, name: str) -> Service:
    return ground.start(role, settings=ground.settings.model_copy(update={"instance": name}))


async def until_owned(ground: Ground, service: Service, count: int) -> set[int]:
    """Wait until a service was given so many partitions."""
    async with asyncio.timeout(PATIENCE):
        while not (given := ground.assigned(service)) or len(given[-1]) != count:
            assert service.exit_status is None, service.log.read_text()
            await asyncio.sleep(0.1)
    return set(given[-1])


async def two_workers(ground: Ground) -> tuple[Service, Service]:
    """Two named workers that share the partitions."""
    ground.start("budget")
    first = start(ground, "worker", "one")
    everything = ground.settings.partitions
    await until_owned(ground, first, everything)
    second = start(ground, "worker", "two")
    await until_owned(ground, second, everything // 2)
    await until_owned(ground, first, everything // 2)
    return first, second


async def test_a_worker_that_was_killed_gets_its_partitions_back_and_nobody_else_hears_of_it(
    ground: Ground,
) -> None:
    killed, other = await two_workers(ground)
    await ground.open()
    await ground.ask(200)
    before, heard = set(ground.assigned(killed)[-1]), len(ground.assigned(other))
    killed.kill()
    ground.injected["SIGKILL named worker"] += 1
    await ground.ask(200)
    again = start(ground, "worker", "one")
    assert await until_owned(ground, again, len(before)) == before
    await ground.answered(seconds=PATIENCE)
    assert len(ground.assigned(other)) == heard
    await ground.verified()


async def test_of_two_workers_with_one_name_the_later_has_the_partitions_and_the_other_ends_and_says_why(
    ground: Ground,
) -> None:
    first, _ = await two_workers(ground)
    await ground.open()
    await ground.ask(200)
    twin = start(ground, "worker", "one")
    ground.injected["two workers with one name"] += 1
    async with asyncio.timeout(PATIENCE):
        while first.exit_status is None:
            await asyncio.sleep(0.1)
    assert first.exit_status == 1
    told = first.log.read_text()
    assert "another process has joined group" in told
    assert "SOTTO_INSTANCE" in told
    await ground.ask(200)
    await ground.answered(seconds=PATIENCE)
    assert twin.exit_status is None
    await ground.verified()


async def test_a_named_worker_that_is_told_to_stop_leaves_its_partitions_to_others_at_once(ground: Ground) -> None:
    leaving, other = await two_workers(ground)
    await asyncio.to_thread(leaving.stop)
    assert leaving.exit_status == 0
    await until_owned(ground, other, ground.settings.partitions)


async def test_a_feed_that_is_killed_in_the_middle_of_windows_comes_back_under_its_name(ground: Ground) -> None:
    services = [ground.start("budget"), ground.start("worker"), start(ground, "feed", "feed-a")]
    topic = await live_topic(ground.settings, ground.client, "marks", begins=YESTERDAY)
    topic.services = services
    feed = services[-1]
    try:
        for step in range(9):
            now = YESTERDAY + 1000 * step
            await topic.send(now, 6000, 40)
            await topic.mark(now)
            if step in {3, 6}:
                feed.kill()
                feed = start(ground, "feed", "feed-a")
                topic.services.append(feed)
            await asyncio.sleep(0.3)
        async with asyncio.timeout(PATIENCE):
            await topic.settled(YESTERDAY + 8000)
    finally:
        await topic.producer.stop()
