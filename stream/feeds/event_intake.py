"""Reads records of a live topic as a batch of events, and advances the clock that closes windows.

The clock follows broker timestamps or marks (watermarks). It does not follow the times of events,
because one event with a time far ahead would make other people's events late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np

from schemas import EventsSource, FirstWindow
from schemas.windows import MARK_HEADER, YEAR_10000_MS, moment_ms, span_ms
from schemas.wire import struct
from stream.feeds.event_fields import AHEAD, precedes_all_windows, time_flaw
from stream.feeds.event_reader import EventReader
from stream.feeds.tally import EventBatch, select_events
from stream.kernel.byte_columns import Column
from stream.processing.dead_letters import Rejection, UnreadableValue
from stream.processing.protocol import InputRefusedError, RecordLike
from stream.processing.record_columns import RecordColumns
from stream.processing.topic_names import partition_of


class TopicRecreatedError(InputRefusedError):
    """The topic was deleted and created again, so events may be missing or be counted twice."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic}: was deleted and created again while windows were open, so their counts would be wrong; close the streams "
            "of this source, and register another source for the new topic"
        )


NOT_BEGUN: Final = -1

BAD_MARK: Final = Rejection(
    "mark",
    f"{MARK_HEADER}: must be a moment from 1970 to 9999; write ISO 8601 with a zone, or milliseconds since 1970",
)

_WRITER_TIMESTAMP: Final = 0
"""Kafka's timestamp type of a record that has its writer's timestamp."""


class ClockValues(NamedTuple):
    """The clock after each record, and the marks by index; an invalid mark has a rejection.

    ``stamps`` has a value after each record. With clock ``broker`` it is the clock; with clock ``marks``
    it is the largest record timestamp of a mark so far.
    """

    clocks: Column
    stamps: Column
    marks: dict[int, Rejection | None]


