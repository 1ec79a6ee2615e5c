"""The monitor as its web server sees it: tables, readiness, workers, and a way to make requests."""

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
    """The monitor's reader cannot go on; the log says why."""


class Requester(Protocol):
    """Whoever takes requests to the budget service; stream.client.AsyncClient is one."""

    def request(self, request: Request, /) -> Awaitable[Receipt]:
        """Send a request and wait until the ledger has committed its receipt; Refused if it is refused."""


@dataclass
class Monitor:
    """What handlers work with. ``names`` gives those who may come in, or raises TokenError; ``clock`` seconds since the epoch."""

    tables: Tables
    names: Callable[[], TokenFile]
    settings: Settings
    requester: Requester
    readiness: Callable[[], Readiness]
    clock: Callable[[], float] = time.time
    asker: Asker | None = None
    alerts: Alerts | None = None
    """Alerts, where answers are read for them."""
    planning: RequestTurns = field(default_factory=lambda: RequestTurns(most=16, each=4))
    """One plan or curve at a time: the services on this machine keep their processors."""
    showing: RequestTurns = field(default_factory=lambda: RequestTurns(most=1000, each=100, rest=1.0))
    """One answer made of the tables at a time, half of the event loop's time at most: what reads the tables runs there too."""
    history: Series = field(default_factory=views.new_history)
    workers: WorkersView = field(default_factory=lambda: WorkersView(time=0.0, members=[], partitions=[]))

    topics: Inspection | None = None
    """How the topics are set; None until that is known."""

    _complete: bool = False

    def bearer(self, text: str) -> Bearer | None:
        """Whose token this is; TokenError while the names cannot be read."""
        return self.names().bearer(text, self.clock())

    def still_knows(self, bearer: Bearer) -> bool:
        """Whether somebody who came in would be let in again."""
        try:
            return self.names().still_knows(bearer, self.clock())
        except TokenError:
            return False

    def complete(self) -> bool:
        """Whether the tables hold all that was committed when the monitor started; once they do they always will."""
        self._complete = self._complete or self.readiness().ready
        return self._complete

    def overview(self) -> Overview:
        """The installation at a glance."""
        return views.overview(
            self.tables, self.history, self.workers, ready=self.readiness().ready, now=self.clock()
        )

    def remember(self) -> None:
        """Add this moment's totals to the history."""
        views.remember(self.history, self.tables, self.clock())

    def show_workers(self, workers: WorkersView) -> None:
        """Show another picture of the workers."""
        self.workers = workers
        self.tables.changes["workers"] += 1

    def show_topics(self, topics: Inspection) -> None:
        """Show another picture of the topics."""
        self.topics = topics

    def version(self, view: ViewName) -> int:
        """A number that grows whenever a view may have changed."""
        return sum(self.tables.changes[topic] for topic in _CHANGED_BY[view])
