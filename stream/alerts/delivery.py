"""One request to a target, and what its answer means. Nothing of an answer's body is read or logged, nor an address."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, Self, get_args
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from schemas import Answer
from stream.questions.alert_states import written_time
from stream.questions.stream_watch import StreamOpening
from stream.version import VERSION

LONGEST_RETRY_AFTER: Final = 600.0
"""Longest pause, in seconds, that a target may ask for."""

Failure = Literal["refused", "throttled", "status", "redirect", "timeout", "connection"]

_REFUSED: Final = frozenset({400, 413, 422})
"""The target has understood, and does not take what was sent."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended: delivered where there is no ``failure``. ``pause`` is the least that the target asks for, in seconds."""

    failure: Failure | None = None
    status: int | None = None
    pause: float = 0.0


@dataclass(slots=True)
class Backoff:
    """Growing pauses between tries, each cut by chance to between half of it and all: senders do not come back at once."""

    first: float = 1.0
    longest: float = 60.0
    chance: Callable[[], float] = random.random
    failures: int = field(default=0, init=False)

    def next(self, least: float = 0.0) -> float:
        """The pause after one more failure, at least as long as the target asks for."""
        whole = min(self.first * 2.0 ** min(self.failures, 30), self.longest)
        self.failures += 1
        return max(whole * (1.0 + self.chance()) / 2.0, least)

    def reset(self) -> None:
        """After a success the next pause is the first one."""
        self.failures = 0


class TargetSender:
    """Requests to one target. It follows no redirect, keeps no cookie, and verifies TLS. Use it with ``async with``."""

    def __init__(self, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        self._timeout = ClientTimeout(total=timeout)
        self._tls = tls or ssl.create_default_context()
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = ClientSession(
            connector=TCPConnector(ssl=self._tls, limit=4),
            cookie_jar=DummyCookieJar(),
            timeout=self._timeout,
            trust_env=False,
            headers={"User-Agent": f"sotto/{VERSION}", "Content-Type": "application/json"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], bearer: str | None = None) -> Outcome:
        """Send a body once."""
        if self._session is None:
            raise RuntimeError("the sender is not open")
        given = {**headers, **({} if bearer is None else {"Authorization": f"Bearer {bearer}"})}
        try:
            async with self._session.post(url, data=body, headers=given, allow_redirects=False) as response:
                response.close()  # its body, of whatever size, is of no use
                return judged(response.status, response.headers, time.time())
        except TimeoutError:
            return Outcome("timeout")
        except (ClientError, OSError, ValueError, asyncio.IncompleteReadError):
            return Outcome("connection")


def judged(status: int, headers: Mapping[str, str], now: float) -> Outcome:
    """What a status means."""
    if 200 <= status < 300:
        return Outcome(status=status)
    if 300 <= status < 400:
        return Outcome("redirect", status)
    if status in _REFUSED:
        return Outcome("refused", status)
    pause = _retry_after(headers.get("Retry-After"), now) if status in {429, 503} else 0.0
    return Outcome("throttled" if status == 429 else "status", status, pause)


def _retry_after(text: str | None, now: float) -> float:
    """The seconds that a Retry-After asks for, given as a number or as a date; 0 if it is neither."""
    if text is None:
        return 0.0
    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


Reason = Literal["old", "refused", "room"]
"""Why an alert is given up."""


class AlertMetrics:
    """Counters and gauges of one process, in base units."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ready = Gauge("sotto_alerts_ready", "Whether /readyz says so.", registry=self.registry)
        self.delivered = Counter(
            "sotto_alerts_delivered", "Alerts that a target has taken.", ["target"], registry=self.registry
        )
        self.dropped = Counter(
            "sotto_alerts_dropped",
            "Alerts given up, as too old or refused, or alarms forgotten for want of room.",
            ["target", "reason"],
            registry=self.registry,
        )
        self.failures = Counter(
            "sotto_alerts_failures", "Requests that failed.", ["target", "reason"], registry=self.registry
        )
        self.waiting = Gauge(
            "sotto_alerts_waiting_seconds",
            "Age of the alert that a target has not taken yet; 0 if there is none.",
            ["target"],
            registry=self.registry,
        )
        self.firing = Gauge(
            "sotto_alerts_firing", "Alarms that an Alertmanager is told of.", ["target"], registry=self.registry
        )
        self.unreadable = Counter(
            "sotto_alerts_unreadable", "Answers passed over as unreadable.", ["target"], registry=self.registry
        )
        self.delay_seconds = Histogram(
            "sotto_alerts_delay_seconds",
            "From the answer's commit to the target's taking it.",
            ["target"],
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86400),
            registry=self.registry,
        )

    def of(self, target: str) -> TargetMetrics:
        """A target's own."""
        return TargetMetrics(self, target)


class TargetMetrics:
    """The figures of one target; all are there from the start."""

    def __init__(self, metrics: AlertMetrics, target: str) -> None:
        self.delivered = metrics.delivered.labels(target)
        self.waiting = metrics.waiting.labels(target)
        self.firing = metrics.firing.labels(target)
        self.unreadable = metrics.unreadable.labels(target)
        self.delay_seconds = metrics.delay_seconds.labels(target)
        # To Prometheus a series that begins at 1 has not grown: nobody would be told of the first one.
        self._dropped = {reason: metrics.dropped.labels(target, reason) for reason in get_args(Reason)}
        self._failures = {failure: metrics.failures.labels(target, failure) for failure in get_args(Failure)}

    def dropped(self, reason: Reason, count: int = 1) -> None:
        """Count alerts that were given up."""
        self._dropped[reason].inc(count)

    def failed(self, failure: Failure) -> None:
        """Count a request that failed."""
        self._failures[failure].inc()


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, as the webhook's receiver is told of it. ``time`` is Kafka's stamp, in seconds since the epoch."""

    installation: str
    opening: StreamOpening
    answer: Answer
    time: float
    page: str | None = None
    counted: str = ""

    @property
    def key(self) -> str:
        """The alert's idempotency key: of this answer of this opening, and the same after every restart."""
        return f"{self.opening.incarnation}-{self.answer.index}"

    @property
    def body(self) -> bytes:
        """The message."""
        answer = self.answer.model_dump(mode="json", exclude_none=True, include=_FIELDS)
        data = {
            "key": self.key,
            "installation": self.installation,
            "source": self.opening.source,
            "stream": self.opening.stream,
            "query": self.answer.id,
            **answer,
            **({"counted": self.counted} if self.counted else {}),
            **({} if (link := stream_page(self.page, self.opening.stream)) is None else {"page": link}),
        }
        told: dict[str, Any] = {"type": "sotto.alert", "timestamp": written_time(self.time), "data": data}
        return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


_FIELDS = {"index", "window", "group", "estimate", "alpha", "spent", "tops_left", "version"}


def stream_page(page: str | None, stream: str) -> str | None:
    """Where the monitor's page shows a stream."""
    return None if page is None else f"{page.rstrip('/')}/#/streams/{quote(stream, safe='')}"
