"""Structured logs on standard error, without private data: an event is named by its offset.

So that input cannot fill a disk, a repeated warning or error is logged ``MAX_REPEATS`` times and
then once every ``REPEAT_SECONDS``, with the number of skipped lines as ``held_back``. Of a
library's report only the first line is logged, and of an exception only its type and place, because
its message may quote input.
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

MAX_CLIENTS = 10_000
"""Most clients in memory; beyond it, the client without requests for longest is forgotten."""


class RateLimiter:
    """A token bucket per client: ``burst`` requests at once and ``per_second`` on average."""

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_clients: int = MAX_CLIENTS,
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._max_clients = max_clients
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def count_request(self, client: Hashable) -> float:
        """Count one request; return 0 if it is allowed, else the seconds to wait."""
        now = self._clock()
        left, before = self._buckets.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - before) * self._per_second)
        allowed = left >= 1.0
        self._buckets[client] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > self._max_clients:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else math.ceil((1.0 - left) / self._per_second * 1000) / 1000


MAX_REPEATS = 30
"""A repeated warning or error is logged this many times before lines are skipped."""
REPEAT_SECONDS = 10.0
"""Seconds between two lines of a repeated warning or error after ``MAX_REPEATS`` lines."""
MAX_TEXT_CHARACTERS = 500
"""Most characters that are logged of a library's report."""
MAX_FRAMES = 4
"""Innermost frames of an exception that are logged."""
MAX_TRACKED_LINES = 1000
"""Most kinds of warnings and errors that are tracked; Sotto has about fifty."""

_PLACE_FIELD = "_place"
_REPEAT_FIELDS = ("component", "event", "role", "source", "target", "topic")
"""Lines with equal values of these fields are repeats; the contents of events do not affect them."""


class _LossyStream:
    """Standard error that ignores write errors, so that a full disk does not stop a service."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


class RepeatFilter:
    """Skips repeated warnings and errors: with equal ``_REPEAT_FIELDS``, or from the same line of a library's code."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        options = {} if clock is None else {"clock": clock}
        self._limiter = RateLimiter(1 / REPEAT_SECONDS, MAX_REPEATS, max_clients=MAX_TRACKED_LINES, **options)
        self._skipped_counts: OrderedDict[Hashable, int] = OrderedDict()

    def __call__(self, _: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Return the event with ``held_back``, or raise DropEvent."""
        identity = event.pop(_PLACE_FIELD, None) or tuple(event.get(name) for name in _REPEAT_FIELDS)
        if method not in {"warning", "error", "critical"}:
            return event
        if self._limiter.count_request(identity):
            self._skipped_counts[identity] = self._skipped_counts.pop(identity, 0) + 1
            if len(self._skipped_counts) > MAX_TRACKED_LINES:
                self._skipped_counts.popitem(last=False)
            raise _structlog().DropEvent
        if skipped := self._skipped_counts.pop(identity, 0):
            event["held_back"] = skipped
        return event


class LibraryHandler(logging.Handler):
    """Logs the reports of libraries, without the messages of exceptions."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record's first line, with the type and place of its exception."""
        facts: dict[str, Any] = {_PLACE_FIELD: (record.name, record.pathname, record.lineno)}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            facts |= error_fields(error)
        log = get_logger(record.name)
        method = log.critical if record.levelno >= logging.CRITICAL else log.error
        with suppress(Exception):  # a failed log line must not stop a service
            method(_first_line(record), **facts)


def configure(*, as_json: bool) -> None:
    """Log to standard error, including errors of libraries."""
    structlog = _structlog()
    lossy: Any = _LossyStream()
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            RepeatFilter(),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # One write for a line and its line end: several workers share the parent's standard error.
        logger_factory=structlog.WriteLoggerFactory(lossy),
    )
    sys.excepthook = lambda _, error, __: _log_uncaught(error)
    threading.excepthook = lambda failure: _log_uncaught(failure.exc_value)
    logging.getLogger("aiokafka").setLevel(logging.ERROR)
    root = logging.getLogger()
    root.setLevel(logging.ERROR)
    for handler in [one for one in root.handlers if isinstance(one, LibraryHandler)]:
        root.removeHandler(handler)
    root.addHandler(LibraryHandler(logging.ERROR))


def silence_kafka_client() -> None:
    """Hide errors that aiokafka logs; for commands, because aiokafka retries after these errors."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class _Logger:
    """A logger that imports structlog at its first line, because most clients log nothing."""

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


def _log_uncaught(error: BaseException | None) -> None:
    if error is not None and not isinstance(error, KeyboardInterrupt):
        get_logger("process").critical("uncaught exception", **error_fields(error))


def error_fields(error: BaseException) -> dict[str, Any]:
    """Return an exception's type and place, without its message, which may quote input."""
    frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
    return {"error": type(error).__name__, "at": [f"{frame.filename}:{frame.lineno}" for frame in frames]}


def _first_line(record: logging.LogRecord) -> str:
    if isinstance(record.args, tuple):
        record = logging.makeLogRecord({**record.__dict__, "args": tuple(map(_without_message, record.args))})
    text = record.getMessage().partition("\n")[0]
    if record.name == "asyncio":
        # The rest is a callback's arguments or a task's exception, which may quote input.
        text = text.partition("(")[0].partition("<")[0].rstrip()
    return "".join(sign if sign.isprintable() else "�" for sign in text[:MAX_TEXT_CHARACTERS])


def _without_message(value: Any) -> Any:
    """Replace an exception by its type, except OSErrors, which describe connections only."""
    if isinstance(value, BaseException) and not isinstance(value, OSError):
        return type(value).__name__
    return value
