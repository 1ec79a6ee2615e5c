"""Structured logs on standard error, and OpenTelemetry traces; both without private data.

Logs name an event by its offset. So that input cannot fill a disk, a repeated warning or error is
logged ``MAX_REPEATS`` times and then once every ``REPEAT_SECONDS``, with the number of skipped lines
as ``held_back``. The log has only the first line of a library's report. It has only the type and the
place of an exception, unless this is a ``LoggableError``, because an exception's message may quote input.

Traces use W3C Trace Context in Kafka's headers. A client sends the context of its current span with each record. The
service that processes a batch makes one span for the batch, with links to the contexts of its records. Spans have
topics, partitions and counts, and never contents of queries or answers.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol


class LoggableError(Exception):
    """An error whose message may be logged and shown at /readyz, because it quotes no private data."""


MAX_CLIENTS = 10_000
"""Maximum number of clients in memory; if there are more, the client whose last request is oldest is forgotten."""


class RateLimiter:
    """Allows each client ``burst`` requests at once and ``per_second`` on average (a token bucket)."""

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
"""Maximum number of characters of a library's report that are logged."""
MAX_FRAMES = 4
"""Number of innermost frames of an exception that are logged."""
MAX_TRACKED_LINES = 1000
"""Maximum number of kinds of warnings and errors that are tracked; Sotto has about fifty."""

_PLACE_FIELD = "_place"
_REPEAT_FIELDS = ("component", "event", "role", "source", "target", "topic")
"""Log lines with equal values of these fields are repeats. No field contains data of an event."""


class _LossyStream:
    """Standard error that ignores write errors, so that a full disk does not stop a service."""

    def write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


class RepeatFilter:
    """Skips repeated warnings and errors.

    Two log lines are repeats if their ``_REPEAT_FIELDS`` are equal, or if the same line of a library's code wrote them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limiter = RateLimiter(1 / REPEAT_SECONDS, MAX_REPEATS, clock=clock, max_clients=MAX_TRACKED_LINES)
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


def configure_logs(*, as_json: bool) -> None:
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
    """Hide errors that aiokafka logs. Commands call this, because aiokafka retries after these errors."""
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
        # The rest of the line has a callback's arguments or a task's exception, which may quote input.
        text = text.partition("(")[0].partition("<")[0].rstrip()
    return "".join(sign if sign.isprintable() else "�" for sign in text[:MAX_TEXT_CHARACTERS])


def _without_message(value: Any) -> Any:
    """Replace an exception by its type, except OSErrors, which describe connections only."""
    if isinstance(value, BaseException) and not isinstance(value, OSError):
        return type(value).__name__
    return value


if TYPE_CHECKING:
    from opentelemetry import trace

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CONTEXT_HEADERS = ("traceparent", "tracestate")
MAX_LINKS = 128
"""Maximum number of links of the span of one batch."""


class TracingError(RuntimeError):
    """A trace exporter is configured but not installed; the message has the remedy."""


class _HasHeaders(Protocol):
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


class _ProcessTracer:
    """The tracer of this process; None if tracing is off."""

    tracer: trace.Tracer | None = None


def configure_tracing(service: str) -> None:
    """Trace this process if the environment names an OTLP endpoint (``OTEL_EXPORTER_OTLP_ENDPOINT``)."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        raise TracingError(
            f"{' or '.join(_ENDPOINTS)} is set, but the exporter is not installed; run: pip install 'sotto-dp[tracing]', or unset it"
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": f"sotto-{service}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    set_tracer_provider(provider)


def set_tracer_provider(provider: trace.TracerProvider | None) -> None:
    """Trace this process with a provider; None disables tracing."""
    _ProcessTracer.tracer = None if provider is None else provider.get_tracer("sotto")


def context_headers() -> list[tuple[str, bytes]]:
    """Return the current span's trace context as headers; empty without a span or OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return []
    from opentelemetry import trace  # noqa: PLC0415

    if not trace.get_current_span().get_span_context().is_valid:
        return []
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return [(name, text.encode()) for name, text in carrier.items()]


@contextmanager
def span(name: str, attributes: dict[str, Any], links: Sequence[trace.Link] = ()) -> Iterator[None]:
    """Open a span if this process traces; an error is recorded by its type only."""
    if _ProcessTracer.tracer is None:
        yield
        return
    with _ProcessTracer.tracer.start_as_current_span(
        name, attributes=attributes, links=links, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield
        except BaseException as error:
            from opentelemetry import trace  # noqa: PLC0415

            current.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))
            raise


@contextmanager
def batch_span(name: str, records: Sequence[_HasHeaders], attributes: dict[str, Any]) -> Iterator[None]:
    """Open a span for a batch with links to its records' spans; no span without links."""
    links = [] if _ProcessTracer.tracer is None else list(_make_links(records))
    if not links:
        yield
        return
    with span(name, {**attributes, "messaging.batch.message_count": len(records)}, links):
        yield


@cache
def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator()


def _make_links(records: Iterable[_HasHeaders]) -> Iterator[trace.Link]:
    from opentelemetry import trace  # noqa: PLC0415

    count = 0
    for record in records:
        if not record.headers:
            continue
        carrier = {
            name: value.decode("ascii", errors="replace")
            for name, value in record.headers
            if name in _CONTEXT_HEADERS and value is not None
        }
        context = trace.get_current_span(_propagator().extract(carrier)).get_span_context() if carrier else None
        if context is not None and context.is_valid:
            yield trace.Link(context)
            count += 1
            if count == MAX_LINKS:
                return
