"""Restores under faults: compaction, markers at the tail, expired offsets, and an interrupted restore."""

from __future__ import annotations

import asyncio

import pytest

from tests.chaos.checker import committed
from tests.chaos.loaded_installation import LoadedInstallation

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


async def test_compacted_changelog_restores_all_after_kills(
    installation: LoadedInstallation,
) -> None:
    """Offsets have expired, and workers were killed during the restore."""
    installation.start("budget")
    first = installation.start("worker")
    await installation.open()
    await installation.compact_eagerly()
    for _ in range(5):
        await installation.ask(600)
        await installation.answered()
        await asyncio.sleep(0.5)
    await _compacted(installation)
    first.kill()
    await installation.expire_offsets()
    for delay in (0.0, 0.02, 0.05):
        restoring = installation.start("worker")
        # After its assignment, which comes when its predecessor's session has ended, the worker fences and restores.
        await installation.logged(restoring, "assigned")
        await asyncio.sleep(delay)
        restoring.kill()
        installation.injected["SIGKILL worker while it restores"] += 1
    installation.start("worker")
    await installation.ask(1000)
    await installation.answered(seconds=180)
    await installation.verified()


async def _compacted(installation: LoadedInstallation) -> None:
    """Wait until compaction has removed checkpoints before the control records at the end of the changelog."""
    topic = installation.client.topics.state
    most = 0
    async with asyncio.timeout(120):
        while True:
            count = 0
            for partition in range(installation.client.topics.partitions):
                count += len(await committed(installation.settings, topic, partition))
            if count < most:
                installation.injected[f"compaction, to {count} records"] += 1
                return
            most = max(most, count)
            await installation.ask(20)
            await installation.answered()
            await asyncio.sleep(0.5)
