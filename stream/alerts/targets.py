"""Telling Alertmanager what is firing: as Prometheus does it, again and again until it has ended, and a while beyond.

Each alarm is sent with an end that lies a few sendings ahead: should this process die, Alertmanager takes the alarm for over
after that, and not before a successor has had time to send it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
"""An alarm ends so many sendings from now unless it is sent again; Prometheus allows for as many."""
RESOLVED_SECONDS: Final = 900.0
"""An alarm that is over is sent for so long, should Alertmanager have missed that; as Prometheus does."""
BATCH: Final = 64
"""Alarms in one request; as Prometheus sends them."""

log = get_logger("alerts")


@dataclass(slots=True)
class _Sent:
    """When an alarm was last taken, by the clock; ``due`` if it has changed since."""

    due: bool
    at: float = float("-inf")


class Alertmanager:
    """One target and what fires for it. ``take`` answers, then ``send`` what is due."""

    def __init__(
        self,
        target: AlertmanagerTarget,
        sender: TargetSender,
        metrics: TargetMetrics,
        *,
        page: str | None = None,
        clock: Callable[[], float] = time.time,
        backoff: Backoff | None = None,
        firing: Firing | None = None,
    ) -> None:
        self._target = target
        self._sender = sender
        self._metrics = metrics
        self._page = page
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._not_before = float("-inf")
        self.firing = firing or Firing()
        self._sent: dict[AlertKey, _Sent] = {}
        self._counted: dict[str, str] = {}

    def take(self, answer: Answer, source: str, stamp: float, *, known: bool, counted: str = "") -> None:
        """Take in an answer. One that is ``known`` was sent before a restart: if it is over, it need not be told again for long."""
        self._counted[source] = counted
        alarm = self.firing.take(answer, source, stamp)
        if alarm is None:
            return
        if alarm.alerts == 1 and alarm.resolved is None:
            self._sent[alarm.place] = _Sent(due=not known)
        elif not known:
            self._sent[alarm.place].due = True

    def forget(self, streams: Callable[[str], bool]) -> None:
        """Hold no alarms of these streams any more: another process has them."""
        for place in [place for place in self.firing.alarms if streams(place.stream)]:
            self.firing.drop(place)

    @property
    def settled(self) -> bool:
        """Whether everything that has changed was taken."""
        return not any(sent.due for sent in self._sent.values())

    async def send(self) -> None:
        """Send what has changed and what is due again, unless the target has just failed."""
        now = self._clock()
        self._tidy(now)
        due = [alarm for alarm in self.firing.alarms.values() if self._is_due(alarm, now)]
        if not due:  # also where those that were have gone to another process
            self._metrics.waiting.set(0)
        if now < self._not_before:
            return
        for start in range(0, len(due), BATCH):
            batch = due[start : start + BATCH]
            if not await self._post(batch, now):
                return
            for alarm in batch:
                sent = self._sent[alarm.place]
                if sent.due and sent.at == float("-inf"):
                    self._metrics.delivered.inc()
                    self._metrics.delay_seconds.observe(max(now - alarm.time, 0.0))
                sent.at, sent.due = now, False

    async def _post(self, alarms: Sequence[Alarm], now: float) -> bool:
        """Whether one at least of a cluster's members has taken them: they tell each other of notifications, not of alarms."""
        body = json.dumps([self.message(alarm, now) for alarm in alarms], ensure_ascii=False).encode()
        outcomes = []
        for url in self._target.addresses:
            address = url.rstrip("/")
            address = address if address.endswith(PATH) else address + PATH
            outcomes.append(await self._sender.post(address, body, {}, self._target.bearer()))
        for outcome in outcomes:
            if outcome.failure is not None:
                self._metrics.failed(outcome.failure)
                log.warning(
                    "alarms not taken", target=self._target.name, failure=outcome.failure, status=outcome.status
                )
        if any(outcome.failure is None for outcome in outcomes):
            self._backoff.reset()
            self._metrics.waiting.set(0)
            return True
        self._metrics.waiting.set(max(now - min(alarm.time for alarm in alarms), 0.0))
        self._not_before = now + self._backoff.next(max(outcome.pause for outcome in outcomes))
        return False

    def message(self, alarm: Alarm, now: float) -> dict[str, Any]:
        """An alarm as the API takes it."""
        target, answer, place = self._target, alarm.answer, alarm.place
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
        link = stream_page(self._page, place.stream)
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
        return sent.due or now - sent.at >= span_ms(self._target.resend) / 1000

    def _tidy(self, now: float) -> None:
        """End what was heard of no more, and let go of what has been over for long."""
        after = span_ms(self._target.resolve_after) / 1000
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
            self._metrics.dropped("room", self.firing.forgotten)
            log.error("alarms forgotten for want of room", target=self._target.name, count=self.firing.forgotten)
            self.firing.forgotten = 0
        self._metrics.firing.set(sum(alarm.resolved is None for alarm in self.firing.alarms.values()))


