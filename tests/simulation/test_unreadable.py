"""An unreadable record in a changelog stops its partition; in control it stops nothing."""

from __future__ import annotations

import asyncio

from tests.simulation.world import World, perform


def test_unreadable_changelog_stops_its_partition_alone() -> None:
    async def scene(world: World) -> list[bool]:
        world.append_unreadable(world.topics.state, 0)
        world.append_unreadable(world.topics.control, 1)
        world.start("worker")
        await asyncio.sleep(60)
        return [world.owner(number) is not None for number in (0, 1)]

    assert perform(scene) == [False, True]
