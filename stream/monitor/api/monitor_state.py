"""The objects that the web server's handlers use: tables, tokens, readiness and clients."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from schemas import Receipt, Request
from stream.kafka.topics.creation import Inspection
from stream.monitor.api import views
from stream.monitor.api.models import Overview, Readiness, ViewName
from stream.monitor.api.problems import RequestTurns
from stream.monitor.api.question_routes import Asker
from stream.monitor.api.service_models import WorkersView
from stream.monitor.api.tokens import Bearer, TokenError, TokenFile
from stream.monitor.state.entries import Series
from stream.monitor.state.monitor_alerts import Alerts
from stream.monitor.state.monitor_tables import ChangeTopic, Tables
from stream.settings import Settings

HISTORY_SPACING = 10.0
"""Seconds between points of the installation's history."""

_CHANGED_BY: dict[ViewName, tuple[ChangeTopic, ...]] = {
    "overview": ("sources", "streams", "rejected", "workers"),
    "sources": ("sources", "streams"),
    "budget": ("sources", "streams", "trail"),
    "spending": ("streams",),
    "trail": ("trail",),
    "populations": ("sources",),
    "population": ("sources", "streams", "trail"),
    "allotments": ("sources",),
    "streams": ("streams",),
    "stream": ("streams",),
    "rejected": ("rejected",),
    "workers": ("workers",),
    "alerts": ("alerts", "streams"),
}


class MonitorEndedError(RuntimeError):
    """The monitor's reader has ended; the log says why."""


class Requester(Protocol):
    """Sends requests to the budget service: an AsyncClient, or a fake in tests."""

    def request(self, request: Request, /) -> Awaitable[Receipt]:
        """Send a request and wait for its committed receipt; RefusedError if it is refused."""


@dataclass
class Monitor:
    """The context of all handlers. ``names`` returns the names file or raises TokenError."""

    tables: Tables
    names: Callable[[], TokenFile]
    settings: Settings
    requester: Requester
    readiness: Callable[[], Readiness]
    clock: Callable[[], float] = time.time
    asker: Asker | None = None
    alerts: Alerts | None = None
    """The alerts, or None if the monitor does not read answers."""
    planning: RequestTurns = field(default_factory=lambda: RequestTurns(most=16, each=4))
    """Lets one plan or curve be computed at a time, to leave processors to the host's services."""
    showing: RequestTurns = field(default_factory=lambda: RequestTurns(most=1000, each=100, rest=1.0))
    """Limits views to half of the event loop's time: the tables' reader needs the loop too."""
    history: Series = field(default_factory=lambda: Series(width=3, spacing=HISTORY_SPACING, limit=361))
    """The installation's totals over the last hour."""
    workers: WorkersView = field(default_factory=lambda: WorkersView(time=0.0, members=[], partitions=[]))

    topics: Inspection | None = None
    """The latest check of the topics; None before the first one."""

    _complete: bool = False

    def bearer(self, text: str) -> Bearer | None:
        """Return the user of a token; TokenError if the names file is unreadable."""
        return self.names().bearer(text, self.clock())

    def still_knows(self, bearer: Bearer) -> bool:
        """Return True if a user's token is still valid."""
        try:
            return self.names().still_knows(bearer, self.clock())
        except TokenError:
            return False

    def complete(self) -> bool:
        """Return True as soon as the tables contain all records committed before the start, and ever after."""
        self._complete = self._complete or self.readiness().ready
        return self._complete

    def overview(self) -> Overview:
        """Return a summary of the installation."""
        return views.overview(
            self.tables, self.history, self.workers, ready=self.readiness().ready, now=self.clock()
        )

    def remember(self) -> None:
        """Add the current totals to the history."""
        self.history.add((self.clock(), self.tables.totals.answered, self.tables.totals.tops))

    def show_workers(self, workers: WorkersView) -> None:
        """Replace the view of the workers."""
        self.workers = workers
        self.tables.changes["workers"] += 1

    def show_topics(self, topics: Inspection) -> None:
        """Replace the inspection of the topics."""
        self.topics = topics

    def version(self, view: ViewName) -> int:
        """Return a number that grows whenever a view may have changed."""
        return sum(self.tables.changes[topic] for topic in _CHANGED_BY[view])
