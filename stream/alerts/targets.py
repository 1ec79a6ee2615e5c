"""Delivers alarms to Alertmanager, and alerts to webhooks.

Firing alarms are sent repeatedly, as Prometheus does. Each alarm has an end time a few sendings
ahead: if this process dies, the next process has until then to send the alarm again, or else
Alertmanager resolves it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from schemas import Answer
from schemas.windows import span_ms
from stream.alerts.alert_targets import AlertmanagerTarget, WebhookTarget, signed_headers
from stream.alerts.delivery import (
    LONGEST_RETRY_AFTER,
    Alert,
    Backoff,
    Outcome,
    Reason,
    TargetMetrics,
    TargetSender,
    stream_page,
)
from stream.kafka.client.availability import stopped_within
from stream.log import get_logger
from stream.questions.alert_states import (
    Alarm,
    AlertKey,
    Firing,
    estimate_text,
    group_text,
    window_seconds,
    window_text,
    written_time,
)

PATH: Final = "/api/v2/alerts"
SENDINGS_AHEAD: Final = 4
"""An alarm ends after this many ``resend`` intervals if it is not sent again; as in Prometheus."""
RESOLVED_SECONDS: Final = 900.0
"""Seconds for which a resolved alarm is still sent, in case its end was lost; as in Prometheus."""
BATCH: Final = 64
"""Alarms in one request; as in Prometheus."""

log = get_logger("alerts")


@dataclass(slots=True)
class _Sent:
    """When the target last accepted an alarm (``at``), and whether it has changed since (``due``)."""

    due: bool
    at: float = float("-inf")


@dataclass(eq=False)
class Alertmanager:
    """One target with its firing alarms. Call ``take`` for each answer, then ``send``."""

    target: AlertmanagerTarget
    sender: TargetSender
    metrics: TargetMetrics
    page: str | None = None
    clock: Callable[[], float] = time.time
    backoff: Backoff = field(default_factory=Backoff)
    firing: Firing = field(default_factory=Firing)
    _not_before: float = float("-inf")
    _sent: dict[AlertKey, _Sent] = field(default_factory=dict)
    _counted: dict[str, str] = field(default_factory=dict)

    def take(self, answer: Answer, source: str, stamp: float, *, known: bool, counted: str = "") -> None:
        """Add an answer; if it is ``known`` from before a restart, it is not a change to deliver."""
        self._counted[source] = counted
        alarm = self.firing.take(answer, source, stamp)
        if alarm is None:
            return
        if alarm.alerts == 1 and alarm.resolved is None:
            self._sent[alarm.place] = _Sent(due=not known)
        elif not known:
            self._sent[alarm.place].due = True

    def forget(self, streams: Callable[[str], bool]) -> None:
        """Drop the alarms of the streams for which ``streams`` is True: another process has them."""
        for place in [place for place in self.firing.alarms if streams(place.stream)]:
            self.firing.drop(place)

    @property
    def settled(self) -> bool:
        """True if the target has accepted every change."""
        return not any(sent.due for sent in self._sent.values())

    async def send(self) -> None:
        """Send the alarms that have changed or must be sent again, except during a retry pause."""
        now = self.clock()
        self._tidy(now)
        due = [alarm for alarm in self.firing.alarms.values() if self._is_due(alarm, now)]
        if not due:  # also if the due alarms have moved to another process
            self.metrics.waiting.set(0)
        if now < self._not_before:
            return
        for start in range(0, len(due), BATCH):
            batch = due[start : start + BATCH]
            if not await self._post(batch, now):
                return
            for alarm in batch:
                sent = self._sent[alarm.place]
                if sent.due and sent.at == float("-inf"):
                    self.metrics.delivered.inc()
                    self.metrics.delay_seconds.observe(max(now - alarm.time, 0.0))
                sent.at, sent.due = now, False

    async def _post(self, alarms: Sequence[Alarm], now: float) -> bool:
        """Post to every member of the cluster (they do not share alarms); True if one accepts."""
        body = json.dumps([self.message(alarm, now) for alarm in alarms], ensure_ascii=False).encode()
        outcomes = []
        for url in self.target.addresses:
            address = url.rstrip("/")
            address = address if address.endswith(PATH) else address + PATH
            outcomes.append(await self.sender.post(address, body, {}, self.target.bearer()))
        for outcome in outcomes:
            if outcome.failure is not None:
                self.metrics.count_failed(outcome.failure)
                log.warning(
                    "alarms not accepted", target=self.target.name, failure=outcome.failure, status=outcome.status
                )
        if any(outcome.failure is None for outcome in outcomes):
            self.backoff.reset()
            self.metrics.waiting.set(0)
            return True
        self.metrics.waiting.set(max(now - min(alarm.time for alarm in alarms), 0.0))
        self._not_before = now + self.backoff.next(max(outcome.pause for outcome in outcomes))
        return False

    def message(self, alarm: Alarm, now: float) -> dict[str, Any]:
        """Return an alarm in the format of Alertmanager's API."""
        target, answer, place = self.target, alarm.answer, alarm.place
        resend = span_ms(target.resend) / 1000
        ends = alarm.resolved if alarm.resolved is not None else now + SENDINGS_AHEAD * resend
        about = {
            "summary": f"{place.stream}: {group_text(place) or 'the stream'} is above its threshold",
            "window": window_text(answer),
            "estimate": estimate_text(answer),
            "alerts": str(alarm.alerts),
            "counted": self._counted.get(alarm.source, ""),
            "alerts_left": "" if answer.tops_left is None else str(answer.tops_left),
        }
        link = stream_page(self.page, place.stream)
        return {
            "labels": {
                "alertname": target.alertname,
                "source": alarm.source,
                "stream": place.stream,
                **group_labels(place),
                **target.labels,
            },
            "annotations": {name: text for name, text in about.items() if text},
            "startsAt": written_time(alarm.since),
            "endsAt": written_time(max(ends, alarm.since)),
            **({} if link is None else {"generatorURL": link}),
        }

    def _is_due(self, alarm: Alarm, now: float) -> bool:
        sent = self._sent[alarm.place]
        return sent.due or now - sent.at >= span_ms(self.target.resend) / 1000

    def _tidy(self, now: float) -> None:
        """Resolve alarms without new answers, and drop alarms that were resolved long ago."""
        after = span_ms(self.target.resolve_after) / 1000
        for place, alarm in list(self.firing.alarms.items()):
            silent_until = alarm.time + window_seconds(alarm.answer) + after
            if alarm.resolved is None and now > silent_until:
                alarm.resolved = max(silent_until, alarm.since)
                self._sent[place].due = True
            if (
                alarm.resolved is not None
                and not self._sent[place].due
                and now > alarm.resolved + RESOLVED_SECONDS
            ):
                self.firing.drop(place)
        for place in [place for place in self._sent if place not in self.firing.alarms]:
            del self._sent[place]
        if self.firing.forgotten:
            self.metrics.count_dropped("room", self.firing.forgotten)
            log.error("alarms dropped for lack of room", target=self.target.name, count=self.firing.forgotten)
            self.firing.forgotten = 0
        self.metrics.firing.set(sum(alarm.resolved is None for alarm in self.firing.alarms.values()))


