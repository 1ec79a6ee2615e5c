"""Connections and requests of the web server: time limits, turns, and errors that end a request.

A connection *waits* while none of its requests is processed: before its first request, between two
requests, and while a request arrives in pieces. A waiting connection has shown no token, so the
server limits the time and the number of waiting connections. At the limit it closes the oldest
waiting connection of the address that has most. Malformed bytes are never quoted or logged. Bodies
are not decompressed. If a request is answered before it is complete, its rest is discarded.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Literal, NamedTuple

from aiohttp import StreamReader, web
from pydantic import ValidationError

from schemas import MAX_DEFINITION_BYTES, Amount
from schemas.base import KIND_ERROR, MAX_FAULTS
from schemas.wire import explain_to_writer, locate_fault, parse_or_none
from stream import SERVER_NAME
from stream.diagnostics import RateLimiter, get_logger
from stream.formatting import suggest_public_name
from stream.monitor.api.models import FieldProblem, Problem, ProblemCode

MAX_FIELDS = 10
"""Maximum number of invalid fields that one response lists."""


SIGN_IN, CALLBACK, SIGN_OUT = "/sign-in", "/sign-in/callback", "/sign-out"


class ProblemError(Exception):
    """Ends a request with a response that has ``problem`` as its body, and ``headers``."""

    def __init__(
        self,
        status: int,
        code: ProblemCode,
        message: str,
        *,
        fields: list[FieldProblem] | None = None,
        asked: Amount | None = None,
        left: Amount | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.problem = Problem(
            status=status, code=code, message=message, fields=fields or [], asked=asked, left=left
        )
        self.headers = headers or {}


def too_many_error(message: str, seconds: int) -> ProblemError:
    """Return a 429; the client may retry after ``seconds``."""
    return ProblemError(429, "too-many-requests", message, headers={"Retry-After": str(seconds)})


def unknown_name_error(
    what: Literal["source", "stream", "population"], name: str, names: Collection[str]
) -> ProblemError:
    """Return a 404 for an unknown name in a path; ``names`` are the known ones."""
    return ProblemError(
        404, "not-found", f"there is no {what} '{name[:128]}'{suggest_public_name(name[:128], names)}"
    )


def refuse_repeated(parameters: Collection[str]) -> None:
    """Refuse repeated parameters."""
    if len(set(parameters)) != len(parameters):
        raise ProblemError(400, "malformed", "parameter: a parameter is given twice; give each parameter once")


def is_caused_by_another_site(request: web.Request) -> bool:
    """Return whether a page of another site sent a request, according to the browser."""
    return request.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}


def malformed_error(
    error: ValidationError, what: Literal["body", "parameter"], body: bytes | None = None
) -> ProblemError:
    """Return a 400 that names the invalid fields, as the ``body`` has them, without quoting values."""
    found = error.error_count()
    if found > MAX_FAULTS:
        return ProblemError(400, "malformed", f"{what}: {found} fields are wrong; compare it with /openapi.json")
    fields, given = [], None if body is None else parse_or_none(body)
    for detail in error.errors(include_url=False)[:MAX_FIELDS]:
        steps = map(str, detail["loc"]) if body is None else locate_fault(given, detail)
        place = ".".join([*steps, *(["kind"] if detail["type"] == KIND_ERROR else [])]) or "body"
        fields.append(FieldProblem(field=place[:80], message=explain_to_writer(detail)))
    wrong = "1 field is wrong" if found == 1 else f"{found} fields are wrong"
    return ProblemError(400, "malformed", f"{what}: {wrong}; see 'fields'", fields=fields)


class ClientGoneError(ConnectionError):
    """The client disconnected before its turn came or before its request was complete."""


class _Waiter(NamedTuple):
    is_disconnected: Callable[[], bool]
    turn: asyncio.Future[None]


class RequestTurns:
    """Runs requests one at a time, and serves users in turn.

    At most ``max_waiting`` requests wait in total, and at most ``max_waiting_per_user`` of one user. After
    each request there is a pause of ``pause_factor`` times its duration.
    """

    def __init__(
        self,
        *,
        max_waiting: float = math.inf,
        max_waiting_per_user: float = math.inf,
        pause_factor: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_waiting = max_waiting
        self._max_waiting_per_user = max_waiting_per_user
        self._pause_factor = pause_factor
        self._clock = clock
        self._is_busy = False
        self._waiting: OrderedDict[str, deque[_Waiter]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, name: str, is_disconnected: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a turn.

        Raises:
            ClientGoneError: the client has disconnected.
            ProblemError: too many requests wait.
        """
        await self._wait(name, is_disconnected)
        began = self._clock()
        try:
            yield
        finally:
            pause = (self._clock() - began) * self._pause_factor
            if pause > 0.0:
                asyncio.get_running_loop().call_later(pause, self._give_next_turn)
            else:
                self._give_next_turn()

    async def _wait(self, name: str, is_disconnected: Callable[[], bool]) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        if self._is_full(name):
            self._remove_disconnected()
        if self._is_full(name):
            raise too_many_error(
                f"too many requests wait (at most {self._max_waiting_per_user} of one name, {self._max_waiting} in total); retry in 10 s",
                10,
            )
        waiter = _Waiter(is_disconnected, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(name, deque()).append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if not waiter.turn.cancelled() and waiter.turn.exception() is None:
                self._give_next_turn()  # the request was cancelled after its turn had come
            raise

    def _give_next_turn(self) -> None:
        self._remove_disconnected()
        if not self._waiting:
            self._is_busy = False
            return
        name, waiters = self._waiting.popitem(last=False)
        waiters.popleft().turn.set_result(None)
        if waiters:
            self._waiting[name] = waiters

    def _remove_disconnected(self) -> None:
        """Remove the waiting requests of disconnected clients; they raise ClientGoneError."""
        for name, waiters in list(self._waiting.items()):
            for waiter in waiters:
                if not waiter.turn.done() and waiter.is_disconnected():
                    waiter.turn.set_exception(ClientGoneError())
            if left := deque(waiter for waiter in waiters if not waiter.turn.done()):
                self._waiting[name] = left
            else:
                del self._waiting[name]

    def _is_full(self, name: str) -> bool:
        waiters = len(self._waiting.get(name, ()))
        return waiters >= self._max_waiting_per_user or sum(map(len, self._waiting.values())) >= self._max_waiting


IDLE_SECONDS = 15.0
"""Seconds within which a request must be complete, from the connection's start or the last response."""
MAX_WAITING = 256
"""Maximum number of waiting connections."""
WRITE_SECONDS = 30.0
"""Seconds after which a client that does not read its response is disconnected."""
LINGER_SECONDS, LINGER_BYTES = 2.0, 2 * MAX_DEFINITION_BYTES
"""Seconds and bytes for discarding the rest of a request that was answered before it was complete."""
ERRORS_PER_SECOND, ERROR_BURST = 1.0, 10
"""Rate limit of malformed requests per address; above it, connections are closed without a response."""

log = get_logger("monitor")


@contextmanager
def streaming_response(request: web.Request) -> Iterator[None]:
    """End a streamed response without an error if the client disconnects or does not read it."""
    try:
        yield
    except TimeoutError:
        abort_connection(request)  # otherwise unread data keeps the connection open
    except ConnectionError:
        pass  # the client has disconnected


async def write_text(response: web.StreamResponse, text: str) -> None:
    """Send the next part of a response; raise TimeoutError if the client does not read it."""
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(text.encode())


def abort_connection(request: web.Request) -> None:
    """Abort a request's connection."""
    if request.transport is not None:
        request.transport.abort()


class WaitingConnections:
    """The connections without a request in progress, by address, oldest first; limited in number."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self._limit = limit
        self._by_address: dict[str, OrderedDict[HttpConnection, None]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))

    def add(self, connection: HttpConnection) -> None:
        """Add a connection; above the limit, abort the oldest one of the address that has the most."""
        self._by_address.setdefault(connection.address, OrderedDict())[connection] = None
        if len(self) > self._limit:
            most = max(self._by_address.values(), key=len)
            next(iter(most)).abort_connection()

    def discard(self, connection: HttpConnection) -> None:
        """Remove a connection, if present."""
        of_address = self._by_address.get(connection.address, OrderedDict())
        if connection in of_address:
            del of_address[connection]
            if not of_address:
                del self._by_address[connection.address]


class HttpConnection(web.RequestHandler):
    """One connection, with time limits and without quoting malformed requests."""

    def __init__(
        self, manager: web.Server, waiting: WaitingConnections, errors: RateLimiter, **options: Any
    ) -> None:
        super().__init__(manager, **options)
        self.address = ""
        self._waiting = waiting
        self._errors = errors
        self._socket_transport: asyncio.Transport | None = None
        self._unread: StreamReader | None = None
        self._discarded_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add the new connection to the waiting ones."""
        super().connection_made(transport)
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a web server's connections are streams")
        self._socket_transport = transport
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        connection_socket = transport.get_extra_info("socket")
        if (
            connection_socket is not None
            and connection_socket.family != socket.AF_UNIX
            and hasattr(socket, "TCP_USER_TIMEOUT")
        ):
            # A client that has vanished acknowledges nothing; the system's default timeout is 15 minutes.
            connection_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_SECONDS * 1000))
        self._waiting.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection from the waiting ones and end its handler's reads."""
        self._waiting.discard(self)
        super().connection_lost(exc)
        if self._unread is not None:
            self._unread.feed_eof()  # the rest of the request will not arrive

    def data_received(self, data: bytes) -> None:
        """Receive data; discard it if its request is already answered."""
        if self._unread is None:
            super().data_received(data)
            return
        self._discarded_bytes += len(data)
        if self._discarded_bytes > LINGER_BYTES:
            self.abort_connection()

    def abort_connection(self) -> None:
        """Abort the connection."""
        self._waiting.discard(self)
        self.force_close()
        if self._socket_transport is not None:
            self._socket_transport.abort()

    def stop_waiting(self) -> None:
        """Remove the connection from the waiting ones: its request is processed now."""
        self._waiting.discard(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send a response; close the connection after it if the request was not read to its end."""
        if not request.content.is_eof():
            self._unread = request.content
            resp.force_close()
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                finished = await super().finish_response(request, resp, start_time)
        except TimeoutError:
            self.abort_connection()
            return resp, True
        if self.transport is not None:
            self._waiting.discard(self)
            self._waiting.add(self)
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer a malformed request or an uncaught error without quoting it."""
        del message
        if status < 500 and self._errors.count_request(self.address):
            self.abort_connection()
            raise ConnectionResetError("too many malformed requests from this address")
        log.warning("malformed request", status=status, error=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionResetError("a response has already started")
        if status < 500:
            problem = ProblemError(status, "malformed", "request: malformed HTTP; check its headers").problem
        else:
            problem = ProblemError(status, "internal", "internal error; see the monitor's log").problem
        response = web.Response(text=problem.model_dump_json(), status=status, content_type="application/json")
        response.headers["Server"] = SERVER_NAME
        response.force_close()
        return response


class _Server(web.Server):
    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            if isinstance(request.protocol, HttpConnection):
                request.protocol.stop_waiting()
            return await server.request_handler(request)

        super().__init__(handle, request_factory=server.request_factory, loop=loop)
        self._own_loop = loop
        self._waiting = WaitingConnections()
        self._errors = RateLimiter(ERRORS_PER_SECOND, ERROR_BURST)

    def __call__(self) -> HttpConnection:
        """Return the handler of a new connection."""
        return HttpConnection(
            self,
            self._waiting,
            self._errors,
            loop=self._own_loop,
            access_log=None,
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=LINGER_SECONDS,
            auto_decompress=False,
        )


class MonitorRunner(web.AppRunner):
    """Runs the monitor's application on HttpConnection objects."""

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), asyncio.get_running_loop())
