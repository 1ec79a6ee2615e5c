"""Runs an installation on three brokers under load, and kills or restarts brokers."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from stream.kafka.client.broker_connections import ask_any_broker
from stream.kafka.local_broker import LocalCluster
from stream.kafka.topic_creation import create_topics
from stream.kafka.topic_layouts import feed_group, layout, worker_group
from stream.privacy.noise.keys import NoiseKey
from stream.settings import Settings
from tests.chaos.loaded_installation import LoadedInstallation, open_installation
from tests.patience import SECONDS

NODES = 3
HEAP_MEGABYTES = 320
TRANSACTION = 1
"""Kafka's code for the coordinator that keeps the state of a transactional id."""

EVENTS_PER_FAULT = 500
FAULTS_PER_ROUND = 4

Found = TypeVar("Found")


@dataclass
class Brokers:
    """The cluster of an installation under load; after each fault, it waits until all replicas are in sync."""

    cluster: LocalCluster
    installation: LoadedInstallation
    generator: random.Random

    async def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition."""
        found: int = (await self._partitions([topic]))[topic][partition]["leader"]
        return found

    async def coordinator(self, partition: int, group: str | None = None) -> int:
        """Return the node that coordinates a partition's transactions; the default of ``group`` is the workers' group."""
        identifier = f"{group or worker_group(self.installation.settings)}-{partition}"
        return await self._admin(lambda admin: admin.find_coordinator(identifier, TRANSACTION))

    async def controller(self) -> int:
        """Return the node that is the active controller."""
        async with asyncio.timeout(SECONDS):
            while True:
                running = {one for one in range(1, NODES + 1) if self.cluster.node(one).status() is not None}
                elected = [leader for one in running if (leader := self._elected(one)) in running]
                leaders = {one for one in elected if elected.count(one) > NODES // 2}
                if leaders:
                    return leaders.pop()
                await asyncio.sleep(0.1)

    def _elected(self, node: int) -> int | None:
        """Return the controller that a node knows; None if it knows none."""
        state = self.cluster.node(node).folder / "data/__cluster_metadata-0/quorum-state"
        try:
            return int(json.loads(state.read_text())["leaderId"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def wait_until_in_sync(self) -> None:
        """Wait until every replica of every topic is in sync."""
        topics = [one.name for one in layout(self.installation.client.topics)]
        if (live := self.installation.live) is not None:
            # Otherwise the only in-sync replica of the feeds' changelog might lose its disk next.
            topics += [live.source.topic, self.installation.client.topics.feed_state(live.source.source)]
        names = [*topics, "__consumer_offsets", "__transaction_state"]
        async with asyncio.timeout(180):
            while True:
                try:
                    found = await self._partitions(names)
                except (KafkaError, OSError):
                    found = {}
                places = [one for name in names for one in found.get(name, [{"isr": [], "replicas": [0]}])]
                if all(len(one["isr"]) == len(one["replicas"]) == NODES for one in places):
                    return
                await asyncio.sleep(0.5)

    async def kill(self, node: int, why: str) -> None:
        """SIGKILL a node, and restart it while the services run."""
        self.installation.injected[f"SIGKILL {why}"] += 1
        await asyncio.to_thread(self.cluster.node(node).kill)
        await self._start_node(node)

    async def restart(self, node: int, *, erased: bool = False) -> None:
        """Shut a node down, erase its disk if ``erased``, and start it."""
        self.installation.injected["broker restarted with an empty disk" if erased else "broker restarted"] += 1
        await asyncio.to_thread(self.cluster.node(node).stop)
        if erased:
            await asyncio.to_thread(shutil.rmtree, self.cluster.node(node).folder / "data")
        await self._start_node(node)

    async def _start_node(self, node: int) -> None:
        await asyncio.to_thread(self.cluster.node(node).start)
        await self.wait_until_in_sync()

    async def _partitions(self, topics: list[str]) -> dict[str, list[dict[str, Any]]]:
        described = await self._admin(lambda admin: admin.describe_topics(topics))
        return {
            one["topic"]: sorted(one["partitions"], key=lambda part: part["partition"])
            for one in described
            if not one["error_code"]
        }

    async def _admin(self, ask: Callable[[AIOKafkaAdminClient], Awaitable[Found]]) -> Found:
        admin = AIOKafkaAdminClient(bootstrap_servers=self.installation.settings.bootstrap)
        await admin.start()
        try:
            return await ask_any_broker(lambda: ask(admin))
        finally:
            await admin.close()


Fault = Callable[[Brokers], Awaitable[None]]


async def leader_killed(brokers: Brokers) -> None:
    """SIGKILL the leader of a partition of queries."""
    await brokers.kill(
        await brokers.leader(brokers.installation.client.topics.queries, 0), "leader of a partition"
    )


async def transaction_coordinator_killed(brokers: Brokers) -> None:
    """SIGKILL the coordinator of a worker's transactions."""
    await brokers.kill(await brokers.coordinator(0), "transaction coordinator")


