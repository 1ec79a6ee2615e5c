"""Every route of the API in one table: the web server and the OpenAPI document are both made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, TypeAdapter

from schemas import (
    Allot,
    CloseStream,
    ExtendStream,
    HaltSource,
    HaltStream,
    JoinPopulation,
    OpenStream,
    Query,
    Receipt,
    RefreshSource,
    RegisterPopulation,
    RegisterSource,
    Source,
    StreamSpec,
)
from schemas.base import ByKind
from schemas.wire import MalformedEventError
from stream.errors import Refused
from stream.log import get_logger
from stream.monitor.api import forms, question_routes, views
from stream.monitor.api.budget_models import (
    AllotmentPage,
    AllotmentQuery,
    BurnDown,
    PopulationDetail,
    PopulationPage,
    Spending,
    SpendingQuery,
    TrailPage,
    TrailQuery,
)
from stream.monitor.api.feed_views import feed_of
from stream.monitor.api.forms import (
    Curve,
    CurveRequest,
    Declaration,
    QuestionAnswered,
    SourceDetail,
    Statement,
    StatementAnswered,
    declaration,
)
from stream.monitor.api.listing import (
    RejectedQuery,
    SourceQuery,
    StreamQuery,
    list_rejected,
    list_sources,
    list_streams,
)
from stream.monitor.api.models import (
    AccessRole,
    Health,
    Overview,
    Plan,
    Readiness,
    Session,
    SourcePage,
    StreamDetail,
    StreamPage,
    View,
)
from stream.monitor.api.monitor_state import Monitor
from stream.monitor.api.population_views import list_allotments, list_populations, population_detail, spending
from stream.monitor.api.problems import ProblemError, unknown
from stream.monitor.api.request_routes import send_request
from stream.monitor.api.service_models import AlertQuery, AlertsView, RejectedView, WorkersView
from stream.monitor.api.tokens import Bearer
from stream.monitor.api.trail_views import list_trail
from stream.monitor.state.entries import SourceEntry
from stream.monitor.state.monitor_alerts import view_of
from stream.privacy.planning.inverse_plans import Against
from stream.tracing import span

_RANKS: dict[AccessRole, int] = {"viewer": 0, "analyst": 1, "operator": 2}
"""A role may do everything that lower roles may do."""


@dataclass(frozen=True)
class Call:
    """A validated request."""

    bearer: Bearer | None
    names: dict[str, str]
    query: Any = None
    body: Any = None
    gone: Callable[[], bool] = lambda: False
    """Returns True if the client has disconnected."""

    @property
    def who(self) -> Bearer:
        """The user; known on every route with a role."""
        if self.bearer is None:
            raise LookupError("a route that takes no role has no name")
        return self.bearer


@dataclass(frozen=True)
class Route:
    """One route: its role, its parameters and body, and its answer."""

    method: Literal["GET", "POST"]
    path: str
    summary: str
    answer: Any
    handle: Callable[[Monitor, Call], Awaitable[BaseModel]]
    access: AccessRole | None = "viewer"
    query: type[View] | None = None
    body: Any = None

    @cached_property
    def body_adapter(self) -> TypeAdapter[Any]:
        """Reads the body."""
        return TypeAdapter(self.body)


def may(role: AccessRole, access: AccessRole) -> bool:
    """Return True if ``role`` includes the rights of ``access``."""
    return _RANKS[role] >= _RANKS[access]


log = get_logger("monitor")

_Shown = TypeVar("_Shown")
Halt = Annotated[HaltStream | HaltSource, Field(discriminator="kind"), ByKind()]


async def _health(_: Monitor, __: Call) -> Health:
    return Health()


async def _readiness(monitor: Monitor, _: Call) -> Readiness:
    return monitor.readiness()


async def _session(monitor: Monitor, call: Call) -> Session:
    asks = monitor.asker is not None
    return Session(name=call.who.name, role=call.who.role, expires=call.who.expires, asks=asks)


async def _overview(monitor: Monitor, _: Call) -> Overview:
    return monitor.overview()


async def _sources(monitor: Monitor, call: Call) -> SourcePage:
    return list_sources(monitor.tables, call.query)


async def _budget(monitor: Monitor, call: Call) -> BurnDown:
    return burn_down(monitor, call.names["source"])


async def _spending(monitor: Monitor, call: Call) -> Spending:
    return spending(monitor.tables, call.query)


async def _trail(monitor: Monitor, call: Call) -> TrailPage:
    return list_trail(monitor.tables.trail, call.query)


async def _populations(monitor: Monitor, _: Call) -> PopulationPage:
    return list_populations(monitor.tables)


async def _population(monitor: Monitor, call: Call) -> PopulationDetail:
    return population_detail(monitor.tables, call.names["population"], monitor.clock())


async def _allotments(monitor: Monitor, call: Call) -> AllotmentPage:
    return list_allotments(monitor.tables, call.query)


async def _streams(monitor: Monitor, call: Call) -> StreamPage:
    return list_streams(monitor.tables, call.query, monitor.clock())


async def _stream(monitor: Monitor, call: Call) -> StreamDetail:
    return stream_detail(monitor, call.names["stream"])


async def _rejected(monitor: Monitor, call: Call) -> RejectedView:
    return list_rejected(monitor.tables, call.query)


async def _alerts(monitor: Monitor, call: Call) -> AlertsView:
    return view_of(monitor.alerts, call.query, known=monitor.complete())


async def _workers(monitor: Monitor, _: Call) -> WorkersView:
    return monitor.workers


async def _source(monitor: Monitor, call: Call) -> SourceDetail:
    entry = find_source(monitor, call.names["source"])
    registered = monitor.tables.sources.get(entry.record.source.period_of or "", entry)
    return _readable(
        lambda: SourceDetail(
            row=views.source_line(monitor.tables, entry),
            declaration=declaration(views.definition(monitor.tables, registered)),
        )
    )


async def _declaration(_: Monitor, call: Call) -> Declaration:
    try:
        return declaration(call.body)
    except Refused as error:
        raise ProblemError(409, "refused", str(error)[:1024]) from None


async def _plan(monitor: Monitor, call: Call) -> Plan:
    spec: StreamSpec = call.body
    entry = find_source(monitor, spec.source)
    source = _readable(lambda: views.definition(monitor.tables, entry))
    async with monitor.planning.turn(call.who.name, call.gone):
        return await forms.plan(spec, source, entry)


async def _curve(monitor: Monitor, call: Call) -> Curve:
    asked: CurveRequest = call.body
    source = _readable(lambda: views.definition(monitor.tables, find_source(monitor, asked.stream.source)))
    async with monitor.planning.turn(call.who.name, call.gone):
        return await forms.plan_curve(asked.stream, source, Against(asked.against), call.gone)


async def _question(monitor: Monitor, call: Call) -> QuestionAnswered:
    with span("monitor asks", {}):
        return await question_routes.ask_question(monitor.tables, monitor.asker, call.body)


async def _statement(monitor: Monitor, call: Call) -> StatementAnswered:
    with span("monitor asks", {}):
        return await question_routes.ask_statement(monitor.tables, monitor.asker, call.body)


async def _request(monitor: Monitor, call: Call) -> Receipt:
    return await send_request(monitor, call.who, call.body)


def find_source(monitor: Monitor, name: str) -> SourceEntry:
    """Return a source's entry, or a 404."""
    entry = monitor.tables.sources.get(name)
    if entry is None:
        raise unknown("source", name)
    return entry


