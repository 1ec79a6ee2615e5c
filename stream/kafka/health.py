"""What a service says of itself to whoever supervises it: /livez, /readyz and /metrics on one port."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, Final, Literal, NoReturn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Gauge, make_wsgi_app

from stream.kafka.metrics import Metrics

HUNG_SECONDS: Final = 60.0
"""A service whose event loop has not come round for so long is not alive."""

Respond = Callable[[str, list[tuple[str, str]]], Any]


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
        """Offer probes and figures at an address, in threads of their own; port 0 offers nothing."""
        if not port:
            return
        figures = make_wsgi_app(self._registry)

        def respond(environ: dict[str, Any], start: Respond) -> Iterable[bytes]:
            path = environ.get("PATH_INFO", "")
            if path not in {"/livez", "/readyz"}:
                shown: Iterable[bytes] = figures(environ, start)
                return shown
            status, text = self.answer(path)
            start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
            return [f"{text}\n".encode()]

        family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server_class: type[WSGIServer] = type("_Server", (_Server,), {"address_family": family})
        server = make_server(host, port, respond, server_class, _Quiet)
        threading.Thread(target=server.serve_forever, name="health", daemon=True).start()


class Health(Probes):
    """The probes of a service that runs an engine, with the engine's figures."""

    def __init__(self, role: Literal["worker", "budget"]) -> None:
        self.metrics = Metrics(role)
        super().__init__(self.metrics.registry, self.metrics.ready)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    timeout = 10
    """Seconds that a connection may take over its request."""

    def log_message(self, *_: Any) -> None:
        """Say nothing: probes come every few seconds, and whatever a request contains has no place in a log."""
