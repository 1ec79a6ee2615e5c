"""Telling merging what a partition has in windows that are closed: one after the other as they close, each once."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import Any, Final

from schemas import EventsSource, Partial
from schemas.wire import encode, struct
from stream.processors.base import Outputs
from stream.processors.feeds.asking import groups_in
from stream.processors.feeds.standing import Key, StandingStreams, Stream
from stream.processors.topics import Topics, partition_of

PARTIALS_AT_ONCE: Final = 2_000
"""So many windows are told of in one step."""
CELLS_AT_ONCE: Final = 200_000
"""And so many cells of theirs, whether anybody was counted in them or not: how many those are is private."""

_WirePartial: Any = struct(Partial)


class Telling:
    """Writes the partials of one partition."""

    def __init__(self, topics: Topics, source: EventsSource, partition: int, partitions: int) -> None:
        self._topics = topics
        self._source = source.source
        self._partition = partition
        self._partitions = partitions

    def due(self, streams: StandingStreams, clock: int, outputs: Outputs) -> list[Stream]:
        """Tell of windows that are due, as many as one step tells of, and give their streams.

        The order is that in which they close, over all streams, and of those that close together by name: where steps end hangs on
        how many events there are, and moves nothing in it.
        """
        waiting = [(one.closes, *one.key, one) for one in streams if one.is_due(clock)]
        heapify(waiting)
        facts: dict[Key, tuple[int, int, int]] = {}
        told: list[Stream] = []
        partials = cells = 0
        while waiting and partials < PARTIALS_AT_ONCE and cells < CELLS_AT_ONCE:
            closes, name, epoch, stream = waiting[0]
            if (found := facts.get(stream.key)) is None:
                to = partition_of(name.encode(), self._topics.partitions)
                found = facts[stream.key] = to, groups_in(stream.told), stream.told.standing.window.every_ms
                told.append(stream)
            to, groups, every = found
            outputs.add(self._topics.partials, to, (name.encode(), self._partial(stream), ()))
            partials += 1
            cells += groups
            stream.next += every
            if closes + every <= clock and stream.next <= stream.last:
                heapreplace(waiting, (closes + every, name, epoch, stream))
            else:
                heappop(waiting)
        return told

    def _partial(self, stream: Stream) -> bytes:
        cells, counts = stream.values(stream.next)
        partial = _WirePartial(
            source=self._source,
            stream=stream.told.spec.stream,
            incarnation=stream.told.incarnation,
            partition=self._partition,
            partitions=self._partitions,
            start=stream.next,
            cells=tuple(cells),
            counts=tuple(counts),
        )
        return encode(partial)
