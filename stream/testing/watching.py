"""The driver's call about alerts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING

from stream.asking.alerts import Notice
from stream.asking.openings import Opening, counted_of, is_news, opening_of, source_of
from stream.asking.watching import Watch

if TYPE_CHECKING:
    from stream.processors.base import Record
    from stream.processors.topics import Topics


class WatchCalls(ABC):
    """What of a client is about alerts."""

    topics: Topics

    @abstractmethod
    def records(self, topic: str) -> list[Record]:
        """Everything ever written to a topic."""

    def watch(
        self, *streams: str, source: str | None = None, quiet: bool = False, from_beginning: bool = False
    ) -> Generator[Notice, None, None]:
        """The alerts of these streams, from the first or the next on; from the first, then which have ended. It ends with the last there is."""
        watch = Watch(streams, source, quiet=quiet)
        seen = 0 if from_beginning else len(self.records(self.topics.answers))
        ledger = self.records(self.topics.ledger)
        openings: dict[str, Opening] = {}
        for record in ledger:
            one = opening_of(record.key, record.value, record.timestamp, watch.wants)
            if one is not None:
                is_news(openings, one)
        sources = {source_of(record.key) or "": counted_of(record.value) for record in ledger}
        yield from watch.begin(openings.values(), sources.keys(), from_beginning=from_beginning)
        for record in filter(watch.may_matter, self.records(self.topics.answers)[seen:]):
            opening = openings.get((record.key or b"").decode())
            yield from watch.told(record, opening, sources.get(opening.source, "")) if opening is not None else ()
        if from_beginning:
            yield from watch.ended(openings.values())
