"""Connections to the web server: how long and how many may wait, and what becomes of bytes that are no request.

A connection *waits* while no request of it is being worked on: before its first, between two, and while one comes in
piece by piece. Nobody has shown a token by then, so waiting is bounded in time and in number; at the limit the
oldest one of the address that has most gives way. Bytes that cannot be read are answered without a word of theirs, and
never logged. Bodies are never unfolded, and what is still to come of one that is answered already is thrown away unread.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import StreamReader, web

from schemas import MAX_DEFINITION_BYTES
from stream.log import RateLimiter, get_logger
from stream.monitor.api.problems import ProblemError
from stream.version import SERVER_NAME

IDLE_SECONDS = 15.0
"""How long a connection may wait for a whole request, from its start or from the last answer."""
MAX_WAITING = 256
"""Most connections that wait at a time."""
WRITE_SECONDS = 30.0
"""How long a reader may leave unread what it is sent before it is cut off."""
LINGER_SECONDS, LINGER_BYTES = 2.0, 2 * MAX_DEFINITION_BYTES
"""How long, and for how much, a connection whose request was answered before all of it was there stays open, so that
whoever is still sending gets to read the answer."""
ERRORS_PER_SECOND, ERRORS_AT_ONCE = 1.0, 10
"""Unreadable requests of one address that get an answer; more are cut off without one."""

log = get_logger("monitor")


@contextmanager
def sending(request: web.Request) -> Iterator[None]:
    """Send an answer bit by bit: it ends with a reader who leaves, and one who leaves it unread is cut off."""
    try:
        yield
    except TimeoutError:
        cut_off(request)  # what it left unread would hold the connection open
    except ConnectionError:
        pass  # the reader has gone


async def write(response: web.StreamResponse, text: str) -> None:
    """Send the next bit of an answer; TimeoutError if the reader does not take it."""
    async with asyncio.timeout(WRITE_SECONDS):
        await response.write(text.encode())


def cut_off(request: web.Request) -> None:
    """End a request's connection at once, whatever is still to be sent."""
    if request.transport is not None:
        request.transport.abort()


class WaitingConnections:
    """The connections that wait, by address, the oldest first."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self._limit = limit
        self._by_address: dict[str, OrderedDict[HttpConnection, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, connection: HttpConnection) -> None:
        """Let one wait; where too many do, another one is cut off."""
        self._by_address.setdefault(connection.address, OrderedDict())[connection] = None
        self._count += 1
        if self._count > self._limit:
            most = max(self._by_address.values(), key=len)
            next(iter(most)).cut_off()

    def discard(self, connection: HttpConnection) -> None:
        """This one waits no more, if it did."""
        own = self._by_address.get(connection.address, OrderedDict())
        if connection in own:
            del own[connection]
            self._count -= 1
            if not own:
                del self._by_address[connection.address]


class HttpConnection(web.RequestHandler):
    """One connection, from its start to its end."""

    def __init__(
        self, manager: web.Server, waiting: WaitingConnections, errors: RateLimiter, **options: Any
    ) -> None:
        super().__init__(manager, **options)
        self.address = ""
        self._waiting = waiting
        self._errors = errors
        self._wire: asyncio.Transport | None = None
        self._unread: StreamReader | None = None
        self._thrown_away = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait."""
        super().connection_made(transport)
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a web server's connections are streams")
        self._wire = transport
        self.address = str((transport.get_extra_info("peername") or ("",))[0])
        wire = transport.get_extra_info("socket")
        if wire is not None and wire.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
            # Whoever has gone without a word confirms nothing; the system's own patience is a quarter of an hour.
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(WRITE_SECONDS * 1000))
        self._waiting.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._waiting.discard(self)
        super().connection_lost(exc)
        if self._unread is not None:
            self._unread.feed_eof()  # nobody waits for the rest of it any more

    def data_received(self, data: bytes) -> None:
        """Take in what comes, and throw it away once the request that it belongs to is answered."""
        if self._unread is None:
            super().data_received(data)
            return
        self._thrown_away += len(data)
        if self._thrown_away > LINGER_BYTES:
            self.cut_off()

    def cut_off(self) -> None:
        """End at once, whatever is still to be sent."""
        self._waiting.discard(self)
        self.force_close()
        if self._wire is not None:
            self._wire.abort()

    def works(self) -> None:
        """A whole request is here and is being worked on."""
        self._waiting.discard(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer, to whoever reads it, and wait for the next request, if all of this one is there."""
        if not request.content.is_eof():
            self._unread = request.content
            resp.force_close()
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                answered = await super().finish_response(request, resp, start_time)
        except TimeoutError:
            self.cut_off()
            return resp, True
        if self.transport is not None:
            self._waiting.discard(self)
            self._waiting.add(self)
        return answered

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what is no request, or what went wrong where nobody else caught it, without quoting it."""
        del message
        if status < 500 and self._errors.wait(self.address):
            self.cut_off()
            raise ConnectionResetError("too many requests of this address cannot be read")
        log.warning("request unreadable", status=status, error=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionResetError("an answer is under way, another cannot be sent")
        if status < 500:
            problem = ProblemError(
                status, "malformed", "request: cannot be read as HTTP; look at its headers"
            ).problem
        else:
            problem = ProblemError(status, "internal", "a fault on our side; see the monitor's log").problem
        answer = web.Response(text=problem.model_dump_json(), status=status, content_type="application/json")
        answer.headers["Server"] = SERVER_NAME
        answer.force_close()
        return answer


class _Server(web.Server):
    """Makes our connections in place of aiohttp's."""

    def __init__(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> None:
        async def work(request: web.BaseRequest) -> web.StreamResponse:
            if isinstance(request.protocol, HttpConnection):
                request.protocol.works()
            return await server.request_handler(request)

        super().__init__(work, request_factory=server.request_factory, loop=loop)
        self._own_loop = loop
        self._waiting = WaitingConnections()
        self._errors = RateLimiter(ERRORS_PER_SECOND, ERRORS_AT_ONCE)

    def __call__(self) -> HttpConnection:
        """A connection that has just come in."""
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


class Runner(web.AppRunner):
    """Runs the monitor's application on our connections."""

    async def _make_server(self) -> web.Server:
        return _Server(await super()._make_server(), asyncio.get_running_loop())