async def live_leader_killed(brokers: Brokers) -> None:
    """SIGKILL the leader of a partition of the live topic."""
    live = brokers.installation.live
    assert live is not None
    await brokers.kill(await brokers.leader(live.source.topic, 0), "leader of a live partition")


async def feed_coordinator_killed(brokers: Brokers) -> None:
    """SIGKILL the coordinator of a feed's transactions."""
    live, installation = brokers.installation.live, brokers.installation
    assert live is not None
    group = feed_group(installation.settings, installation.client.topics, live.source.source)
    await brokers.kill(await brokers.coordinator(0, group), "transaction coordinator of a feed")


async def controller_killed(brokers: Brokers) -> None:
    """SIGKILL the active controller."""
    await brokers.kill(await brokers.controller(), "active controller")


async def any_killed(brokers: Brokers) -> None:
    """SIGKILL any node."""
    await brokers.kill(brokers.generator.randrange(NODES) + 1, "broker")


async def rolling_restart(brokers: Brokers) -> None:
    """Restart one node after the other."""
    for node in range(1, NODES + 1):
        await brokers.restart(node)


async def disk_lost(brokers: Brokers) -> None:
    """Restart a node with an empty disk."""
    await brokers.restart(brokers.generator.randrange(NODES) + 1, erased=True)


FAULTS: tuple[Fault, ...] = (
    leader_killed,
    transaction_coordinator_killed,
    live_leader_killed,
    feed_coordinator_killed,
    controller_killed,
    any_killed,
    rolling_restart,
    disk_lost,
)


async def inject_under_load(brokers: Brokers, fault: Fault) -> None:
    """Inject a fault; ask questions before, during and after it."""
    await brokers.installation.ask(EVENTS_PER_FAULT // 2)
    asking = asyncio.create_task(brokers.installation.ask(EVENTS_PER_FAULT))
    await fault(brokers)
    await asking


@asynccontextmanager
async def three_brokers(cluster: LocalCluster, prefix: str, folder: Path, seed: int = 0) -> AsyncIterator[Brokers]:
    """Start a budget service, two workers and two feeds; open the streams and publish events."""
    info = cluster.status()
    assert info is not None
    settings = Settings(bootstrap=info.bootstrap, prefix=prefix, session_timeout_ms=6000)
    created = await create_topics(settings)
    assert (created.replication, created.brokers) == (NODES, NODES)
    async with open_installation(settings, NoiseKey.generate(), folder) as installation:
        installation.start("budget")
        for role in ("worker", "worker", "feed", "feed"):
            installation.start(role)
        await installation.open()
        await installation.people("broker", NODES, seed)
        brokers = Brokers(cluster, installation, random.Random(seed))
        await brokers.wait_until_in_sync()
        yield brokers


async def cluster_campaign(folder: Path, seed: int, seconds: float, say: Callable[[str], None]) -> None:
    """Run rounds of broker faults until the time is over; raise AssertionError at the first violation."""
    cluster = LocalCluster(folder / "cluster", NODES, heap_megabytes=HEAP_MEGABYTES)
    await asyncio.to_thread(cluster.start)
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            say(f"round {seed} on {NODES} brokers (again: --nodes {NODES} --seed {seed})")
            own = folder / f"round-{seed}"
            await asyncio.to_thread(own.mkdir, parents=True)
            async with three_brokers(cluster, f"round-{seed}", own, seed) as brokers:
                for fault in brokers.generator.choices(FAULTS, k=FAULTS_PER_ROUND):
                    await inject_under_load(brokers, fault)
                await brokers.installation.answered(seconds=240)
                await brokers.installation.verified()
            seed += 1
    finally:
        await asyncio.to_thread(cluster.stop)
