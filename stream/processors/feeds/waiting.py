"""Windows of sources with periods, which wait until control has told of their period: in which order they are asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge

from stream.processors.feeds.merged import Merged
from stream.processors.feeds.told import Told


class Waiting:
    """Which streams may have such windows.

    These are asked in the order in which they close, over all streams, as partitions tell of them. So how many had come when control told
    of a period moves nothing in it.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()

    def ready(
        self, told: Mapping[str, Told], streams: Mapping[str, Merged], is_ready: Callable[[Told, int], bool]
    ) -> Iterator[tuple[str, int]]:
        """The windows that may be asked now, each of which is closed before the next is looked at; behind one that waits on, all of its source do."""
        order: list[Iterator[tuple[int, str, int]]] = []
        sources: set[str] = set()
        for name in sorted(self.names):
            known, merged = told.get(name), streams.get(name)
            if known is None or merged is None or not known.asks or not known.source.has_periods:
                self.names.discard(name)
            elif starts := merged.whole():
                order.append(_closing(known, starts))
                sources.add(known.source.source)
            else:
                self.names.discard(name)
        for _, name, start in merge(*order):
            source = told[name].source.source
            if source in sources and not is_ready(told[name], start):
                sources.remove(source)
            if source in sources:
                yield name, start
            elif not sources:
                return


def _closing(told: Told, starts: Sequence[int]) -> Iterator[tuple[int, str, int]]:
    """Windows of a stream behind the moments at which they close."""
    open_ms = told.standing.open_ms
    return ((start + open_ms, told.spec.stream, start) for start in starts)
