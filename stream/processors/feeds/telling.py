"""Telling merging what a partition has in windows that are closed: window after window of each stream, each once."""

from __future__ import annotations

from typing import Any, Final

from schemas import EventsSource, Partial
from schemas.wire import encode, struct
from stream.processors.base import Outputs
from stream.processors.feeds.asking import groups_in
from stream.processors.feeds.standing import StandingStreams, Stream
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
        """Tell of windows that are due, of each stream its share of what one step tells of, and give these streams."""
        waiting = [stream for stream in streams if streams.due(stream, clock)]
        told, cells = [], 0
        for stream in waiting:
            if cells > CELLS_AT_ONCE:
                break
            told.append(stream)
            name = stream.told.spec.stream.encode()
            to, groups = partition_of(name, self._topics.partitions), groups_in(stream.told)
            for _ in range(min(streams.due(stream, clock), max(1, PARTIALS_AT_ONCE // len(waiting)))):
                outputs.add(self._topics.partials, to, (name, self._partial(stream), ()))
                stream.next += stream.told.standing.window.every_ms
                cells += groups
                if cells > CELLS_AT_ONCE:
                    break
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
