"""All routes of the API; the server, live events and the OpenAPI document use ``ROUTES``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from aiokafka.errors import KafkaError
from pydantic import Field, TypeAdapter

from schemas import (
    Allot,
    CloseStream,
    ExtendStream,
    HaltSource,
    HaltStream,
    JoinPopulation,
    OpeningSpec,
    OpenStream,
    Query,
    Receipt,
    RefreshSource,
    RegisterPopulation,
    RegisterSource,
    Source,
    TableSource,
)
from schemas.base import ByKind
from schemas.wire import MalformedEventError
from stream.budget.standing_streams import require_foreign_topic
from stream.diagnostics import get_logger, span
from stream.errors import Refused
from stream.monitor.api import forms, models, question_routes, views
from stream.monitor.api.answer_views import (
    AnswerQuery,
    AnswersView,
    QuestionAnswered,
    StatementAnswered,
    list_answers,
)
from stream.monitor.api.budget_models import (
    AllotmentPage,
    AllotmentQuery,
    BurnDown,
    ComparisonRequest,
    Plan,
    PlanComparison,
    PlanQuery,
    PopulationDetail,
    PopulationPage,
    Spending,
    SpendingQuery,
    TrailPage,
    TrailQuery,
)
from stream.monitor.api.budget_views import (
    build_burn_down,
    build_population_detail,
    build_spending_view,
    list_allotments,
    list_populations,
    list_trail,
)
from stream.monitor.api.forms import Curve, CurveRequest, Declaration, SourceDetail, build_declaration
from stream.monitor.api.http_requests import ProblemError
from stream.monitor.api.monitor_state import Monitor
from stream.monitor.api.question_routes import AskingView, Statement, StatementPrice, StatementText
from stream.monitor.api.service_models import AlertQuery, AlertsView, RefusalsView, RejectedView, WorkersView
from stream.monitor.api.source_views import (
    RejectedQuery,
    SourceQuery,
    StreamQuery,
    build_feed_view,
    list_refusals,
    list_rejected,
    list_sources,
    list_streams,
)
from stream.monitor.api.tokens import Bearer
from stream.monitor.monitor_alerts import alerts_view
from stream.questions.source_warnings import warn_about_halted_data, warn_about_repetition, warn_about_shared_data
from stream.tables.readers.source_parts import base_columns
from stream.tables.table_errors import TableDataError


@dataclass(frozen=True)
class ApiCall:
    """A validated HTTP request to one route."""

    bearer: Bearer | None = None
    path_values: dict[str, str] = field(default_factory=dict)
    url_parameters: Any = None
    body: Any = None
    is_disconnected: Callable[[], bool] = lambda: False
    """Returns True if the client has disconnected."""

    @property
    def user(self) -> Bearer:
        """The user; raises LookupError on a route without a token."""
        if self.bearer is None:
            raise LookupError("this route needs no token, so the request has no user")
        return self.bearer


@dataclass(frozen=True)
class Route:
    """One route: the role it requires, its parameters and body, and its handler."""

    method: Literal["GET", "POST"]
    path: str
    summary: str
    response_type: Any
    handle: Callable[[Monitor, ApiCall], Any]
    """Returns the response's model or an awaitable of it; never an awaitable if ``live_event`` is set."""
    access: models.AccessRole | None = "viewer"
    query: type[models.Parameters] | None = None
    body: Any = None
    live_event: models.ViewName | None = None
    """The event's name if the response is also sent as a live event."""

    @cached_property
    def path_parameters(self) -> list[str]:
        """The parameters in the path."""
        return names_in(self.path)

    @cached_property
    def body_adapter(self) -> TypeAdapter[Any]:
        """The type adapter that validates the body."""
        return TypeAdapter(self.body)


log = get_logger("monitor")

ROUTES: list[Route] = []
"""All routes with a JSON response."""

ANSWERS_PATH = "/api/streams/{stream}/answers"
"""The path of a stream's answers; with the ending ``.csv`` or ``.jsonl`` it returns a file."""

