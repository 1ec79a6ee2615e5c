"""One of three brokers is killed, restarted or loses its disk; still, every event is answered once and nothing is spent twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream.kafka.broker_cluster import LocalCluster
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


async def test_whichever_broker_is_killed_nothing_is_lost_doubled_or_skipped(
    cluster: LocalCluster, tmp_path: Path
) -> None:
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


async def test_brokers_are_restarted_one_after_the_other_and_one_comes_back_with_an_empty_disk(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    async with three_brokers(cluster, "restarted", tmp_path) as brokers:
        await inject_under_load(brokers, rolling_restart)
        await inject_under_load(brokers, disk_lost)
        await brokers.installation.answered(seconds=240)
        findings = await brokers.installation.verified()
    assert len(findings.answers) == len(brokers.installation.asked) + len(brokers.installation.windows)
    assert len(brokers.installation.windows) > 100
