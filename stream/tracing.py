"""OpenTelemetry traces, with W3C Trace Context in Kafka's headers.

A client sends the context of its current span with each record. The service that processes a batch
makes one span for it, with links to the contexts of its records. Spans have topics, partitions and
counts, and never contents of queries or answers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opentelemetry import trace

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_CONTEXT_HEADERS = ("traceparent", "tracestate")
MAX_LINKS = 128
"""Most links of one batch's span."""


class TracingError(RuntimeError):
    """A trace exporter is configured but not installed; the message has the remedy."""


class _HasHeaders(Protocol):
    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


class _ProcessTracer:
    """The tracer of this process; None if tracing is off."""

    tracer: trace.Tracer | None = None


def configure(service: str) -> None:
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
