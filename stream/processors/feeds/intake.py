"""From records to a batch that is counted, and why others are set aside."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from schemas import EventsSource
from stream.data.events import EventReader
from stream.data.events.flaws import AHEAD, time_flaw
from stream.data.events.times import before_all
from stream.processors.base import RecordLike
from stream.processors.columns import RecordColumns
from stream.processors.feeds.batch import Batch, kept
from stream.processors.feeds.clocks import NOT_BEGUN, Clock
from stream.processors.feeds.first_windows import FirstWindows
from stream.processors.rejections import Rejection
from stream.processors.unread import Unread

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
    """Reads the records of one partition; each is judged by itself and by where the clock stands."""

    def __init__(self, source: EventsSource, partition: int, partitions: int, clock: Clock) -> None:
        self._domains = source.attributes
        self._partition = partition
        self._clock = clock
        self._reader = EventReader(source, partitions)

    def read(
        self, records: Sequence[RecordLike], first: FirstWindows
    ) -> tuple[Batch | None, dict[int, Rejection]]:
        """The events that may count, if there are any, and why others are set aside, by place; the clock moves on.

        Raises:
            UnstampedError: the source's clock is the broker's, and the topic does not stamp events.
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
        return (Batch(events, clocks[places], stamps[places], self._domains) if len(places) else None), rejections
