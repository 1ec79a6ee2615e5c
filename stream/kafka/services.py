"""The services: workers, the budget service and feeds, ready to run."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from stream import tracing
from stream.garbage import look_rarely
from stream.kafka import acls, reading
from stream.kafka.guarding import guard_topics
from stream.kafka.health import Health
from stream.kafka.heartbeats import heartbeats
from stream.kafka.processes import STOP_SECONDS
from stream.kafka.roles import ServiceName
from stream.kafka.starting import Stopped, patiently
from stream.kafka.topics import find_topics
from stream.kernel import compiled
from stream.log import get_logger
from stream.noise import NoiseKey
from stream.processors.topics import Topics
from stream.settings import Settings

if TYPE_CHECKING:
    from stream.kafka.engine import Engine
    from stream.kafka.feeds import FeedService

SWITCH_SECONDS: Final = 0.0005
"""So long a step of Python that runs beside the event loop may hold it up: tenfold less than Python's own 5 ms, at each of its turns."""
_ORDERS: Final = (signal.SIGTERM, signal.SIGINT)

log = get_logger("service")


def _service(
    role: ServiceName, settings: Settings, topics: Topics, key: NoiseKey | None, health: Health
) -> Engine | FeedService:
    if role == "feed":
        from stream.kafka.feeds import FeedService  # noqa: PLC0415  (what the other roles need takes as long as all of this)

        return FeedService(settings, topics, health)
    from stream.kafka.keyed import budget, worker  # noqa: PLC0415

    if key is None:
        raise ValueError(f"a {role} needs the noise key")
    return (worker if role == "worker" else budget)(settings, topics, key, health)


async def serve(
    role: ServiceName, settings: Settings, key: NoiseKey | None, *, stop_with_stdin: bool = False
) -> None:
    """Run a service until SIGTERM or SIGINT, then hand over: batches in hand are finished, the group is left.

    It waits for Kafka if it has to. With ``stop_with_stdin`` the end of standard input is an order to stop too, so that a
    service ends with its parent. Feeds need no noise key.
    """
    tracing.configure(role)
    started = time.time()
    stopping = asyncio.Event()
    stop_when_told(stopping.set, stop_with_stdin=stop_with_stdin)
    health = Health(role)
    health.serve(settings.metrics_host, settings.metrics_port)
    beating = asyncio.create_task(health.beat())
    try:
        find = partial(find_topics, settings, attempts=50, role=acls.Role(role))
        topics = await patiently(find, stopping, health.tell)
        await patiently(partial(guard_topics, settings, acls.Role(role)), stopping, health.tell)
        gc.disable()  # until all is imported: it stays
        engine = _service(role, settings, topics, key, health)
        reading.install()
        log.info("ready to begin", role=role, kernel="python" if compiled() is None else "compiled")
        sys.setswitchinterval(SWITCH_SECONDS)
        look_rarely()
        gc.enable()
        stop_when_told(engine.stop, stop_with_stdin=stop_with_stdin)
        engine.on_failure = end_soon
        if not stopping.is_set():
            saying = asyncio.create_task(heartbeats(settings, engine.role, started))
            try:
                await engine.run()
            finally:
                saying.cancel()
                await asyncio.gather(saying, return_exceptions=True)
    except Stopped:
        log.info("stopped before it began", role=role)
    finally:
        beating.cancel()
        heed_no_more()


def end_soon(seconds: float = STOP_SECONDS) -> None:
    """End this process with status 1 after a while, unless it has ended by itself, whatever hangs in it."""
    last_resort = threading.Timer(seconds, os._exit, (1,))
    last_resort.daemon = True
    last_resort.start()


def stop_when_told(stop: Callable[[], None], *, stop_with_stdin: bool, seconds: float | None = None) -> None:
    """Call ``stop`` at SIGTERM or SIGINT, or at the end of standard input if that is an order too.

    What has not ended in so many ``seconds``, twice ``STOP_SECONDS`` unless told, is ended: all of it may wait for Kafka, and whoever
    gave the order need not be there to give another. What is left undone is done by the successor, as after a kill.
    """
    loop = asyncio.get_running_loop()

    def told() -> None:
        stop()
        end_soon(2 * STOP_SECONDS if seconds is None else seconds)

    for number in _ORDERS:
        loop.add_signal_handler(number, told)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_input, loop, told)


def heed_no_more() -> None:
    """Pass over further orders to stop: what has ended is on its way out, and would be killed by them with another status."""
    loop = asyncio.get_running_loop()
    for number in _ORDERS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop, told: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        told()
