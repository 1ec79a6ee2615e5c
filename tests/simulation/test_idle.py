"""During hours without a question and batches of many minutes, a running service is a group member or reports that it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from unittest.mock import patch

import pytest

from schemas import CloseStream
from stream.engine import group_engine
from stream.engine.partition_input import Prefetch
from stream.engine.supervision import REJOIN_SECONDS
from tests.chaos.load import Questions
from tests.simulation.cast import group_of
from tests.simulation.clients import MAX_POLL_INTERVAL_MS
from tests.simulation.mutations import membership_left_to_the_client_library
from tests.simulation.schedule import lazily
from tests.simulation.world import Service, World, perform

HOURS = 2
LONG_BATCH = 665.0
"""Virtual seconds that the long batch takes."""
MOMENT = 15.0
"""Virtual seconds within which a worker joins its group."""


@pytest.fixture(autouse=True)
def _few_idle_rounds() -> Iterator[None]:
    with lazily():
        yield


def _kill_for_good(service: Service) -> None:
    service.leaving = True
    service.process.kill()


def _start_one_of_each(world: World) -> None:
    world.start("budget")
    world.start("worker")


async def _spares_after_hours(world: World) -> list[str]:
    """Return the violations after all processes that had the partitions for hours were killed and not started again."""
    _start_one_of_each(world)
    world.start("worker")
    await asyncio.sleep(MOMENT)
    # The spares start last, so that they get no partition; a service that had a partition counts as busy for good.
    _start_one_of_each(world)
    violations = []
    for _ in range(HOURS * 60):
        await asyncio.sleep(60.0)
        violations += [f"no member, and ready: {name}" for name in world.silent()]
    for service in [one for one in world.services if one.engine._tasks]:
        _kill_for_good(service)
    questions = Questions(world.streams, 0)
    for _ in range(20):
        world.ask(*questions.next())
    spec = world.streams[0]
    world.request(CloseStream(request="late", source=spec.source, stream=spec.stream))
    violations += await world.settle() or world.examine()
    return violations if world.has_receipt("late") else [*violations, "no receipt"]


def test_spares_take_over_after_hours_without_a_question() -> None:
    assert perform(_spares_after_hours) == []


def test_spares_that_the_client_library_removes_are_found() -> None:
    with membership_left_to_the_client_library():
        violations = perform(_spares_after_hours)
    assert any("no member, and ready" in one for one in violations)
    assert any("stuck" in one for one in violations)


def test_service_that_loses_its_group_reports_it_and_ends() -> None:
    """A client library that leaves the group despite its settings stands for any error of such a library."""

    async def scene(world: World) -> tuple[list[str], int]:
        violations = await _spares_after_hours(world)
        return violations, world.injected["service ended by itself"]

    with patch.object(group_engine, "POLL_INTERVAL_MS", MAX_POLL_INTERVAL_MS):
        violations, ended = perform(scene)
    # Between two checks, a service may still count as a member.
    assert [one for one in violations if "no member, and ready" not in one] == []
    assert ended > 0


async def _a_batch_of_many_minutes(world: World, *, another_joins: bool) -> tuple[list[str], list[str]]:
    """Return the violations after a batch that takes longer than any interval, and what the worker lacked meanwhile."""
    world.start("budget")
    slow = world.start("worker")
    await asyncio.sleep(MOMENT)
    questions = Questions(world.streams, 0)
    world.loop.thread_seconds = LONG_BATCH
    for _ in range(10):
        world.ask(*questions.next())
    await asyncio.sleep(MOMENT)
    world.loop.thread_seconds = 0.001
    if another_joins:
        world.start("worker")
    lacks = []
    while any(task.step.name == "working" for task in slow.engine._partitions.values()):
        await asyncio.sleep(MOMENT)
        lacks += [slow.engine.health.not_ready_reason]
        assert slow.engine.health.not_ready_reason or not world.silent()
    assert len(lacks) * MOMENT > LONG_BATCH - 60.0
    await asyncio.sleep(MOMENT)
    assert slow.engine.health.not_ready_reason == ""
    assert slow.process.name in world.broker.listed(group_of("worker"))
    for _ in range(10):
        world.ask(*questions.next())
    violations = await world.settle() or world.examine()
    assert world.injected["service ended by itself"] == 0
    return violations, [lack for lack in lacks if lack]


def _long_batch(*, another_joins: bool) -> tuple[list[str], list[str]]:
    return perform(lambda world: _a_batch_of_many_minutes(world, another_joins=another_joins))


def test_worker_stays_a_member_during_a_batch_of_many_minutes() -> None:
    assert _long_batch(another_joins=False) == ([], [])


def test_worker_left_out_of_a_rebalance_reports_it_and_rejoins() -> None:
    """It is not ready until its batch is done."""
    violations, lacks = _long_batch(another_joins=True)
    assert violations == []
    assert len(lacks) * MOMENT > REJOIN_SECONDS
    assert all("not in its group" in lack for lack in lacks)


def _room_for_one_fetch() -> AbstractContextManager[object]:
    """Fetch nothing more until the task has taken the fetched records, as if all memory for records were used up."""
    return patch.object(Prefetch, "_is_full", lambda _, kept: bool(kept.fetches))


def test_worker_with_a_full_buffer_stays_a_member() -> None:
    with _room_for_one_fetch():
        assert _long_batch(another_joins=False) == ([], [])


def test_worker_that_the_client_library_removes_never_returns() -> None:
    """This happens after a long batch with a full buffer."""
    with membership_left_to_the_client_library(), _room_for_one_fetch(), pytest.raises(AssertionError):
        _long_batch(another_joins=True)
