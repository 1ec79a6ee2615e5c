"""The monitor's alerts: what fires, and the latest that there were. Pure state, bounded, told nothing of Kafka or HTTP."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from schemas import MAX_ANSWER_BYTES, Answer, StreamState, registered_as
from schemas.wire import Codec, MalformedEventError
from stream.monitor.api.service_models import AlertingSource, AlertQuery, AlertRow, AlertsView, FiringRow
from stream.monitor.api.views import counted_in
from stream.monitor.state.entries import StreamEntry
from stream.monitor.state.monitor_tables import Tables
from stream.processing.protocol import RecordLike
from stream.questions.alert_states import ABOVE, BELOW, Firing, group_text

KEPT: Final = 2_000
"""Alerts that are remembered, the latest."""

_answers: Codec[Answer] = Codec(Answer, limit=MAX_ANSWER_BYTES)


class Past(NamedTuple):
    """An alert and when it was committed; of several at one time, in the order of their streams and answers."""

    time: float
    stream: str
    nth: int
    number: int
    answer: Answer


class Alerts:
    """What was taken in of the answers; ``complete`` once that is all that is looked back on."""

    def __init__(self, tables: Tables) -> None:
        self.complete = False
        self.unreadable = 0
        self._tables = tables
        self._firing = Firing(over_periods=True)
        self._past: list[Past] = []
        """A heap: partitions are read one after the other, and the earliest alert is the first to be forgotten."""
        self._number = 0

    def take(self, record: RecordLike) -> None:
        """Take in one committed answer; most are passed over unread."""
        value = record.value or b""
        stream = (record.key or b"").decode(errors="replace")
        if ABOVE not in value and not (BELOW in value and self._may_end(stream)):
            return
        try:
            answer = _answers.decode_own(value)
        except MalformedEventError:
            self.unreadable += 1
            return
        time = record.timestamp / 1000
        alarm = self._firing.take(answer, "", time)
        if answer.outcome == "above":
            self._number += 1
            keep = heapq.heappush if len(self._past) < KEPT else heapq.heappushpop
            keep(self._past, Past(time, stream, answer.index or 0, self._number, answer))
        if alarm is not None:
            self._tables.changes["alerts"] += 1
            if alarm.resolved is not None:
                self._firing.drop(alarm.place)

    def _may_end(self, stream: str) -> bool:
        """Whether a quiet answer says something: an alarm is held, or another period's may be read after it."""
        registered = registered_as(stream)
        return registered != stream or self._firing.concerns(stream)

    def changed(self) -> None:
        """Everything may be shown otherwise now."""
        self._tables.changes["alerts"] += 1

    def view(self, query: AlertQuery) -> AlertsView:
        """What fires, the longest first, and the latest alerts, of those that match."""
        wanted = _matching(query)
        alarms = sorted(
            self._firing.alarms.values(), key=lambda one: (one.since, one.place.stream, group_text(one.place))
        )
        rows = [(alarm, self._source(alarm.place.stream)) for alarm in alarms]
        chosen = [(alarm, source) for alarm, source in rows if wanted(alarm.answer, source)]
        past = [(one, self._source(one.answer.stream)) for one in sorted(self._past, reverse=True)]
        matching = [(one, source) for one, source in past if wanted(one.answer, source)]
        firing_of, alerts_of = Counter(source for _, source in rows), Counter(source for _, source in past)
        return AlertsView(
            shown=True,
            complete=self.complete,
            firing_total=len(rows),
            firing_matching=len(chosen),
            firing=[
                FiringRow(
                    since=alarm.since,
                    alerts=alarm.alerts,
                    latest=self._row(alarm.answer, alarm.time, source),
                    state=self._state(alarm.place.stream),
                )
                for alarm, source in chosen[: query.limit]
            ],
            total=len(past),
            matching=len(matching),
            recent=[self._row(one.answer, one.time, source) for one, source in islice(matching, query.limit)],
            sources=[
                AlertingSource(source=source, firing=firing_of[source], alerts=alerts_of[source])
                for source in sorted({one for one in (*firing_of, *alerts_of) if one is not None})
            ],
        )

    def _entry(self, stream: str) -> StreamEntry | None:
        entry = self._tables.streams.get(stream)
        return None if entry is None or entry.grant is None else entry

    def _source(self, stream: str) -> str | None:
        entry = self._entry(stream)
        return None if entry is None or entry.grant is None else registered_as(entry.grant.spec.source)

    def _row(self, answer: Answer, time: float, source: str | None) -> AlertRow:
        entry = self._entry(answer.stream)
        return AlertRow(
            time=time,
            stream=answer.stream,
            source=source,
            group=dict(answer.group or {}),
            window=answer.window,
            estimate=answer.estimate,
            alpha=answer.alpha,
            tops_left=answer.tops_left,
            counted="" if entry is None else counted_in(self._tables, entry),
        )

    def _state(self, stream: str) -> StreamState | None:
        entry = self._entry(stream)
        return None if entry is None else entry.ending or entry.state


def view_of(alerts: Alerts | None, query: AlertQuery, *, known: bool) -> AlertsView:
    """What there is to show; a monitor that reads no answers says so.

    It is not complete before streams and their sources are ``known``: until then alerts belong to no source.
    """
    if alerts is not None:
        view = alerts.view(query)
        return view if known else view.model_copy(update={"complete": False})
    nothing = {"firing_total": 0, "firing_matching": 0, "total": 0, "matching": 0}
    return AlertsView(shown=False, complete=True, firing=[], recent=[], sources=[], **nothing)


def _matching(query: AlertQuery) -> Callable[[Answer, str | None], bool]:
    search = query.search.casefold()

    def wanted(answer: Answer, source: str | None) -> bool:
        if query.source not in {None, source}:
            return False
        words = (answer.stream, *(str(value) for value in (answer.group or {}).values()))
        return any(search in word.casefold() for word in words)

    return wanted
