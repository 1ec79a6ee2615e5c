"""A guard forgets the partitions that a running process loses, and keeps those of a process that stops."""

from __future__ import annotations

from typing import cast

import pytest

from stream.engine.group_engine import Engine
from stream.engine.session import EngineRole, SessionGuard
from stream.processing.protocol import Processor
from stream.settings import Settings
from tests.unit.engine.tasks import task_of_a_worker


class ForgettingGuard(SessionGuard):
    """A guard that notes the forgotten partitions."""

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    def forget(self, partition: int) -> None:
        self.forgotten.append(partition)


@pytest.mark.parametrize("stops", [False, True])
async def test_engine_forgets_lost_partitions_unless_it_stops(*, stops: bool) -> None:
    """At its stop the budget service still anchors the last head of its ledger."""
    guard = ForgettingGuard()
    role = EngineRole("worker", "group", "status", lambda _: cast(Processor, None), guard=guard)
    engine = Engine(role, Settings(), ["queries"], partitions=4)
    engine._partitions[0] = task_of_a_worker()
    if stops:
        engine.stop()
    await engine.drop_partitions([0])
    assert (engine._partitions, guard.forgotten) == ({}, [] if stops else [0])