def group_labels(place: AlertKey) -> dict[str, str]:
    """Return a group as distinct labels ``group_ATTRIBUTE``, with ``_`` for forbidden characters."""
    labels: dict[str, str] = {}
    for name, value in place.group:
        label = wanted = "group_" + re.sub(r"[^A-Za-z0-9_]", "_", name)
        number = 2
        while label in labels:
            label, number = f"{wanted}_{number}", number + 1
        labels[label] = str(value)
    return labels


REFUSALS: Final = 3
"""Refusals after which an alert is dropped, so that it does not delay the next alerts."""


@dataclass(eq=False)
class Webhook:
    """One webhook target. Undelivered alerts stay in Kafka; only the retry pause is kept here."""

    target: WebhookTarget
    sender: TargetSender
    metrics: TargetMetrics
    stopping: asyncio.Event
    clock: Callable[[], float] = time.time
    backoff: Backoff = field(default_factory=Backoff)
    _not_before: float = float("-inf")

    async def deliver(self, alert: Alert, ours: Callable[[], bool]) -> bool:
        """Deliver or drop one alert; False if the partition's next owner must deliver it.

        An alert is sent at least once, then again until it is older than ``give_up``. If the target
        asked for a pause and the alert is dropped, the next alert waits for the end of the pause.
        """
        refusals = 0
        body = alert.body
        try:
            if (left := self._not_before - self.clock()) > 0:
                self.metrics.waiting.set(max(self.clock() - alert.time, 0.0))
                await stopped_within(
                    self.stopping, min(left, LONGEST_RETRY_AFTER)
                )  # the clock may have been set back
            while ours() and not self.stopping.is_set():
                outcome = await self._send(alert.key, body)
                if outcome.failure is None:
                    self.backoff.reset()
                    self.metrics.delivered.inc()
                    self.metrics.delay_seconds.observe(max(self.clock() - alert.time, 0.0))
                    return True
                self.metrics.count_failed(outcome.failure)
                refusals += outcome.failure == "refused"
                age = max(self.clock() - alert.time, 0.0)
                self.metrics.waiting.set(age)
                reason: Reason | None = (
                    "refused" if refusals >= REFUSALS else "old" if age > self._give_up else None
                )
                if reason is not None:
                    self.metrics.count_dropped(reason)
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
                pause = self.backoff.next(outcome.pause)
                log.warning(
                    "alert not accepted",
                    target=self.target.name,
                    failure=outcome.failure,
                    status=outcome.status,
                    seconds=round(pause, 1),
                )
                await stopped_within(self.stopping, pause)
            return False
        finally:
            self.metrics.waiting.set(0)

    @property
    def _give_up(self) -> float:
        return span_ms(self.target.give_up) / 1000

    async def _send(self, key: str, body: bytes) -> Outcome:
        target = self.target
        headers = signed_headers(target.secrets(), key, int(self.clock()), body)
        return await self.sender.post(target.url, body, headers, target.bearer())
