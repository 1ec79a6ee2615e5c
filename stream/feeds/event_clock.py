"""Where a partition's clock stands at each event: by the broker's stamps, or by marks. No event's own time moves it.

A clock that followed event times would let one person's event, dated ahead, make other people's late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas import EventsSource
from schemas.sources import Domain
from schemas.windows import END_MS, MARK_HEADER, moment_ms, span_ms
from stream.events import Events
from stream.processing.dead_letters import Rejection
from stream.processing.protocol import InputRefusedError, RecordLike
from stream.processing.record_columns import RecordColumns
from stream.tables.expressions import Codes, Predicate, evaluate
from stream.tables.masks import membership


class FeedRefusedError(InputRefusedError):
    """A live topic is not as its source says, and what is counted of it would not be what was promised."""


class UnstampedError(FeedRefusedError):
    """The topic does not stamp events itself: when they came is whatever their writers say."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic}: holds events with their writers' time; set message.timestamp.type=LogAppendTime on it, and delete the records "
            "that it holds (they keep their time) or register another source for another topic, or with clock 'marks'"
        )


class RecreatedError(FeedRefusedError):
    """The topic was deleted and created again: what it held and was not counted is gone, and may come a second time."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{topic}: was deleted and created again while windows were open, whose counts would be wrong; close the streams of "
            "this source, and register another source for the topic as it is"
        )


class RecutError(FeedRefusedError):
    """The topic has another number of partitions than when counting began: people are in other partitions now."""

    def __init__(self, topic: str, before: int, now: int) -> None:
        super().__init__(
            f"{topic}: has {now} partitions, and had {before} when its first stream began; close the streams of this "
            "source, and register another source for the topic as it is"
        )


Column = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class EventBatch:
    """``clocks`` is where the partition's clock stood at each event, the event's own stamp included, and ``stamps`` how far its stamps were."""

    def __init__(self, events: Events, clocks: Column, stamps: Column, domains: Mapping[str, Domain]) -> None:
        """Take the events that are to be counted, and the clock and stamps at each."""
        self.people = events.people
        self.times = events.times
        self.clocks = clocks
        self.stamps = stamps
        self._codes = events.codes
        self._domains = domains
        self._masks: dict[Predicate, Mask] = {}
        self._cells: dict[tuple[str, ...], Column] = {}

    def __len__(self) -> int:
        return len(self.times)

    def codes(self, attribute: str) -> Column:
        """The code of each row."""
        return self._codes[attribute]

    def mask(self, predicate: Predicate) -> Mask:
        """The rows that satisfy a predicate."""
        found = self._masks.get(predicate)
        if found is None:
            found = self._masks[predicate] = np.broadcast_to(
                evaluate(predicate, np.bool_, self._leaf, np.logical_and, np.logical_or), len(self)
            )
        return found

    def cells(self, by: tuple[str, ...]) -> Column:
        """The cell of each row, in row-major order of these attributes."""
        found = self._cells.get(by)
        if found is None:
            found = np.zeros(len(self), dtype=np.int64)
            for name in by:
                found *= self._domains[name].size
                found += self._codes[name]
            self._cells[by] = found
        return found

    def _leaf(self, leaf: Codes) -> Any:
        found = self._masks.get(leaf)
        if found is None:
            found = self._masks[leaf] = membership(leaf.cuts, leaf.size)[self._codes[leaf.attribute]]
        return found


def kept(events: Events, mask: Mask) -> Events:
    """Some of the events."""
    if mask.all():
        return events
    codes = {name: column[mask] for name, column in events.codes.items()}
    return Events(
        events.places[mask], events.people[mask], events.homes[mask], events.times[mask], codes, events.flaws
    )


def cell_count(domains: Mapping[str, Domain], by: Sequence[str]) -> int:
    """How many cells some attributes have: one if there are none."""
    count = 1
    for name in by:
        count *= domains[name].size
    return count


NOT_BEGUN: Final = -1

BAD_MARK: Final = Rejection(
    "mark", f"{MARK_HEADER}: is no moment from 1970 to 9999; give ISO 8601 with a zone, or milliseconds since 1970"
)

_CREATED: Final = 0
"""Kafka's word for a record that has its writer's time."""


class Readings(NamedTuple):
    """Where the clock stands at each record, that record included; and which records are marks, with what is wrong with them.

    ``stamps`` is how far time has gone on by the broker, or for those who write marks: the latest stamp of a mark up to each record.
    """

    clocks: Column
    stamps: Column
    marks: dict[int, Rejection | None]


class EventClock:
    """A partition's clock in milliseconds since 1970; it never goes back.

    ``stamped`` is the latest stamp of a mark; the broker's clock has none.
    """

    def __init__(self, source: EventsSource) -> None:
        self.now = NOT_BEGUN
        self.stamped = NOT_BEGUN
        self.early = END_MS
        """How late an event may be dated that comes before the first mark."""
        self.passed: dict[int, int] = {}
        """Where the clock stood before marks that ``reading_at`` waited for: those of the last ``read``, until somebody clears it."""
        self._awaited: set[int] = set()
        self._topic = source.topic
        self._by_broker = source.clock == "broker"
        self._idle = span_ms(source.idle)
        self._ahead = span_ms(source.ahead)

    def reached_end(self, moment: float) -> None:
        """Take it that all that came before a moment, in seconds, has been read."""
        if self._by_broker:
            self.now = max(self.now, int(moment * 1000) - self._idle)

    def told_at(self, reading: int) -> float | None:
        """A moment, in seconds, whose ``reached_end`` brings the clock to a reading; None where only marks move it."""
        return (reading + self._idle + 1) / 1000 if self._by_broker else None

    def stamped_at(self, reading: int) -> float | None:
        """The moment, in seconds, whose stamp brings the clock to a reading; None where only marks move it."""
        return reading / 1000 if self._by_broker else None

    def first_after(self, told: int) -> int:
        """From when on windows may begin of a stream that names no beginning, of which control told at a moment.

        Where this clock stands is private if events' stamps move it. So it is ``idle`` after that moment; marks are public.
        """
        if self._by_broker:
            return told + self._idle
        return 0 if self.now == NOT_BEGUN else self._behind(self.now)

    def since(self, told: int) -> int:
        """The stamp from which on events count for a stream of which control told at a moment, or events behind marks with that stamp.

        How much has been read by now hangs on how many events came, and so on everybody. So it is ``idle`` after the moment, when every
        partition has read of it. By marks nothing is waited for before the first one.
        """
        at_once = not self._by_broker and self.now == NOT_BEGUN
        return NOT_BEGUN if at_once else self.effect(told)

    def effect(self, told: int) -> int:
        """The stamp at which a control event with a stamp takes effect in every partition, however far it has read by then."""
        return told + self._idle

    def has_read(self, stamp: int) -> bool:
        """Whether all that is to come has a stamp or a later one, or stands behind a mark that has."""
        return self._by_broker or self.stamped >= stamp

    def reading_at(self, stamp: int) -> int | None:
        """Where the clock stood before the first record with a stamp or a later one; None if it is a mark that is still to come.

        Of a mark that was read before this was asked, it is where the clock stands now.
        """
        if self._by_broker:
            return stamp
        if not self.has_read(stamp):
            self._awaited.add(stamp)
            return None
        return self.passed.get(stamp, self.now)

    def first_behind(self, stamp: int) -> int | None:
        """From when on windows may begin that are asked again from a stamp on; None if its mark is still to come.

        Of a window that begins more than ``ahead`` behind a mark no event has been read that came before.
        """
        reading = self.reading_at(stamp)
        return reading if reading is None or self._by_broker else self._behind(reading)

    def _behind(self, reading: int) -> int:
        return 0 if reading == NOT_BEGUN else reading + self._ahead + 1

    def read(self, records: Sequence[RecordLike]) -> Readings:
        """Move on over some records.

        Raises:
            UnstampedError: the clock is the broker's, and it does not stamp.
        """
        marks: dict[int, Rejection | None] = {}
        if self._by_broker:
            if isinstance(records, RecordColumns):
                stampers = {records.timestamp_type}
            else:
                stampers = {getattr(record, "timestamp_type", None) for record in records}
            if _CREATED in stampers:
                raise UnstampedError(self._topic)
            told = _stamps(records)
        else:
            told, stamped = np.full((2, len(records)), NOT_BEGUN, dtype=np.int64)
            for place, record in enumerate(() if isinstance(records, RecordColumns) else records):
                if record.headers and (mark := _mark_of(record)) is not None:
                    told[place] = mark
                    stamped[place] = NOT_BEGUN if mark == NOT_BEGUN else record.timestamp
                    marks[place] = BAD_MARK if mark == NOT_BEGUN else None
        before = self.now
        clocks: Column = np.maximum.accumulate(np.maximum(told, self.now))
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
        """The latest moment that each event may be dated at: beyond it, it is ahead."""
        if self._by_broker:
            return _stamps(records) + self._ahead
        return np.where(clocks == NOT_BEGUN, self.early, clocks + self._ahead)


def _stamps(records: Sequence[RecordLike]) -> Column:
    if isinstance(records, RecordColumns):
        return records.timestamps
    return np.array([record.timestamp for record in records], dtype=np.int64)


def _mark_of(record: RecordLike) -> int | None:
    """The moment of a mark; −1 if it tells none, None for a record that is no mark."""
    written = next((value for name, value in record.headers if name == MARK_HEADER), None)
    if written is None:
        return None
    try:
        text = written.decode("ascii")
        moment = int(text) if text.isdecimal() else moment_ms(text)
    except ValueError:
        return NOT_BEGUN
    return moment if 0 <= moment < END_MS else NOT_BEGUN
