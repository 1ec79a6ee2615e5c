"""Sends one request to a target and classifies its response; defines an alert, its parser and the metrics."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, Literal, Self, get_args
from urllib.parse import quote

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from schemas import Answer
from schemas.wire import MalformedEventError
from stream import VERSION
from stream.client.ledger_reader import FollowedLedger, OpeningReader
from stream.diagnostics import get_logger
from stream.engine.health import CacheCollector
from stream.processing.protocol import RecordLike
from stream.questions import Result
from stream.questions.alert_states import format_time, window_warnings
from stream.questions.stream_watch import StreamOpening

MAX_RETRY_AFTER_SECONDS: Final = 600.0
"""Longest pause, in seconds, that a target's Retry-After may set."""

Failure = Literal["refused", "throttled", "status", "redirect", "timeout", "connection"]

log = get_logger("alerts")

_REFUSED_STATUSES: Final = frozenset({400, 413, 422})
"""HTTP statuses with which a target rejects the content of a request."""


@dataclass(frozen=True, slots=True)
class DeliveryOutcome:
    """The result of a request, which succeeded if ``failure`` is None; ``pause`` is Retry-After in seconds."""

    failure: Failure | None = None
    status: int | None = None
    pause: float = 0.0


@dataclass(slots=True)
class Backoff:
    """Exponential pauses between retries, each shortened at random to 50 to 100 %."""

    first: float = 1.0
    longest: float = 60.0
    random_share: Callable[[], float] = random.random
    failures: int = field(default=0, init=False)

    def next_pause(self, min_seconds: float = 0.0) -> float:
        """Return the pause after one more failure, in seconds and at least ``min_seconds``."""
        full_pause = min(self.first * 2.0 ** min(self.failures, 30), self.longest)
        self.failures += 1
        return max(full_pause * (1.0 + self.random_share()) / 2.0, min_seconds)

    def reset(self) -> None:
        """Start again with the first pause, after a success."""
        self.failures = 0


class TargetSender:
    """An HTTP client for one target: no redirects, no cookies, verified TLS."""

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

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], bearer: str | None = None
    ) -> DeliveryOutcome:
        """Send a body once and return the outcome; the response's body and the address are never logged."""
        if self._session is None:
            raise RuntimeError("the sender is not open")
        all_headers = {**headers, **({} if bearer is None else {"Authorization": f"Bearer {bearer}"})}
        try:
            async with self._session.post(url, data=body, headers=all_headers, allow_redirects=False) as response:
                response.close()  # the response body is not read
                return parse_outcome(response.status, response.headers, time.time())
        except TimeoutError:
            return DeliveryOutcome("timeout")
        except (ClientError, OSError, ValueError, asyncio.IncompleteReadError):
            return DeliveryOutcome("connection")


def parse_outcome(status: int, headers: Mapping[str, str], now: float) -> DeliveryOutcome:
    """Return the outcome for a response's status and headers."""
    if 200 <= status < 300:
        return DeliveryOutcome(status=status)
    if 300 <= status < 400:
        return DeliveryOutcome("redirect", status)
    if status in _REFUSED_STATUSES:
        return DeliveryOutcome("refused", status)
    pause = _retry_after(headers.get("Retry-After"), now) if status in {429, 503} else 0.0
    return DeliveryOutcome("throttled" if status == 429 else "status", status, pause)


def _retry_after(text: str | None, now: float) -> float:
    """Return the seconds of a Retry-After, given as a number or a date; 0 if invalid."""
    if text is None:
        return 0.0
    try:
        seconds = float(text) if text.strip().isdigit() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


DropReason = Literal["old", "refused", "room"]
"""The reason for which an alert is dropped."""


