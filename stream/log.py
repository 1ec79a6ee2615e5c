"""Structured logs on standard error, without private data: events are named by position.

A repeated warning or error is logged ``BURST`` times and then every ``EVERY`` seconds, with the number
of skipped lines as ``held_back``, so that input cannot fill a disk. A library's report is cut to
its first line, and an exception to its type and place, because its message may quote input.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, MutableMapping
from contextlib import suppress
from typing import Any

MAX_ASKERS = 10_000
"""Most clients in memory; if there are more, the one silent for longest is forgotten."""


class RateLimiter:
    """A token bucket per client: ``burst`` requests at once and ``per_second`` on average."""

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        askers: int = MAX_ASKERS,
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._askers = askers
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def wait(self, asker: Hashable) -> float:
        """Count one request; return 0 if it is allowed, else the seconds to wait."""
        now = self._clock()
        left, before = self._buckets.pop(asker, (self._burst, now))
        left = min(self._burst, left + (now - before) * self._per_second)
        allowed = left >= 1.0
        self._buckets[asker] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > self._askers:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else math.ceil((1.0 - left) / self._per_second * 1000) / 1000


BURST = 30
"""A repeated warning or error is logged this many times before lines are skipped."""
EVERY = 10.0
"""Seconds between two lines of a repeated warning or error after ``BURST`` lines."""
MAX_TEXT = 500
"""Most characters that are logged of a library's report."""
FRAMES = 4
"""Innermost frames of an exception that are logged."""
MAX_PLACES = 1000
"""Most distinct warnings and errors that are tracked; Sotto has about fifty."""

_PLACE = "_place"
_APART = ("component", "event", "role", "source", "target", "topic")
"""Lines with equal values of these fields are repeats; no sender of events can set them."""


class _LossyStream:
    """Standard error that ignores write errors, so that a full disk does not stop a service."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


class BoundedRepeats:
    """Skips repeated warnings and errors: equal fields ``_APART``, or one place in a library."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        options = {} if clock is None else {"clock": clock}
        self._limiter = RateLimiter(1 / EVERY, BURST, askers=MAX_PLACES, **options)
        self._held: OrderedDict[Hashable, int] = OrderedDict()

    def __call__(self, _: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the event with ``held_back``, or raise DropEvent."""
        place = event.pop(_PLACE, None) or tuple(event.get(name) for name in _APART)
        if method not in {"warning", "error", "critical"}:
            return event
        if self._limiter.wait(place):
            self._held[place] = self._held.pop(place, 0) + 1
            if len(self._held) > MAX_PLACES:
                self._held.popitem(last=False)
            raise _structlog().DropEvent
        if held := self._held.pop(place, 0):
            event["held_back"] = held
        return event


class LibraryHandler(logging.Handler):
    """Logs the reports of libraries, without the messages of exceptions."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record's first line, with the type and place of its exception."""
        facts: dict[str, Any] = {_PLACE: (record.name, record.pathname, record.lineno)}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            facts |= place_of(error)
        log = get_logger(record.name)
        method = log.critical if record.levelno >= logging.CRITICAL else log.error
        with suppress(Exception):  # a failed log line must not stop a service
            method(_first_line(record), **facts)


def configure(*, as_json: bool, level: str = "INFO") -> None:
    """Log to standard error, including errors of libraries."""
    structlog = _structlog()
    lossy: Any = _LossyStream()
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            BoundedRepeats(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level]),
        # One write per line with its end: several workers share the parent's standard error.
        logger_factory=structlog.WriteLoggerFactory(lossy),
    )
    sys.excepthook = lambda _, error, __: _uncaught(error)
    threading.excepthook = lambda failure: _uncaught(failure.exc_value)
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    root = logging.getLogger()
    root.setLevel(logging.ERROR)
    for handler in [one for one in root.handlers if isinstance(one, LibraryHandler)]:
        root.removeHandler(handler)
    root.addHandler(LibraryHandler(logging.ERROR))


def quiet_clients() -> None:
    """Suppress the Kafka client's errors in a terminal; the client retries after them."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class _Logger:
    """A logger that imports structlog with its first line, because most clients log nothing."""

    def __init__(self, component: str) -> None:
        self._component = component

    def __getattr__(self, name: str) -> Any:
        return getattr(_structlog().get_logger(component=self._component), name)


def get_logger(component: str) -> Any:
    """Return a logger with the field ``component``."""
    return _Logger(component)


def _structlog() -> Any:
    import structlog  # noqa: PLC0415

    return structlog


def _uncaught(error: BaseException | None) -> None:
    if error is not None and not isinstance(error, KeyboardInterrupt):
        get_logger("process").critical("uncaught exception", **place_of(error))


def place_of(error: BaseException) -> dict[str, Any]:
    """Return an exception's type and place, without its message, which may quote input."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return {"error": type(error).__name__, "at": [f"{frame.filename}:{frame.lineno}" for frame in frames]}


def _first_line(record: logging.LogRecord) -> str:
    if isinstance(record.args, tuple):
        record = logging.makeLogRecord({**record.__dict__, "args": tuple(map(_without_message, record.args))})
    text = record.getMessage().partition("\n")[0]
    if record.name == "asyncio":
        # The rest is a callback's arguments or a task's exception, which may quote input.
        text = text.partition("(")[0].partition("<")[0].rstrip()
    return "".join(sign if sign.isprintable() else "�" for sign in text[:MAX_TEXT])


def _without_message(value: Any) -> Any:
    """Replace an exception by its type, except OSErrors, which describe connections only."""
    if isinstance(value, BaseException) and not isinstance(value, OSError):
        return type(value).__name__
    return value
