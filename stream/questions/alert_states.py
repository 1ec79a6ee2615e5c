"""Derives firing and resolved alarms from committed answers, and formats alerts.

An alert is an answer ``above``; only above_threshold and numeric_sparse give such answers. An alarm is a run of
consecutive alerts of one stream and group. It fires until the next answer ``below``. A *model* is a standing stream with
periods; each period of it is a separate stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final, NamedTuple

from schemas import Answer, registered_name, split_period_name
from schemas.windows import moment_ms
from stream.formatting import describe_counted_events, format_error_bound, format_interval
from stream.questions.result_text import format_content, format_text_interval
from stream.questions.results import Result

ABOVE_BYTES: Final = b'"above"'
"""Bytes that every alert contains."""

BELOW_BYTES: Final = b'"below"'
"""Bytes that every answer ``below`` contains."""


class AlertTerms(NamedTuple):
    """The declared test of a stream: its threshold, the condition of counted events, and what it counts.

    ``counted`` is None if producers ask the stream's questions; then a question may replace the threshold. Of such
    a stream, all questions count people if ``people`` is True, and any of them may do so if it is None.
    """

    threshold: float | None = None
    condition: str | None = None
    counted: object = "events"
    people: bool | None = False

    def describe_counting(self, bound_text: str) -> str:
        """Describe what counts of each person; ``bound_text`` describes the source's contribution bound."""
        if self.counted is not None or not bound_text:
            return describe_counted_events(self.counted, bound_text)
        if self.people:
            return ""
        return bound_text if self.people is False else f"{bound_text}, unless the question counts people"

    @property
    def threshold_text(self) -> str:
        """The threshold as text, with a reservation if questions may replace it; empty without a threshold."""
        own = " or the question's own" if self.counted is None else ""
        return "" if self.threshold is None else f"{self.threshold:,.12g}{own}"

    def document(self) -> dict[str, Any]:
        """Return the threshold and the condition, without those that are missing."""
        terms = {"threshold": self.threshold, "condition": self.condition}
        return {name: term for name, term in terms.items() if term is not None}


NO_TERMS: Final = AlertTerms()


