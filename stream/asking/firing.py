"""What is firing: of each stream and group, whether its latest answer was an alert. Told nothing of Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemas import Answer, registered_as
from stream.asking.alerts import Place, place_of, window_end
from stream.asking.runs import Run, Runs

MAX_PLACES: Final = 20_000
"""Most streams and groups that are held at a time, and most of their periods; beyond it the one that has been quiet for longest is forgotten."""


@dataclass(slots=True)
class Alarm:
    """A stream and group whose latest answer is an alert, or was until ``resolved``.

    ``since`` is the end of the first window of the run, ``answer`` the run's latest alert, which Kafka stamped at ``time``;
    ``alerts`` is how many the run has had. All times are in seconds since the epoch.
    """

    place: Place
    source: str
    since: float
    answer: Answer
    time: float
    alerts: int = 1
    resolved: float | None = None


class Firing:
    """All alarms, those that were told of last at the end."""

    def __init__(self, limit: int = MAX_PLACES, *, over_periods: bool = False) -> None:
        """Take whether an alarm goes on from one period of a stream to the next, under the name that it was opened by."""
        self.alarms: dict[Place, Alarm] = {}
        self.forgotten = 0
        """Alarms that there was no room for."""
        self._limit = limit
        self._over_periods = over_periods
        self._runs = Runs(limit)
        self._streams: dict[str, int] = {}

    def concerns(self, stream: str) -> bool:
        """Whether an alarm of a stream is held: to others a quiet answer is nothing new."""
        return stream in self._streams

    def take(self, answer: Answer, source: str, time: float) -> Alarm | None:
        """Take in an answer, each of one stream in its order; gives the alarm that it begins, goes on with or ends.

        Periods of a stream may come in any order: what is held depends on what was read, and not on which of them was first.
        """
        if answer.outcome not in {"above", "below"}:
            return None
        own = place_of(answer)
        place = own._replace(stream=registered_as(own.stream)) if self._over_periods else own
        held = self.alarms.get(place)
        alarm = None if held is None or held.resolved is not None else held
        if place == own:
            run = _next(alarm, answer, time)
        elif self._runs.take(place, answer, time):
            run = self._runs.of(place)
        else:
            return None
        if run is None:
            if alarm is not None:
                alarm.resolved = max(time, alarm.since)
            return alarm
        if alarm is None:
            self.drop(place)
            alarm = Alarm(place, source, run.since, run.answer, run.time, run.alerts)
            self._add(alarm)
        alarm.since, alarm.answer, alarm.time, alarm.alerts = run.since, run.answer, run.time, run.alerts
        self.alarms[place] = self.alarms.pop(place)
        return alarm

    def drop(self, place: Place) -> None:
        """Hold an alarm no longer."""
        if self.alarms.pop(place, None) is not None:
            self._streams[place.stream] -= 1
            if not self._streams[place.stream]:
                del self._streams[place.stream]

    def _add(self, alarm: Alarm) -> None:
        if len(self.alarms) >= self._limit:
            self.drop(next(iter(self.alarms)))
            self.forgotten += 1
        self.alarms[alarm.place] = alarm
        self._streams[alarm.place.stream] = self._streams.get(alarm.place.stream, 0) + 1


def _next(alarm: Alarm | None, answer: Answer, time: float) -> Run | None:
    """The run of a stream without periods after its next answer."""
    if answer.outcome == "below":
        return None
    if alarm is None:
        return Run(window_end(answer, time), answer, time)
    return Run(alarm.since, answer, time, alarm.alerts + 1)
