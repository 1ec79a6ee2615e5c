"""Reads answers with a consumer that begins near the end of the topic; keeps firing and latest alerts."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from schemas import Answer, GrantRecord, Source, StreamState, registered_name
from schemas.wire import MalformedEventError
from stream.caches import RecentCache
from stream.diagnostics import get_logger
from stream.engine.restore import create_reader, require_visible, select_readable
from stream.monitor.api.service_models import AlertingSource, AlertQuery, AlertRow, AlertsView, FiringRow
from stream.monitor.api.views import NewerRecordError, contribution_text, decode_grant, decode_source
from stream.monitor.entries import StreamEntry
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.record_shapes import GrantTermsShape, decode_record
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import Topics
from stream.questions.alert_states import (
    ABOVE_BYTES,
    BELOW_BYTES,
    NO_TERMS,
    Alarm,
    AlarmTable,
    group_text,
    window_warnings,
)
from stream.questions.first_windows import MissedEvents, describe_missed_events, missed_in_window
from stream.questions.results import Result
from stream.questions.stream_watch import alert_terms_of
from stream.settings import Settings

MAX_KEPT_ALERTS: Final = 2_000
"""Maximum number of alerts that are kept."""
MAX_DECODED_STREAMS: Final = 1_000
"""Maximum number of streams with alerts whose definitions are kept decoded."""


class KeptAlert(NamedTuple):
    """An alert with its commit time; the fields are in the order by which alerts are sorted."""

    time: float
    stream: str
    answer_index: int
    number: int
    answer: Answer


class Alerts:
    """Collects alerts from answers; ``complete`` becomes True when the answers of the look-back time are read."""

    def __init__(self, tables: MonitorTables) -> None:
        self.complete = False
        self.unreadable = 0
        self.tables = tables
        self._firing = AlarmTable(over_periods=True)
        self._kept: list[KeptAlert] = []
        """A heap by time: partitions are read in turn, and a full heap drops its earliest alert."""
        self._number = 0
        self._definitions: RecentCache[str, tuple[GrantRecord, Source, MissedEvents | None]] = RecentCache(
            MAX_DECODED_STREAMS // 2
        )

    def add_answer(self, record: RecordLike) -> None:
        """Add one committed answer; most are skipped without decoding."""
        value = record.value or b""
        stream = (record.key or b"").decode(errors="replace")
        if ABOVE_BYTES not in value and not (BELOW_BYTES in value and self._firing.has_alarm(stream)):
            return
        try:
            answer = Result.read(value)
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
            self.tables.changes["alerts"] += 1
            if alarm.resolved is not None:
                self._firing.drop(alarm.key)

    def view(self, query: AlertQuery, *, known: bool = False) -> AlertsView:
        """Return the firing alerts that match, longest first, and the latest alerts that match.

        With ``known``, all streams have been read, so a missing stream is retired.
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
        exhausted_of = Counter(source for alarm, source in rows if self._state(alarm) == "exhausted")
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
                    state=self._state(alarm),
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
        entry = self.tables.streams.get(stream)
        return None if entry is None or entry.grant is None else entry

    def _state(self, alarm: Alarm) -> StreamState | None:
        """Return the state of an alarm's stream; with periods, the model's, unless its latest period is exhausted."""
        latest, model = self._entry(alarm.answer.stream), self._entry(alarm.key.stream)
        if latest is not None and latest.ending is None and latest.state == "exhausted":
            return latest.state
        return None if model is None else model.ending or model.state

    def _source(self, stream: str) -> str | None:
        entry = self._entry(stream)
        return None if entry is None or entry.grant is None else registered_name(entry.grant.source)

    def _may_fire(self, stream: str, *, known: bool) -> bool:
        """Return True unless a stream was halted, closed or retired."""
        entry = self._entry(stream)
        if entry is None:
            return not known
        return entry.ending is None and entry.state in {"open", "exhausted"}

    def _row(self, answer: Answer, time: float, source: str | None) -> AlertRow:
        entry = self._entry(answer.stream)
        terms = NO_TERMS if entry is None else alert_terms_of(decode_record(GrantTermsShape, entry.raw).spec)
        counted = "" if entry is None else terms.describe_counting(contribution_text(self.tables, entry))
        return AlertRow.from_record(
            answer,
            time=time,
            source=source,
            group=dict(answer.group or {}),
            threshold=terms.threshold,
            condition=terms.condition,
            counted=counted,
            warnings=[] if entry is None else self._warnings(answer, entry, counted),
        )

    def _warnings(self, answer: Answer, entry: StreamEntry, counted: str) -> list[str]:
        """Return the warnings of a window's answer that ``counted`` does not have."""
        source_entry = None if entry.grant is None else self.tables.sources.get(entry.grant.source)
        if not isinstance(answer, Result) or answer.window is None or source_entry is None:
            return []
        key = f"{entry.name} {entry.incarnation}"
        if (known := self._definitions.get(key)) is None:
            try:
                grant, owner = decode_grant(entry), decode_source(self.tables, source_entry)
            except NewerRecordError:
                return []
            known = grant, owner.source, describe_missed_events(grant.spec, owner, entry.opened_by)
            self._definitions.put(key, known)
        grant, source, missed = known
        answer.with_stream(grant.spec, source, grant.calibration, missed_in_window(answer, missed))
        return list(window_warnings(answer, counted))


