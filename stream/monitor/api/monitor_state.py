"""The state that the web server's handlers use (tables, tokens, readiness), and the monitor's metrics.

Streams are no labels of metrics, because there would be too many series.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from schemas import STREAM_STATES, CloseStream, ExtendStream, OpenStream, Receipt, Request
from stream.client.answer_history import AnswerLog
from stream.engine.health import CacheCollector, ServiceName
from stream.errors import Refused
from stream.kafka.topic_creation import Inspection
from stream.kafka.topic_layouts import PARTITIONS
from stream.monitor.api import views
from stream.monitor.api.budget_models import Forecast
from stream.monitor.api.budget_views import forecast_budget
from stream.monitor.api.http_requests import ProblemError, RequestTurns
from stream.monitor.api.models import AccessRole, Overview, Readiness, ViewName
from stream.monitor.api.question_routes import Asker
from stream.monitor.api.service_models import WorkersView
from stream.monitor.api.source_views import stalled_sources
from stream.monitor.api.tokens import Bearer, TokenError, TokenFile, role_with_article
from stream.monitor.api.views import seconds_until_exhausted, source_row_with_periods
from stream.monitor.budget_history import HEADLINE_WINDOW, PACE_WINDOWS
from stream.monitor.entries import Series
from stream.monitor.monitor_alerts import Alerts
from stream.monitor.monitor_tables import ChangeTopic, MonitorTables
from stream.privacy.planning.noise_layouts import PlanError
from stream.settings import Settings

if TYPE_CHECKING:
    from stream.monitor.api.single_sign_on import SingleSignOn

_View = TypeVar("_View")

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
    "refusals": (),  # every few seconds: the share also depends on the time
}


class MonitorEndedError(RuntimeError):
    """The monitor's reader has ended; the log says why."""


@dataclass
class Monitor:
    """The context of all handlers.

    ``read_tokens`` returns the names file (users, roles, digests of tokens) or raises TokenError.
    """

    tables: MonitorTables
    read_tokens: Callable[[], TokenFile]
    settings: Settings
    send_request: Callable[[Request], Awaitable[Receipt]]
    """Sends a request to the budget service and waits for its committed receipt; Refused if it is refused."""
    readiness: Callable[[], Readiness]
    has_read_topics: Callable[[], bool] = lambda: True
    """Returns True once the tables have all records that were committed before the start."""
    clock: Callable[[], float] = time.time
    asker: Asker | None = None
    alerts: Alerts | None = None
    """The alerts, or None if the monitor does not show alerts."""
    answers: AnswerLog | None = None
    """Reads pages of answers; None if the monitor may not read answers."""
    planning_turns: RequestTurns = field(
        default_factory=lambda: RequestTurns(max_waiting=16, max_waiting_per_user=4)
    )
    """Lets one plan or curve be computed at a time, so that other services on this host keep their CPU time."""
    answer_turns: RequestTurns = field(
        default_factory=lambda: RequestTurns(max_waiting=16, max_waiting_per_user=4)
    )
    """Lets one page of answers be read at a time, to limit the load of the brokers."""
    view_turns: RequestTurns = field(
        default_factory=lambda: RequestTurns(max_waiting=1000, max_waiting_per_user=100, pause_factor=1.0)
    )
    """Limits views to half of the event loop's time, because the topic reader needs the loop too."""
    history: Series = field(default_factory=lambda: Series(width=3, spacing=HISTORY_SPACING, limit=361))
    """The installation's totals over the last hour."""
    workers: WorkersView = field(default_factory=lambda: WorkersView(time=0.0, members=[], partitions=[]))

    topics: Inspection | None = None
    """The latest check of the topics; None before the first check."""

    sign_on: SingleSignOn | None = None
    """Single sign-on; None if people have tokens only."""

    _complete: bool = False

    def bearer(self, text: str) -> Bearer | None:
        """Return the user of a token; raise TokenError if the names file is unreadable."""
        return self.read_tokens().bearer(text, self.clock())

    def is_valid(self, bearer: Bearer) -> bool:
        """Return True if a user's token or session is still valid."""
        if not bearer.token:
            return bearer.expires is not None and self.clock() < bearer.expires
        try:
            return self.read_tokens().is_valid(bearer, self.clock())
        except TokenError:
            return False

    def is_complete(self) -> bool:
        """Return True once the monitor has been ready, so that it also knows trail, processes and lags."""
        self._complete = self._complete or self.readiness().ready
        return self._complete

    def with_user(self, request: Request, user: Bearer) -> Request:
        """Return a request with the user's name, which the trail records.

        Analysts open and extend streams in their own name, for which they need an allotment, and close only
        their own streams. Operators may send every request, and may name the analyst of a stream.
        """
        request = request.model_copy(update={"by": user.name})
        if user.role != "analyst":
            return request
        match request:
            case OpenStream() | ExtendStream():
                source = request.source if isinstance(request, ExtendStream) else request.stream.source
                self._require_allotments(source, user)
                return request.model_copy(update={"analyst": user.name})
            case CloseStream():
                _, grant = views.find_stream(self.tables, request.stream)
                if grant.analyst == user.name:
                    return request
                problem = "stream: opened under another name; close only your own streams, or ask an operator"
            case _:
                problem = "only operators may send this request; use an operator's token"
        raise ProblemError(403, "forbidden", problem)

    def _require_allotments(self, source: str, user: Bearer) -> None:
        """Refuse an analyst's request if the budget has no allotments, because the analyst could use all of it.

        The monitor's copy of the ledger may be seconds old, but allotments are never removed.
        """
        population = views.find_source(self.tables, source).record.population or ""
        if not any(one.source == source or one.population == population for one, _ in self.tables.allotments):
            raise ProblemError(
                409,
                "refused",
                f"{user.name} has no allotment on this source or its population; an operator creates one with "
                "'sotto allot', or on the page",
            )

    async def plan_in_turn(
        self, user: str, is_disconnected: Callable[[], bool], planning: Callable[[], _View]
    ) -> _View:
        """Run a slow search in a thread, in turn with other users; answer a refusal with a 409."""
        async with self.planning_turns.turn(user, is_disconnected):
            try:
                return await asyncio.to_thread(planning)
            except Refused as error:
                asked, left = error.asked, error.left
                raise ProblemError(409, "refused", str(error)[:1024], asked=asked, left=left) from None
            except (PlanError, ValueError, ArithmeticError) as error:
                raise ProblemError(409, "refused", str(error)[:1024]) from None

    def overview(self) -> Overview:
        """Return a summary of the installation."""
        ready, now = self.readiness().ready, self.clock()
        stalled = stalled_sources(self.tables, self.workers, now) if ready else []
        return views.overview(self.tables, self.history, self.workers, stalled, ready=ready, now=now)

    def record_history(self) -> None:
        """Add the current totals to the history."""
        self.history.add((self.clock(), self.tables.totals.answered, self.tables.totals.tops))

    def set_workers(self, workers: WorkersView) -> None:
        """Replace the view of the workers."""
        self.workers = workers
        self.tables.changes["workers"] += 1

    def set_topics(self, topics: Inspection) -> None:
        """Replace the inspection of the topics."""
        self.topics = topics

    def version(self, view: ViewName) -> int:
        """Return a number that grows whenever a view may have changed."""
        return sum(self.tables.changes[topic] for topic in _CHANGED_BY[view])


