"""The web server: serves page and API, checks tokens and limits, and turns errors into responses."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from inspect import isawaitable
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from schemas import MAX_DEFINITION_BYTES
from schemas.base import repeats_a_field, shape_fault
from stream import SERVER_NAME
from stream.diagnostics import RateLimiter, get_logger
from stream.monitor.api.answer_views import AnswerQuery, AnswerRow, answers_as_csv, answers_as_lines
from stream.monitor.api.budget_models import AllotmentPage, PopulationPage, TrailFilter
from stream.monitor.api.budget_views import TrailExports
from stream.monitor.api.http_requests import (
    CALLBACK,
    IDLE_SECONDS,
    SIGN_IN,
    SIGN_OUT,
    ClientGoneError,
    ProblemError,
    abort_connection,
    is_caused_by_another_site,
    malformed_error,
    refuse_repeated,
    too_many_error,
)
from stream.monitor.api.live_events_stream import EventStreams
from stream.monitor.api.models import ApiModel, Problem, ProblemCode, Readiness, SourcePage, StreamPage
from stream.monitor.api.monitor_state import CONTENT_TYPE, Monitor, metrics_text, require_role
from stream.monitor.api.openapi import build_document
from stream.monitor.api.routes import ANSWERS_PATH, ROUTES, ApiCall, Route, read_answers
from stream.monitor.api.tokens import Bearer, TokenError

FOLDER = Path(__file__).parents[1] / "static"
_PAGES = {"/": "index.html", "/favicon.ico": "icon.svg"}

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "connect-src 'self'",
    "img-src 'self' data:",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "form-action 'none'",
    # The browser refuses to parse text as markup.
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
CONTENT_SECURITY_POLICY = "; ".join(_POLICY)

_CONTENT_TYPE_OF_SUFFIX = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_PAGE_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class _Asset:
    body: bytes
    content_type: str
    tag: str

    def to_response(self, request: web.Request) -> web.Response:
        """Return the file, or a 304 if the browser has it cached."""
        headers = {**_PAGE_HEADERS, "ETag": f'"{self.tag}"'}
        if any(known.value in {self.tag, "*"} for known in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=self.body, content_type=self.content_type, charset="utf-8", headers=headers)


def load_assets() -> dict[str, _Asset]:
    """Read all files of the page, so that paths of requests never reach the file system."""
    assets = {}
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in _CONTENT_TYPE_OF_SUFFIX:
            body = path.read_bytes()
            name = str(PurePosixPath(*path.relative_to(FOLDER).parts))
            assets[name] = _Asset(body, _CONTENT_TYPE_OF_SUFFIX[path.suffix], sha256(body).hexdigest()[:32])
    return assets


def add_pages(application: web.Application, *, offers_sign_on: bool = False) -> None:
    """Serve the page at ``/`` and its files below ``/static/``."""
    assets = load_assets()
    if offers_sign_on:
        page = assets["index.html"]
        body = page.body.replace(b"<html ", f'<html data-sign-in="{SIGN_IN}" '.encode(), 1)
        assets["index.html"] = _Asset(body, page.content_type, f"{page.tag}-sign-in")

    async def send_file(request: web.Request) -> web.Response:
        asset = assets.get(request.match_info.get("name") or _PAGES[request.path])
        if asset is None:
            raise web.HTTPNotFound
        return asset.to_response(request)

    for path in (*_PAGES, "/static/{name:.+}"):
        application.router.add_get(path, send_file)


log = get_logger("monitor")

APPLICATION_OPTIONS: dict[str, Any] = {"client_max_size": MAX_DEFINITION_BYTES}
"""Arguments that ``add_api`` requires of an aiohttp application."""

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_CODE_OF_STATUS: dict[int, ProblemCode] = {
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
}
_UNLIMITED_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths without a rate limit. The page's files have no limit either, because a browser loads thirty at once."""
_PUBLIC_PATHS = frozenset({*_UNLIMITED_PATHS, *_PAGES})
"""Paths that need no token: health, and the page, which asks the user for the token."""
_PUBLIC_PREFIX = "/static/"
_SIGN_ON_PATHS = frozenset({SIGN_IN, CALLBACK, SIGN_OUT})
"""Paths of single sign-on, which need no token either."""

_ANSWER_EXPORTS: dict[str, tuple[str, Callable[[Sequence[AnswerRow]], Iterable[str]]]] = {
    f"{ANSWERS_PATH}.csv": ("text/csv; charset=utf-8", answers_as_csv),
    f"{ANSWERS_PATH}.jsonl": ("application/x-ndjson; charset=utf-8", answers_as_lines),
}