def alerts_view(alerts: Alerts | None, query: AlertQuery, *, known: bool) -> AlertsView:
    """Return the alerts that match a query, or an empty view if the monitor does not read answers.

    The view is incomplete until all streams and sources are ``known``, because an alert shows its source.
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


LOOK_BACK_SECONDS: Final = 7 * 86_400
"""Largest age, in seconds, of the answers that are read at the start."""
LOOK_BACK_RECORDS: Final = 500_000
"""Maximum number of answers per partition that are read at the start."""
_RETRY_SECONDS: Final = 5.0

log = get_logger("monitor")


async def retry_reading(read: Callable[[], Awaitable[None]], what: str) -> None:
    """Call ``read`` until it returns; after an error of Kafka, call it again."""
    while True:
        try:
            return await read()
        except TopicAuthorizationFailedError:
            log.error("no permission to read; see 'sotto topics acl --role monitor'", what=what)  # noqa: TRY400
        except (KafkaError, OSError, TimeoutError) as error:
            log.warning("reading restarts", what=what, error=type(error).__name__)
        await asyncio.sleep(_RETRY_SECONDS)


class AlertReader:
    """Reads answers into the alerts; after an error it continues at the same offsets."""

    def __init__(self, settings: Settings, topics: Topics, alerts: Alerts) -> None:
        self._settings = settings
        self._partitions = [TopicPartition(topics.answers, number) for number in range(topics.partitions)]
        self._alerts = alerts
        self._positions: dict[TopicPartition, int] = {}
        self._refused: TopicAuthorizationFailedError | None = None

    async def run(self) -> None:
        """Read until cancelled."""
        await retry_reading(self._read_or_note_refusal, "answers, for alerts")

    async def positions(self) -> dict[TopicPartition, int]:
        """Return the positions after the read answers.

        Raises:
            TopicAuthorizationFailedError: Kafka refuses to let the monitor read answers.
        """
        if self._refused is not None:
            raise self._refused
        return self._positions

    async def _read_or_note_refusal(self) -> None:
        try:
            await self._read()
        except TopicAuthorizationFailedError as error:
            self._refused = error
            raise

    async def _read(self) -> None:
        async with create_reader(self._settings, fetch_max_wait_ms=100) as consumer:
            await require_visible(consumer, self._partitions[0].topic)
            consumer.assign(self._partitions)
            ends = await self._seek_to_first(consumer)
            while True:
                fetched = await consumer.getmany(timeout_ms=500, max_records=self._settings.batch_events)
                for records in fetched.values():
                    for record in select_readable(records):
                        self._alerts.add_answer(record)
                    await asyncio.sleep(0)
                self._positions = {one: await consumer.position(one) for one in self._partitions}
                self._refused = None
                if not self._alerts.complete:
                    self._alerts.complete = all(self._positions[one] >= end for one, end in ends.items())
                    self._alerts.tables.changes["alerts"] += self._alerts.complete

    async def _seek_to_first(self, consumer: Any) -> dict[TopicPartition, int]:
        """Seek to the first unread answers and return the end offsets.

        At the start, these are the oldest answers within the look-back.
        """
        ends: dict[TopicPartition, int] = await consumer.end_offsets(self._partitions)
        since = round((time.time() - LOOK_BACK_SECONDS) * 1000)
        offsets = await consumer.offsets_for_times(dict.fromkeys(self._partitions, since))
        for partition, end in ends.items():
            look_back_start = end if offsets[partition] is None else offsets[partition].offset
            start = self._positions.get(partition, max(look_back_start, end - LOOK_BACK_RECORDS, 0))
            consumer.seek(partition, min(start, end))
        return ends
