"""Keeps firing alerts and the latest alerts in bounded memory; uses neither Kafka nor HTTP."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from schemas import Answer, registered_as
from schemas.codecs import answer_codec
from schemas.wire import MalformedEventError
from stream.monitor.api.service_models import AlertingSource, AlertQuery, AlertRow, AlertsView, FiringRow
from stream.monitor.api.views import contribution_text
from stream.monitor.state.entries import StreamEntry
from stream.monitor.state.monitor_tables import MonitorTables
from stream.monitor.state.record_shapes import GrantTermsShape, decode_record
from stream.processing.protocol import RecordLike
from stream.questions.alert_states import ABOVE_BYTES, BELOW_BYTES, NO_TERMS, AlarmTable, group_text
from stream.questions.stream_watch import alert_terms_of

MAX_KEPT_ALERTS: Final = 2_000
"""Number of latest alerts that are kept."""


class KeptAlert(NamedTuple):
    """An alert and its commit time; alerts of the same time are ordered by stream and index."""

    time: float
    stream: str
    answer_index: int
    number: int
    answer: Answer


class Alerts:
    """Collects alerts from answers; ``complete`` is True once the answers of the look-back time are read."""

    def __init__(self, tables: MonitorTables) -> None:
        self.complete = False
        self.unreadable = 0
        self._tables = tables
        self._firing = AlarmTable(over_periods=True)
        self._kept: list[KeptAlert] = []
        """A heap by time: partitions are read in turn, and the earliest alert must be dropped first."""
        self._number = 0

    def add_answer(self, record: RecordLike) -> None:
        """Add one committed answer; most are skipped without decoding."""
        value = record.value or b""
        stream = (record.key or b"").decode(errors="replace")
        if ABOVE_BYTES not in value and not (BELOW_BYTES in value and self._may_end(stream)):
            return
        try:
            answer = answer_codec.decode_trusted(value)
        except MalformedEventError:
            self.unreadable += 1
            return
        time = record.timestamp / 1000
        alarm = self._firing.add_answer(answer, "", time)
        if answer.outcome == "above":
            self._number += 1
            keep = heapq.heappush if len(self._kept) < MAX_KEPT_ALERTS else heapq.heappushpop
            keep(self._kept, KeptAlert(time, stream, answer.index or 0, self._number, answer))
        if alarm is not None:
            self._tables.changes["alerts"] += 1
            if alarm.resolved is not None:
                self._firing.drop(alarm.key)

    def _may_end(self, stream: str) -> bool:
        """Return True if a ``below`` answer of a stream may end a firing alert."""
        registered = registered_as(stream)
        return registered != stream or self._firing.has_alarm(stream)

    def mark_changed(self) -> None:
        """Mark every view of alerts as changed."""
        self._tables.changes["alerts"] += 1

    def view(self, query: AlertQuery, *, known: bool = False) -> AlertsView:
        """Return the matching alerts: the firing ones, longest first, and the latest ones.

        If streams are ``known``, a missing one is retired.
        """
        is_wanted = _alert_filter(query)
        alarms = sorted(
            (one for one in self._firing.alarms.values() if self._may_fire(one.key.stream, known=known)),
            key=lambda one: (one.since, one.key.stream, group_text(one.key)),
        )
        rows = [(alarm, self._source(alarm.key.stream)) for alarm in alarms]
        chosen = [(alarm, source) for alarm, source in rows if is_wanted(alarm.answer, source)]
        kept_alerts = [(one, self._source(one.answer.stream)) for one in sorted(self._kept, reverse=True)]
        matching = [(one, source) for one, source in kept_alerts if is_wanted(one.answer, source)]
        firing_of, alerts_of = Counter(source for _, source in rows), Counter(source for _, source in kept_alerts)
        exhausted_of = Counter(source for alarm, source in rows if self._is_exhausted(alarm.key.stream))
        exhausted = exhausted_of.total()
        return AlertsView(
            shown=True,
            complete=self.complete,
            firing_total=len(rows) - exhausted,
            exhausted_total=exhausted,
            firing_matching=len(chosen),
            firing=[
                FiringRow(
                    since=alarm.since,
                    alerts=alarm.alerts,
                    latest=self._row(alarm.answer, alarm.time, source),
                    state=(entry := self._entry(alarm.key.stream)) and (entry.ending or entry.state),
                )
                for alarm, source in chosen[: query.limit]
            ],
            total=len(kept_alerts),
            matching=len(matching),
            recent=[self._row(one.answer, one.time, source) for one, source in islice(matching, query.limit)],
            sources=[
                AlertingSource(
                    source=source, firing=firing_of[source] - exhausted_of[source], alerts=alerts_of[source]
                )
                for source in sorted({one for one in (*firing_of, *alerts_of) if one is not None})
            ],
        )

    def _entry(self, stream: str) -> StreamEntry | None:
        entry = self._tables.streams.get(stream)
        return None if entry is None or entry.grant is None else entry

    def _source(self, stream: str) -> str | None:
        entry = self._entry(stream)
        return None if entry is None or entry.grant is None else registered_as(entry.grant.source)

    def _may_fire(self, stream: str, *, known: bool) -> bool:
        """Return True unless a stream has ended for good."""
        entry = self._entry(stream)
        if entry is None:
            return not known
        return entry.ending is None and entry.state in {"open", "exhausted"}

    def _is_exhausted(self, stream: str) -> bool:
        entry = self._entry(stream)
        return entry is not None and entry.state == "exhausted"

    def _row(self, answer: Answer, time: float, source: str | None) -> AlertRow:
        entry = self._entry(answer.stream)
        terms = NO_TERMS if entry is None else alert_terms_of(decode_record(GrantTermsShape, entry.raw).spec)
        return AlertRow.from_record(
            answer,
            time=time,
            source=source,
            group=dict(answer.group or {}),
            threshold=terms.threshold,
            condition=terms.condition,
            counted="" if entry is None else contribution_text(self._tables, entry),
        )


def alerts_view(alerts: Alerts | None, query: AlertQuery, *, known: bool) -> AlertsView:
    """Return the alerts to show; none, with ``shown`` False, if the monitor does not read answers.

    The view is incomplete until streams and sources are ``known``, because alerts lack a source before.
    """
    if alerts is not None:
        view = alerts.view(query, known=known)
        return view if known else view.model_copy(update={"complete": False})
    no_counts = {"firing_total": 0, "exhausted_total": 0, "firing_matching": 0, "total": 0, "matching": 0}
    return AlertsView(shown=False, complete=True, firing=[], recent=[], sources=[], **no_counts)


def _alert_filter(query: AlertQuery) -> Callable[[Answer, str | None], bool]:
    search = query.search.casefold()

    def is_wanted(answer: Answer, source: str | None) -> bool:
        if query.source not in {None, source}:
            return False
        words = (answer.stream, *(str(value) for value in (answer.group or {}).values()))
        return any(search in word.casefold() for word in words)

    return is_wanted
