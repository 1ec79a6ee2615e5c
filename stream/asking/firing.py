"""What is firing: of each stream and group, whether its latest answer was an alert. Told nothing of Kafka."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from schemas import Answer
from stream.asking.alerts import Place, place_of, standing_of, window_end

MAX_PLACES: Final = 20_000
"""Most streams and groups that are held at a time, of alarms as of latest answers; beyond it the one that has been quiet for longest is forgotten."""


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

    def __init__(self, limit: int = MAX_PLACES, *, place: Callable[[Answer], Place] = place_of) -> None:
        """Take what an answer is about, where that is not its stream and group."""
        self._place_of = place
        self.alarms: dict[Place, Alarm] = {}
        self.forgotten = 0
        """Alarms that there was no room for."""
        self._limit = limit
        self._streams: dict[str, int] = {}
        self._latest: OrderedDict[Place, tuple[str, float]] = OrderedDict()
        """Of a place that goes from stream to stream, whose answer is the latest, and where that stands."""

    def concerns(self, stream: str) -> bool:
        """Whether an alarm of a stream is held: to others a quiet answer is nothing new."""
        return stream in self._streams

    def take(self, answer: Answer, source: str, time: float) -> Alarm | None:
        """Take in an answer, each of one stream in its order; gives the alarm that it begins, goes on with or ends.

        Streams of one place may come in any order: what another one's answer has overtaken says nothing of what is.
        """
        if answer.outcome not in {"above", "below"}:
            return None
        place = self._place_of(answer)
        if answer.stream != place.stream and self._is_overtaken(place, answer, time):
            return None
        alarm = self.alarms.get(place)
        if answer.outcome == "above":
            if alarm is not None and alarm.resolved is None:
                alarm.answer, alarm.time, alarm.alerts = answer, time, alarm.alerts + 1
            else:
                self.drop(place)
                alarm = Alarm(place, source, window_end(answer, time), answer, time)
                self._add(alarm)
            self.alarms[place] = self.alarms.pop(place)
            return alarm
        if alarm is not None and alarm.resolved is None:
            alarm.resolved = max(time, alarm.since)
            return alarm
        return None

    def drop(self, place: Place) -> None:
        """Hold an alarm no longer."""
        if self.alarms.pop(place, None) is not None:
            self._streams[place.stream] -= 1
            if not self._streams[place.stream]:
                del self._streams[place.stream]

    def _is_overtaken(self, place: Place, answer: Answer, time: float) -> bool:
        """Whether a later answer of another stream of the place was taken, quiet or not."""
        own = (answer.stream, standing_of(answer, time))
        latest = self._latest.pop(place, own)
        overtaken = latest[0] != own[0] and own[1] < latest[1]
        self._latest[place] = latest if overtaken else own
        if len(self._latest) > self._limit:
            self._latest.popitem(last=False)
        return overtaken

    def _add(self, alarm: Alarm) -> None:
        if len(self.alarms) >= self._limit:
            self.drop(next(iter(self.alarms)))
            self.forgotten += 1
        self.alarms[alarm.place] = alarm
        self._streams[alarm.place.stream] = self._streams.get(alarm.place.stream, 0) + 1
