"""Derives firing and resolved alarms from committed answers, and formats them.

An alert is an answer ``above``, which only above_threshold and numeric_sparse give. An alarm is a
run of consecutive alerts of one stream and group.
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
"""Bytes that every alert (answer ``above``) contains."""

BELOW: Final = b'"below"'
"""Bytes that every answer ``below`` contains, which resolves an alarm."""


class AlertKey(NamedTuple):
    """Identifies an alarm: a stream and one of its groups (empty for a stream without groups)."""

    stream: str
    group: tuple[tuple[str, str | int | float], ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """An answer of a watched stream, or the stream's end with the reason in ``ended``.

    ``time`` is Kafka's timestamp in Unix seconds: of the answer, or of the first record that reports
    the end. ``counted`` describes the source's contribution bound; it is empty without one.

    Examples:
        >>> for notice in client.watch("count*"):
        ...     if notice.is_alert:
        ...         print(notice.stream, notice.answer.estimate)
    """

    time: float
    stream: str
    source: str | None = None
    answer: Answer | None = None
    ended: str | None = None
    counted: str = ""

    @property
    def is_alert(self) -> bool:
        """Whether the answer's outcome is ``above``."""
        return self.answer is not None and self.answer.outcome == "above"


def place_of(answer: Answer) -> AlertKey:
    """Return the alert key of an answer."""
    return AlertKey(answer.stream, tuple((answer.group or {}).items()))


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Check whether a name matches a pattern (``*`` is a wildcard); no patterns match every name.

    The stream of a period also matches by the name of its model, so that all periods match.
    """
    names = {name, registered_as(name)}
    return not patterns or any(fnmatchcase(one, pattern) for pattern in patterns for one in names)


def group_text(group: AlertKey | dict[str, str | int | float] | None) -> str:
    """Format a group: ``origin=EWR, carrier=UA``."""
    pairs = group.group if isinstance(group, AlertKey) else (group or {}).items()
    return ", ".join(f"{name}={value}" for name, value in pairs)


def estimate_text(answer: Answer) -> str:
    """Format the estimate of an answer with its ±; empty without an estimate."""
    if answer.estimate is None:
        return ""
    number = estimate(answer.estimate, answer.alpha)
    return number if answer.alpha is None else f"{number} ± {bound(answer.alpha)}"


def window_text(answer: Answer) -> str:
    """Format an answer's window in UTC: ``2013-01-01 05:00–06:00``."""
    if answer.window is None:
        return ""
    start, end = answer.window.start, answer.window.end
    try:
        first, last = _moment(moment_ms(start)), _moment(moment_ms(end))
    except ValueError:  # a window of a later version
        return f"{start}–{end}"
    day, time = last.split(" ")
    return f"{first}–{time if first.startswith(day) else last}"


def window_end(answer: Answer, stamp: float) -> float:
    """Return the end of an answer's window in Unix seconds, at most the answer's timestamp."""
    if answer.window is None:
        return stamp
    try:
        return min(moment_ms(answer.window.end) / 1000, stamp)
    except ValueError:
        return stamp


def window_seconds(answer: Answer) -> float:
    """Return the length of an answer's window in seconds; 0 without a window."""
    if answer.window is None:
        return 0.0
    try:
        return max(moment_ms(answer.window.end) - moment_ms(answer.window.start), 0) / 1000
    except ValueError:
        return 0.0


def written_time(seconds: float, precision: Literal["seconds", "milliseconds"] = "milliseconds") -> str:
    """Format Unix seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _moment(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    if milliseconds % 1000:
        return moment.isoformat(" ", "milliseconds").removesuffix("+00:00")
    return f"{moment:%Y-%m-%d %H:%M}" if not moment.second else f"{moment:%Y-%m-%d %H:%M:%S}"


@dataclass(slots=True)
class AlertRun:
    """Consecutive alerts of one key: end of the first window, latest answer, its time, number."""

    since: float
    answer: Answer
    time: float
    alerts: int = 1


@dataclass(slots=True)
class _Period:
    starts: str
    run: AlertRun | None = None


@dataclass(slots=True)
class _Periods:
    """The latest periods of an alert key, in order; all except the first have only alerts.

    ``whole`` is True if the first also has only alerts, so that earlier periods may join the run.
    """

    held: list[_Period] = field(default_factory=list)
    whole: bool = True


class Runs:
    """The current run of alerts of each key, for streams with periods.

    The answers of a period arrive in order. Periods arrive in any order, because each is a stream on
    its own partition. No window spans two periods, so sorting the periods sorts the windows.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._places: OrderedDict[AlertKey, _Periods] = OrderedDict()

    def take(self, place: AlertKey, answer: Answer, time: float) -> bool:
        """Add an answer ``above`` or ``below``; return False if a later answer has ended its run."""
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
        """Return the current run of a key; None if its latest answer is no alert."""
        held = self._places[place].held if place in self._places else []
        runs = [period.run for period in held if period.run is not None]
        if not runs:
            return None
        return AlertRun(runs[0].since, runs[-1].answer, runs[-1].time, sum(run.alerts for run in runs))

    def _make_room(self, periods: _Periods) -> None:
        """Merge the first two periods of a key; if it has only one, drop the longest inactive key."""
        self._size -= 1
        if len(periods.held) == 1:
            self._size -= len(self._places.popitem(last=False)[1].held) - 1
            return
        first, second = periods.held.pop(0).run, periods.held[0].run
        periods.whole = False
        if first is not None and second is not None:
            second.since, second.alerts = first.since, first.alerts + second.alerts


MAX_PLACES: Final = 20_000
"""Most alert keys and most periods in memory; above it, the oldest are dropped."""


@dataclass(slots=True)
class Alarm:
    """A run of ``alerts`` alerts of one key; the next answer ``below`` sets ``resolved``.

    ``since`` is the end of the run's first window, and ``time`` Kafka's timestamp of its latest
    ``answer``; both are Unix seconds.
    """

    place: AlertKey
    source: str
    since: float
    answer: Answer
    time: float
    alerts: int = 1
    resolved: float | None = None


class Firing:
    """All alarms, the most recently changed ones last."""

    def __init__(self, limit: int = MAX_PLACES, *, over_periods: bool = False) -> None:
        """With ``over_periods``, an alarm continues from one period of a stream to the next."""
        self.alarms: dict[AlertKey, Alarm] = {}
        self.forgotten = 0
        """Number of alarms dropped since the last reset, because of the limit."""
        self._limit = limit
        self._over_periods = over_periods
        self._runs = Runs(limit)
        self._streams: dict[str, int] = {}

    def concerns(self, stream: str) -> bool:
        """Whether a stream has an alarm, which an answer ``below`` may resolve."""
        return stream in self._streams

    def take(self, answer: Answer, source: str, time: float) -> Alarm | None:
        """Add an answer; return the alarm that it starts, continues or resolves, else None.

        A stream's answers must come in order; its periods may come in any order with the same result.
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
        """Remove an alarm."""
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
    if answer.outcome == "below":
        return None
    if alarm is None:
        return AlertRun(window_end(answer, time), answer, time)
    return AlertRun(alarm.since, answer, time, alarm.alerts + 1)