class AlertMetrics:
    """All metrics of the alerts service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(CacheCollector("alerts"))
        counter, gauge = partial(Counter, registry=self.registry), partial(Gauge, registry=self.registry)
        self.ready = gauge("sotto_alerts_ready", "1 if /readyz answers 200.")
        self.delivered = counter("sotto_alerts_delivered", "Alerts that a target has accepted.", ["target"])
        self.dropped = counter(
            "sotto_alerts_dropped",
            "Alerts dropped because they were too old or refused, or alarms dropped for lack of room.",
            ["target", "reason"],
        )
        self.failures = counter("sotto_alerts_failures", "Requests that failed.", ["target", "reason"])
        self.waiting = gauge(
            "sotto_alerts_waiting_seconds", "Age of the oldest undelivered alert; 0 if there is none.", ["target"]
        )
        self.firing = gauge("sotto_alerts_firing", "Alarms that are firing in an Alertmanager.", ["target"])
        self.unreadable = counter("sotto_alerts_unreadable", "Unreadable answers that were skipped.", ["target"])
        self.delay_seconds = Histogram(
            "sotto_alerts_delay_seconds",
            "From the answer's commit to its acceptance by the target.",
            ["target"],
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200, 86400),
            registry=self.registry,
        )


class TargetMetrics:
    """The metrics of one target."""

    def __init__(self, metrics: AlertMetrics, target: str) -> None:
        self.delivered = metrics.delivered.labels(target)
        self.waiting = metrics.waiting.labels(target)
        self.firing = metrics.firing.labels(target)
        self.unreadable = metrics.unreadable.labels(target)
        self.delay_seconds = metrics.delay_seconds.labels(target)
        # All labels exist from the start, because Prometheus sees no increase in a counter that begins at 1.
        self.dropped = {reason: metrics.dropped.labels(target, reason) for reason in get_args(DropReason)}
        self.failures = {failure: metrics.failures.labels(target, failure) for failure in get_args(Failure)}


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, as sent to a webhook. ``time`` is the answer's timestamp in Unix seconds."""

    installation: str
    opening: StreamOpening
    answer: Answer
    time: float
    monitor_url: str | None = None
    bound_text: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key by which a receiver recognizes repeats; it stays the same after a restart."""
        return f"{self.opening.incarnation}-{self.answer.index}"

    @property
    def body(self) -> bytes:
        """The request body."""
        answer = self.answer.model_dump(mode="json", exclude_none=True, include=_ANSWER_FIELDS)
        data = {
            "key": self.key,
            "installation": self.installation,
            "source": self.opening.source,
            "stream": self.opening.stream,
            "query": self.answer.id,
            **answer,
            **self.opening.terms.document(),
            **({"counted": self.bound_text} if self.bound_text else {}),
            **({"warnings": list(self.warnings)} if self.warnings else {}),
            **({} if (link := stream_page_url(self.monitor_url, self.opening.stream)) is None else {"page": link}),
        }
        message: dict[str, Any] = {"type": "sotto.alert", "timestamp": format_time(self.time), "data": data}
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


_ANSWER_FIELDS = {"index", "window", "group", "estimate", "alpha", "interval", "spent", "tops_left", "version"}


async def parse_alert(
    record: RecordLike,
    openings: OpeningReader,
    ledger: FollowedLedger,
    installation: str,
    monitor_url: str | None,
    unreadable: Counter,
) -> Alert | None:
    """Parse an answer ``above`` or ``below`` of a wanted stream; None for any other record.

    The definition in ``ledger`` gives the answer of a window its warnings. ``unreadable`` counts answers that cannot be read.
    """
    opening = await openings.find_opening((record.key or b"").decode(errors="replace"))
    if opening is None:
        return None
    try:
        answer = Result.read(record.value)
    except MalformedEventError:
        unreadable.inc()
        log.warning(
            "unreadable answer skipped", topic=record.topic, partition=record.partition, offset=record.offset
        )
        return None
    if answer.outcome not in {"above", "below"} or answer.stream != opening.stream:
        return None
    bound_text = opening.terms.describe_counting(openings.sources.get(opening.source, ""))
    warnings = window_warnings(await ledger.add_stream(answer), bound_text)
    return Alert(installation, opening, answer, record.timestamp / 1000, monitor_url, bound_text, warnings)


def stream_page_url(monitor_url: str | None, stream: str) -> str | None:
    """Return the address of a stream on the monitor's page."""
    return None if monitor_url is None else f"{monitor_url.rstrip('/')}/#/streams/{quote(stream, safe='')}"
