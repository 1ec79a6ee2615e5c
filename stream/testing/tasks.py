"""One partition's processor on topics in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from stream.processors.base import Outputs, Processor, Record

Place = tuple[str, int]

BATCH_EVENTS = 5000


class Logs(Protocol):
    """The topics, as their owner offers them."""

    def log(self, place: Place) -> Sequence[Record]:
        """All that stands in a partition."""

    def compacted(self, place: Place) -> Sequence[Record]:
        """The latest of each key."""

    def write(self, outputs: Outputs) -> None:
        """Append what a step has written."""


class Task:
    """A processor restored from its tables and its changelog, which goes on from where the changelog is."""

    def __init__(self, processor: Processor, partition: int, logs: Logs) -> None:
        self._processor = processor
        self._partition = partition
        self._logs = logs
        self._at: dict[str, int] = {}
        for topic in processor.tables:
            processor.restore(logs.compacted((topic, partition)))
            self._at[topic] = len(logs.log((topic, partition)))
        processor.restore(logs.compacted((processor.changelog, partition)))
        self._at |= processor.restored()

    def step(self) -> bool:
        """Take in what is new of each topic, a batch at most; whether there was anything."""
        processor = self._processor
        moved = [self._take(topic, processor.follow, len) for topic in processor.tables]
        moved += [self._take(topic, processor.process, processor.portion) for topic in processor.inputs]
        return any(moved)

    def idle(self, now: float) -> bool:
        """Do what is due by the clock, and all of it; whether there was anything."""
        outputs = self._processor.idle(now)
        self._logs.write(outputs)
        return bool(outputs)

    def _take(
        self, topic: str, process: Callable[[Sequence[Any]], Outputs], portion: Callable[[Sequence[Any]], int]
    ) -> bool:
        at = self._at.get(topic, 0)
        batch = self._logs.log((topic, self._partition))[at : at + BATCH_EVENTS]
        if batch:
            batch = batch[: portion(batch)]
            self._logs.write(process(batch))
            self._at[topic] = at + len(batch)
        return bool(batch)