def require_role(bearer: Bearer | None, role: AccessRole | None) -> None:
    """Raise a 403 if a user's role has not all rights of a role."""
    roles = get_args(AccessRole)
    if role is not None and (bearer is None or roles.index(bearer.role) < roles.index(role)):
        owner = "nobody" if bearer is None else f"{bearer.name} is {role_with_article(bearer.role)}"
        remedy = f"ask for a token of that role ('sotto token create NAME --role {role}'), or sign in with it"
        raise ProblemError(403, "forbidden", f"this is for {role_with_article(role)}, and {owner}; {remedy}")


def count_by_kind(inspection: Inspection) -> dict[str, int]:
    """Count topics by their worst difference from the layout: retention, partitions or other settings."""
    losing = {one.topic for one in inspection.retention_differences}
    partitions = {one.topic for one in inspection.differences if one.setting == PARTITIONS} - losing
    others = {one.topic for one in inspection.differences} - losing - partitions
    return {"losing": len(losing), "partitions": len(partitions), "settings": len(others)}


CONTENT_TYPE = CONTENT_TYPE_LATEST
DRY_SOON_SECONDS = 3600.0
"""Time within which streams use up their charged answers that are counted as an early warning."""

_Family = GaugeMetricFamily | CounterMetricFamily


def metrics_text(monitor: Monitor) -> bytes:
    """Return all metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(_MetricsCollector(monitor))
    return generate_latest(registry)


class _MetricsCollector(Collector):
    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._tables = monitor.tables

    def collect(self) -> Iterable[_Family]:
        yield from self._installation()
        yield from self._sources()
        yield from self._streams()
        yield from self._partitions()
        yield from self._topics()
        yield from CacheCollector("monitor").collect()

    def _installation(self) -> Iterable[_Family]:
        tables, trail = self._tables, self._tables.trail
        yield _gauge("ready", "1 if the tables are up to date.", self._monitor.readiness().ready)
        yield CounterMetricFamily(
            "sotto_monitor_records",
            "Records read from the installation's topics, without dead letters of live topics.",
            value=tables.records - tables.hidden_dead_letters,
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
        yield _gauge("trail_entries", "Entries of the audit trail.", trail.entries)
        yield _gauge(
            "trail_unread_entries", "Earlier entries of the trail that are still being read.", trail.unread
        )
        yield _gauge(
            "trail_broken",
            "1 if the chain of the read entries of the audit trail is broken.",
            trail.broken is not None,
        )

    def _sources(self) -> Iterable[_Family]:
        monitor, tables, now = self._monitor, self._tables, self._monitor.clock()
        # Of a source's periods only the latest is shown, because they could be thousands of labels.
        entries = {name: tables.sources[name] for name in tables.source_periods if name in tables.sources}
        shown = {name: source_row_with_periods(tables, entry) for name, entry in entries.items()}
        rows = {name: row.current or row for name, row in shown.items()}
        epsilon = GaugeMetricFamily(
            "sotto_monitor_source_epsilon",
            "A source's budget ε (of its latest period), by part; the budget service adds up what is spent.",
            labels=["source", "part"],
        )
        for name, row in rows.items():
            for part in ("total", "granted", "spent", "refunded", "left"):
                epsilon.add_metric([name, part], getattr(row, part).epsilon)
        yield epsilon
        shares = {
            name: row.left_share if (share := row.population_left_share) is None else min(row.left_share, share)
            for name, row in rows.items()
        }
        yield _gauges(
            "source_left_ratio", "Ungranted share of a source's or its population's budget.", "source", shares
        )
        halted = {name: row.state == "halted" for name, row in rows.items()}
        yield _gauges("source_halted", "1 if a source is halted.", "source", halted)
        headline = PACE_WINDOWS.index(HEADLINE_WINDOW)
        yield _gauges(
            "source_runs_out_seconds",
            "Time until a source's budget is used up at the last week's pace; +Inf: never, or not known in the first hour.",
            "source",
            {
                name: seconds_until_gone(forecast_budget(tables, one, now)[headline], now)
                for name, one in entries.items()
            },
        )
        ready = monitor.readiness().ready
        stalled = {one.source for one in stalled_sources(tables, monitor.workers, now)} if ready else set()
        live = [name for name, entry in entries.items() if ready and entry.record.source.kind == "events"]
        yield _gauges(
            "topic_stalled",
            "1 if a live topic's next window should have been answered by now.",
            "source",
            {name: name in stalled for name in live},
        )

    def _streams(self) -> Iterable[_Family]:
        tables, totals, now = self._tables, self._tables.totals, self._monitor.clock()
        yield _gauges(
            "streams", "Streams by state.", "state", {state: totals.states[state] for state in STREAM_STATES}
        )
        yield _gauge(
            "streams_nearly_dry",
            "Open streams with at most 10 % of their charged answers left.",
            totals.nearly_dry,
        )
        yield _gauge(
            "streams_not_answering",
            "Open streams that their worker does not answer: it lacks the noise key, the table or an upgrade.",
            totals.not_answering,
        )
        seconds_left = (seconds_until_exhausted(tables, entry, now) for entry in tables.streams_of())
        yield _gauge(
            "streams_dry_within_hour",
            "Open streams that use up their charged answers within an hour at the current rate.",
            sum(left is not None and left <= DRY_SOON_SECONDS for left in seconds_left),
        )
        yield CounterMetricFamily(
            "sotto_monitor_answers", "Answered questions of all streams.", value=totals.answered
        )
        yield CounterMetricFamily(
            "sotto_monitor_charged_answers", "Charged answers of all streams.", value=totals.tops
        )

    def _partitions(self) -> Iterable[_Family]:
        workers, roles = self._monitor.workers, get_args(ServiceName)
        rows = {role: [row for row in workers.partitions if row.role == role] for role in roles}
        lag = {role: sum(row.lag for row in found) for role, found in rows.items() if found}
        yield _gauges(
            "lag_events",
            "Unprocessed offsets, by service: events, and the ends of transactions between them.",
            "role",
            lag,
        )
        unassigned = {role: sum(row.member is None for row in found) for role, found in rows.items() if found}
        yield _gauges("unassigned_partitions", "Partitions without a process.", "role", unassigned)
        members = {role: sum(member.role == role for member in workers.members) for role in roles}
        yield _gauges("members", "Processes, by service.", "role", members)

    def _topics(self) -> Iterable[_Family]:
        """Return the topics' metrics; before the first check without samples, because 0 means no difference."""
        topics = self._monitor.topics
        yield _gauges(
            "differing_topics",
            "Topics that lose records, or whose partitions or settings differ from their layout.",
            "kind",
            {} if topics is None else count_by_kind(topics),
        )
        hidden = None if topics is None else len(topics.hidden)
        yield _gauge("unchecked_topics", "Topics whose configuration the monitor may not read.", hidden)


def seconds_until_gone(forecast: Forecast, now: float) -> float:
    """Return the seconds until a budget is used up; infinite if no end is forecast."""
    match forecast.outcome:
        case "gone":
            return 0.0
        case "runs-out":
            return max((forecast.at or now) - now, 0.0)
        case _:
            return math.inf


def _gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"sotto_monitor_{name}", text, value=value)


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Return a metric with a value for each value of a label."""
    family = GaugeMetricFamily(f"sotto_monitor_{name}", text, labels=[label])
    for label_value, value in values.items():
        family.add_metric([label_value], value)
    return family
