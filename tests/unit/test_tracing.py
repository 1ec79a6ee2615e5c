"""Traces follow records through Kafka's headers, show nothing of their content, and cost nothing without tracing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stream.diagnostics import MAX_LINKS, batch_span, configure_tracing, context_headers, set_tracer_provider, span
from stream.processing.protocol import Record


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """The spans that this process makes during the test."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    set_tracer_provider(provider)
    yield kept
    set_tracer_provider(None)


def sent(offset: int = 0, headers: list[tuple[str, bytes]] | None = None) -> Record:
    return Record("sotto.queries", 0, offset, 0, b"ward", b"private", headers or [])


def only(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = (one for one in exporter.get_finished_spans() if one.name == name)
    return found


def test_batch_is_linked_to_the_spans_of_its_questions(exporter: InMemorySpanExporter) -> None:
    records = []
    for offset, name in enumerate(("first", "second")):
        with span(name, {}):
            records.append(sent(offset, context_headers()))
    with batch_span("worker answers", [*records, sent(2)], {}):
        pass
    batch = only(exporter, "worker answers")
    asked = [only(exporter, name).get_span_context() for name in ("first", "second")]
    assert [link.context.span_id for link in batch.links] == [one.span_id for one in asked if one]
    assert batch.attributes is not None
    assert batch.attributes["messaging.batch.message_count"] == 3


def test_batch_without_traced_questions_makes_no_span(exporter: InMemorySpanExporter) -> None:
    with batch_span("worker answers", [sent(), sent(1, [("other", b"header")])], {}):
        pass
    assert exporter.get_finished_spans() == ()


@pytest.mark.parametrize("header", [b"", b"\xff\xfe", b"00-0-0-0", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"])
def test_invalid_trace_context_is_ignored(exporter: InMemorySpanExporter, header: bytes) -> None:
    with batch_span("worker answers", [sent(0, [("traceparent", header)])], {}):
        pass
    assert exporter.get_finished_spans() == ()


def test_batch_links_a_limited_number_of_spans(exporter: InMemorySpanExporter) -> None:
    with span("asker", {}):
        records = [sent(offset, context_headers()) for offset in range(2 * MAX_LINKS)]
    with batch_span("worker answers", records, {}):
        pass
    assert len(only(exporter, "worker answers").links) == MAX_LINKS


def test_span_shows_only_the_type_of_an_error(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="private"), span("failing", {}):
        raise ValueError("private")
    failed = only(exporter, "failing")
    assert failed.status.description == "ValueError"
    assert "private" not in failed.to_json()


def test_span_without_a_provider_sends_no_header() -> None:
    """Without a provider no span is made, so there is no trace context."""
    with span("nobody", {}):
        assert context_headers() == []


def test_nothing_is_traced_unless_an_exporter_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    configure_tracing("worker")
    with span("nobody", {}):
        assert context_headers() == []