_BEARER: web.RequestKey[Bearer] = web.RequestKey("bearer")

_Parameters = TypeVar("_Parameters", bound=ApiModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def add_api(application: web.Application, monitor: Monitor) -> None:
    """Add routes and middlewares to an application made with ``APPLICATION_OPTIONS``."""
    streams = EventStreams(monitor)
    exports = TrailExports()
    application.middlewares.extend([_respond_to_errors, _make_guard(monitor)])
    application.on_response_prepare.append(_add_security_headers)
    application.on_shutdown.append(streams.close)
    for route in ROUTES:
        application.router.add_route(route.method, route.path, _make_handler(monitor, route))

    async def metrics(request: web.Request) -> web.Response:
        async with monitor.view_turns.turn(request[_BEARER].name, _disconnection_check(request)):
            return web.Response(body=metrics_text(monitor), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(_: web.Request) -> web.Response:
        return web.json_response(build_document())

    async def live(request: web.Request) -> web.StreamResponse:
        return await streams.serve(request, request[_BEARER])

    async def trail(request: web.Request) -> web.StreamResponse:
        wanted = parse_parameters(request, TrailFilter)
        return await exports.serve(request, request[_BEARER], monitor.tables.trail, wanted)

    application.router.add_get("/metrics", metrics)
    application.router.add_get("/api/trail.csv", trail)
    for path, (content_type, formatter) in _ANSWER_EXPORTS.items():
        application.router.add_get(path, _make_answer_export(monitor, content_type, formatter))
    application.router.add_get("/openapi.json", openapi)
    application.router.add_get("/api/events", live)
    add_pages(application, offers_sign_on=monitor.sign_on is not None)


@web.middleware
async def _respond_to_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every exception into a response with a Problem."""
    try:
        response = await handler(request)
    except ProblemError as error:
        response = _json_response(error.problem, error.problem.status, error.headers)
    except ClientGoneError:
        response = _problem_response(503, "unavailable", "client disconnected")
    except web.HTTPException as error:
        response = _problem_response(error.status, _CODE_OF_STATUS.get(error.status, "malformed"), error.reason)
    except Exception as error:  # noqa: BLE001  (the response has no detail of the error)
        # The error's message and the path may quote the request, so only the route and the code lines are logged.
        frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-3:]]
        resource = request.match_info.route.resource
        route = None if resource is None else resource.canonical
        log.error("request failed", route=route, error=type(error).__name__, detail=frames)  # noqa: TRY400
        response = _problem_response(500, "internal", "internal error; see the monitor's log")
        if request.writer.output_size > 0:
            abort_connection(request)  # the client would read a second response as part of the first
    return response


async def _add_security_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = SERVER_NAME
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)


def _make_guard(monitor: Monitor) -> Any:
    """Return a middleware that requires a token and applies the rate limits."""
    settings = monitor.settings
    limiter = RateLimiter(settings.monitor_requests_per_second, settings.monitor_burst)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if any(coding.strip().lower() != "identity" for coding in request.headers.getall("Content-Encoding", ())):
            raise ProblemError(415, "malformed", "body: has a Content-Encoding; send it unencoded")
        if request.path in _UNLIMITED_PATHS or request.path.startswith(_PUBLIC_PREFIX):
            return await handler(request)
        unreadable = False
        try:
            bearer = _session_of(request, monitor) or monitor.bearer(_token_of(request))
        except TokenError:
            bearer, unreadable = None, True
        # Requests without a valid token share one rate limit per address, so that guessing is slow.
        if wait := limiter.count_request((bearer and bearer.name, request.remote)):
            raise too_many_error(
                f"at most {settings.monitor_requests_per_second:g} requests a second; wait {wait:g} s",
                max(1, round(wait)),
            )
        public = request.path in _PUBLIC_PATHS or (monitor.sign_on is not None and request.path in _SIGN_ON_PATHS)
        if bearer is not None:
            request[_BEARER] = bearer
        elif unreadable and not public:
            raise ProblemError(503, "unavailable", "the names file cannot be read; see the monitor's log")
        elif not public:
            raise ProblemError(
                401,
                "unauthorized",
                "send 'Authorization: Bearer TOKEN' with a token that 'sotto token create' made, not expired or revoked",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return await handler(request)

    return guard


def _session_of(request: web.Request, monitor: Monitor) -> Bearer | None:
    """Return the person of the session's cookie, if the request has no token and does not come from another site."""
    if monitor.sign_on is None or "Authorization" in request.headers:
        return None
    if is_caused_by_another_site(request):
        return None
    return monitor.sign_on.read_session(request.cookies)


def _token_of(request: web.Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _make_handler(monitor: Monitor, route: Route) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        bearer = request.get(_BEARER)
        require_role(bearer, route.access)
        if route.query is None and request.query:
            raise ProblemError(400, "malformed", "parameter: this route has no parameters; remove them")
        query = None if route.query is None else parse_parameters(request, route.query)
        body = await _read_body(request, route) if route.body is not None else None
        is_disconnected = _disconnection_check(request)
        call = ApiCall(bearer, dict(request.match_info), query, body, is_disconnected)
        with _explain_unread(monitor):
            if bearer is not None and route.method == "GET":
                async with monitor.view_turns.turn(bearer.name, is_disconnected):
                    view = route.handle(monitor, call)
            else:
                view = route.handle(monitor, call)
            if isawaitable(view):
                view = await view
        if isinstance(view, _LISTS) and not monitor.has_read_topics():
            raise _still_reading_error(monitor)
        unready = isinstance(view, Readiness) and not view.ready
        return _json_response(view, 503 if unready else 200)

    return handle


_LISTS: Final = (SourcePage, StreamPage, PopulationPage, AllotmentPage)
"""Views that lack entries until all topics but the trail have been read once."""


@contextmanager
def _explain_unread(monitor: Monitor) -> Iterator[None]:
    """Replace a 404 by a 503 if the name may be in records that the monitor has not read yet."""
    try:
        yield
    except ProblemError as error:
        if error.problem.status == 404 and not monitor.has_read_topics():
            raise _still_reading_error(monitor) from None
        raise


def _still_reading_error(monitor: Monitor) -> ProblemError:
    reason = monitor.readiness().reason or "the monitor still reads the topics"
    return ProblemError(503, "unavailable", f"{reason}; names may still be missing: ask again in a moment")


def _make_answer_export(
    monitor: Monitor, content_type: str, formatter: Callable[[Sequence[AnswerRow]], Iterable[str]]
) -> Handler:
    async def export(request: web.Request) -> web.StreamResponse:
        wanted = parse_parameters(request, AnswerQuery)
        check = _disconnection_check(request)
        call = ApiCall(request[_BEARER], dict(request.match_info), wanted, is_disconnected=check)
        with _explain_unread(monitor):
            page = await read_answers(monitor, call)
        name = request.path.rpartition("/")[2]
        headers = {"Content-Type": content_type, "Content-Disposition": f'attachment; filename="{name}"'}
        if page.before is not None:
            following = request.rel_url.update_query(before=page.before)
            headers["Link"] = f'<{following}>; rel="next"'
        # Answers of up to 100,000 numbers each take seconds to format.
        text = await asyncio.to_thread(lambda: "".join(formatter(page.items)))
        return web.Response(text=text, headers=headers)

    return export


def _disconnection_check(request: web.Request) -> Callable[[], bool]:
    """Return a function that returns True after the client has disconnected."""
    return lambda: request.transport is None or request.transport.is_closing()


def parse_parameters(request: web.Request, model: type[_Parameters]) -> _Parameters:
    """Return a request's parameters; raise ProblemError if a parameter is invalid or repeated."""
    refuse_repeated(request.query)
    try:
        return model.model_validate(dict(request.query))
    except ValidationError as error:
        raise malformed_error(error, "parameter") from None


async def _read_body(request: web.Request, route: Route) -> Any:
    if request.content_type != "application/json":
        raise ProblemError(415, "malformed", "body: send JSON with content type application/json")
    try:
        async with asyncio.timeout(IDLE_SECONDS):
            body = await request.read()
    except TimeoutError:
        raise ProblemError(408, "malformed", f"body: send all of it within {IDLE_SECONDS:g} s") from None
    except ConnectionError:
        raise ClientGoneError from None
    except web.HTTPRequestEntityTooLarge:
        raise ProblemError(413, "too-large", f"body: send at most {MAX_DEFINITION_BYTES} bytes") from None
    if fault := shape_fault(body):
        raise ProblemError(400, "malformed", f"body: {fault}")
    try:
        given = route.body_adapter.validate_json(body)
    except ValidationError as error:
        raise malformed_error(error, "body", body) from None
    if repeats_a_field(body):
        raise ProblemError(400, "malformed", "body: a field is given twice; give each field once")
    return given


def _json_response(body: BaseModel, status: int, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        text=body.model_dump_json(), status=status, content_type="application/json", headers=headers
    )


def _problem_response(status: int, code: ProblemCode, message: str) -> web.Response:
    return _json_response(Problem(status=status, code=code, message=message), status)
