"""A partition's task that nobody runs, for tests of its single steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from stream.kafka.clients import KAFKA, Consumer
from stream.kafka.lives import Equipment
from stream.kafka.metrics import Metrics
from stream.kafka.partition import PartitionTask
from stream.kafka.roles import Role
from stream.processors.base import Processor
from stream.settings import Settings


def equipment_of_a_worker(clock: Callable[[], float] = time.time) -> Equipment:
    nobody = cast(Consumer, None)
    role = Role("worker", "group", "status", lambda _: cast(Processor, None))
    return Equipment(role, Settings(), KAFKA, nobody, nobody, Metrics("worker"), clock=clock)


def task_of_a_worker(clock: Callable[[], float] = time.time) -> PartitionTask:
    return PartitionTask(0, equipment_of_a_worker(clock))
