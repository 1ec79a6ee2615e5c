"""What feeds count beside what every engine does. These figures are exact and about people: as private as the live topics."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge

from schemas import EventsSource
from stream.kafka.engine import Engine
from stream.processors.feeds.processor import FeedProcessor

CODES: Final = (
    *("ahead", "before", "malformed", "mark", "number", "oversize", "partition", "person", "time"),
    *("unknown category", "unreadable"),
)
"""Why events of live topics are set aside."""


class FeedFigures:
    """Counters and gauges of all live topics of a process, brought up to date at each look."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._counters = {
            "counted": Counter(
                "sotto_feed_counted", "Events that count, once for each window.", registry=registry
            ),
            "late": Counter(
                "sotto_feed_late", "Events that came too late, once for each window.", registry=registry
            ),
            "left_out": Counter(
                "sotto_feed_left_out",
                "Events beyond what one person may contribute, once for each window.",
                registry=registry,
            ),
        }
        self._rejected = Counter(
            "sotto_feed_dead_letters", "Events set aside, by the reason's code.", ["code"], registry=registry
        )
        for code in CODES:  # to Prometheus a series that begins at 1 has not grown
            self._rejected.labels(code)
        self._windows = Gauge(
            "sotto_feed_open_windows", "Windows in which something was counted.", registry=registry
        )
        self._people = Gauge(
            "sotto_feed_people", "People counted in open windows, once for each.", registry=registry
        )
        self._lag_events = Gauge(
            "sotto_feed_lag_events",
            "Events of a live topic that are not read yet, in partitions of this process.",
            ["source"],
            registry=registry,
        )
        self._lag_seconds = Gauge(
            "sotto_feed_lag_seconds",
            "How far the slowest partition's clock is behind: behind the time, or, where marks tell it, the foremost's.",
            ["source"],
            registry=registry,
        )
        self._seen: WeakKeyDictionary[FeedProcessor, Counts[str]] = WeakKeyDictionary()

    def look(self, engines: Mapping[str, Engine], sources: Mapping[str, EventsSource], now: float) -> None:
        """Add what the processors have counted since the last look; engines stand under their sources' names.

        ``now`` is in seconds since 1970.
        """
        windows = people = 0
        for name, engine in engines.items():
            processors = [one for one in engine.processors() if isinstance(one, FeedProcessor)]
            for processor in processors:
                self._add(processor)
                windows += processor.open_windows
                people += processor.people
            if (source := sources.get(name)) is not None:
                self._lag_events.labels(name).set(engine.unread())
                self._lag_seconds.labels(name).set(seconds_behind(source, processors, now))
        self._windows.set(windows)
        self._people.set(people)

    def drop(self, source: str) -> None:
        """Forget the lag of a source that is not served any more."""
        for gauge in (self._lag_events, self._lag_seconds):
            with suppress(KeyError):  # it was never shown
                gauge.remove(source)

    def _add(self, processor: FeedProcessor) -> None:
        now = Counts({name: getattr(processor, name) for name in self._counters})
        now.update({f"code {code}": count for code, count in processor.rejected.items()})
        before = self._seen.get(processor, Counts())
        self._seen[processor] = now
        for name, count in (now - before).items():
            if name in self._counters:
                self._counters[name].inc(count)
            else:
                self._rejected.labels(name.removeprefix("code ")).inc(count)


def seconds_behind(source: EventsSource, processors: Sequence[FeedProcessor], now: float) -> float:
    """How far the slowest clock is behind; where nothing has come for a while that is about the source's ``idle``.

    A clock that has not begun holds up its first window, for as long as the foremost is beyond that.
    """
    moments = [one.moment for one in processors if one.moment >= 0]
    foremost = now * 1000 if source.clock == "broker" else max(moments, default=0)
    held_up = [reading for one in processors if one.moment < 0 and (reading := one.next_close) is not None]
    return max(0.0, foremost - min([*moments, *held_up], default=foremost)) / 1000
