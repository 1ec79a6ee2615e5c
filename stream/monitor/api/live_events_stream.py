"""Sends live views as server-sent events: each requested view at once and after each change.

An event has a whole view, as the API returns it, so a lost connection loses nothing. The first event is
``readiness``; it is sent again when it changes. Views are sent only once the tables are up to date, because
a reader cannot recognize incomplete numbers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final, get_args

from aiohttp import web
from pydantic import BaseModel, BeforeValidator, ValidationError

from stream.monitor.api import http_requests
from stream.monitor.api.models import ApiModel, FieldProblem, ViewName
from stream.monitor.api.monitor_state import Monitor, require_role
from stream.monitor.api.routes import VIEWS, ApiCall, Route
from stream.monitor.api.tokens import Bearer

MIN_INTERVAL_SECONDS = 1.0
"""Shortest time between two computations of one view, in seconds."""
MAX_INTERVAL_SECONDS = 5.0
"""Longest time between two computations of one view, in seconds, because rates change without records."""
PAUSE_FACTOR: Final = 3.0
"""Pause after the computation of a view, in multiples of its time, so that views take a quarter of the time."""


@dataclass(eq=False)
class LiveView:
    """One view for one query, shared by its watchers; ``edition`` grows when ``text`` changes."""

    name: ViewName
    key: Hashable
    compute: Callable[[], BaseModel]
    text: str = field(default="", repr=False)
    edition: int = 0
    watchers: int = 0
    version: int = -1
    computed_at: float = float("-inf")
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """For each user who waits for the view, the task that computes it when it is the user's turn."""
    failure: Exception | None = None


class LiveViews:
    """All views that a connection watches; they are computed one at a time."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._turns = http_requests.RequestTurns(pause_factor=PAUSE_FACTOR)
        self._views: dict[Hashable, LiveView] = {}

    def watch(self, name: ViewName, query: Hashable, compute: Callable[[], BaseModel]) -> LiveView:
        """Add a watcher to the view of a query and return the view."""
        key = (name, query)
        view = self._views.setdefault(key, LiveView(name, key, compute))
        view.watchers += 1
        view.failure = None
        return view

    def stop_watching(self, view: LiveView) -> None:
        """Remove a watcher of a view."""
        view.watchers -= 1
        if not view.watchers:
            del self._views[view.key]

    def close(self) -> None:
        """Cancel all computations."""
        for view in self._views.values():
            for task in view.tasks.values():
                task.cancel()

    async def refresh(self, views: Iterable[LiveView], user: str) -> None:
        """Recompute views that may have changed; wait at most one interval for them."""
        awaited = []
        for view in views:
            if view.failure is not None:
                raise view.failure
            if user in view.tasks:
                awaited.append(view.tasks[user])
            elif not self._is_fresh(view):
                view.tasks[user] = asyncio.create_task(self._compute_in_turn(view, user))
                awaited.append(view.tasks[user])
        if awaited:
            await asyncio.wait(awaited, timeout=MIN_INTERVAL_SECONDS)

    def _is_fresh(self, view: LiveView) -> bool:
        age = asyncio.get_running_loop().time() - view.computed_at
        return age < MIN_INTERVAL_SECONDS or (
            age < MAX_INTERVAL_SECONDS and view.version == self._monitor.version(view.name)
        )

    async def _compute_in_turn(self, view: LiveView, user: str) -> None:
        try:
            async with self._turns.turn(user, lambda: not view.watchers):
                if not self._is_fresh(view):
                    self._compute(view)
        except http_requests.ClientGoneError:
            pass
        except Exception as error:  # noqa: BLE001  (reported to the watchers)
            view.failure = error
        finally:
            del view.tasks[user]

    def _compute(self, view: LiveView) -> None:
        view.version, view.computed_at = self._monitor.version(view.name), asyncio.get_running_loop().time()
        try:
            text = f"event: {view.name}\ndata: {view.compute().model_dump_json()}"
        except http_requests.ProblemError as error:
            text = f"event: problem\ndata: {error.problem.model_dump_json()}"
        if text != view.text:
            view.text = text
            view.edition += 1


KEEPALIVE_SECONDS = 10.0
"""Longest silence on a connection, in seconds."""


class EventQuery(ApiModel):
    """The views to send; further parameters are the parameters of the views' routes."""

    views: Annotated[tuple[ViewName, ...], BeforeValidator(lambda value: tuple(value.split(",")) if value else ())]


