"""Which of a partition's outputs are committed now: what others read at once, what only a restore reads in company."""

from __future__ import annotations

from typing import Final

from aiokafka import TopicPartition

from stream.kafka.positions import GroupOffsets
from stream.processors.base import Message, Outputs

GATHERED_BYTES: Final = 1_000_000
"""What waits is committed once it has grown to this."""


class Gathering:
    """Outputs of one life that are not committed yet.

    A transaction costs requests and a marker in each topic, and whoever comes behind it waits. So what is for nobody but the changelog may wait for
    ``patience`` seconds; whatever is committed is committed with all that came before it. The changelog is compacted: of each of
    its keys the latest is written. A crash takes back what waits, with the positions that belong to it.
    """

    def __init__(self, changelog: TopicPartition, offsets: GroupOffsets, patience: float) -> None:
        self._place = (changelog.topic, changelog.partition)
        self._offsets = offsets
        self._patience = patience
        self._waiting: dict[bytes | None, Message] = {}
        self._bytes = 0
        self._since = 0.0

    def seconds_left(self, now: float) -> float | None:
        """How long what waits may wait yet, at ``now`` of any clock that does not go back; None if nothing does."""
        return max(0.0, self._since + self._patience - now) if self._waiting else None

    def due(self, outputs: Outputs, now: float, *, idle: bool) -> tuple[Outputs, dict[TopicPartition, int]] | None:
        """Take outputs, and give what to commit now with the offsets that are due.

        Offsets get a transaction of their own only if the partition is ``idle``: right behind another one it would wait for the
        markers of that, and what comes next for its own.
        """
        waited_for = bool(outputs)
        if self._patience > 0:
            waited_for = any(place[:2] != self._place for place in outputs)
            outputs = self._gathered(outputs, now, at_once=idle or waited_for)
        if not (outputs or idle):
            return None
        offsets = self._offsets.due(now, waited_for=waited_for)
        return (outputs, offsets) if outputs or offsets else None

    def _gathered(self, outputs: Outputs, now: float, *, at_once: bool) -> Outputs:
        """These outputs and all that waited, or nothing if all of them may wait."""
        told = Outputs(busy=outputs.busy)
        for topic, partition, messages in outputs:
            if (topic, partition) != self._place:
                told.extend(topic, partition, messages)
                continue
            if not self._waiting:
                self._since, self._bytes = now, 0
            for message in messages:
                self._waiting[message[0]] = message
                self._bytes += len(message[1] or b"")
        left = self.seconds_left(now)
        if left is not None and (at_once or left == 0.0 or self._bytes >= GATHERED_BYTES):
            told.extend(*self._place, list(self._waiting.values()))
            self._waiting = {}
        return told
