"""A worker stays in its group during a batch that takes seconds."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

from aiokafka import TopicPartition

from stream.engine.batch_loop import BatchLoop, PartitionHealth
from stream.engine.partition_input import GroupOffsets
from stream.engine.session import PartitionSession, Refusals, TaskStep
from stream.engine.writer import OutputBuffer
from stream.processing.protocol import Batch, Outputs, Processor
from stream.tables.engine_limits import current_cancellation
from tests.patience import SECONDS
from tests.unit.engine.tasks import equipment_of_a_worker

STEP_SECONDS = 0.2
HEARTBEAT_SECONDS = 0.01


class SlowProcessor:
    """Takes long to prepare a batch, and long to process it."""

    def __init__(self, *, heavy: bool) -> None:
        self.runs_in_thread = heavy

    def prepare(self, records: Sequence[Any]) -> Batch:
        time.sleep(STEP_SECONDS)
        return Batch(records)

    def process(self, batch: Batch) -> Outputs:
        time.sleep(STEP_SECONDS)
        outputs = Outputs()
        outputs.extend("answers", 0, [(b"key", b"value", ()) for _ in batch.records])
        return outputs


async def heartbeats_during_a_batch(*, heavy: bool) -> int:
    """Return how often a task that waits for the event loop gets its turn while one event is answered."""
    answering = BatchLoop(0, equipment_of_a_worker(), asyncio.Event(), TaskStep(), PartitionHealth())
    processor = cast(Processor, SlowProcessor(heavy=heavy))
    offsets = GroupOffsets()
    gathering = OutputBuffer(TopicPartition("state", 0), offsets, max_write_delay=0.0)
    life = PartitionSession(
        processor, cast(Any, None), {}, offsets, gathering, cast(Any, None), Refusals("worker", 0), cast(Any, None)
    )
    heartbeats = 0

    async def beat() -> None:
        nonlocal heartbeats
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            heartbeats += 1

    beating = asyncio.create_task(beat())
    records = [cast(Any, object())]
    batch = await answering.run_step(life, processor.prepare, records, records=records)
    outputs = await answering.run_step(life, processor.process, batch)
    beating.cancel()
    assert [len(messages) for _, _, messages in outputs] == [1]
    return heartbeats


async def test_task_lets_heartbeats_run_during_heavy_batch() -> None:
    assert await heartbeats_during_a_batch(heavy=True) >= 10


async def test_task_answers_light_batch_without_thread() -> None:
    assert await heartbeats_during_a_batch(heavy=False) == 0


async def test_run_in_thread_needs_no_thread_of_others_and_keeps_cancellation() -> None:
    """While steps that wait for a table engine fill the loop's threads, another partition's step still runs."""
    released = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    waiting = asyncio.create_task(asyncio.to_thread(released.wait))
    await asyncio.sleep(0)  # the task takes the thread
    cancelled = threading.Event()
    current_cancellation.set(cancelled)
    try:
        with ThreadPoolExecutor(1) as threads:
            equipment = replace(equipment_of_a_worker(), threads=threads)
            async with asyncio.timeout(SECONDS):
                assert await equipment.run_in_thread(current_cancellation.get) is cancelled
        assert not waiting.done()
    finally:
        released.set()
        await waiting