def burn_down(monitor: Monitor, name: str) -> BurnDown:
    """Return a source's budget over time, or a 404."""
    entry = find_source(monitor, name)
    shown = views.burn_down(monitor.tables, entry, monitor.clock())
    return shown.model_copy(update={"feed": feed_of(monitor.tables, entry, monitor.workers.members)})


def stream_detail(monitor: Monitor, name: str) -> StreamDetail:
    """Return a stream's details, or a 404."""
    entry = monitor.tables.streams.get(name)
    if entry is None or entry.grant is None:
        raise unknown("stream", name)
    return _readable(lambda: views.stream_detail(monitor.tables, entry, monitor.clock()))


def _readable(show: Callable[[], _Shown]) -> _Shown:
    """Run ``show``; a 503 if a later version wrote the definition."""
    try:
        return show()
    except MalformedEventError:
        raise ProblemError(503, "unavailable", "this monitor is older than the definition; upgrade it") from None


ROUTES: tuple[Route, ...] = (
    Route("GET", "/healthz", "The process is alive", Health, _health, access=None),
    Route("GET", "/readyz", "The tables are up to date (503 until they are)", Readiness, _readiness, access=None),
    Route("GET", "/api/session", "The token's name and role", Session, _session),
    Route("GET", "/api/overview", "A summary of the installation", Overview, _overview),
    Route("GET", "/api/sources", "Sources with their budgets", SourcePage, _sources, query=SourceQuery),
    Route("GET", "/api/budgets/{source}", "A source's budget over time, with forecasts", BurnDown, _budget),
    Route("GET", "/api/spending", "Spending by analyst", Spending, _spending, query=SpendingQuery),
    Route("GET", "/api/populations", "Populations with their budgets", PopulationPage, _populations),
    Route(
        "GET",
        "/api/populations/{population}",
        "A population with its sources and allotments",
        PopulationDetail,
        _population,
    ),
    Route(
        "GET",
        "/api/allotments",
        "Allotments",
        AllotmentPage,
        _allotments,
        query=AllotmentQuery,
    ),
    Route(
        "POST",
        "/api/populations",
        "Register a population",
        Receipt,
        _request,
        access="operator",
        body=RegisterPopulation,
    ),
    Route(
        "POST",
        "/api/joins",
        "Add a source to a population",
        Receipt,
        _request,
        access="operator",
        body=JoinPopulation,
    ),
    Route("POST", "/api/allotments", "Allot a part of a budget", Receipt, _request, access="operator", body=Allot),
    Route("GET", "/api/trail", "The audit trail: search, filter, page", TrailPage, _trail, query=TrailQuery),
    Route("GET", "/api/streams", "Streams: search, filter, sort, page", StreamPage, _streams, query=StreamQuery),
    Route("GET", "/api/streams/{stream}", "A stream with its definition and timeline", StreamDetail, _stream),
    Route("GET", "/api/rejected", "Refused events by reason", RejectedView, _rejected, query=RejectedQuery),
    Route("GET", "/api/alerts", "Firing and latest alerts", AlertsView, _alerts, query=AlertQuery),
    Route("GET", "/api/workers", "Services, partitions, lag and restores", WorkersView, _workers),
    Route("GET", "/api/sources/{source}", "A source with its budget and declaration", SourceDetail, _source),
    Route(
        "POST", "/api/declarations", "The declaration of a planned source", Declaration, _declaration, body=Source
    ),
    Route("POST", "/api/curves", "The error curve of a planned stream", Curve, _curve, body=CurveRequest),
    Route("POST", "/api/questions", "Ask one question", QuestionAnswered, _question, access="analyst", body=Query),
    Route(
        "POST", "/api/statements", "Ask a SELECT", StatementAnswered, _statement, access="analyst", body=Statement
    ),
    Route("POST", "/api/plan", "The error bound and cost of a planned stream", Plan, _plan, body=StreamSpec),
    Route("POST", "/api/sources", "Register a source", Receipt, _request, access="operator", body=RegisterSource),
    Route("POST", "/api/streams", "Open a stream", Receipt, _request, access="analyst", body=OpenStream),
    Route("POST", "/api/extensions", "Extend a stream", Receipt, _request, access="analyst", body=ExtendStream),
    Route("POST", "/api/halts", "Halt a stream or a source", Receipt, _request, access="operator", body=Halt),
    Route("POST", "/api/refreshes", "Refresh a source", Receipt, _request, access="operator", body=RefreshSource),
    Route("POST", "/api/closes", "Close a stream", Receipt, _request, access="analyst", body=CloseStream),
)
