"""Delivers alarms to Alertmanager, and alerts to webhooks.

As in Prometheus, firing alarms are sent repeatedly, each with an end time a few intervals ahead. If
this process dies, the next process must send the alarm again before that time; otherwise Alertmanager
resolves the alarm.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from schemas import registered_name
from schemas.windows import span_ms
from stream.alerts.alerts_file import AlertmanagerTarget, WebhookTarget, signed_headers
from stream.alerts.delivery import (
    MAX_RETRY_AFTER_SECONDS,
    Alert,
    Backoff,
    DropReason,
    TargetMetrics,
    TargetSender,
    stream_page_url,
)
from stream.diagnostics import get_logger
from stream.kafka.client.broker_connections import wait_for_stop
from stream.questions.alert_states import (
    Alarm,
    AlarmTable,
    AlertKey,
    estimate_text,
    format_time,
    group_text,
    window_seconds,
    window_text,
)

ALERTS_API_PATH: Final = "/api/v2/alerts"
RESENDS_BEFORE_END: Final = 4
"""Number of ``resend`` intervals after which an alarm ends if it is not sent again; as in Prometheus."""
RESOLVED_SECONDS: Final = 900.0
"""Seconds for which a resolved alarm is still sent, because its end may get lost; as in Prometheus."""
MAX_BATCH_ALARMS: Final = 64
"""Maximum number of alarms in one request; as in Prometheus."""

log = get_logger("alerts")


@dataclass(slots=True)
class _SendState:
    """The delivery of one alarm with its ``latest`` alert.

    ``accepted_at`` is when the target last accepted the alarm; ``is_due`` is true if the alarm has changed since then.
    """

    latest: Alert
    is_due: bool
    accepted_at: float = float("-inf")


@dataclass(eq=False)
class Alertmanager:
    """One target with its firing alarms. Call ``add_answer`` for each answer, then ``send``."""

    target: AlertmanagerTarget
    sender: TargetSender
    metrics: TargetMetrics
    monitor_url: str | None = None
    clock: Callable[[], float] = time.time
    backoff: Backoff = field(default_factory=Backoff)
    alarm_table: AlarmTable = field(default_factory=lambda: AlarmTable(over_periods=True))
    _not_before: float = float("-inf")
    _sent: dict[AlertKey, _SendState] = field(default_factory=dict)

    def add_answer(self, alert: Alert, *, known: bool) -> None:
        """Add an answer; an answer that is ``known`` was delivered before a restart and changes no alarm's delivery."""
        alarm = self.alarm_table.add_answer(alert.answer, registered_name(alert.opening.source), alert.time)
        if alarm is None:
            return
        sent, is_latest = self._sent.get(alarm.key), alarm.answer is alert.answer
        if sent is None or (is_latest and alarm.alerts == 1 and alarm.resolved is None):
            self._sent[alarm.key] = _SendState(alert, is_due=not known)
            return
        sent.is_due |= not known
        if is_latest and alert.answer.outcome == "above":
            sent.latest = alert

    def drop_alarms(self, is_moved: Callable[[str], bool]) -> None:
        """Drop the alarms of streams that another process delivers now, for which ``is_moved`` returns True."""
        alarms = self.alarm_table.alarms.items()
        for key in [key for key, alarm in alarms if is_moved(alarm.answer.stream)]:
            self.alarm_table.drop(key)
            self.alarm_table.forget_run(key)

    @property
    def all_accepted(self) -> bool:
        """True if the target has accepted every change."""
        return not any(sent.is_due for sent in self._sent.values())

    async def send(self) -> None:
        """Send the alarms that have changed or must be sent again, except during a retry pause."""
        now = self.clock()
        self._resolve_and_drop(now)
        resend = span_ms(self.target.resend) / 1000
        due = [
            alarm
            for alarm in self.alarm_table.alarms.values()
            if (sent := self._sent[alarm.key]).is_due or now - sent.accepted_at >= resend
        ]
        if not due:  # another process may deliver them now
            self.metrics.waiting.set(0)
        if now < self._not_before:
            return
        for start in range(0, len(due), MAX_BATCH_ALARMS):
            batch = due[start : start + MAX_BATCH_ALARMS]
            if not await self._post(batch, now):
                return
            for alarm in batch:
                sent = self._sent[alarm.key]
                if sent.is_due and sent.accepted_at == float("-inf"):
                    self.metrics.delivered.inc()
                    self.metrics.delay_seconds.observe(max(now - alarm.time, 0.0))
                sent.accepted_at, sent.is_due = now, False

    async def _post(self, alarms: Sequence[Alarm], now: float) -> bool:
        """Post to every member of the cluster, because members do not share alarms.

        Returns True if a member accepts the alarms.
        """
        body = json.dumps([self.format_alarm(alarm, now) for alarm in alarms], ensure_ascii=False).encode()
        outcomes = []
        for url in self.target.addresses:
            address = url.rstrip("/")
            address = address if address.endswith(ALERTS_API_PATH) else address + ALERTS_API_PATH
            outcomes.append(await self.sender.post(address, body, {}, self.target.bearer()))
        for outcome in outcomes:
            if outcome.failure is not None:
                self.metrics.failures[outcome.failure].inc()
                log.warning(
                    "alarms not accepted", target=self.target.name, failure=outcome.failure, status=outcome.status
                )
        if any(outcome.failure is None for outcome in outcomes):
            self.backoff.reset()
            self.metrics.waiting.set(0)
            return True
        self.metrics.waiting.set(max(now - min(alarm.time for alarm in alarms), 0.0))
        self._not_before = now + self.backoff.next_pause(max(outcome.pause for outcome in outcomes))
        return False

    def format_alarm(self, alarm: Alarm, now: float) -> dict[str, Any]:
        """Return an alarm in the format of Alertmanager's API."""
        target, answer, key, latest = self.target, alarm.answer, alarm.key, self._sent[alarm.key].latest
        resend = span_ms(target.resend) / 1000
        end = alarm.resolved if alarm.resolved is not None else now + RESENDS_BEFORE_END * resend
        annotations = {
            "summary": f"{key.stream}: {group_text(key) or 'the stream'} is above its threshold",
            "window": window_text(answer) and f"{window_text(answer)} UTC",
            "estimate": estimate_text(answer),
            "threshold": latest.opening.terms.threshold_text,
            "condition": latest.opening.terms.condition or "",
            "alerts": str(alarm.alerts),
            "counted": latest.bound_text,
            "warnings": "; ".join(latest.warnings),
            "alerts_left": "" if answer.tops_left is None else str(answer.tops_left),
        }
        link = stream_page_url(self.monitor_url, answer.stream)
        return {
            "labels": {
                "alertname": target.alertname,
                "source": alarm.source,
                "stream": key.stream,
                **group_labels(key),
                **target.labels,
            },
            "annotations": {name: text for name, text in annotations.items() if text},
            "startsAt": format_time(alarm.since),
            "endsAt": format_time(max(end, alarm.since)),
            **({} if link is None else {"generatorURL": link}),
        }

    def _resolve_and_drop(self, now: float) -> None:
        """Resolve alarms without new answers, and drop alarms that were resolved long ago."""
        after = span_ms(self.target.resolve_after) / 1000
        for key, alarm in list(self.alarm_table.alarms.items()):
            silent_until = alarm.time + window_seconds(alarm.answer) + after
            if alarm.resolved is None and now > silent_until:
                alarm.resolved = max(silent_until, alarm.since)
                self.alarm_table.forget_run(key)
                self._sent[key].is_due = True
            if (
                alarm.resolved is not None
                and not self._sent[key].is_due
                and now > alarm.resolved + RESOLVED_SECONDS
            ):
                self.alarm_table.drop(key)
        for key in [key for key in self._sent if key not in self.alarm_table.alarms]:
            del self._sent[key]
        if self.alarm_table.dropped_alarms:
            self.metrics.dropped["room"].inc(self.alarm_table.dropped_alarms)
            log.error(
                "alarms dropped for lack of room", target=self.target.name, count=self.alarm_table.dropped_alarms
            )
            self.alarm_table.dropped_alarms = 0
        self.metrics.firing.set(sum(alarm.resolved is None for alarm in self.alarm_table.alarms.values()))


