"""Feeds: a partition of a live topic in, what it has in each closed window of each standing stream out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from schemas import EventsSource
from stream.processors.base import Outputs, RecordLike
from stream.processors.feeds.definitions import Definitions
from stream.processors.topics import Topics


class FeedProcessor:
    """One partition of a source's topic, for all standing streams of the source.

    ``partitions`` is how many the topic has. Windows close by the events' own stamps, or by marks; where there are no events, by
    ``reached_end``.
    """

    heavy = True
    repeatable = False

    def __init__(
        self, topics: Topics, source: EventsSource, partition: int, partitions: int, definitions: Definitions
    ) -> None:
        self.inputs = (source.topic,)
        self.tables: tuple[str, ...] = ()
        self.changelog = topics.feed_state(source.source)
        self._topics, self._source, self._definitions = topics, source, definitions
        self._partition, self._partitions = partition, partitions

    def reached_end(self, moment: float) -> None:
        """Be told that whatever stood in the partition at a moment has been taken in, in seconds since 1970.

        The moment is one before the partition's end was asked for, and the end is the high watermark: not that of what is
        committed, since a transaction that is open has events stamped long ago. What is due by it comes out of ``idle``.
        """
        raise NotImplementedError

    @property
    def behind(self) -> bool:
        """Whether windows are due that were more than one step takes: the next ``idle`` writes more of them."""
        raise NotImplementedError

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Take in records of the changelog, in any order that compaction leaves."""
        raise NotImplementedError

    def restored(self) -> Mapping[str, int]:
        """End the restore, and give the next offset.

        Raises:
            RecutError: the topic has another number of partitions than before.
        """
        raise NotImplementedError

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """There are no tables to follow: definitions come beside."""
        del records
        return Outputs()

    def needs_tables(self, records: Sequence[RecordLike]) -> bool:
        """There are no tables."""
        del records
        return False

    def portion(self, records: Sequence[RecordLike]) -> int:
        """As many events as one step should count: the fewer, the more windows of all streams each lies in."""
        raise NotImplementedError

    def process(self, records: Sequence[RecordLike]) -> Outputs:
        """Count events in order, and write what is in the windows that close.

        Raises:
            UnstampedError: the source's clock is the broker's, and the topic does not stamp events.
        """
        raise NotImplementedError

    def refuse(self, record: RecordLike) -> Outputs:
        """Set aside an event that breaks ``process``."""
        raise NotImplementedError

    def idle(self, now: float) -> Outputs:
        """What is in windows that are due: those that the clock has closed, and those left by earlier steps."""
        raise NotImplementedError
