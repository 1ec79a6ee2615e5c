"""One request to a target, and what its answer means. Nothing of an answer's body is read or logged, nor an address."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Final, Literal, Self

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

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


class Sender:
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