def group_labels(key: AlertKey) -> dict[str, str]:
    """Return a group as labels ``group_ATTRIBUTE``, each with a distinct name in Prometheus' characters."""
    labels: dict[str, str] = {}
    for name, value in key.group:
        label = wanted = "group_" + re.sub(r"[^A-Za-z0-9_]", "_", name)
        number = 2
        while label in labels:
            label, number = f"{wanted}_{number}", number + 1
        labels[label] = str(value)
    return labels


MAX_REFUSALS: Final = 3
"""Number of refusals after which an alert is dropped, so that it does not delay the next alerts."""


@dataclass(eq=False)
class Webhook:
    """One webhook target. Undelivered alerts stay in Kafka; this object keeps only the retry pause."""

    target: WebhookTarget
    sender: TargetSender
    metrics: TargetMetrics
    stopping: asyncio.Event
    clock: Callable[[], float] = time.time
    backoff: Backoff = field(default_factory=Backoff)
    _not_before: float = float("-inf")

    async def deliver(self, alert: Alert, still_ours: Callable[[], bool]) -> bool:
        """Deliver or drop one alert; return False if the partition's next owner must deliver it.

        An alert is sent again until the target accepts it, has refused it ``MAX_REFUSALS`` times, or it is
        older than ``give_up``. If the target asks for a pause when the alert is dropped, the next alert
        waits for the end of the pause.
        """
        refusals, body, give_up_seconds = 0, alert.body, span_ms(self.target.give_up) / 1000
        try:
            if (left := self._not_before - self.clock()) > 0:
                self.metrics.waiting.set(max(self.clock() - alert.time, 0.0))
                # At most the longest pause, because the clock may have been set back.
                await wait_for_stop(self.stopping, min(left, MAX_RETRY_AFTER_SECONDS))
            while still_ours() and not self.stopping.is_set():
                headers = signed_headers(self.target.secrets(), alert.key, int(self.clock()), body)
                outcome = await self.sender.post(self.target.url, body, headers, self.target.bearer())
                if outcome.failure is None:
                    self.backoff.reset()
                    self.metrics.delivered.inc()
                    self.metrics.delay_seconds.observe(max(self.clock() - alert.time, 0.0))
                    return True
                self.metrics.failures[outcome.failure].inc()
                refusals += outcome.failure == "refused"
                age = max(self.clock() - alert.time, 0.0)
                self.metrics.waiting.set(age)
                reason: DropReason | None = (
                    "refused" if refusals >= MAX_REFUSALS else "old" if age > give_up_seconds else None
                )
                if reason is not None:
                    self.metrics.dropped[reason].inc()
                    log.error(
                        "alert dropped",
                        target=self.target.name,
                        reason=reason,
                        failure=outcome.failure,
                        status=outcome.status,
                        key=alert.key,
                        stream=alert.opening.stream,
                    )
                    if reason == "refused":
                        self.backoff.reset()
                    self._not_before = self.clock() + outcome.pause
                    return True
                pause = self.backoff.next_pause(outcome.pause)
                log.warning(
                    "alert not accepted",
                    target=self.target.name,
                    failure=outcome.failure,
                    status=outcome.status,
                    seconds=round(pause, 1),
                )
                await wait_for_stop(self.stopping, pause)
            return False
        finally:
            self.metrics.waiting.set(0)
