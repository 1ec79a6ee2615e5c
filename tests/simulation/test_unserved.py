"""A service of which a part has gone without being told to ends, so that it is started again."""

from __future__ import annotations

import asyncio

from tests.chaos.load import Questions
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