class EventStreams:
    """Serves connections with live views; limits their number per user."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._live = LiveViews(monitor)
        self._closing = asyncio.Event()
        self._open: Counter[str] = Counter()

    async def close(self, _: web.Application) -> None:
        """Close every connection, so that the server can stop."""
        self._closing.set()
        self._live.close()

    async def serve(self, request: web.Request, bearer: Bearer) -> web.StreamResponse:
        """Send views until the connection, its token or the server ends; on HEAD send only the headers."""
        wanted = self._parse_views(request.query, bearer)
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":
            return web.Response(headers=headers)
        if self._open[bearer.name] >= self._monitor.settings.monitor_event_streams:
            raise http_requests.too_many_error(
                "too many live connections with this name; close one, or raise SOTTO_MONITOR_EVENT_STREAMS", 10
            )
        self._open[bearer.name] += 1
        views = [self._live.watch(*one) for one in wanted]
        try:
            response = web.StreamResponse(headers=headers)
            with http_requests.streaming_response(request):
                await response.prepare(request)
                await self._send(response, views, bearer)
        finally:
            self._open[bearer.name] -= 1
            for view in views:
                self._live.stop_watching(view)
        return response

    async def _send(self, response: web.StreamResponse, views: list[LiveView], bearer: Bearer) -> None:
        loop = asyncio.get_running_loop()
        number, last_sent = 0, loop.time()
        readiness, sent_editions = "", dict.fromkeys(views, 0)
        while not self._closing.is_set() and self._monitor.is_valid(bearer):
            if (state := self._monitor.readiness().model_dump_json()) != readiness:
                readiness = state
                number, last_sent = number + 1, loop.time()
                await http_requests.write_text(response, f"id: {number}\nevent: readiness\ndata: {state}\n\n")
            if self._monitor.is_complete():
                await self._live.refresh(views, bearer.name)
            for view in views:
                if sent_editions[view] != view.edition:
                    sent_editions[view] = view.edition
                    number, last_sent = number + 1, loop.time()
                    await http_requests.write_text(response, f"id: {number}\n{view.text}\n\n")
            if loop.time() - last_sent >= KEEPALIVE_SECONDS:
                await http_requests.write_text(response, ": alive\n\n")
                last_sent = loop.time()
            try:
                async with asyncio.timeout(MIN_INTERVAL_SECONDS):
                    await self._closing.wait()
            except TimeoutError:
                continue

    def _parse_views(
        self, given: Mapping[str, str], bearer: Bearer
    ) -> list[tuple[ViewName, Hashable, Callable[[], BaseModel]]]:
        """Return the requested views, each with its parameters and a function that computes it."""
        http_requests.refuse_repeated(given)
        rest = dict(given)
        used: set[str] = set()
        wanted: list[tuple[ViewName, Hashable, Callable[[], BaseModel]]] = []
        try:
            query = EventQuery.model_validate({"views": rest.pop("views", None)})
            for name in dict.fromkeys(query.views):
                route = VIEWS[name]
                require_role(bearer, route.access)
                own = {*route.path_parameters, *(route.query.model_fields if route.query else ())}
                call = _make_call(route, {name: text for name, text in rest.items() if name in own})
                key = frozenset(one for one in rest.items() if one[0] in own)
                wanted.append((name, key, partial(route.handle, self._monitor, call)))
                used |= own
        except ValidationError as error:
            raise http_requests.malformed_error(error, "parameter") from None
        if not wanted:
            raise _parameter_error("views", f"name at least one of {', '.join(get_args(ViewName))}")
        if unknown := [name for name in rest if name not in used]:
            raise _parameter_error(unknown[0], "unknown parameter for these views; remove it")
        return wanted


def _make_call(route: Route, given: dict[str, str]) -> ApiCall:
    for name in route.path_parameters:
        if name not in given:
            raise _parameter_error(name, "a requested view needs this parameter; give a name")
    names = {name: given[name] for name in route.path_parameters}
    return ApiCall(
        path_values=names, url_parameters=None if route.query is None else route.query.model_validate(given)
    )


def _parameter_error(field: str, message: str) -> http_requests.ProblemError:
    return http_requests.ProblemError(
        400,
        "malformed",
        "parameter: 1 field is wrong; see 'fields'",
        fields=[FieldProblem(field=field[:80], message=message)],
    )
