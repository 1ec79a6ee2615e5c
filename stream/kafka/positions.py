"""Where an input is read on from after a restore, and which offsets the group shows of it meanwhile."""

from __future__ import annotations

from aiokafka import TopicPartition

from stream.log import get_logger

OFFSETS_INTERVAL = 0.2
"""Seconds between two commits of offsets that a restore does not need."""

log = get_logger("engine")


class StateLostError(RuntimeError):
    """The changelog is older than what was answered, and what it lacks cannot be answered again."""

    def __init__(self, source: TopicPartition, reached: int, committed: int) -> None:
        super().__init__(
            f"state: it reaches offset {reached} of {source.topic}, which was answered up to {committed}, and events "
            "between are gone; restore state and queries from a backup, or halt every open stream and delete the "
            "group's committed offsets"
        )


def next_offset(
    source: TopicPartition, beginning: int, end: int, committed: int | None, reached: int | None
) -> int:
    """Give the next offset to read of an input that holds ``beginning`` to ``end``.

    ``reached`` is the changelog's own word, None where it does not record positions; it goes before the committed
    offset, which expires and can be reset. Where the committed offset is ahead of it, events were answered that the
    state knows nothing of: it was lost or rolled back. Answered once more, they bring it up to date, byte for byte.

    Raises:
        StateLostError: some of those events are gone, so that streams would begin anew.
    """
    committed = committed or 0
    if reached is not None and reached < committed:
        if reached < beginning or committed > end:
            raise StateLostError(source, reached, committed)
        log.error("state went back", topic=source.topic, reached=reached, committed=committed)
    position = max(beginning, committed if reached is None else reached)
    if position <= end:
        return position
    # The topic was recreated or cut. Streams that answered beyond its end halt rather than answer again.
    log.error("input went back", topic=source.topic, position=position, end=end)
    return beginning


class GroupOffsets:
    """Input positions on their way to the group's committed offsets.

    A processor whose changelog records no position needs them in every transaction. Where it does (``recorded``) they
    tell others how far behind a partition is, and the next restore whether the changelog was set back: now and then
    is enough, and a transaction without offsets takes three requests instead of five.
    """

    def __init__(self, *, recorded: bool) -> None:
        self._interval = OFFSETS_INTERVAL if recorded else 0.0
        self._reached: dict[TopicPartition, int] = {}
        self._next = 0.0

    def reach(self, source: TopicPartition, offset: int) -> None:
        """Say that everything before an offset is answered, in this transaction or earlier ones."""
        self._reached[source] = offset

    def due(self, now: float) -> dict[TopicPartition, int]:
        """The offsets to commit in a transaction at ``now``, in seconds of any clock; none is due twice."""
        if not self._reached or now < self._next:
            return {}
        self._next = now + self._interval
        offsets, self._reached = self._reached, {}
        return offsets