class AlertKey(NamedTuple):
    """Identifies an alarm: its stream and its group, which is empty for a stream without groups."""

    stream: str
    group: tuple[tuple[str, str | int | float], ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """An answer of a watched stream, or the end of the stream, with ``ended`` as its reason.

    ``time`` is Kafka's timestamp, in Unix seconds, of the answer or of the first record that reports the end.
    ``bound_text`` describes the source's contribution bound; it is empty without one.

    Examples:
        >>> for notice in client.watch("count*"):
        ...     if notice.is_alert:
        ...         print(notice.stream, notice.answer.estimate)
    """

    time: float
    stream: str
    source: str | None = None
    answer: Result | None = None
    ended: str | None = None
    bound_text: str = ""
    terms: AlertTerms = NO_TERMS

    @property
    def is_alert(self) -> bool:
        """True if the answer's outcome is ``above``."""
        return self.answer is not None and self.answer.outcome == "above"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of a window's answer that ``bound_text`` does not have."""
        return () if self.answer is None else window_warnings(self.answer, self.bound_text)


def window_warnings(answer: Result, bound_text: str) -> tuple[str, ...]:
    """Return the warnings of a window's answer that ``bound_text`` does not have; none of another answer."""
    return () if answer.window is None else tuple(text for text in answer.warnings if text != bound_text)


def alert_key_of(answer: Answer) -> AlertKey:
    """Return the alert key of an answer."""
    return AlertKey(answer.stream, tuple((answer.group or {}).items()))


def matches_patterns(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a name matches a pattern (``*`` is a wildcard), or there are no patterns.

    The stream of a period also matches by the name of its model, so that all periods of a model match.
    """
    names = {name, registered_name(name)}
    return not patterns or any(fnmatchcase(one, pattern) for pattern in patterns for one in names)


def group_text(group: AlertKey | dict[str, str | int | float] | None) -> str:
    """Format a group: ``origin=EWR, carrier=UA``."""
    pairs = group.group if isinstance(group, AlertKey) else (group or {}).items()
    return ", ".join(f"{name}={value}" for name, value in pairs)


def estimate_text(answer: Answer) -> str:
    """Format the numbers or texts of an answer; empty without any.

    A single number or text has its 95 % interval, or ± if it is an alert. In a list each also has its group, if the group
    is known. The question is unknown, so ± may be in another unit than the numbers of other answers.
    """
    content = format_content(answer, with_intervals=True)
    if content == answer.outcome:
        return ""
    if answer.interval is not None and answer.outcome == "answer":
        return f"{content} (95 %: {format_interval(answer.interval, answer.estimate)})"
    if answer.choice is not None and answer.choice_intervals is not None:
        return f"{content} (95 %: {format_text_interval(answer.choice_intervals[0])})"
    is_clear = answer.intervals is None and answer.choice_intervals is None
    return f"{content} ± {format_error_bound(answer.alpha)}" if answer.alpha is not None and is_clear else content


_DETAILS: Final = (60_000, "minutes"), (1_000, "seconds")
"""The milliseconds of a minute and of a second, each with the detail of times that are multiples of it."""


def window_text(answer: Answer) -> str:
    """Format an answer's window in UTC: ``2013-01-01 05:00–06:00``."""
    if answer.window is None:
        return ""
    if (moments := _window_moments(answer)) is None:
        return f"{answer.window.start}–{answer.window.end}"
    detail = next(
        (name for divisor, name in _DETAILS if not any(one % divisor for one in moments)), "milliseconds"
    )
    first, last = (
        datetime.fromtimestamp(one / 1000, UTC).isoformat(" ", detail)[: -len("+00:00")] for one in moments
    )
    day, time = last.split(" ")
    return f"{first}–{time if first.startswith(day) else last}"


def window_end(answer: Answer, stamp: float) -> float:
    """Return the end of an answer's window in Unix seconds, at most the answer's timestamp."""
    moments = _window_moments(answer)
    return stamp if moments is None else min(moments[1] / 1000, stamp)


def window_seconds(answer: Answer) -> float:
    """Return the length of an answer's window in seconds; 0 without a window."""
    moments = _window_moments(answer)
    return 0.0 if moments is None else max(moments[1] - moments[0], 0) / 1000


def _window_moments(answer: Answer) -> tuple[int, int] | None:
    """Return start and end of an answer's window in Unix milliseconds; None for a window of a later version."""
    if answer.window is None:
        return None
    try:
        return moment_ms(answer.window.start), moment_ms(answer.window.end)
    except ValueError:
        return None


def format_time(seconds: float) -> str:
    """Format Unix seconds as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(slots=True)
class AlertRun:
    """A run of consecutive alerts of one key.

    ``since`` is the end of the first alert's window, and ``time`` is Kafka's timestamp of the latest ``answer``, both in
    Unix seconds. ``alerts`` is the number of alerts.
    """

    since: float
    answer: Answer
    time: float
    alerts: int = 1


@dataclass(slots=True)
class _Period:
    starts: str
    run: AlertRun | None = None


@dataclass(slots=True)
class _KeyState:
    """The latest periods of an alert key, in order; all periods after the first have only alerts.

    ``only_alerts`` is True if the first period has only alerts too. The run may then have begun in an earlier period,
    whose answers have not arrived yet.
    """

    periods: list[_Period] = field(default_factory=list)
    only_alerts: bool = True


class AlertRuns:
    """The current run of alerts of each key of models, whose periods are separate streams.

    The answers of one period arrive in order. Periods may arrive in any order, because their streams
    are on different partitions. No window spans two periods, so sorting the periods sorts the windows.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._period_count = 0
        self._states: OrderedDict[AlertKey, _KeyState] = OrderedDict()

    def add_answer(self, key: AlertKey, answer: Answer, time: float) -> bool:
        """Add an answer ``above`` or ``below``; return False if it precedes a known answer ``below``."""
        named = split_period_name(answer.stream)
        starts = "" if named is None else named[1].removesuffix("Z")
        state = self._states.setdefault(key, _KeyState())
        self._states.move_to_end(key)
        periods = state.periods
        index = bisect_left(periods, starts, key=lambda one: one.starts)
        if index == len(periods) or periods[index].starts != starts:
            if index == 0 and not state.only_alerts:
                return False
            periods.insert(index, _Period(starts))
            self._period_count += 1
        period = periods[index]
        if answer.outcome == "below":
            period.run, state.only_alerts = None, False
            del periods[:index]
            self._period_count -= index
        else:
            period.run = _extend_run(period.run, answer, time)
        if self._period_count > self._limit:
            self._make_room(state)
        return True

    def run_of(self, key: AlertKey) -> AlertRun | None:
        """Return the current run of a key; None if its latest answer is not an alert."""
        periods = self._states[key].periods if key in self._states else []
        found: AlertRun | None = None
        for run in (period.run for period in periods if period.run is not None):
            begins = run.since - window_seconds(run.answer)
            if found is None or begins > window_end(found.answer, found.time):
                found = AlertRun(run.since, run.answer, run.time, 0)
            found.answer, found.time, found.alerts = run.answer, run.time, found.alerts + run.alerts
        return found

    def forget(self, key: AlertKey) -> None:
        """Forget the periods of a key."""
        if (state := self._states.pop(key, None)) is not None:
            self._period_count -= len(state.periods)

    def _make_room(self, state: _KeyState) -> None:
        """Free one period: merge the first two periods of this key.

        If this key has only one period, drop the key whose last answer came longest ago.
        """
        self._period_count -= 1
        if len(state.periods) == 1:
            self._period_count -= len(self._states.popitem(last=False)[1].periods) - 1
            return
        first, second = state.periods.pop(0).run, state.periods[0].run
        state.only_alerts = False
        if first is not None and second is not None:
            second.since, second.alerts = first.since, first.alerts + second.alerts


MAX_ALERT_KEYS: Final = 20_000
"""Maximum number of alert keys in memory, and of periods; if there are more, the oldest are dropped."""


@dataclass(slots=True)
class Alarm:
    """A run of alerts of one key; ``resolved`` is the time of the answer ``below`` that ends it, or None.

    ``since`` is the end of the run's first window, and ``time`` is Kafka's timestamp of its latest ``answer``, both in Unix seconds.
    """

    key: AlertKey
    source: str
    since: float
    answer: Answer
    time: float
    alerts: int = 1
    resolved: float | None = None


class AlarmTable:
    """All alarms, in the order of their latest changes."""

    def __init__(self, limit: int = MAX_ALERT_KEYS, *, over_periods: bool = False) -> None:
        """With ``over_periods``, an alarm of a model continues from one period to the next."""
        self.alarms: dict[AlertKey, Alarm] = {}
        self.dropped_alarms = 0
        """Number of alarms that were dropped because of the limit; the user of the table may reset it to 0."""
        self._limit = limit
        self._over_periods = over_periods
        self._runs = AlertRuns(limit)
        self._alarm_counts: dict[str, int] = {}

    def has_alarm(self, stream: str) -> bool:
        """Return whether an answer ``below`` of a stream matters: it has an alarm.

        With ``over_periods`` every answer of a model matters, because its periods may arrive in any order.
        """
        return stream in self._alarm_counts or (self._over_periods and registered_name(stream) != stream)

    def add_answer(self, answer: Answer, source: str, time: float) -> Alarm | None:
        """Add an answer; return the alarm that it starts, continues or resolves, else None.

        The answers of one stream must be added in order. The periods of a model may be added in any order.
        """
        if answer.outcome not in {"above", "below"}:
            return None
        answer_key = alert_key_of(answer)
        key = answer_key._replace(stream=registered_name(answer_key.stream)) if self._over_periods else answer_key
        held = self.alarms.get(key)
        alarm = None if held is None or held.resolved is not None else held
        if key == answer_key:
            run = _extend_run(alarm, answer, time)
        elif self._runs.add_answer(key, answer, time):
            run = self._runs.run_of(key)
        else:
            return None
        if run is None:
            if alarm is not None:
                alarm.resolved = max(time, alarm.since)
            return alarm
        if alarm is None:
            self.drop(key)
            alarm = Alarm(key, source, run.since, run.answer, run.time, run.alerts)
            self._add(alarm)
        alarm.since, alarm.answer, alarm.time, alarm.alerts = run.since, run.answer, run.time, run.alerts
        self.alarms[key] = self.alarms.pop(key)
        return alarm

    def drop(self, key: AlertKey) -> None:
        """Remove an alarm."""
        if self.alarms.pop(key, None) is not None:
            self._alarm_counts[key.stream] -= 1
            if not self._alarm_counts[key.stream]:
                del self._alarm_counts[key.stream]

    def forget_run(self, key: AlertKey) -> None:
        """Forget a model's run, so that its next alert begins a new one; other streams need only ``drop``."""
        self._runs.forget(key)

    def _add(self, alarm: Alarm) -> None:
        if len(self.alarms) >= self._limit:
            self.drop(next(iter(self.alarms)))
            self.dropped_alarms += 1
        self.alarms[alarm.key] = alarm
        self._alarm_counts[alarm.key.stream] = self._alarm_counts.get(alarm.key.stream, 0) + 1


def _extend_run(run: AlertRun | Alarm | None, answer: Answer, time: float) -> AlertRun | None:
    """Return the run of alerts after an answer; a gap between windows begins a new run, as after an extension."""
    if answer.outcome == "below":
        return None
    end = window_end(answer, time)
    if run is None or (answer.window and end - window_seconds(answer) > window_end(run.answer, run.time)):
        return AlertRun(end, answer, time)
    return AlertRun(run.since, answer, time, run.alerts + 1)
