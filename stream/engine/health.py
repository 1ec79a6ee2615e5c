"""What a service says of itself to whoever supervises it: /livez, /readyz and /metrics on one port."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import Any, Final, Literal, NoReturn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

from stream.engine.task_status import Metrics, ServiceName
from stream.log import get_logger
from stream.settings import variable
from stream.version import SERVER_NAME

Purpose = Literal["metrics", "monitor"]

_OPTIONS: Final[dict[Purpose, tuple[str, str]]] = {"metrics": ("", ""), "monitor": (" (--host)", " (--port)")}


class ListenError(RuntimeError):
    """A service cannot listen where it was told to; the message names the setting and says what to do."""


@contextmanager
def told_where(purpose: Purpose, host: str, port: int) -> Iterator[None]:
    """Raise ListenError in place of what the system says of an address."""
    try:
        yield
    except OSError as error:
        raise ListenError(_told(error, purpose, host, port)) from None


def require_free(purpose: Purpose, host: str, port: int) -> None:
    """ListenError unless this process could listen there: whoever does so later, in a library, reports it out of reach."""
    with told_where(purpose, host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()


def _told(error: OSError, purpose: Purpose, host: str, port: int) -> str:
    of_host, of_port = _OPTIONS[purpose]
    if error.errno == errno.EADDRINUSE:
        return (
            f"{variable(f'{purpose}_port')}{of_port}: port {port} of {host} is in use; give another one, or end what "
            "listens there"
        )
    if error.errno == errno.EACCES:
        return f"{variable(f'{purpose}_port')}{of_port}: this user may not open port {port}; give one from 1024 on"
    return (
        f"{variable(f'{purpose}_host')}{of_host}: cannot listen on '{host}' ({error.strerror}); give an address of "
        "this machine"
    )


HUNG_SECONDS: Final = 60.0
"""A service whose event loop has not come round for so long is not alive."""
REQUEST_SECONDS: Final = 10.0
"""A connection that has taken so long over its request and answer is cut off."""
MOST_REQUESTS: Final = 32
"""Connections at a time, each with a thread: beyond that the oldest one is cut off, so that a probe always gets in."""

Respond = Callable[[str, list[tuple[str, str]]], Any]

log = get_logger("health")


class Probes:
    """Whether a service is ready, and its figures. Written by its event loop, read by the server's threads."""

    def __init__(self, registry: CollectorRegistry, ready: Gauge) -> None:
        self._registry = registry
        self._ready = ready
        self._lack = "has not reached Kafka yet"
        self._beat = time.monotonic()

    @property
    def lack(self) -> str:
        """What the service lacks to be ready; empty if it is."""
        return self._lack

    def tell(self, lack: str) -> None:
        """Say what is lacking now."""
        self._lack = lack
        self._ready.set(not lack)

    async def beat(self) -> NoReturn:
        """Show until cancelled that the event loop comes round."""
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(1.0)

    def answer(self, path: str) -> tuple[str, str]:
        """Status and text of a probe."""
        silent = time.monotonic() - self._beat
        hung = f"the event loop has not come round for {silent:.0f} s" if silent > HUNG_SECONDS else ""
        lack = hung if path == "/livez" else hung or self._lack
        return ("503 Service Unavailable", lack) if lack else ("200 OK", "ok")

    def serve(self, host: str, port: int) -> None:
        """Offer probes and figures at an address, in threads of their own; port 0 offers nothing.

        Raises:
            ListenError: the port cannot be had.
        """
        if not port:
            return
        figures = make_wsgi_app(self._registry)

        def respond(environ: dict[str, Any], begin: Respond) -> Iterable[bytes]:
            def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
                return begin(status, [*headers, ("Server", SERVER_NAME)], *rest)

            path = environ.get("PATH_INFO", "")
            if path not in {"/livez", "/readyz"}:
                shown: Iterable[bytes] = figures(environ, start)
                return shown
            status, text = self.answer(path)
            start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
            return [f"{text}\n".encode()]

        with told_where("metrics", host, port):
            family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            server_class: type[WSGIServer] = type("_Server", (_ProbeServer,), {"address_family": family})
            server = make_server(host, port, respond, server_class, _Quiet)
        threading.Thread(target=server.serve_forever, name="health", daemon=True).start()


class ServiceHealth(Probes):
    """The probes of a service that runs engines, with their figures."""

    def __init__(self, role: ServiceName) -> None:
        self.metrics = Metrics(role)
        self._lacks: dict[str, str] = {}
        super().__init__(self.metrics.registry, self.metrics.ready)

    def part(self, name: str) -> EngineHealth:
        """A part of the service that may lack something by itself; the whole lacks what any of them does."""
        return EngineHealth(self, name)

    def drop(self, name: str) -> None:
        """Forget a part."""
        self._lacks.pop(name, None)
        self.metrics.drop(name)
        self._tell_of_parts()

    def tell_of(self, name: str, lack: str) -> None:
        """Say what a part lacks now."""
        self._lacks[name] = lack
        self._tell_of_parts()

    def _tell_of_parts(self) -> None:
        self.tell("; ".join(f"{name}: {lack}" for name, lack in sorted(self._lacks.items()) if lack))


class EngineHealth:
    """What one of several engines of a service says of itself."""

    def __init__(self, whole: ServiceHealth, name: str) -> None:
        self.metrics = whole.metrics.part(name)
        self.lack = "has not begun yet"
        self._whole = whole
        self._name = name
        whole.tell_of(name, self.lack)

    def tell(self, lack: str) -> None:
        """Say what is lacking now."""
        self.lack = lack
        self._whole.tell_of(self._name, lack)


class _ProbeServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *given: Any) -> None:
        self._begun: dict[Any, float] = {}
        super().__init__(*given)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(begun := tuple(self._begun)) >= MOST_REQUESTS:
            self._cut_off(begun[0])
        self._begun[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """What is done twice a second."""
        for request, begun in tuple(self._begun.items()):
            if time.monotonic() - begun > REQUEST_SECONDS:
                self._cut_off(request)

    def shutdown_request(self, request: Any) -> None:
        self._begun.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say that a connection broke, and not whose it was."""
        del request, client_address
        log.info("probe cut short", error=type(sys.exc_info()[1]).__name__)

    def _cut_off(self, request: Any) -> None:
        self._begun.pop(request, None)
        # Whoever reads from it finds its end, and its thread ends.
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _Quiet(WSGIRequestHandler):
    server_version, sys_version = SERVER_NAME, ""

    def version_string(self) -> str:
        """The name of the server, without versions."""
        return SERVER_NAME

    def log_message(self, *_: Any) -> None:
        """Say nothing: probes come every few seconds, and whatever a request contains has no place in a log."""