def group_labels(place: AlertKey) -> dict[str, str]:
    """A group as labels: each attribute's behind ``group_``, with what no label's name may hold as ``_``, and told apart."""
    labels: dict[str, str] = {}
    for name, value in place.group:
        label = wanted = "group_" + re.sub(r"[^A-Za-z0-9_]", "_", name)
        number = 2
        while label in labels:
            label, number = f"{wanted}_{number}", number + 1
        labels[label] = str(value)
    return labels


REFUSALS: Final = 3
"""So many times an alert is sent to a target that understands it and refuses it: more would hold up those behind it."""


class Webhook:
    """One target. Its state is nothing but how long to wait: what is to be delivered stays in Kafka."""

    def __init__(
        self,
        target: WebhookTarget,
        sender: TargetSender,
        metrics: TargetMetrics,
        stopping: asyncio.Event,
        *,
        clock: Callable[[], float] = time.time,
        backoff: Backoff | None = None,
    ) -> None:
        self._target = target
        self._sender = sender
        self._metrics = metrics
        self._stopping = stopping
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._not_before = float("-inf")

    async def deliver(self, alert: Alert, ours: Callable[[], bool]) -> bool:
        """Deliver one alert, or give it up; False if that is left to whoever has its partition next.

        It is tried once however old it is, and then for as long as it is younger than the target's ``give_up``. What the target
        has asked to wait for is waited for before the first try, too, if another alert was given up meanwhile.
        """
        refusals = 0
        body = alert.body
        try:
            if (left := self._not_before - self._clock()) > 0:
                self._metrics.waiting.set(max(self._clock() - alert.time, 0.0))
                await self._rest(min(left, LONGEST_RETRY_AFTER))  # the clock may have been set back
            while ours() and not self._stopping.is_set():
                outcome = await self._send(alert.key, body)
                if outcome.failure is None:
                    self._backoff.reset()
                    self._metrics.delivered.inc()
                    self._metrics.delay_seconds.observe(max(self._clock() - alert.time, 0.0))
                    return True
                self._metrics.failed(outcome.failure)
                refusals += outcome.failure == "refused"
                age = max(self._clock() - alert.time, 0.0)
                self._metrics.waiting.set(age)
                reason: Reason | None = (
                    "refused" if refusals >= REFUSALS else "old" if age > self._give_up else None
                )
                if reason is not None:
                    self._metrics.dropped(reason)
                    log.error(
                        "alert given up",
                        target=self._target.name,
                        reason=reason,
                        failure=outcome.failure,
                        status=outcome.status,
                        key=alert.key,
                        stream=alert.opening.stream,
                    )
                    if reason == "refused":
                        self._backoff.reset()
                    self._not_before = self._clock() + outcome.pause
                    return True
                pause = self._backoff.next(outcome.pause)
                log.warning(
                    "alert not taken",
                    target=self._target.name,
                    failure=outcome.failure,
                    status=outcome.status,
                    seconds=round(pause, 1),
                )
                await self._rest(pause)
            return False
        finally:
            self._metrics.waiting.set(0)

    @property
    def _give_up(self) -> float:
        return span_ms(self._target.give_up) / 1000

    async def _send(self, key: str, body: bytes) -> Outcome:
        target = self._target
        headers = signed_headers(target.secrets(), key, int(self._clock()), body)
        return await self._sender.post(target.url, body, headers, target.bearer())

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
