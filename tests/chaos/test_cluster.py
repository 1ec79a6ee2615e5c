"""One of three brokers is killed, restarted or loses its disk; still, every event is answered once and nothing is spent twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.kafka.local_broker import LocalCluster
from tests.chaos.cluster import (
    HEAP_MEGABYTES,
    NODES,
    controller_killed,
    disk_lost,
    feed_coordinator_killed,
    inject_under_load,
    leader_killed,
    live_leader_killed,
    rolling_restart,
    three_brokers,
    transaction_coordinator_killed,
)

pytestmark = [pytest.mark.kafka, pytest.mark.chaos]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("cluster"), NODES, heap_megabytes=HEAP_MEGABYTES) as started:
        yield started


async def test_kill_of_any_broker_loses_doubles_and_skips_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    async with three_brokers(cluster, "killed", tmp_path) as brokers:
        for fault in (
            leader_killed,
            transaction_coordinator_killed,
            live_leader_killed,
            feed_coordinator_killed,
            controller_killed,
        ):
            await inject_under_load(brokers, fault)
        await brokers.installation.answered(seconds=240)
        findings = await brokers.installation.verified()
    assert len(findings.answers) == len(brokers.installation.asked) + len(brokers.installation.windows)
    assert len(brokers.installation.windows) > 100


async def test_rolling_restart_survives_a_broker_with_an_empty_disk(cluster: LocalCluster, tmp_path: Path) -> None:
    """Brokers restart in turn, and one of them loses its disk."""
    async with three_brokers(cluster, "restarted", tmp_path) as brokers:
        await inject_under_load(brokers, rolling_restart)
        await inject_under_load(brokers, disk_lost)
        await brokers.installation.answered(seconds=240)
        findings = await brokers.installation.verified()
    assert len(findings.answers) == len(brokers.installation.asked) + len(brokers.installation.windows)
    assert len(brokers.installation.windows) > 100
