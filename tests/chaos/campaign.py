"""Rounds of real faults, in an order that a seed decides, for a given time."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from stream.kafka.broker_process import HOST
from stream.kafka.local_broker import LocalBroker
from stream.kafka.topic_creation import create_topics
from stream.privacy.noise.keys import NoiseKey
from stream.services.processes import Service
from stream.settings import Settings
from tests.chaos.loaded_installation import POLL_MS, LoadedInstallation, crippled, open_installation
from tests.chaos.proxy import Proxy, proxied_broker

FAULTS_PER_ROUND = 6
EVENTS_PER_FAULT = 400


@dataclass
class Round:
    """One installation under faults; its worker 0 connects through the proxy."""

    installation: LoadedInstallation
    proxy: Proxy
    broker: LocalBroker
    port: int
    behind: Settings
    chance: random.Random
    budget: Service
    workers: list[Service] = field(default_factory=list)
    feeds: list[Service] = field(default_factory=list)

    def replace(self, number: int) -> None:
        """Start a worker in place of one that has ended."""
        self.workers[number] = self.installation.start("worker", settings=self.behind if number == 0 else None)

    def supervise(self) -> None:
        """Restart services that have ended, as services do after the loss of their group."""
        for number, worker in enumerate(self.workers):
            if worker.exit_status is not None:
                self.replace(number)
                self.installation.injected["service ended by itself"] += 1
        for number, feed in enumerate(self.feeds):
            if feed.exit_status is not None:
                self.feeds[number] = self.installation.start("feed")
                self.installation.injected["service ended by itself"] += 1
        if self.budget.exit_status is not None:
            self.budget = self.installation.start("budget")
            self.installation.injected["service ended by itself"] += 1


Fault = Callable[[Round], Awaitable[None]]


async def worker_killed(now: Round) -> None:
    number = now.chance.randrange(len(now.workers))
    now.workers[number].kill()
    now.replace(number)


async def worker_suspended_past_its_session(now: Round) -> None:
    worker = now.chance.choice(now.workers)
    os.kill(worker.pid, signal.SIGSTOP)
    await asyncio.sleep(now.chance.uniform(1.0, 9.0))
    os.kill(worker.pid, signal.SIGCONT)


async def worker_told_to_stop(now: Round) -> None:
    number = now.chance.randrange(len(now.workers))
    await asyncio.to_thread(now.workers[number].stop)
    now.replace(number)


async def all_workers_killed_and_offsets_expired(now: Round) -> None:
    for worker in now.workers:
        worker.kill()
    await now.installation.expire_offsets()
    for number in range(len(now.workers)):
        now.replace(number)


async def worker_killed_while_it_restores(now: Round) -> None:
    passing = now.installation.start("worker")
    await asyncio.sleep(now.chance.uniform(0.5, 2.0))
    passing.kill()


async def budget_service_killed(now: Round) -> None:
    now.budget.kill()
    now.budget = now.installation.start("budget")


async def budget_service_killed_after_its_spare_has_idled(now: Round) -> None:
    spare = now.installation.start("budget")
    await now.installation.logged(spare, "assigned", 60)
    await asyncio.sleep(now.chance.uniform(1.0, 3.0) * POLL_MS / 1000)
    now.budget.kill()
    now.budget = spare


async def network_silent(now: Round) -> None:
    now.proxy.silence()
    await asyncio.sleep(now.chance.uniform(1.0, 9.0))
    now.proxy.heal()


async def connections_reset(now: Round) -> None:
    now.proxy.reset()
    await asyncio.sleep(now.chance.uniform(0.0, 2.0))
    now.proxy.heal()


async def broker_killed(now: Round) -> None:
    await asyncio.to_thread(now.broker.kill)
    await asyncio.sleep(now.chance.uniform(0.0, 2.0))
    await asyncio.to_thread(now.broker.start, now.port)


async def changelog_compacted_eagerly(now: Round) -> None:
    await now.installation.compact_eagerly()


async def streams_extended(now: Round) -> None:
    extending = asyncio.create_task(
        now.installation.extend("laplace", "counts", f"stream-{now.chance.randrange(4)}")
    )
    await asyncio.sleep(now.chance.uniform(0.0, 1.0))
    now.budget.kill()
    now.budget = now.installation.start("budget")
    await extending


async def table_renewed(now: Round) -> None:
    renewing = asyncio.create_task(now.installation.refresh())
    await asyncio.sleep(now.chance.uniform(0.0, 1.0))
    now.budget.kill()
    now.budget = now.installation.start("budget")
    await renewing


async def openings_repeated(now: Round) -> None:
    await now.installation.repeat_openings([f"stream-{number}" for number in range(4)])


async def feed_killed(now: Round) -> None:
    number = now.chance.randrange(len(now.feeds))
    now.feeds[number].kill()
    now.feeds[number] = now.installation.start("feed")


async def feed_suspended_past_its_session(now: Round) -> None:
    feed = now.chance.choice(now.feeds)
    os.kill(feed.pid, signal.SIGSTOP)
    await asyncio.sleep(now.chance.uniform(1.0, 9.0))
    os.kill(feed.pid, signal.SIGCONT)


async def feed_joins_and_another_leaves(now: Round) -> None:
    now.feeds.append(now.installation.start("feed"))
    await asyncio.sleep(now.chance.uniform(0.0, 4.0))
    await asyncio.to_thread(now.feeds.pop(0).stop)


async def everybody_killed_at_once(now: Round) -> None:
    for one in (*now.feeds, *now.workers, now.budget):
        one.kill()
    now.feeds = [now.installation.start("feed") for _ in now.feeds]
    for number in range(len(now.workers)):
        now.replace(number)
    now.budget = now.installation.start("budget")


FAULTS: tuple[Fault, ...] = (
    worker_killed,
    worker_suspended_past_its_session,
    worker_told_to_stop,
    all_workers_killed_and_offsets_expired,
    worker_killed_while_it_restores,
    budget_service_killed,
    budget_service_killed_after_its_spare_has_idled,
    network_silent,
    connections_reset,
    broker_killed,
    changelog_compacted_eagerly,
    streams_extended,
    table_renewed,
    openings_repeated,
    feed_killed,
    feed_suspended_past_its_session,
    feed_joins_and_another_leaves,
    everybody_killed_at_once,
)


async def campaign(folder: Path, seed: int, seconds: float, say: Callable[[str], None]) -> None:
    """Run rounds until the time is over; raise AssertionError at the first violation."""
    broker, ports, behind, port = proxied_broker(folder / "broker")
    await asyncio.to_thread(broker.start, ports.clients)
    deadline = time.monotonic() + seconds
    try:
        async with Proxy(port, behind) as proxy:
            number = seed
            while time.monotonic() < deadline:
                say(f"round {number} (again: --seed {number})")
                with crippled(poll_ms=POLL_MS):
                    await _round(folder / f"round-{number}", number, broker, ports.clients, proxy, port)
                number += 1
    finally:
        await asyncio.to_thread(broker.stop)


async def _round(folder: Path, seed: int, broker: LocalBroker, port: int, proxy: Proxy, proxied: int) -> None:
    chance = random.Random(seed)
    await asyncio.to_thread(folder.mkdir, parents=True)
    settings = Settings(bootstrap=f"{HOST}:{port}", prefix=f"round-{seed}", session_timeout_ms=6000)
    behind = settings.model_copy(update={"bootstrap": f"{HOST}:{proxied}"})
    await create_topics(settings)
    async with open_installation(settings, NoiseKey.generate(), folder) as installation:
        now = Round(installation, proxy, broker, port, behind, chance, installation.start("budget"))
        now.workers = [installation.start("worker", settings=behind), installation.start("worker")]
        now.feeds = [installation.start("feed"), installation.start("feed")]
        await installation.open()
        clock, period = chance.choice((("marks", None), ("broker", None), ("marks", "1h")))
        await installation.people(clock, seed=seed, period=period)
        for _ in range(FAULTS_PER_ROUND):
            fault = chance.choice(FAULTS)
            asking = asyncio.create_task(installation.ask(EVENTS_PER_FAULT))
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            installation.injected[fault.__name__.replace("_", " ")] += 1
            await fault(now)
            await asking
            now.supervise()
        await installation.answered(seconds=180)
        await installation.verified()