_Handle = TypeVar("_Handle", bound=Callable[[Monitor, ApiCall], Any])
Halt = Annotated[HaltStream | HaltSource, Field(discriminator="kind"), ByKind()]


def names_in(path: str) -> list[str]:
    """Return the names of the parameters in a path."""
    return re.findall(r"{(\w+)}", path)


def _add_route(
    method: Literal["GET", "POST"], path: str, summary: str, **options: Any
) -> Callable[[_Handle], _Handle]:
    """Add the decorated function as a route; its return type is the response's model."""

    def add(handle: _Handle) -> _Handle:
        ROUTES.append(Route(method, path, summary, get_type_hints(handle)["return"], handle, **options))
        return handle

    return add


@_add_route("GET", "/healthz", "The process is alive", access=None)
def _health(_: Monitor, __: ApiCall) -> models.Health:
    return models.Health()


@_add_route("GET", "/readyz", "The monitor has read all its topics (503 until it has)", access=None)
def _readiness(monitor: Monitor, _: ApiCall) -> models.Readiness:
    return monitor.readiness()


@_add_route("GET", "/api/session", "The token's name and role")
def _session(monitor: Monitor, call: ApiCall) -> models.Session:
    return models.Session.from_record(call.user, asks=monitor.asker is not None)


@_add_route("GET", "/api/overview", "A summary of the installation", live_event="overview")
def _overview(monitor: Monitor, _: ApiCall) -> models.Overview:
    return monitor.overview()


@_add_route("GET", "/api/sources", "Sources with their budgets", query=SourceQuery, live_event="sources")
def _sources(monitor: Monitor, call: ApiCall) -> models.SourcePage:
    return list_sources(monitor.tables, call.url_parameters)


@_add_route("GET", "/api/budgets/{source}", "A source's budget over time, with forecasts", live_event="budget")
def _budget(monitor: Monitor, call: ApiCall) -> BurnDown:
    entry = views.find_source(monitor.tables, call.path_values["source"])
    shown = build_burn_down(monitor.tables, entry, monitor.clock())
    return shown.model_copy(update={"feed": build_feed_view(monitor.tables, entry, monitor.workers.members)})


@_add_route("GET", "/api/spending", "Spending by analyst", query=SpendingQuery, live_event="spending")
def _spending(monitor: Monitor, call: ApiCall) -> Spending:
    return build_spending_view(monitor.tables, call.url_parameters)


@_add_route("GET", "/api/populations", "Populations with their budgets", live_event="populations")
def _populations(monitor: Monitor, _: ApiCall) -> PopulationPage:
    return list_populations(monitor.tables)


@_add_route(
    "GET", "/api/populations/{population}", "A population with its sources and allotments", live_event="population"
)
def _population(monitor: Monitor, call: ApiCall) -> PopulationDetail:
    return build_population_detail(monitor.tables, call.path_values["population"], monitor.clock())


@_add_route("GET", "/api/allotments", "Allotments", query=AllotmentQuery, live_event="allotments")
def _allotments(monitor: Monitor, call: ApiCall) -> AllotmentPage:
    return list_allotments(monitor.tables, call.url_parameters)


@_add_route("GET", "/api/trail", "The audit trail: search, filter, page", query=TrailQuery, live_event="trail")
def _trail(monitor: Monitor, call: ApiCall) -> TrailPage:
    return list_trail(monitor.tables.trail, call.url_parameters)


@_add_route("GET", "/api/streams", "Streams: search, filter, sort, page", query=StreamQuery, live_event="streams")
def _streams(monitor: Monitor, call: ApiCall) -> models.StreamPage:
    return list_streams(monitor.tables, call.url_parameters, monitor.clock())


@_add_route("GET", "/api/streams/{stream}", "A stream with its definition and timeline", live_event="stream")
def _stream(monitor: Monitor, call: ApiCall) -> models.StreamDetail:
    entry, _ = views.find_stream(monitor.tables, call.path_values["stream"])
    return views.build_stream_detail(monitor.tables, entry, monitor.clock())


