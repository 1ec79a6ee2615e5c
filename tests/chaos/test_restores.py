"""Restores under faults: compaction, markers at the tail, expired offsets, and an interrupted restore."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.checker import committed
from tests.chaos.ground import Ground

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


async def test_a_compacted_changelog_restores_all_though_offsets_expired_and_workers_died_restoring(
    ground: Ground,
) -> None:
    ground.start("budget")
    first = ground.start("worker")
    await ground.open()
    await ground.compact_eagerly()
    for _ in range(5):
        await ground.ask(600)
        await ground.answered()
        await asyncio.sleep(0.5)
    await _compacted(ground)
    first.kill()
    await ground.expire_offsets()
    for delay in (0.0, 0.02, 0.05):
        restoring = ground.start("worker")
        # From the assignment on it fences and restores; it waits for the session of the one before.
        await ground.logged(restoring, "assigned")
        await asyncio.sleep(delay)
        restoring.kill()
        ground.injected["SIGKILL worker while it restores"] += 1
    ground.start("worker")
    await ground.ask(1000)
    await ground.answered(seconds=180)
    await ground.verified()


async def _compacted(ground: Ground) -> None:
    """Wait until checkpoints have been removed from under the control records at the tail."""
    topic = ground.client.topics.state
    most = 0
    async with asyncio.timeout(120):
        while True:
            count = 0
            for partition in range(ground.client.topics.partitions):
                count += len(await committed(ground.settings, topic, partition))
            if count < most:
                ground.injected[f"compaction, to {count} records"] += 1
                return
            most = max(most, count)
            await ground.ask(20)
            await ground.answered()
            await asyncio.sleep(0.5)
