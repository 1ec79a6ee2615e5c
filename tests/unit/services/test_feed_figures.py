"""A feed's counters exist from its start, so that the first event shows as an increase from 0."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from schemas import Categories, Dates, Integers
from stream.engine.health import ServiceHealth
from stream.feeds import event_fields, event_intake
from stream.feeds.count_processor import FeedProcessor
from stream.kafka.topic_layouts import TopicsError
from stream.processing import dead_letters
from stream.processing.dead_letters import Rejection
from stream.processing.topic_names import Topics
from stream.services import feed_service
from stream.services.feed_service import DEAD_LETTER_CODES, FeedMetrics, FeedService, seconds_behind
from stream.settings import Settings
from tests.processing import process_records
from tests.unit.feeds.topic import (
    HOUR,
    ArrivedRecord,
    FixedDefinitions,
    event,
    source,
    standing_definition,
    start,
)


def test_feed_figures_count_every_rejection_code_from_start() -> None:
    modules = (event_fields, dead_letters, event_intake)
    rejections = [
        one
        for module in modules
        for one in vars(module).values()
        if isinstance(one, Rejection | event_fields.Flaw)
    ]
    domains = (
        Categories(values=("a",)),
        Integers(minimum=0, maximum=1),
        Dates(kind="date", minimum="2024-01-01", maximum="2024-01-02"),
    )
    codes = {one.code for one in (*rejections, *(event_fields.flaw_of("a", domain) for domain in domains))}
    assert set(DEAD_LETTER_CODES) == codes
    registry = CollectorRegistry()
    FeedMetrics(registry)
    for code in codes:
        assert registry.get_sample_value("sotto_feed_dead_letters_total", {"code": code}) == 0


def test_seconds_behind_counts_windows_held_up_by_partition() -> None:
    about = source(clock="marks")
    feeds = [start(about, FixedDefinitions(standing_definition(about))) for _ in range(2)]
    for feed in feeds:
        feed.collect_due_outputs(0.0)
    assert seconds_behind(about, feeds, 0.0) == 0.0
    for hour, behind in ((1, 0), (3, 7200)):
        process_records(feeds[0], [ArrivedRecord(hour, 0, None, headers=[("sotto-mark", b"%d" % (hour * HOUR))])])
        assert seconds_behind(about, feeds, 0.0) == behind
    process_records(feeds[1], [ArrivedRecord(0, 0, None, headers=[("sotto-mark", b"%d" % (2 * HOUR))])])
    assert seconds_behind(about, feeds, 0.0) == 3600


class Serving:
    """An engine with one processor."""

    def __init__(self, *processors: FeedProcessor) -> None:
        self._processors = processors

    def processors(self) -> tuple[FeedProcessor, ...]:
        return self._processors

    def count_unread(self) -> int:
        return 0


def test_feed_reports_refused_events_once_a_minute() -> None:
    """The gauge shows the share at once; the log has a warning per minute while events are refused."""
    about, registry = source(), CollectorRegistry()
    metrics = FeedMetrics(registry)
    feed = start(about, FixedDefinitions(standing_definition(about)))
    engines: Any = {"flights": Serving(feed)}
    offset = 0
    with capture_logs() as lines:
        for now, refused in ((0.0, 0), (1.0, 3), (30.0, 3), (61.0, 3), (200.0, 0)):
            process_records(
                feed, [ArrivedRecord(offset + at, 0, b"{" if at < refused else event("ann", 0)) for at in range(4)]
            )
            offset += 4
            metrics.update_metrics(engines, {"flights": about}, now)
            found = registry.get_sample_value("sotto_feed_refused_ratio", {"source": "flights"})
            assert found == {0.0: 0.0, 1.0: 0.1, 30.0: 0.5, 61.0: 0.5, 200.0: 0.1}[now]
    assert [(line["event"], line["source"], line["share"], line["latest_events"]) for line in lines] == [
        ("events refused", "flights", "10 to 50 %", 8),
        ("events refused", "flights", "50 to 90 %", 16),
    ]
    assert lines[0]["reason"].startswith("malformed: ")
    metrics.drop("flights")
    assert registry.get_sample_value("sotto_feed_refused_ratio", {"source": "flights"}) is None


def test_feed_logs_share_of_late_events_of_each_minute() -> None:
    """Late events are in no answer and become no dead letters, so the log has their share of the last minute."""
    about = source()
    metrics = FeedMetrics(CollectorRegistry())
    feed = start(about, FixedDefinitions(standing_definition(about)))
    engines: Any = {"flights": Serving(feed)}
    with capture_logs() as lines:
        for step, (now, times) in enumerate(
            ((0.0, (0, HOUR)), (1.0, (0, 2 * HOUR)), (61.0, (0, 3 * HOUR)), (99.0, (0,)), (121.0, ()), (199.0, ()))
        ):
            arrived = [
                ArrivedRecord(2 * step + at, (step + 1) * HOUR, event(f"p{step}", one))
                for at, one in enumerate(times)
            ]
            process_records(feed, arrived)
            metrics.update_metrics(engines, {"flights": about}, now)
    assert [(line["event"], line["source"], line["share"], line["seconds"]) for line in lines] == [
        ("events late", "flights", "50 to 90 %", 61),
        ("events late", "flights", "90 to 100 %", 60),
    ]
    assert "open a stream with more lateness" in lines[0]["reason"]


async def test_source_whose_topic_grew_has_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine ended, so a lag of 0 would be false; the feed looks for the topic again and goes on."""
    about, health, found = source(), ServiceHealth("feed"), [3]
    asked = asyncio.Event()

    class GrowingTopicEngine(Serving):
        refusal = ""  # a second rebalance may clear it before the engine ends

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

        async def run(self) -> None:
            service._feed_metrics.update_metrics(service._engines, service._served_sources, 0.0)
            assert lag() == 0.0

    async def find(*_: Any) -> int:
        if found:
            return found.pop()
        asked.set()
        raise TopicsError("topic has 4 partitions, and had 3")

    def lag() -> float | None:
        return health.metrics.registry.get_sample_value("sotto_feed_lag_seconds", {"source": about.source})

    monkeypatch.setattr(feed_service, "Engine", GrowingTopicEngine)
    service = FeedService(Settings(), Topics("sotto"), health, find=find)
    counting = asyncio.create_task(service._run_counting_engine(about))
    await asyncio.wait({counting, asyncio.create_task(asked.wait())}, return_when="FIRST_COMPLETED")
    service._feed_metrics.update_metrics(service._engines, service._served_sources, 1.0)
    assert (counting.done(), lag()) == (False, None)
    counting.cancel()
    with suppress(asyncio.CancelledError):
        await counting
