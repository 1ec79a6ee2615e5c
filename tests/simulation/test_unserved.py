"""Parts of services may end: an unexpected end of a part ends the service; a part that no stream needs may end."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from stream.kafka.topic_layouts import TopicsError
from stream.services.feed_service import MERGING_ENGINE, ControlFollower
from tests.chaos.load import Questions
from tests.simulation.clock import virtual_time
from tests.simulation.live import LATER, SOURCE, LiveWorld, stream_control_records
from tests.simulation.world import World, perform

MOMENT = 15.0
"""Virtual seconds within which a service has its partitions."""


async def _cancelled(world: World) -> list[str]:
    """Return the violations after a client library has cancelled the future for which a partition's task waits."""
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


def test_worker_with_a_cancelled_partition_task_is_restarted() -> None:
    assert perform(_cancelled) == []


async def _deaf(world: LiveWorld, at: float) -> bool:
    """Return whether a feed ends after an unexpected error has ended its reading of control."""
    failing = asyncio.Event()
    follow = ControlFollower._follow_control

    async def follow_until_it_fails(self: ControlFollower, consumer: Any) -> None:
        following = asyncio.ensure_future(follow(self, consumer))
        await failing.wait()
        following.cancel()
        raise ZeroDivisionError

    world.loop.call_later(at, failing.set)
    with patch.object(ControlFollower, "_follow_control", follow_until_it_fails):
        world.feeds.start()
        (feed,) = world.feeds.running
        await asyncio.wait({feed.task}, timeout=at + MOMENT)
    return feed.task.done() and isinstance(feed.task.exception(), ZeroDivisionError)


@pytest.mark.parametrize("at", [0.0, MOMENT], ids=["before it has heard all", "at work"])
def test_feed_that_reads_no_control_any_more_ends(at: float, capsys: pytest.CaptureFixture[str]) -> None:
    with virtual_time() as loop:
        world = LiveWorld(loop, 0)
        world.faults.cease()
        assert loop.run_until_complete(_deaf(world, at))
    capsys.readouterr()


async def _left(world: LiveWorld) -> tuple[str, str, set[str], list[str]]:
    """Return the reasons at /readyz while a live topic cannot be served and after its streams are closed, and a stream opened later."""
    world.feeds.start()
    (feed,) = world.feeds.running
    found = feed.service._find_topic

    async def refuse(*_: object) -> int:
        raise TopicsError("visits: has other partitions; close the streams of this source")

    feed.service._find_topic = refuse
    await asyncio.sleep(MOMENT)
    before = feed.service._health.not_ready_reason
    world.tell(*(record for name, record in stream_control_records()[1].items() if name != LATER))
    await asyncio.sleep(MOMENT)
    after, serving = feed.service._health.not_ready_reason, set(feed.service._engine_tasks)
    feed.service._find_topic = found
    world.tell(stream_control_records()[0][LATER])
    await asyncio.sleep(MOMENT)
    return before, after, serving, [feed.service._health.not_ready_reason, *feed.service._engine_tasks]


def test_feed_is_ready_once_streams_of_a_refused_source_are_closed(capsys: pytest.CaptureFixture[str]) -> None:
    """The remedy that /readyz shows takes effect without a restart, and a stream that opens later is served again."""
    with virtual_time() as loop:
        world = LiveWorld(loop, 0)
        world.faults.cease()
        before, after, serving, again = loop.run_until_complete(_left(world))
    assert "close the streams of this source" in before
    assert (after, serving) == ("", {MERGING_ENGINE})
    assert again == ["", MERGING_ENGINE, SOURCE.source]
    capsys.readouterr()
