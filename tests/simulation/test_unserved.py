"""A service of which a part has gone without being told to ends, so that it is started again."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from stream.kafka.hearing import Hearing
from tests.chaos.load import Questions
from tests.simulation.clock import virtual_time
from tests.simulation.live import LiveWorld
from tests.simulation.world import World, perform

MOMENT = 15.0
"""Virtual seconds within which a service has its partitions."""


async def _cancelled(world: World) -> list[str]:
    """What is wrong after a client library has cancelled what a partition's task waits for."""
    world.start("budget")
    worker = world.start("worker")
    await asyncio.sleep(MOMENT)
    worker.engine._tasks[0].cancel()
    await asyncio.sleep(MOMENT)
    questions = Questions(world.streams, 0)
    for _ in range(10):
        world.ask(*questions.next())
    violations = await world.settle() or world.examine()
    return violations if world.injected["service ended by itself"] == 1 else [*violations, "not ended"]


def test_a_worker_of_which_a_partitions_task_was_cancelled_is_started_again() -> None:
    assert perform(_cancelled) == []


async def _deaf(world: LiveWorld, at: float) -> bool:
    """Whether a feed ends once something unforeseen has ended its following of control."""
    failing = asyncio.Event()
    follow = Hearing._follow

    async def follow_until_it_fails(self: Hearing, consumer: Any) -> None:
        following = asyncio.ensure_future(follow(self, consumer))
        await failing.wait()
        following.cancel()
        raise ZeroDivisionError

    world.loop.call_later(at, failing.set)
    with patch.object(Hearing, "_follow", follow_until_it_fails):
        world.feeds.start()
        (feed,) = world.feeds.running
        await asyncio.wait({feed.task}, timeout=at + MOMENT)
    return feed.task.done() and isinstance(feed.task.exception(), ZeroDivisionError)


@pytest.mark.parametrize("at", [0.0, MOMENT], ids=["before it has heard all", "at work"])
def test_a_feed_that_hears_of_no_stream_any_more_ends(at: float, capsys: pytest.CaptureFixture[str]) -> None:
    with virtual_time() as loop:
        world = LiveWorld(loop, 0)
        world.faults.cease()
        assert loop.run_until_complete(_deaf(world, at))
    capsys.readouterr()
