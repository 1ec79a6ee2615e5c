"""Exposes the monitor's metrics for Prometheus, and checks the topics periodically.

Metrics have base units. Streams are not labels, because there would be too many series.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Final, NoReturn, get_args

from aiokafka.errors import KafkaError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from schemas import Amount
from stream.engine.health import ServiceName
from stream.kafka.topics.creation import Inspection, inspect_topics
from stream.kafka.topics.layouts import PARTITIONS, Difference, TopicsError
from stream.log import get_logger
from stream.monitor.api.budget_models import Forecast
from stream.monitor.api.monitor_state import Monitor
from stream.monitor.api.views import dry_in, forecasts, source_row
from stream.monitor.state.budget_history import HEADLINE_WINDOW, PACE_WINDOWS
from stream.monitor.state.entries import STATES, SourceEntry
from stream.settings import Settings

CHECK_SECONDS: Final = 60.0
"""Seconds between two checks of the topics."""

log = get_logger("monitor")


class TopicWatch:
    """Compares all topics with their layout periodically and passes each result to ``show``."""

    def __init__(self, settings: Settings, show: Callable[[Inspection], None]) -> None:
        self._settings = settings
        self._show = show
        self._told: set[Difference] = set()

    async def run(self) -> NoReturn:
        """Check until cancelled; retry after errors."""
        while True:
            try:
                self.add_inspection(await inspect_topics(self._settings))
            except (KafkaError, TopicsError, OSError, TimeoutError) as error:
                reason = str(error) if isinstance(error, TopicsError) else type(error).__name__
                log.warning("cannot inspect the topics", reason=reason)
            await asyncio.sleep(CHECK_SECONDS)

    def add_inspection(self, found: Inspection) -> None:
        """Show an inspection and log new differences."""
        for one in found.differences:
            if one not in self._told:
                log.warning(
                    "topic differs", topic=one.topic, setting=one.setting, actual=one.actual, wanted=one.wanted
                )
        self._told = set(found.differences)
        self._show(found)


def by_kind(found: Inspection) -> dict[str, int]:
    """Count topics by their worst difference: required records deleted, partitions, other settings."""
    losing = {one.topic for one in found.losses}
    partitions = {one.topic for one in found.differences if one.setting == PARTITIONS} - losing
    others = {one.topic for one in found.differences} - losing - partitions
    return {"losing": len(losing), "partitions": len(partitions), "settings": len(others)}


CONTENT_TYPE = CONTENT_TYPE_LATEST
DRY_SOON = 3600.0
"""Seconds within which a stream must run dry to be counted as an early warning."""

_Family = GaugeMetricFamily | CounterMetricFamily


def exposition(monitor: Monitor) -> bytes:
    """Return all metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_Figures(monitor))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def collect(self) -> Iterable[_Family]:
        yield from self._installation()
        yield from self._sources()
        yield from self._streams()
        yield from self._partitions()
        yield from self._topics()

    def _installation(self) -> Iterable[_Family]:
        tables, readiness = self._monitor.tables, self._monitor.readiness()
        yield _gauge("ready", "1 if the tables are up to date.", readiness.ready)
        yield CounterMetricFamily(
            "sotto_monitor_records",
            "Records read from the installation's topics, without dead letters of live topics.",
            value=tables.records - tables.passed_over,
        )
        yield CounterMetricFamily(
            "sotto_monitor_unreadable_records", "Records that this version cannot read.", value=tables.unreadable
        )
        rejected = CounterMetricFamily(
            "sotto_monitor_rejected_events", "Dead letters in the topic, by reason.", labels=["code"]
        )
        for code, count in tables.rejected.items():
            rejected.add_metric([code], count)
        yield rejected
        trail = tables.trail
        yield _gauge("trail_entries", "Entries of the audit trail.", trail.entries)
        yield _gauge("trail_broken", "1 if the chain of the audit trail is broken.", trail.broken is not None)

    def _sources(self) -> Iterable[_Family]:
        epsilon = GaugeMetricFamily(
            "sotto_monitor_source_epsilon", "A source's budget ε, by part.", labels=["source", "part"]
        )
        left = GaugeMetricFamily(
            "sotto_monitor_source_left_ratio", "Share of a source's budget that is not granted.", labels=["source"]
        )
        halted = GaugeMetricFamily("sotto_monitor_source_halted", "1 if a source is halted.", labels=["source"])
        for name, entry in self._registered():
            row = source_row(entry)
            parts: dict[str, Amount] = {
                "total": row.total,
                "granted": row.granted,
                "spent": row.spent,
                "refunded": row.refunded,
                "left": row.left,
            }
            for part, amount in parts.items():
                epsilon.add_metric([name, part], amount.epsilon)
            left.add_metric([name], row.left_share)
            halted.add_metric([name], row.state == "halted")
        yield from (epsilon, left, halted, self._runs_out())

    def _registered(self) -> Iterable[tuple[str, SourceEntry]]:
        """Return all sources except accounts of periods, which could be thousands of labels."""
        tables = self._monitor.tables
        return ((name, tables.sources[name]) for name in tables.source_periods if name in tables.sources)

    def _runs_out(self) -> _Family:
        tables, now = self._monitor.tables, self._monitor.clock()
        lasts = GaugeMetricFamily(
            "sotto_monitor_source_runs_out_seconds",
            "Time until a source's budget is used up at the last week's pace; +Inf: never.",
            labels=["source"],
        )
        for name, entry in self._registered():
            headline = forecasts(tables, entry, now)[PACE_WINDOWS.index(HEADLINE_WINDOW)]
            lasts.add_metric([name], seconds_until_gone(headline, now))
        return lasts

    def _streams(self) -> Iterable[_Family]:
        tables, now = self._monitor.tables, self._monitor.clock()
        streams = GaugeMetricFamily("sotto_monitor_streams", "Streams by state.", labels=["state"])
        for state in STATES:
            streams.add_metric([state], tables.totals.states[state])
        yield streams
        yield _gauge(
            "streams_nearly_dry",
            "Open streams with at most 10 % of their charged answers left.",
            tables.totals.nearly_dry,
        )
        yield _gauge(
            "streams_not_answering",
            "Open streams whose worker lacks the noise key, the table or updates, and does not answer.",
            tables.totals.not_answering,
        )
        soon = sum((left := dry_in(entry, now)) is not None and left <= DRY_SOON for entry in tables.streams_of())
        yield _gauge(
            "streams_dry_within_hour",
            "Open streams that use up their charged answers within an hour at the current rate.",
            soon,
        )
        yield CounterMetricFamily(
            "sotto_monitor_answers", "Answered questions of all streams.", value=tables.totals.answered
        )
        yield CounterMetricFamily(
            "sotto_monitor_charged_answers", "Charged answers of all streams.", value=tables.totals.tops
        )

    def _partitions(self) -> Iterable[_Family]:
        workers = self._monitor.workers
        lag = GaugeMetricFamily("sotto_monitor_lag_events", "Unprocessed events, by service.", labels=["role"])
        idle = GaugeMetricFamily(
            "sotto_monitor_unassigned_partitions", "Partitions without a process.", labels=["role"]
        )
        members = GaugeMetricFamily("sotto_monitor_members", "Processes, by service.", labels=["role"])
        for role in get_args(ServiceName):
            rows = [row for row in workers.partitions if row.role == role]
            if rows:
                lag.add_metric([role], sum(row.lag for row in rows))
                idle.add_metric([role], sum(row.member is None for row in rows))
            members.add_metric([role], sum(member.role == role for member in workers.members))
        yield from (lag, idle, members)

    def _topics(self) -> Iterable[_Family]:
        """Return the topics' metrics, before the first check without samples: 0 would mean no difference."""
        differing = GaugeMetricFamily(
            "sotto_monitor_differing_topics",
            "Topics that lose records, or whose partitions or settings differ from their layout.",
            labels=["kind"],
        )
        unchecked = GaugeMetricFamily(
            "sotto_monitor_unchecked_topics", "Topics whose configuration the monitor may not read."
        )
        if (topics := self._monitor.topics) is not None:
            for kind, count in by_kind(topics).items():
                differing.add_metric([kind], count)
            unchecked.add_metric([], len(topics.hidden))
        yield from (differing, unchecked)


def seconds_until_gone(forecast: Forecast, now: float) -> float:
    """Return the seconds until a budget is used up; infinite if no end is forecast."""
    match forecast.outcome:
        case "gone":
            return 0.0
        case "runs-out":
            return max((forecast.at or now) - now, 0.0)
        case _:
            return math.inf


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"sotto_monitor_{name}", text, value=value)
