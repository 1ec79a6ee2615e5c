"""Turns records of a live topic into a batch of events to count, and rejects invalid records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from schemas import EventsSource, FirstWindow
from schemas.wire import struct
from stream.events import EventReader
from stream.events.event_fields import AHEAD, before_all, time_flaw
from stream.feeds.event_clock import NOT_BEGUN, EventClock
from stream.feeds.tally import EventBatch, kept
from stream.kernel import Column
from stream.processing.dead_letters import Rejection, Unread
from stream.processing.protocol import RecordLike
from stream.processing.record_columns import RecordColumns

NO_WINDOW: Final = -1

_Kept: Any = struct(FirstWindow)


class FirstWindows:
    """The earliest window that streams count, for each record timestamp.

    Windows of ended streams remain, so that a refusal depends on the event, its timestamp and the
    streams begun, and not on when the partition reads an end.
    """

    def __init__(self) -> None:
        self.kept: tuple[Any, ...] = ()
        """Windows for the changelog: those that no active stream's definition declares."""
        self._all: tuple[tuple[int, int], ...] = ()
        self._implied: dict[tuple[str, int], tuple[int, int]] = {}
        """Windows declared by active streams, which a restore adds again."""

    def restore(self, kept: Iterable[Any]) -> None:
        """Read the changelog's windows; ``add`` adds the windows of active streams."""
        self._take((NOT_BEGUN if one.since is None else one.since, one.start) for one in kept)

    def add(self, epoch: tuple[str, int], since: int, start: int, *, is_declared: bool) -> None:
        """Add an epoch that counts events from a timestamp on, with the start of its first window.

        A window that is not declared goes to the changelog: after a restart, ``add`` gets the next
        window of such a stream.
        """
        if is_declared:
            self._implied[epoch] = since, start
        self._take([(since, start)])

    def end(self, epoch: tuple[str, int]) -> None:
        """End an epoch of a stream."""
        self._implied.pop(epoch, None)
        self._take(())

    def at(self, stamps: Column) -> Column:
        """Return the earliest start of the streams that count at each timestamp, or ``NO_WINDOW``."""
        sinces = np.array([since for since, _ in self._all], dtype=np.int64)
        starts = np.array([NO_WINDOW, *(start for _, start in self._all)], dtype=np.int64)
        return starts[np.searchsorted(sinces, stamps, side="right")]

    def _take(self, windows: Iterable[tuple[int, int]]) -> None:
        """Add windows; keep each one that begins before all windows with earlier timestamps."""
        found: list[tuple[int, int]] = []
        for since, start in sorted({*self._all, *windows}):
            if not found or start < found[-1][1]:
                found.append((since, start))
        self._all, implied = tuple(found), set(self._implied.values())
        self.kept = tuple(
            _Kept(start, None if since == NOT_BEGUN else since)
            for since, start in found
            if (since, start) not in implied
        )


_EARLY = Rejection(
    "ahead",
    "time: lies beyond the windows that a stream may have open before the first mark; write a mark before the events, and begin streams "
    "where these do",
)
_ELSEWHERE = Rejection(
    "partition",
    "person: belongs to another partition by Kafka's default partitioner; have the topic keyed by the person alone",
)


class Intake:
    """Reads the records of one partition; other people's events do not affect a rejection."""

    def __init__(self, source: EventsSource, partition: int, partitions: int, clock: EventClock) -> None:
        self._domains = source.attributes
        self._partition = partition
        self._clock = clock
        self._reader = EventReader(source, partitions)

    def read(
        self, records: Sequence[RecordLike], first: FirstWindows
    ) -> tuple[EventBatch | None, dict[int, Rejection]]:
        """Advance the clock; return the batch to count, if any, and the rejections by index.

        Raises:
            UnstampedError: the source's clock is the broker's, but the topic's timestamps are not.
        """
        clocks, stamps, marks = self._clock.read(records)
        latest = self._clock.latest(records, clocks)
        rejections = {place: mark for place, mark in marks.items() if mark is not None}
        places = np.arange(len(records))
        if isinstance(records, RecordColumns):
            events = self._reader.read(records.values)
        else:
            values = [record.value for record in records]
            for place, value in enumerate(values):
                if type(value) is Unread and place not in marks:
                    rejections[place] = value.rejection
            if rejections or marks:
                left = [place for place in range(len(records)) if place not in rejections and place not in marks]
                places, values = np.array(left, dtype=np.int64), [values[place] for place in left]
            events = self._reader.read(values)
        for row, flaw in events.flaws.items():
            rejections[int(places[row])] = Rejection(flaw.code, flaw.message)
        places = places[events.places]
        at_home, in_time = events.homes == self._partition, events.times <= latest[places]
        counts = at_home & in_time & ~before_all(events.times, first.at(stamps[places]), clocks[places])
        for row in np.flatnonzero(~counts).tolist():
            flaw = time_flaw(int(events.times[row]), is_ahead=not in_time[row])
            if not at_home[row]:
                rejection = _ELSEWHERE
            elif flaw is AHEAD and clocks[places[row]] == NOT_BEGUN:
                rejection = _EARLY
            else:
                rejection = Rejection(*flaw)
            rejections[int(places[row])] = rejection
        events, places = kept(events, counts), places[counts]
        return (
            EventBatch(events, clocks[places], stamps[places], self._domains) if len(places) else None
        ), rejections
