"""Health of a service for its supervisor: /livez, /readyz and /metrics on one port."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from socketserver import ThreadingMixIn
from typing import Any, Final, Literal, NoReturn, TypeVar
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stream import SERVER_NAME
from stream.caches import cache_bytes
from stream.diagnostics import get_logger
from stream.settings import variable_of

ServiceName = Literal["worker", "budget", "feed"]
"""The services that run engines."""

ServerPurpose = Literal["metrics", "monitor"]

_COMMAND_OPTIONS: Final[dict[ServerPurpose, tuple[str, str]]] = {
    "metrics": ("", ""),
    "monitor": (" (--host)", " (--port)"),
}


class ListenError(RuntimeError):
    """A service cannot listen on its address; the message names the setting and a remedy."""


@contextmanager
def explain_listen_errors(purpose: ServerPurpose, host: str, port: int) -> Iterator[None]:
    """Convert an OSError of a server's start to ListenError, which names the setting and a remedy."""
    host_option, port_option = _COMMAND_OPTIONS[purpose]
    port_name = f"{variable_of(f'{purpose}_port')}{port_option}"
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"{port_name}: port {port} of {host} is in use; give another one, or stop the process that listens there"
        elif error.errno == errno.EACCES:
            message = f"{port_name}: this user may not open port {port}; use one from 1024 on"
        else:
            message = (
                f"{variable_of(f'{purpose}_host')}{host_option}: cannot listen on '{host}' ({error.strerror}); give an "
                "address of this machine"
            )
        raise ListenError(message) from None


def require_free(purpose: ServerPurpose, host: str, port: int) -> None:
    """Raise ListenError if a server cannot listen on the address; libraries would only log it."""
    with explain_listen_errors(purpose, host, port):
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()


HUNG_SECONDS: Final = 60.0
"""A service counts as hung if its event loop has been blocked for this time."""
REQUEST_SECONDS: Final = 10.0
"""A connection is closed if its request and answer take longer."""
MAX_CONNECTIONS: Final = 32
"""Maximum number of connections at once. A further one ends the oldest, so that probes are always answered."""

Metric = TypeVar("Metric", Counter, Gauge, Histogram)
StartResponse = Callable[[str, list[tuple[str, str]]], Any]

log = get_logger("health")

_GAUGE_COMBINERS: Final[dict[str, Callable[[Iterable[float]], float]]] = {
    "partitions": sum,
    "member": min,
    "ready": min,
    "failing": sum,
    "step_seconds": max,
}
"""How each gauge combines the values of several engines of one process."""


class CacheCollector(Collector):
    """Shows how much memory the caches of a service hold."""

    def __init__(self, role: str) -> None:
        self._name = f"sotto_{role}_cache_bytes"

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Yield the memory of each cache."""
        cache_memory = GaugeMetricFamily(
            self._name, "Memory that a cache holds, by cache; each is bounded.", labels=["cache"]
        )
        for name, size in cache_bytes().items():
            cache_memory.add_metric([name], size)
        yield cache_memory


class Metrics:
    """Counters, gauges and histograms of a service, in base units."""

    def __init__(self, role: str) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(CacheCollector(role))

        def build_metric(kind: type[Metric], name: str, documentation: str) -> Metric:
            return kind(f"sotto_{role}_{name}", documentation, registry=self.registry)

        self.events = build_metric(Counter, "events", "Input events answered and committed.")
        self.busy_refusals = build_metric(
            Counter, "busy", "Questions refused because too much work was outstanding."
        )
        self.failures = build_metric(Counter, "partition_failures", "Times a partition was dropped and restored.")
        self.unreadable = build_metric(
            Counter,
            "unread",
            "Events and batches refused as unreadable, and unreadable records skipped in compacted topics.",
        )
        self.deleted_unread = build_metric(
            Counter, "input_gone", "Upper bound for input records that were deleted before they were read."
        )
        self.recreated = build_metric(
            Counter, "input_recreated", "Times an input topic was found to have been deleted and created again."
        )
        self.rolled_back = build_metric(
            Gauge, "rolled_back", "Owned partitions that are refused, because a witness has a later anchor."
        )
        self.failing_witnesses = build_metric(
            Gauge,
            "failing_witnesses",
            "Witnesses that could not be read or written at the last try, or are damaged.",
        )
        self.empty_witnesses = build_metric(
            Gauge, "empty_witnesses", "Witnesses that had no anchor of the trail when they were first read."
        )
        self.restored = build_metric(Counter, "restored_records", "Records read to restore state.")
        self.partitions = build_metric(Gauge, "partitions", "Partitions owned now.")
        self.member = build_metric(
            Gauge, "member", "Whether Kafka lists this process in its consumer group, with or without partitions."
        )
        self.ready = build_metric(Gauge, "ready", "Whether /readyz reports ready.")
        self.failing = build_metric(
            Gauge,
            "failing_partitions",
            "Owned partitions that are not processed, or have failed or restored without progress for a minute.",
        )
        self.step_seconds = build_metric(
            Gauge, "step_seconds", "Age of the longest current step: a restore, a batch or a wait for Kafka."
        )
        self.restore_seconds = build_metric(Histogram, "restore_seconds", "Time from fence to ready.")
        self.batch_seconds = build_metric(
            Histogram, "batch_seconds", "Time from a fetched batch to its committed transaction."
        )
        self.gauge_values: dict[str, dict[str, float]] = {name: {} for name in _GAUGE_COMBINERS}
        """For each gauge, the values of engines."""

    def engine_metrics(self, engine: str) -> Metrics:
        """Return the metrics of one engine; counters are shared, and gauges are combined."""
        found = copy(self)
        for gauge in _GAUGE_COMBINERS:
            setattr(found, gauge, _EngineGauge(self, gauge, engine))
        return found

    def remove_engine(self, name: str) -> None:
        """Remove the gauges of an engine."""
        for values in self.gauge_values.values():
            values.pop(name, None)


@dataclass(frozen=True)
class _EngineGauge:
    """A gauge of one engine, whose value is combined with the other engines' values."""

    service_metrics: Metrics
    gauge: str
    engine: str

    def set(self, value: float) -> None:
        """Set this engine's value, and show the combined value."""
        values = self.service_metrics.gauge_values[self.gauge]
        values[self.engine] = value
        shown: Gauge = getattr(self.service_metrics, self.gauge)
        shown.set(_GAUGE_COMBINERS[self.gauge](values.values()))


