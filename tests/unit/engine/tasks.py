"""A partition's task that does not run, for tests of its single steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from stream.engine.health import Metrics
from stream.engine.partition_task import PartitionTask
from stream.engine.session import EngineRole, Equipment
from stream.kafka.client.adapter import KAFKA, Consumer
from stream.processing.protocol import Processor
from stream.settings import Settings


def equipment_of_a_worker(clock: Callable[[], float] = time.time) -> Equipment:
    nobody = cast(Consumer, None)
    role = EngineRole("worker", "group", "status", lambda _: cast(Processor, None))
    return Equipment(role, Settings(), KAFKA, nobody, nobody, Metrics("worker"), clock=clock)


def task_of_a_worker(clock: Callable[[], float] = time.time) -> PartitionTask:
    return PartitionTask(0, equipment_of_a_worker(clock))
