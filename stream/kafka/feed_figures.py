"""What feeds count beside what every engine does. These figures are exact and about people: as private as the live topics."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from prometheus_client import CollectorRegistry, Counter, Gauge

from stream.kafka.engine import Engine
from stream.processors.feeds.processor import FeedProcessor


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
        self._windows = Gauge(
            "sotto_feed_open_windows", "Windows in which something was counted.", registry=registry
        )
        self._people = Gauge(
            "sotto_feed_people", "People counted in open windows, once for each.", registry=registry
        )
        self._seen: WeakKeyDictionary[FeedProcessor, Counts[str]] = WeakKeyDictionary()

    def look(self, engines: Iterable[Engine]) -> None:
        """Add what the processors have counted since the last look."""
        windows = people = 0
        for engine in engines:
            for processor in engine.processors():
                if isinstance(processor, FeedProcessor):
                    self._add(processor)
                    windows += processor.open_windows
                    people += processor.people
        self._windows.set(windows)
        self._people.set(people)

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