class EventClock:
    """A partition's clock in milliseconds since 1970; it never goes back.

    ``stamped`` is the largest record timestamp of a mark so far; with clock ``broker`` it is unused.
    """

    def __init__(self, source: EventsSource) -> None:
        self.now = NOT_BEGUN
        self.stamped = NOT_BEGUN
        self.latest_time_before_marks = YEAR_10000_MS
        """Latest time that an event may have before the first mark."""
        self.clock_before_mark: dict[int, int] = {}
        """For each timestamp that ``clock_at`` awaited, the clock just before the mark at this timestamp.

        ``advance`` fills it, and the caller clears it.
        """
        self._awaited_timestamps: set[int] = set()
        self._topic = source.topic
        self._by_broker = source.clock == "broker"
        self._idle = span_ms(source.idle)
        self._ahead = span_ms(source.ahead)

    def note_end_of_input(self, moment: float) -> None:
        """Advance a broker's clock: all records before a moment, in seconds, have been read."""
        if self._by_broker:
            self.now = max(self.now, int(moment * 1000) - self._idle)

    def moment_for(self, clock: int) -> float | None:
        """Return the ``moment`` for which ``note_end_of_input`` sets ``now`` to ``clock``; None for marks."""
        return (clock + self._idle + 1) / 1000 if self._by_broker else None

    def timestamp_for(self, clock: int) -> float | None:
        """Return the timestamp, in seconds, that sets ``now`` to ``clock``; None for marks."""
        return clock / 1000 if self._by_broker else None

    def first_window_of(self, defined: int) -> int:
        """Return the earliest start of a window of a stream whose control event has time ``defined``.

        Broker timestamps of events are private, so with clock ``broker`` the window begins at
        ``defined`` plus ``idle`` at the earliest. Marks are public, so with clock ``marks`` the
        clock decides.
        """
        if self._by_broker:
            return defined + self._idle
        return 0 if self.now == NOT_BEGUN else self._first_start_after(self.now)

    def first_timestamp_of(self, defined: int) -> int:
        """Return the first record timestamp that counts for a stream defined at ``defined``.

        The position of the partition at ``defined`` depends on the number of events, which is private. So
        the stream counts from ``idle`` later on, when each partition has read past ``defined``. With
        marks, a stream that is defined before the first mark counts at once.
        """
        at_once = not self._by_broker and self.now == NOT_BEGUN
        return NOT_BEGUN if at_once else self.effective_timestamp(defined)

    def effective_timestamp(self, defined: int) -> int:
        """Return the timestamp at which a control event takes effect in every partition."""
        return defined + self._idle

    def has_read(self, stamp: int) -> bool:
        """Return True if no later record (with marks: no later mark) has a smaller timestamp."""
        return self._by_broker or self.stamped >= stamp

    def clock_at(self, stamp: int) -> int | None:
        """Return the clock just before this timestamp.

        With marks, the result is None until a mark with this or a later timestamp has been read. If such
        a mark was read before the first call, the result is the current clock.
        """
        if self._by_broker:
            return stamp
        if not self.has_read(stamp):
            self._awaited_timestamps.add(stamp)
            return None
        return self.clock_before_mark.get(stamp, self.now)

    def first_window_after(self, stamp: int) -> int | None:
        """Return the earliest start of a window after an extension that takes effect at ``stamp``.

        With marks, the result is None until a mark with this or a later timestamp has been read. A
        window that begins more than ``ahead`` after that mark has no event from before the mark.
        """
        clock = self.clock_at(stamp)
        return clock if clock is None or self._by_broker else self._first_start_after(clock)

    def _first_start_after(self, clock: int) -> int:
        return 0 if clock == NOT_BEGUN else clock + self._ahead + 1

    def advance(self, records: Sequence[RecordLike]) -> ClockValues:
        """Advance the clock over some records, and return its values.

        InputRefusedError if the source's clock is the broker's, but the topic's timestamps are not.
        """
        marks: dict[int, Rejection | None] = {}
        if self._by_broker:
            if isinstance(records, RecordColumns):
                timestamp_types = {records.timestamp_type}
            else:
                timestamp_types = {getattr(record, "timestamp_type", None) for record in records}
            if _WRITER_TIMESTAMP in timestamp_types:
                raise InputRefusedError(
                    f"{self._topic}: has records with their writers' timestamps, but the source's clock is the broker's; set "
                    "message.timestamp.type=LogAppendTime on the topic and delete its present records, or register a source "
                    "with clock 'marks' or for another topic"
                )
            times = _stamps(records)
        else:
            times, stamped = np.full((2, len(records)), NOT_BEGUN, dtype=np.int64)
            for index, record in enumerate(() if isinstance(records, RecordColumns) else records):
                if record.headers and (mark := _mark_of(record)) is not None:
                    times[index] = mark
                    stamped[index] = NOT_BEGUN if mark == NOT_BEGUN else record.timestamp
                    marks[index] = BAD_MARK if mark == NOT_BEGUN else None
        before = self.now
        clocks: Column = np.maximum.accumulate(np.maximum(times, self.now))
        if len(clocks):
            self.now = int(clocks[-1])
        if self._by_broker:
            return ClockValues(clocks, clocks, marks)
        stamps: Column = np.maximum.accumulate(np.maximum(stamped, self.stamped))
        if len(stamps):
            self.stamped = int(stamps[-1])
        for stamp in [stamp for stamp in self._awaited_timestamps if stamp <= self.stamped]:
            index = int(np.searchsorted(stamps, stamp))
            self.clock_before_mark[stamp] = int(clocks[index - 1]) if index else before
            self._awaited_timestamps.remove(stamp)
        return ClockValues(clocks, stamps, marks)

    def latest_event_times(self, records: Sequence[RecordLike], clocks: Column) -> Column:
        """Return the latest time that each event may have; an event with a later time is rejected."""
        if self._by_broker:
            return _stamps(records) + self._ahead
        return np.where(clocks == NOT_BEGUN, self.latest_time_before_marks, clocks + self._ahead)


