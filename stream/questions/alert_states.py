"""Alerts: what a committed answer says to whoever watches, and the words that it is told in.

An answer of outcome ``above`` is an alert; only streams of above_threshold and numeric_sparse give one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple

from schemas import Answer, named_from, registered_as
from schemas.windows import moment_ms
from stream.formatting import bound, estimate

ABOVE: Final = b'"above"'
"""What the bytes of every alert hold."""

BELOW: Final = b'"below"'
"""What the bytes of every answer that ends one hold."""


class AlertKey(NamedTuple):
    """A stream and one of its groups: what fires, or does not. A stream without groups has one place."""

    stream: str
    group: tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """What a watched stream has said: an answer, or that it has ``ended`` and for which reason.

    ``counted`` says how many rows or events of one person count, where the source bounds them.
    ``time`` is Kafka's stamp of the answer, or of what first told of the end in the ledger or by an answer, in seconds since the epoch.
    """

    time: float
    stream: str
    source: str | None = None
    answer: Answer | None = None
    ended: str | None = None
    counted: str = ""

    @property
    def is_alert(self) -> bool:
        """Whether it is an alert."""
        return self.answer is not None and self.answer.outcome == "above"


def place_of(answer: Answer) -> AlertKey:
    """What an answer is about."""
    return AlertKey(answer.stream, tuple((answer.group or {}).items()))


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name is one of these, in which ``*`` stands for anything; no patterns let everything through.

    What stands for another in a period goes by that name too: a stream is followed from period to period.
    """
    names = {name, registered_as(name)}
    return not patterns or any(fnmatchcase(one, pattern) for pattern in patterns for one in names)


def group_text(group: AlertKey | dict[str, str | int] | None) -> str:
    """A group in words: ``origin=EWR, carrier=UA``."""
    pairs = group.group if isinstance(group, AlertKey) else (group or {}).items()
    return ", ".join(f"{name}={value}" for name, value in pairs)


def estimate_text(answer: Answer) -> str:
    """The number that an alert came with and its ±, or nothing."""
    if answer.estimate is None:
        return ""
    told = estimate(answer.estimate, answer.alpha)
    return told if answer.alpha is None else f"{told} ± {bound(answer.alpha)}"


def window_text(answer: Answer) -> str:
    """The window that an answer is about, in UTC and with no digit that both ends share: ``2013-01-01 05:00–06:00``."""
    if answer.window is None:
        return ""
    start, end = answer.window.start, answer.window.end
    try:
        first, last = _moment(moment_ms(start)), _moment(moment_ms(end))
    except ValueError:  # another writer's words
        return f"{start}–{end}"
    day, time = last.split(" ")
    return f"{first}–{time if first.startswith(day) else last}"


def window_end(answer: Answer, stamp: float) -> float:
    """When an answer's window ended, in seconds since the epoch; never after Kafka's stamp of the answer."""
    if answer.window is None:
        return stamp
    try:
        return min(moment_ms(answer.window.end) / 1000, stamp)
    except ValueError:
        return stamp


def window_seconds(answer: Answer) -> float:
    """How long an answer's window is; 0 without one."""
    if answer.window is None:
        return 0.0
    try:
        return max(moment_ms(answer.window.end) - moment_ms(answer.window.start), 0) / 1000
    except ValueError:
        return 0.0


def written_time(seconds: float, precision: Literal["seconds", "milliseconds"] = "milliseconds") -> str:
    """A time in ISO 8601 and UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    if milliseconds % 1000:
        return moment.isoformat(" ", "milliseconds").removesuffix("+00:00")
    return f"{moment:%Y-%m-%d %H:%M}" if not moment.second else f"{moment:%Y-%m-%d %H:%M:%S}"


@dataclass(slots=True)
class AlertRun:
    """Alerts in a row: ``since`` is the end of the first's window in seconds since the epoch, ``answer`` the latest, stamped at ``time``."""

    since: float
    answer: Answer
    time: float
    alerts: int = 1


@dataclass(slots=True)
class _Period:
    """What was read of one period: the run that it ended with, if it did."""

    starts: str
    run: AlertRun | None = None


@dataclass(slots=True)
class _Periods:
    """Those of a place that may be in its run, in their order: of all but the first nothing but alerts was read.

    ``whole`` says that of the first, too: then what is earlier may go before it.
    """

    held: list[_Period] = field(default_factory=list)
    whole: bool = True


class Runs:
    """Of each place whose stream has periods, the run that its latest answers are, over all that were read.

    A period's answers come in their order, and periods in any: each lies in a partition of its own. No window reaches over
    an edge, so the order of periods is that of their windows.
    """

    def __init__(self, limit: int) -> None:
        """Hold so many periods at most, of all places."""
        self._limit = limit
        self._size = 0
        self._places: OrderedDict[AlertKey, _Periods] = OrderedDict()

    def take(self, place: AlertKey, answer: Answer, time: float) -> bool:
        """Take in an answer of outcome ``above`` or ``below``; False if later ones have overtaken it."""
        named = named_from(answer.stream)
        starts = "" if named is None else named[1].removesuffix("Z")
        periods = self._places.setdefault(place, _Periods())
        self._places.move_to_end(place)
        held = periods.held
        at = bisect_left(held, starts, key=lambda one: one.starts)
        if at == len(held) or held[at].starts != starts:
            if at == 0 and not periods.whole:
                return False
            held.insert(at, _Period(starts))
            self._size += 1
        period = held[at]
        if answer.outcome == "below":
            period.run, periods.whole = None, False
            del held[:at]
            self._size -= at
        elif period.run is None:
            period.run = AlertRun(window_end(answer, time), answer, time)
        else:
            period.run.answer, period.run.time = answer, time
            period.run.alerts += 1
        if self._size > self._limit:
            self._make_room(periods)
        return True

    def of(self, place: AlertKey) -> AlertRun | None:
        """The run that a place's latest answers are; None if the latest one is quiet, or nothing is known."""
        held = self._places[place].held if place in self._places else []
        runs = [period.run for period in held if period.run is not None]
        if not runs:
            return None
        return AlertRun(runs[0].since, runs[-1].answer, runs[-1].time, sum(run.alerts for run in runs))

    def _make_room(self, periods: _Periods) -> None:
        """Make the first two periods of a place one; where it has one only, forget the place that has been quiet for longest."""
        self._size -= 1
        if len(periods.held) == 1:
            self._size -= len(self._places.popitem(last=False)[1].held) - 1
            return
        first, second = periods.held.pop(0).run, periods.held[0].run
        periods.whole = False
        if first is not None and second is not None:
            second.since, second.alerts = first.since, first.alerts + second.alerts


MAX_PLACES: Final = 20_000
"""Most streams and groups that are held at a time, and most of their periods; beyond it the one that has been quiet for longest is forgotten."""


@dataclass(slots=True)
class Alarm:
    """A stream and group whose latest answer is an alert, or was until ``resolved``.

    ``since`` is the end of the first window of the run, ``answer`` the run's latest alert, which Kafka stamped at ``time``;
    ``alerts`` is how many the run has had. All times are in seconds since the epoch.
    """

    place: AlertKey
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
        self.alarms: dict[AlertKey, Alarm] = {}
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

    def drop(self, place: AlertKey) -> None:
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


def _next(alarm: Alarm | None, answer: Answer, time: float) -> AlertRun | None:
    """The run of a stream without periods after its next answer."""
    if answer.outcome == "below":
        return None
    if alarm is None:
        return AlertRun(window_end(answer, time), answer, time)
    return AlertRun(alarm.since, answer, time, alarm.alerts + 1)