class Probes:
    """Serves readiness and metrics; the event loop sets them, and server threads read them."""

    def __init__(self, registry: CollectorRegistry, ready: Gauge) -> None:
        self._registry = registry
        self._ready = ready
        self.not_ready_reason = "has not reached Kafka yet"
        """Reason why the service is not ready; empty if it is."""
        self._last_heartbeat = time.monotonic()

    def set_not_ready_reason(self, reason: str) -> None:
        """Set the reason why the service is not ready; empty if it is."""
        self.not_ready_reason = reason
        self._ready.set(not reason)

    async def record_heartbeats(self) -> NoReturn:
        """Record the time once a second, until cancelled; a blocked event loop cannot do it."""
        while True:
            self._last_heartbeat = time.monotonic()
            await asyncio.sleep(1.0)

    def answer_probe(self, path: str) -> tuple[str, str]:
        """Return status and text of a probe."""
        blocked = time.monotonic() - self._last_heartbeat
        hung = f"the event loop has been blocked for {blocked:.0f} s" if blocked > HUNG_SECONDS else ""
        reason = hung if path == "/livez" else hung or self.not_ready_reason
        return ("503 Service Unavailable", reason) if reason else ("200 OK", "ok")

    def serve(self, host: str, port: int) -> None:
        """Serve probes and metrics at an address, in threads; port 0 serves nothing.

        Raises:
            ListenError: the port is not available.
        """
        if not port:
            return
        metrics_app = make_wsgi_app(self._registry)

        def respond(environ: dict[str, Any], begin: StartResponse) -> Iterable[bytes]:
            def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
                return begin(status, [*headers, ("Server", SERVER_NAME)], *rest)

            path = environ.get("PATH_INFO", "")
            if path not in {"/livez", "/readyz"}:
                metrics: Iterable[bytes] = metrics_app(environ, start)
                return metrics
            status, text = self.answer_probe(path)
            start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
            return [f"{text}\n".encode()]

        with explain_listen_errors("metrics", host, port):
            family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            server_class: type[WSGIServer] = type("_Server", (_ProbeServer,), {"address_family": family})
            server = make_server(host, port, respond, server_class, _SilentHandler)
        threading.Thread(target=server.serve_forever, name="health", daemon=True).start()


class ServiceHealth(Probes):
    """Health of a service that runs engines, with their metrics."""

    def __init__(self, role: ServiceName) -> None:
        self.metrics = Metrics(role)
        self._engine_reasons: dict[str, str] = {}
        super().__init__(self.metrics.registry, self.metrics.ready)

    def engine_health(self, name: str) -> EngineHealth:
        """Return the health of one engine; the service is ready if all its engines are."""
        return EngineHealth(self, name)

    def remove_engine(self, name: str) -> None:
        """Remove an engine."""
        self._engine_reasons.pop(name, None)
        self.metrics.remove_engine(name)
        self._combine_reasons()

    def set_engine_reason(self, name: str, reason: str) -> None:
        """Set the reason why an engine is not ready; empty if it is."""
        self._engine_reasons[name] = reason
        self._combine_reasons()

    def _combine_reasons(self) -> None:
        reasons = sorted(self._engine_reasons.items())
        self.set_not_ready_reason("; ".join(f"{name}: {reason}" for name, reason in reasons if reason))


class EngineHealth:
    """Health of one of several engines in a service."""

    def __init__(self, service: ServiceHealth, name: str) -> None:
        self.metrics = service.metrics.engine_metrics(name)
        self.not_ready_reason = "has not started yet"
        self._service = service
        self._name = name
        service.set_engine_reason(name, self.not_ready_reason)

    def set_not_ready_reason(self, reason: str) -> None:
        """Set the reason why the engine is not ready; empty if it is."""
        self.not_ready_reason = reason
        self._service.set_engine_reason(self._name, reason)


class _ProbeServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._start_times: dict[Any, float] = {}
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(open_requests := tuple(self._start_times)) >= MAX_CONNECTIONS:
            self._end_connection(open_requests[0])
        self._start_times[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        for request, began_at in tuple(self._start_times.items()):
            if time.monotonic() - began_at > REQUEST_SECONDS:
                self._end_connection(request)

    def shutdown_request(self, request: Any) -> None:
        self._start_times.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection without the peer's address."""
        del request, client_address
        log.info("probe cut short", error=type(sys.exc_info()[1]).__name__)

    def _end_connection(self, request: Any) -> None:
        self._start_times.pop(request, None)
        # The thread that reads from this connection sees its end, and ends.
        with suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)


class _SilentHandler(WSGIRequestHandler):
    server_version, sys_version = SERVER_NAME, ""

    def version_string(self) -> str:
        return SERVER_NAME

    def log_message(self, *_: Any) -> None:
        """Log nothing: probes are frequent, and a request may contain anything."""