def _stamps(records: Sequence[RecordLike]) -> Column:
    if isinstance(records, RecordColumns):
        return records.timestamps
    return np.array([record.timestamp for record in records], dtype=np.int64)


def _mark_of(record: RecordLike) -> int | None:
    """Return the time of a mark; ``NOT_BEGUN`` if it is invalid, None for a record without mark."""
    written = next((value for name, value in record.headers if name == MARK_HEADER), None)
    if written is None:
        return None
    try:
        text = written.decode("ascii")
        moment = int(text) if text.isdecimal() else moment_ms(text)
    except ValueError:
        return NOT_BEGUN
    return moment if 0 <= moment < YEAR_10000_MS else NOT_BEGUN


NO_WINDOW: Final = -1

_WireWindow: Any = struct(FirstWindow)


class FirstWindows:
    """For each record timestamp, the start of the earliest window that a stream counts.

    Windows of ended streams remain. So whether an event is rejected does not depend on the moment
    at which the partition learns that a stream has ended.
    """

    def __init__(self) -> None:
        self.changelog_windows: tuple[Any, ...] = ()
        """The windows to write to the changelog, because no counted stream's definition contains them."""
        self._windows: tuple[tuple[int, int], ...] = ()
        self._declared: dict[tuple[str, int], tuple[int, int]] = {}
        """First windows in the definitions of counted streams, which a restore adds again."""

    def restore(self, kept: Iterable[Any]) -> None:
        """Add the changelog's windows; ``add_epoch`` adds the counted streams' windows."""
        self._add_windows((NOT_BEGUN if one.since is None else one.since, one.start) for one in kept)

    def add_epoch(self, epoch: tuple[str, int], since: int, start: int, *, is_declared: bool) -> None:
        """Add an epoch that counts events from a timestamp on, with the start of its first window.

        A window that is not in the definition is written to the changelog, because after a restart this
        method gets the epoch's next window instead of its first window.
        """
        if is_declared:
            self._declared[epoch] = since, start
        self._add_windows([(since, start)])

    def end_epoch(self, epoch: tuple[str, int]) -> None:
        """End an epoch; its window goes to the changelog."""
        self._declared.pop(epoch, None)
        self._add_windows(())

    def earliest_starts(self, stamps: Column) -> Column:
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
    """Reads the records of one partition; the rejection of an event does not depend on other people's events."""

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

        InputRefusedError if the source's clock is the broker's, but the topic's timestamps are not.
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
        places = places[events.indices]
        at_home, in_time = events.homes == self._partition, events.times <= latest[places]
        counts = (
            at_home
            & in_time
            & ~precedes_all_windows(events.times, first.earliest_starts(stamps[places]), clocks[places])
        )
        for row in np.flatnonzero(~counts).tolist():
            flaw = time_flaw(int(events.times[row]), is_ahead=not in_time[row])
            if not at_home[row]:
                rejection = self._build_partition_rejection(records[int(places[row])].key, int(events.homes[row]))
            elif flaw is AHEAD and clocks[places[row]] == NOT_BEGUN:
                rejection = _BEFORE_FIRST_MARK
            else:
                rejection = Rejection(*flaw)
            rejections[int(places[row])] = rejection
        events, places = select_events(events, counts), places[counts]
        return (
            EventBatch(events, clocks[places], stamps[places], self._domains) if len(places) else None
        ), rejections

    def _build_partition_rejection(self, key: bytes | None, home: int) -> Rejection:
        """Return the rejection of an event that is in another partition than its person's partition.

        By default, librdkafka chooses the partition by CRC32 of the key.
        """
        is_person = bool(key) and partition_of(key or b"", self._partitions) == home
        is_by_checksum = is_person and crc32(key or b"") % self._partitions == self._partition
        return _OTHER_PARTITIONER if is_by_checksum else _OTHER_PARTITION