async def read_answers(monitor: Monitor, call: ApiCall) -> AnswersView:
    """Read a page of a stream's answers, in turn with other users."""
    async with monitor.answer_turns.turn(call.user.name, call.is_disconnected):
        asker = monitor.asker
        find_question = (lambda _: None) if asker is None else asker.find_question
        stream = call.path_values["stream"]
        return await list_answers(monitor.answers, monitor.tables, find_question, stream, call.url_parameters)


@_add_route("GET", "/api/streams/{stream}/asking", "The next answer's cost, and a SELECT that the stream takes")
def _asking(monitor: Monitor, call: ApiCall) -> AskingView:
    return question_routes.describe_asking(monitor.tables, call.path_values["stream"])


_add_route("GET", ANSWERS_PATH, "A stream's answers, newest first", query=AnswerQuery)(read_answers)


@_add_route("GET", "/api/rejected", "Refused events by reason", query=RejectedQuery, live_event="rejected")
def _rejected(monitor: Monitor, call: ApiCall) -> RejectedView:
    return list_rejected(monitor.tables, call.url_parameters)


@_add_route(
    "GET", "/api/refusals", "Share of refused events of live topics", access="operator", live_event="refusals"
)
def _refusals(monitor: Monitor, _: ApiCall) -> RefusalsView:
    return list_refusals(monitor.tables, monitor.clock())


@_add_route("GET", "/api/alerts", "Firing and latest alerts", query=AlertQuery, live_event="alerts")
def _alerts(monitor: Monitor, call: ApiCall) -> AlertsView:
    return alerts_view(monitor.alerts, call.url_parameters, known=monitor.is_complete())


@_add_route("GET", "/api/workers", "Services, partitions, lag and restores", live_event="workers")
def _workers(monitor: Monitor, _: ApiCall) -> WorkersView:
    return monitor.workers


@_add_route("GET", "/api/sources/{source}", "A source with its budget and full definition")
def _source(monitor: Monitor, call: ApiCall) -> SourceDetail:
    tables = monitor.tables
    entry = views.find_source(tables, call.path_values["source"])
    registered = tables.sources.get(entry.record.source.period_of or "", entry)
    return SourceDetail(
        row=views.source_row_with_periods(tables, entry),
        declaration=build_declaration(views.decode_definition(tables, registered)),
    )


@_add_route("POST", "/api/declarations", "The full definition of a source, before it is registered", body=Source)
def _declaration(monitor: Monitor, call: ApiCall) -> Declaration:
    try:
        found = build_declaration(call.body)
        require_foreign_topic(call.body, monitor.tables.topics)
        if isinstance(call.body, TableSource):
            base_columns(call.body)  # raises TableDataError for an invalid view
    except (Refused, TableDataError) as error:
        raise ProblemError(409, "refused", str(error)[:1024]) from None
    others = list(views.sources_on_same_data(monitor.tables, call.body))
    about_data = warn_about_shared_data(call.body, others), warn_about_halted_data(call.body, others)
    reasons = {name: entry.record.reason for name, entry in monitor.tables.sources.items()}
    repeated = warn_about_repetition(call.body, reasons)
    remarks = [*found.remarks, *filter(None, [*about_data, repeated])]
    population = call.body.population
    if population not in {None, *monitor.tables.populations}:
        remarks.append(f"population '{population}' is not registered; register it first")
    return found.model_copy(update={"remarks": remarks})


@_add_route("POST", "/api/proposals", "Attributes for a table", access="operator", body=models.ProposalRequest)
async def _proposal(monitor: Monitor, call: ApiCall) -> models.Proposal:
    request: models.ProposalRequest = call.body
    return await monitor.plan_in_turn(
        call.user.name, call.is_disconnected, lambda: forms.propose_source(request.path, monitor.settings)
    )


@_add_route("POST", "/api/curves", "A part of the error curve of a planned stream", body=CurveRequest)
async def _curve(monitor: Monitor, call: ApiCall) -> Curve:
    request: CurveRequest = call.body
    source = views.decode_definition(monitor.tables, views.find_source(monitor.tables, request.stream.source))
    return await monitor.plan_in_turn(
        call.user.name, call.is_disconnected, lambda: forms.plan_curve(request, source)
    )


