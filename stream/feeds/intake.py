"""Reads records of a live topic as a batch of events to count, and rejects invalid records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from zlib import crc32

import numpy as np

from schemas import EventsSource, FirstWindow
from schemas.wire import struct
from stream.events.event_fields import AHEAD, precedes_all_windows, time_flaw
from stream.events.event_reader import EventReader
from stream.feeds.event_clock import NOT_BEGUN, EventClock
from stream.feeds.tally import EventBatch, select_events
from stream.kernel.byte_columns import Column
from stream.processing.dead_letters import Rejection, UnreadableValue
from stream.processing.protocol import RecordLike
from stream.processing.record_columns import RecordColumns
from stream.processing.topic_names import partition_of

NO_WINDOW: Final = -1

_WireWindow: Any = struct(FirstWindow)


class FirstWindows:
    """For each record timestamp, the start of the earliest window that a stream counts.

    Windows of ended streams remain. So whether an event is rejected does not depend on the moment
    at which the partition learns that a stream has ended.
    """

    def __init__(self) -> None:
        self.changelog_windows: tuple[Any, ...] = ()
        """The windows to write to the changelog: those that no counted stream's definition contains."""
        self._windows: tuple[tuple[int, int], ...] = ()
        self._declared: dict[tuple[str, int], tuple[int, int]] = {}
        """First windows in the definitions of counted streams, which a restore adds again."""

    def restore(self, kept: Iterable[Any]) -> None:
        """Add the changelog's windows; ``add_epoch`` adds those of the counted streams."""
        self._add_windows((NOT_BEGUN if one.since is None else one.since, one.start) for one in kept)

    def add_epoch(self, epoch: tuple[str, int], since: int, start: int, *, is_declared: bool) -> None:
        """Add an epoch that counts events from a timestamp on, with the start of its first window.

        A window that is not in the definition goes to the changelog, because after a restart this
        method gets the epoch's next window instead of its first one.
        """
        if is_declared:
            self._declared[epoch] = since, start
        self._add_windows([(since, start)])

    def end_epoch(self, epoch: tuple[str, int]) -> None:
        """End an epoch; its window goes to the changelog."""
        self._declared.pop(epoch, None)
        self._add_windows(())

    def starts_at(self, stamps: Column) -> Column:
        """Return for each timestamp the earliest window's start; ``NO_WINDOW`` without streams."""
        sinces = np.array([since for since, _ in self._windows], dtype=np.int64)
        starts = np.array([NO_WINDOW, *(start for _, start in self._windows)], dtype=np.int64)
        return starts[np.searchsorted(sinces, stamps, side="right")]

    def _add_windows(self, windows: Iterable[tuple[int, int]]) -> None:
        """Add windows; keep one only if it begins before all windows with earlier timestamps."""
        found: list[tuple[int, int]] = []
        for since, start in sorted({*self._windows, *windows}):
            if not found or start < found[-1][1]:
                found.append((since, start))
        self._windows, implied = tuple(found), set(self._declared.values())
        self.changelog_windows = tuple(
            _WireWindow(start, None if since == NOT_BEGUN else since)
            for since, start in found
            if (since, start) not in implied
        )


_BEFORE_FIRST_MARK = Rejection(
    "ahead",
    "time: lies beyond the windows that may be open before the first mark; write a mark before the events, and let the "
    "streams begin where the events do",
)
_OTHER_PARTITION = Rejection(
    "partition",
    "person: Kafka's default partitioner puts this person into another partition; use the person, and nothing else, as "
    "the record's key",
)
_OTHER_PARTITIONER = Rejection(
    "partition",
    "person: this partition is the choice of another partitioner (CRC32); set partitioner=murmur2_random in librdkafka "
    "clients such as confluent-kafka",
)


class Intake:
    """Reads the records of one partition; a rejection does not depend on other people's events."""

    def __init__(self, source: EventsSource, partition: int, partitions: int, clock: EventClock) -> None:
        self._domains = source.attributes
        self._partition = partition
        self._partitions = partitions
        self._clock = clock
        self._reader = EventReader(source, partitions)

    def read(
        self, records: Sequence[RecordLike], first: FirstWindows
    ) -> tuple[EventBatch | None, dict[int, Rejection]]:
        """Advance the clock; return the batch to count, if any, and the rejections by index.

        Raises:
            WriterTimestampsError: the source's clock is the broker's, but the topic's timestamps are not.
        """
        clocks, stamps, marks = self._clock.advance(records)
        latest = self._clock.latest_event_times(records, clocks)
        rejections = {place: mark for place, mark in marks.items() if mark is not None}
        places = np.arange(len(records))
        if isinstance(records, RecordColumns):
            events = self._reader.read(records.values)
        else:
            values = [record.value for record in records]
            for place, value in enumerate(values):
                if type(value) is UnreadableValue and place not in marks:
                    rejections[place] = value.rejection
            if rejections or marks:
                left = [place for place in range(len(records)) if place not in rejections and place not in marks]
                places, values = np.array(left, dtype=np.int64), [values[place] for place in left]
            events = self._reader.read(values)
        for row, flaw in events.flaws.items():
            rejections[int(places[row])] = Rejection(flaw.code, flaw.message)
        places = places[events.places]
        at_home, in_time = events.homes == self._partition, events.times <= latest[places]
        counts = (
            at_home
            & in_time
            & ~precedes_all_windows(events.times, first.starts_at(stamps[places]), clocks[places])
        )
        for row in np.flatnonzero(~counts).tolist():
            flaw = time_flaw(int(events.times[row]), is_ahead=not in_time[row])
            if not at_home[row]:
                rejection = self._reject_partition(records[int(places[row])].key, int(events.homes[row]))
            elif flaw is AHEAD and clocks[places[row]] == NOT_BEGUN:
                rejection = _BEFORE_FIRST_MARK
            else:
                rejection = Rejection(*flaw)
            rejections[int(places[row])] = rejection
        events, places = select_events(events, counts), places[counts]
        return (
            EventBatch(events, clocks[places], stamps[places], self._domains) if len(places) else None
        ), rejections

    def _reject_partition(self, key: bytes | None, home: int) -> Rejection:
        """Return the rejection of an event in another partition than its person's.

        librdkafka chooses the partition by CRC32 of the key, unless it is configured otherwise.
        """
        is_person = bool(key) and partition_of(key or b"", self._partitions) == home
        is_by_checksum = is_person and crc32(key or b"") % self._partitions == self._partition
        return _OTHER_PARTITIONER if is_by_checksum else _OTHER_PARTITION
