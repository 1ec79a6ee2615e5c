"""In every schedule, each window of a live topic is asked once with the numbers of a plain count, and feeds with a mistake are found."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.simulation.clock import virtual_time
from tests.simulation.faults import STRIKES
from tests.simulation.live import PATIENCE, SOURCE, TOPIC, LiveWorld, play
from tests.simulation.live_mutations import MUTATIONS
from tests.simulation.mutations import found
from tests.simulation.replacements import Mutation
from tests.simulation.schedule import lazily, quiet

SCHEDULES = 60
"""The number of schedules within which each mutation is found; with unchanged feeds, no schedule fails."""
FOUND_BY = {"silent_partitions_stand_still": 3, "no_fencing": 3, "the_latest_definition_alone": 2}
"""For some mutations, the first schedule that finds them."""


def test_every_schedule_asks_each_window_once_with_plain_counts() -> None:
    reports = [play(seed) for seed in range(SCHEDULES)]
    broken = [str(report) for report in reports if report.violations]
    assert not broken, "\n".join(broken)
    injected = sum((report.injected + report.figures for report in reports), Counter[str]())
    upsets = (
        "kill",
        "zombie",
        "join",
        "twin",
        "name lost",
        "leave",
        "outage",
        "compact",
        "expire",
        "unreadable batch",
        "stream closed",
        "stream retired",
        "stream extended",
    )
    assert all(injected[name] >= 3 for name in (*STRIKES, *upsets)), injected
    assert injected["questions"] > 50 * SCHEDULES
    assert injected["extension verified"] > SCHEDULES / 3
    assert min(injected["aborted"], injected["expired"], injected["fenced"]) > 3


def test_feed_reports_its_lag_while_it_catches_up_and_after() -> None:
    with quiet(), virtual_time() as loop, lazily():
        world = LiveWorld(loop, 3)
        world.faults.cease()
        seen, metrics = loop.run_until_complete(asyncio.wait_for(_catching_up(world), PATIENCE))
    assert max(seen) > 1000
    assert seen[-1] == 0
    assert metrics["sotto_feed_lag_events"] == 0
    # Without events, clocks follow the time; they lag by the source's ``idle`` and by the pause between two checks.
    assert 1.0 <= metrics["sotto_feed_lag_seconds"] < 5.0


async def _catching_up(world: LiveWorld) -> tuple[list[int], dict[str, float]]:
    """Return the number of unread events at each look, and the figures when all events were read."""
    for _ in range(3000):
        partition, key, value = world.visits.next(world.broker.timestamp, 1000)
        world.broker.append(TOPIC, partition, key, value)
    world.feeds.start()
    service, seen = world.feeds.running[0].service, [0]
    while max(seen) == 0 or seen[-1]:
        await asyncio.sleep(0.01)
        engine = service._engines.get(SOURCE.source)
        seen.append(engine.count_unread() if engine is not None else 0)
    await asyncio.sleep(10.0)
    registry = service._health.metrics.registry
    names = ("sotto_feed_lag_events", "sotto_feed_lag_seconds")
    found = {name: registry.get_sample_value(name, {"source": SOURCE.source}) for name in names}
    return seen, {name: value for name, value in found.items() if value is not None}


def test_seed_replays_the_same_live_run() -> None:
    assert play(7).digest == play(7).digest != play(8).digest


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_each_broken_feed_is_found(mutation: Mutation) -> None:
    assert found(mutation, play, SCHEDULES, FOUND_BY)