@_add_route(
    "POST", "/api/comparisons", "All mechanisms for questions of one form, best first", body=ComparisonRequest
)
async def _comparison(monitor: Monitor, call: ApiCall) -> PlanComparison:
    request: ComparisonRequest = call.body
    source = views.decode_definition(monitor.tables, views.find_source(monitor.tables, request.source))
    return await monitor.plan_in_turn(
        call.user.name, call.is_disconnected, lambda: forms.compare_mechanisms(request, source)
    )


@_add_route("POST", "/api/questions", "Ask one question", access="analyst", body=Query)
async def _question(monitor: Monitor, call: ApiCall) -> QuestionAnswered:
    with span("monitor asks", {}):
        return await question_routes.ask_question(monitor.tables, monitor.asker, call.body)


@_add_route("POST", "/api/statements/price", "The questions of a SELECT and their cost", body=StatementText)
def _statement_price(monitor: Monitor, call: ApiCall) -> StatementPrice:
    return question_routes.price_statement(monitor.tables, call.body)


@_add_route("POST", "/api/statements", "Ask a SELECT", access="analyst", body=Statement)
async def _statement(monitor: Monitor, call: ApiCall) -> StatementAnswered:
    with span("monitor asks", {}):
        return await question_routes.ask_statement(monitor.tables, monitor.asker, call.body)


@_add_route("POST", "/api/plan", "The error bound and cost of a planned stream", query=PlanQuery, body=OpeningSpec)
async def _plan(monitor: Monitor, call: ApiCall) -> Plan:
    spec: OpeningSpec = call.body
    entry = views.find_source(monitor.tables, spec.source)
    source = views.decode_definition(monitor.tables, entry)
    population, _ = monitor.tables.populations.get(entry.record.population or "", (None, 0.0))
    return await monitor.plan_in_turn(
        call.user.name,
        call.is_disconnected,
        lambda: forms.plan_opening(spec, source, entry, population, call.url_parameters, monitor.clock()),
    )


@_add_route("POST", "/api/populations", "Register a population", access="operator", body=RegisterPopulation)
@_add_route("POST", "/api/joins", "Add a source to a population", access="operator", body=JoinPopulation)
@_add_route("POST", "/api/allotments", "Allot a part of a budget", access="operator", body=Allot)
@_add_route("POST", "/api/sources", "Register a source", access="operator", body=RegisterSource)
@_add_route("POST", "/api/streams", "Open a stream", access="analyst", body=OpenStream)
@_add_route("POST", "/api/extensions", "Extend a stream", access="analyst", body=ExtendStream)
@_add_route("POST", "/api/halts", "Halt a stream or a source", access="operator", body=Halt)
@_add_route("POST", "/api/refreshes", "Refresh a source", access="operator", body=RefreshSource)
@_add_route("POST", "/api/closes", "Close a stream", access="analyst", body=CloseStream)
async def _request(monitor: Monitor, call: ApiCall) -> Receipt:
    """Send a request to the budget service in the name of the user."""
    request, again = monitor.with_user(call.body, call.user), "send the same request again with the same id"
    try:
        with span("monitor requests", {"sotto.request.kind": request.kind}):
            receipt = await monitor.send_request(request)
    except Refused as error:
        log.info("request refused", kind=request.kind, by=call.user.name)
        raise ProblemError(409, "refused", error.reason, asked=error.asked, left=error.left) from None
    except MalformedEventError as error:
        raise ProblemError(400, "malformed", str(error)) from None
    except TimeoutError:
        raise ProblemError(504, "unavailable", f"no receipt from the budget service yet; {again}") from None
    except KafkaError as error:
        raise ProblemError(503, "unavailable", f"Kafka: {type(error).__name__}; {again}") from None
    log.info("request committed", kind=request.kind, outcome=receipt.outcome, by=call.user.name)
    return receipt


VIEWS: dict[models.ViewName, Route] = {route.live_event: route for route in ROUTES if route.live_event is not None}
"""The routes whose responses are sent as live events."""
