"""Structured logs on standard error. Nothing private is ever logged: events are named by position, not by content.

What comes from outside cannot fill a disk. A warning or an error that repeats is written ``BURST`` times and then every
``EVERY`` seconds, with ``held_back``, the number of times that it was left out. Of what a library reports the first line
is kept, and of an exception its type and where it was raised: its message may quote what somebody sent.
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
"""Askers remembered; whoever has been silent longest is forgotten, and starts with a full bucket again."""


class RateLimiter:
    """Each asker may send ``burst`` requests at once and ``per_second`` for long."""

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
        """Take one request from an asker's bucket. Gives 0, or the seconds to wait where the bucket is empty."""
        now = self._clock()
        left, before = self._buckets.pop(asker, (self._burst, now))
        left = min(self._burst, left + (now - before) * self._per_second)
        allowed = left >= 1.0
        self._buckets[asker] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > self._askers:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else math.ceil((1.0 - left) / self._per_second * 1000) / 1000


BURST = 30
"""How often a warning or an error is written before it is slowed down."""
EVERY = 10.0
"""Seconds between two lines of one that repeats for long."""
MAX_TEXT = 500
"""Longest text of a library in a line."""
FRAMES = 4
"""Places of an exception that are named, the innermost ones."""
MAX_PLACES = 1000
"""Warnings and errors told apart; the service has about fifty."""

_PLACE = "_place"
_APART = ("component", "event", "role", "source", "target", "topic")
"""Lines that agree in these fields are one line that repeats; operators name them, not those who send events."""


class _LossyStream:
    """Standard error, which loses what cannot be written: a full disk under the log must not stop a service."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


class BoundedRepeats:
    """Leaves out warnings and errors that repeat too often, by the fields ``_APART`` or by their place in a library."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        options = {} if clock is None else {"clock": clock}
        self._limiter = RateLimiter(1 / EVERY, BURST, askers=MAX_PLACES, **options)
        self._held: OrderedDict[Hashable, int] = OrderedDict()

    def __call__(self, _: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """The event, with what was held back before it; or structlog's order to drop it."""
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
    """Writes what libraries report as lines of ours, without anything that an exception quotes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's first line, and of its exception the type and the place."""
        facts: dict[str, Any] = {_PLACE: (record.name, record.pathname, record.lineno)}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            facts |= place_of(error)
        log = get_logger(record.name)
        method = log.critical if record.levelno >= logging.CRITICAL else log.error
        with suppress(Exception):  # a log that cannot be written stops nobody
            method(_first_line(record), **facts)


def configure(*, as_json: bool, level: str = "INFO") -> None:
    """Send structured records, and the libraries' errors, to standard error."""
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
        # One write a line, its end included: several workers log to the standard error of one parent.
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
    """Keep the Kafka client's own log off a person's terminal: what it reports there, it retries."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


class _Logger:
    """A logger of structlog's, which is imported with the first line that is written: a client may never write one."""

    def __init__(self, component: str) -> None:
        self._component = component

    def __getattr__(self, name: str) -> Any:
        return getattr(_structlog().get_logger(component=self._component), name)


def get_logger(component: str) -> Any:
    """A logger that says which component speaks."""
    return _Logger(component)


def _structlog() -> Any:
    import structlog  # noqa: PLC0415

    return structlog


def _uncaught(error: BaseException | None) -> None:
    if error is not None and not isinstance(error, KeyboardInterrupt):
        get_logger("process").critical("not caught", **place_of(error))


def place_of(error: BaseException) -> dict[str, Any]:
    """Return an exception's type and where it was raised; not its message, which may quote what a user sent."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return {"error": type(error).__name__, "at": [f"{frame.filename}:{frame.lineno}" for frame in frames]}


def _first_line(record: logging.LogRecord) -> str:
    if isinstance(record.args, tuple):
        record = logging.makeLogRecord({**record.__dict__, "args": tuple(map(_without_message, record.args))})
    text = record.getMessage().partition("\n")[0]
    if record.name == "asyncio":
        # What follows is the repr of a callback with its arguments, or of a task with its exception.
        text = text.partition("(")[0].partition("<")[0].rstrip()
    return "".join(sign if sign.isprintable() else "�" for sign in text[:MAX_TEXT])


def _without_message(value: Any) -> Any:
    """An exception's type in its place, but for those that speak of connections alone."""
    if isinstance(value, BaseException) and not isinstance(value, OSError):
        return type(value).__name__
    return value
