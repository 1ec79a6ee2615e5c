"""Partials of windows, and the log of the merging tasks."""

from __future__ import annotations

from collections.abc import Iterable

from schemas import MAX_EVENT_BYTES, Partial
from schemas.wire import Codec
from stream.processing.protocol import Message, Record
from tests.unit.feeds.streams import SOURCE, TOPICS, incarnation_of

MINUTE = 60_000
FIRST = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""
EVERY = 5 * MINUTE


_partials: Codec[Partial] = Codec(Partial, limit=MAX_EVENT_BYTES)


def partial(stream: str, number: int, start: int, counts: dict[int, int], partitions: int) -> Message:
    """Return the message with a partition's counts of one window."""
    event = Partial(
        source=SOURCE.source,
        stream=stream,
        incarnation=incarnation_of(stream),
        partition=number,
        partitions=partitions,
        start=start,
        cells=tuple(sorted(counts)),
        counts=tuple(counts[cell] for cell in sorted(counts)),
    )
    return stream.encode(), _partials.encode(event), ()


def logged(messages: Iterable[Message]) -> list[Record]:
    """Return the partials as records of their topic."""
    return [Record(TOPICS.partials, 0, at, 0, key, value) for at, (key, value, _) in enumerate(messages)]
