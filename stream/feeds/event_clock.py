"""The clock of a live topic's partition, which closes windows, and the errors of a live topic.

The clock follows broker timestamps or marks (watermarks). Event times do not move it: one event
with a time far ahead would make other people's events late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas import EventsSource
from schemas.windows import END_MS, MARK_HEADER, moment_ms, span_ms
from stream.processing.dead_letters import Rejection
from stream.processing.protocol import InputRefusedError, RecordLike
from stream.processing.record_columns import RecordColumns


class FeedRefusedError(InputRefusedError):
    """A live topic does not match its source, so that its counts would be wrong."""


class UnstampedError(FeedRefusedError):
    """The topic keeps the writers' timestamps, which may be wrong."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic}: holds events with their writers' time; set message.timestamp.type=LogAppendTime on it, and delete the records "
            "that it holds (they keep their time) or register another source for another topic, or with clock 'marks'"
        )


class RecreatedError(FeedRefusedError):
    """The topic was deleted and created again: events may be lost or come twice."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic}: was deleted and created again while windows were open, whose counts would be wrong; close the streams of "
            "this source, and register another source for the topic as it is"
        )


class RecutError(FeedRefusedError):
    """The topic's partition count has changed, so that people's events are in other partitions."""

    def __init__(self, topic: str, before: int, now: int) -> None:
        super().__init__(
            f"{topic}: has {now} partitions, and had {before} when its first stream began; close the streams of this "
            "source, and register another source for the topic as it is"
        )


Column = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


NOT_BEGUN: Final = -1

BAD_MARK: Final = Rejection(
    "mark", f"{MARK_HEADER}: is no moment from 1970 to 9999; give ISO 8601 with a zone, or milliseconds since 1970"
)

_CREATED: Final = 0
"""Kafka's value for a record with its writer's timestamp."""


class Readings(NamedTuple):
    """The clock after each record, and the marks by index, with a rejection if a mark is invalid.

    ``stamps`` has after each record the broker's clock or, with marks, the latest record timestamp
    of a mark.
    """

    clocks: Column
    stamps: Column
    marks: dict[int, Rejection | None]


class EventClock:
    """A partition's clock in milliseconds since 1970; it never goes back.

    ``stamped`` is the latest record timestamp of a mark; it is unused with the broker's clock.
    """

    def __init__(self, source: EventsSource) -> None:
        self.now = NOT_BEGUN
        self.stamped = NOT_BEGUN
        self.early = END_MS
        """Latest time that an event may have before the first mark."""
        self.passed: dict[int, int] = {}
        """The clock before each timestamp that ``reading_at`` awaited; the caller clears it."""
        self._awaited: set[int] = set()
        self._topic = source.topic
        self._by_broker = source.clock == "broker"
        self._idle = span_ms(source.idle)
        self._ahead = span_ms(source.ahead)

    def reached_end(self, moment: float) -> None:
        """Note that all records before a moment, in seconds, have been read."""
        if self._by_broker:
            self.now = max(self.now, int(moment * 1000) - self._idle)

    def end_time_of(self, reading: int) -> float | None:
        """Return the ``moment`` with which ``reached_end`` sets ``reading``; None for marks."""
        return (reading + self._idle + 1) / 1000 if self._by_broker else None

    def stamped_at(self, reading: int) -> float | None:
        """Return the timestamp, in seconds, that sets the clock to ``reading``; None for marks."""
        return reading / 1000 if self._by_broker else None

    def first_after(self, defined: int) -> int:
        """Return the earliest start of a window of a stream that control defined at ``defined``.

        Broker timestamps of events are private, so with this clock a window begins ``idle`` after
        that moment at the earliest. Marks are public, so their clock decides.
        """
        if self._by_broker:
            return defined + self._idle
        return 0 if self.now == NOT_BEGUN else self._behind(self.now)

    def since(self, defined: int) -> int:
        """Return the first record timestamp that counts for a stream defined at ``defined``.

        The partition's position at that moment depends on the number of events, and so on people.
        Therefore the stream counts from ``idle`` later, when every partition has read that far.
        With marks, a stream that is defined before the first mark counts at once.
        """
        at_once = not self._by_broker and self.now == NOT_BEGUN
        return NOT_BEGUN if at_once else self.effect(defined)

    def effect(self, defined: int) -> int:
        """Return the timestamp at which a control event takes effect in every partition."""
        return defined + self._idle

    def has_read(self, stamp: int) -> bool:
        """Return True if all later records, or marks among them, have at least this timestamp."""
        return self._by_broker or self.stamped >= stamp

    def reading_at(self, stamp: int) -> int | None:
        """Return the clock just before this timestamp; None until a mark with or after it is read.

        If such a mark was read before the first call, it is the current clock.
        """
        if self._by_broker:
            return stamp
        if not self.has_read(stamp):
            self._awaited.add(stamp)
            return None
        return self.passed.get(stamp, self.now)

    def first_window_after(self, stamp: int) -> int | None:
        """Return the earliest start of a window after an extension; None until its mark is read.

        A window that begins more than ``ahead`` after a mark has no event from before the mark.
        """
        reading = self.reading_at(stamp)
        return reading if reading is None or self._by_broker else self._behind(reading)

    def _behind(self, reading: int) -> int:
        return 0 if reading == NOT_BEGUN else reading + self._ahead + 1

    def read(self, records: Sequence[RecordLike]) -> Readings:
        """Advance the clock over some records.

        Raises:
            UnstampedError: the source's clock is the broker's, but the topic's timestamps are not.
        """
        marks: dict[int, Rejection | None] = {}
        if self._by_broker:
            if isinstance(records, RecordColumns):
                stampers = {records.timestamp_type}
            else:
                stampers = {getattr(record, "timestamp_type", None) for record in records}
            if _CREATED in stampers:
                raise UnstampedError(self._topic)
            times = _stamps(records)
        else:
            times, stamped = np.full((2, len(records)), NOT_BEGUN, dtype=np.int64)
            for place, record in enumerate(() if isinstance(records, RecordColumns) else records):
                if record.headers and (mark := _mark_of(record)) is not None:
                    times[place] = mark
                    stamped[place] = NOT_BEGUN if mark == NOT_BEGUN else record.timestamp
                    marks[place] = BAD_MARK if mark == NOT_BEGUN else None
        before = self.now
        clocks: Column = np.maximum.accumulate(np.maximum(times, self.now))
        if len(clocks):
            self.now = int(clocks[-1])
        if self._by_broker:
            return Readings(clocks, clocks, marks)
        stamps: Column = np.maximum.accumulate(np.maximum(stamped, self.stamped))
        if len(stamps):
            self.stamped = int(stamps[-1])
        for stamp in [stamp for stamp in self._awaited if stamp <= self.stamped]:
            place = int(np.searchsorted(stamps, stamp))
            self.passed[stamp] = int(clocks[place - 1]) if place else before
            self._awaited.remove(stamp)
        return Readings(clocks, stamps, marks)

    def latest(self, records: Sequence[RecordLike], clocks: Column) -> Column:
        """Return the latest time that each event may have; an event beyond it is rejected."""
        if self._by_broker:
            return _stamps(records) + self._ahead
        return np.where(clocks == NOT_BEGUN, self.early, clocks + self._ahead)


def _stamps(records: Sequence[RecordLike]) -> Column:
    if isinstance(records, RecordColumns):
        return records.timestamps
    return np.array([record.timestamp for record in records], dtype=np.int64)


def _mark_of(record: RecordLike) -> int | None:
    """Return the time of a mark; −1 if it is invalid, None for a record without mark."""
    written = next((value for name, value in record.headers if name == MARK_HEADER), None)
    if written is None:
        return None
    try:
        text = written.decode("ascii")
        moment = int(text) if text.isdecimal() else moment_ms(text)
    except ValueError:
        return NOT_BEGUN
    return moment if 0 <= moment < END_MS else NOT_BEGUN
