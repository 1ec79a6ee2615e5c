"""Where an input is read on from after a restore, and which offsets the group shows of it meanwhile."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aiokafka import TopicPartition

from stream.log import get_logger

OFFSETS_INTERVAL = 0.2
"""Seconds between two commits of a partition's offsets, which a restore does not need, where nobody waits for them."""
BUSY_INTERVAL = 1.0
"""And in transactions that have what others wait for: offsets take two more requests."""

log = get_logger("engine")


class StateLostError(RuntimeError):
    """The changelog is older than what was answered, and what it lacks cannot be answered again."""

    def __init__(self, changelog: str, source: TopicPartition, reached: int, committed: int) -> None:
        super().__init__(
            f"{changelog} reaches offset {reached} of {source.topic}, which was answered up to {committed}; bring back "
            f"a newer copy of {changelog}, or go on as the manual says for topics that are lost"
        )


@dataclass(frozen=True)
class Extent:
    """What Kafka holds of an input, and up to where the group has committed it; 0 where that is unknown."""

    source: TopicPartition
    beginning: int
    end: int
    committed: int

    def gone(self, reached: int) -> int:
        """How many records at most were deleted before they were read: markers of transactions, which nobody reads, take up offsets too.

        A state at 0 has read nothing yet, and takes the topic as it finds it.
        """
        return self.beginning - reached if 0 < reached < self.beginning <= self.end else 0


def next_offset(extent: Extent, reached: int, changelog: str, *, repeatable: bool) -> int:
    """Give the next offset to read of an input.

    ``reached`` is the word of the changelog and goes before the committed offset, which expires and can be reset. Where
    the committed offset is ahead of it, events were answered that the state knows nothing of: the changelog was lost or
    set back. If they are ``repeatable`` they are answered once more, byte for byte, and bring it up to date.

    Raises:
        StateLostError: they are not, or some of them are gone.
    """
    source, beginning, end, committed = extent.source, extent.beginning, extent.end, extent.committed
    if reached < committed:
        if not repeatable or reached < beginning or committed > end:
            raise StateLostError(changelog, source, reached, committed)
        log.error("state went back", topic=source.topic, reached=reached, committed=committed)
    position = max(beginning, reached)
    if position <= end:
        if gone := extent.gone(reached):
            log.error(
                "input gone unread",
                topic=source.topic,
                partition=source.partition,
                reached=reached,
                beginning=beginning,
                at_most=gone,
            )
        return position
    # The topic was recreated or cut. Streams that answered beyond its end halt rather than answer again.
    log.error("input went back", topic=source.topic, position=position, end=end)
    return beginning


class GroupOffsets:
    """Input positions on their way to the group's committed offsets.

    The changelog has the positions, in the transaction of the outputs. Committed offsets tell others how far behind a
    partition is, and the next restore whether the changelog was set back: now and then is enough, and a transaction
    without offsets takes a request less, or two by Kafka's first protocol.
    """

    def __init__(self) -> None:
        self._reached: dict[TopicPartition, int] = {}
        self._last = -math.inf

    def reach(self, source: TopicPartition, offset: int) -> None:
        """Say that everything before an offset is answered, in this transaction or earlier ones."""
        self._reached[source] = offset

    def due(self, now: float, *, waited_for: bool = False) -> dict[TopicPartition, int]:
        """The offsets to commit in a transaction at ``now``, in seconds of any clock; none is due twice.

        ``waited_for`` says that the transaction has what others read at once.
        """
        if not self._reached or now < self._last + (BUSY_INTERVAL if waited_for else OFFSETS_INTERVAL):
            return {}
        self._last = now
        offsets, self._reached = self._reached, {}
        return offsets
