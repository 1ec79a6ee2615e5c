"""Delivering to a webhook: each alert, in the order of its stream, again and again until it is taken or too old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from schemas.windows import span_ms
from stream.alerts.configuration import WebhookTarget
from stream.alerts.messages import Alert
from stream.alerts.metrics import Reason, TargetMetrics
from stream.alerts.sending import LONGEST_RETRY_AFTER, Backoff, Outcome, Sender
from stream.alerts.signing import signed_headers
from stream.log import get_logger

REFUSALS: Final = 3
"""So many times an alert is sent to a target that understands it and refuses it: more would hold up those behind it."""

log = get_logger("alerts")


class Webhook:
    """One target. Its state is nothing but how long to wait: what is to be delivered stays in Kafka."""

    def __init__(
        self,
        target: WebhookTarget,
        sender: Sender,
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
