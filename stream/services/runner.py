"""The services: workers, the budget service and feeds, ready to run."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from schemas import MemberStatus
from stream import tracing
from stream.engine.health import ServiceHealth
from stream.engine.task_status import EngineRole, ServiceName
from stream.environment import reduce_gc_frequency
from stream.kafka.client import column_reader
from stream.kafka.client.availability import Stopped, patiently
from stream.kafka.client.client_patches import disable_topic_auto_creation
from stream.kafka.client.security import connection
from stream.kafka.topics import acls
from stream.kafka.topics.acls import AclRole
from stream.kafka.topics.creation import find_topics, inspect_topics
from stream.kafka.topics.layouts import TopicsError, told
from stream.kernel import compiled
from stream.log import get_logger
from stream.privacy.noise import NoiseKey
from stream.processing.topic_names import Topics
from stream.services.processes import STOP_SECONDS
from stream.settings import Settings
from stream.version import VERSION

if TYPE_CHECKING:
    from stream.engine.group_engine import Engine
    from stream.services.feed_service import FeedService


CHECK_SECONDS = 10.0
"""Longest that one look may take before it is begun anew."""

topics_log = get_logger("topics")


async def guard_topics(settings: Settings, role: AclRole) -> None:
    """Refuse topics of a role from which Kafka deletes what must be kept; log what else is otherwise, and what may not be read.

    Raises:
        TopicsError: records that must be kept are deleted, by the settings that the message names.
        KafkaError, TimeoutError: Kafka does not answer.
    """
    async with asyncio.timeout(CHECK_SECONDS):
        found = await inspect_topics(settings, attempts=20, role=role)
    if found.losses:
        raise TopicsError(
            f"Kafka deletes records that must be kept: {told(found.losses)}; run 'sotto ledger verify' before this {role} is started again "
            "(docs/operations.md, 'Topics that differ')"
        )
    if found.hidden:
        topics_log.warning(
            "topics not checked; give this principal DescribeConfigs on them, see 'sotto topics acl', or run 'sotto topics check'",
            topics=found.hidden,
        )
    for one in found.differences:
        topics_log.warning(
            "topic differs", topic=one.topic, setting=one.setting, actual=one.actual, wanted=one.wanted
        )


INTERVAL: Final = 10.0
"""Seconds between two words."""

KEY_PREFIX: Final = "@member|"

_STATM: Final = Path("/proc/self/statm")
_LEAVING_SECONDS: Final = 3.0

log = get_logger("service")


async def heartbeats(settings: Settings, role: EngineRole, started: float) -> None:
    """Tell the status topic until cancelled that this process runs, and take it back at the end.

    Whatever Kafka's state, the service goes on: a word that cannot be said is left out.
    """
    told = False
    while True:
        producer: AIOKafkaProducer | None = None
        try:
            # Secrets are read anew at each connection: their files may be in the middle of being replaced.
            producer = AIOKafkaProducer(**connection(settings))
            disable_topic_auto_creation(producer.client)
            await producer.start()
            while True:
                await producer.send_and_wait(role.status, key=_key(role), value=_word(role, started))
                told = True
                await asyncio.sleep(INTERVAL)
        except (KafkaError, OSError) as error:
            log.warning("cannot say that this process runs", role=role.name, error=type(error).__name__)
            await asyncio.sleep(INTERVAL)
        except asyncio.CancelledError:
            if told:
                await _take_back(producer, role)
            raise
        finally:
            if producer is not None:
                await producer.stop()


async def _take_back(producer: AIOKafkaProducer, role: EngineRole) -> None:
    try:
        async with asyncio.timeout(_LEAVING_SECONDS):
            await producer.send_and_wait(role.status, key=_key(role), value=None)
    except (KafkaError, OSError, TimeoutError):
        log.info("could not take back that this process runs", role=role.name)


def _key(role: EngineRole) -> bytes:
    return f"{KEY_PREFIX}{role.member}".encode()


def _word(role: EngineRole, started: float) -> bytes:
    status = MemberStatus(
        role=role.name, member=role.member, version=VERSION, started=started, memory=resident_bytes()
    )
    return status.model_dump_json().encode()


def resident_bytes() -> int:
    """The memory that this process takes up now; where the system does not tell, the most that it ever took."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


SWITCH_SECONDS: Final = 0.0005
"""So long a step of Python that runs beside the event loop may hold it up: tenfold less than Python's own 5 ms, at each of its turns."""
_ORDERS: Final = (signal.SIGTERM, signal.SIGINT)


def _service(
    role: ServiceName, settings: Settings, topics: Topics, key: NoiseKey | None, health: ServiceHealth
) -> Engine | FeedService:
    if role == "feed":
        from stream.services.feed_service import FeedService  # noqa: PLC0415  (what the other roles need takes as long as all of this)

        return FeedService(settings, topics, health)
    from stream.services.keyed_services import budget, worker  # noqa: PLC0415

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
    install_stop_handlers(stopping.set, stop_with_stdin=stop_with_stdin)
    health = ServiceHealth(role)
    health.serve(settings.metrics_host, settings.metrics_port)
    beating = asyncio.create_task(health.beat())
    try:
        find = partial(find_topics, settings, attempts=50, role=acls.AclRole(role))
        topics = await patiently(find, stopping, health.tell)
        await patiently(partial(guard_topics, settings, acls.AclRole(role)), stopping, health.tell)
        gc.disable()  # until all is imported: it stays
        engine = _service(role, settings, topics, key, health)
        column_reader.install()
        log.info("ready to begin", role=role, kernel="python" if compiled() is None else "compiled")
        sys.setswitchinterval(SWITCH_SECONDS)
        reduce_gc_frequency()
        gc.enable()
        install_stop_handlers(engine.stop, stop_with_stdin=stop_with_stdin)
        engine.on_failure = force_exit_after
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
        ignore_stop_signals()


def force_exit_after(seconds: float = STOP_SECONDS) -> None:
    """End this process with status 1 after a while, unless it has ended by itself, whatever hangs in it."""
    last_resort = threading.Timer(seconds, os._exit, (1,))
    last_resort.daemon = True
    last_resort.start()


def install_stop_handlers(
    stop: Callable[[], None], *, stop_with_stdin: bool, seconds: float | None = None
) -> None:
    """Call ``stop`` at SIGTERM or SIGINT, or at the end of standard input if that is an order too.

    What has not ended in so many ``seconds``, twice ``STOP_SECONDS`` unless told, is ended: all of it may wait for Kafka, and whoever
    gave the order need not be there to give another. What is left undone is done by the successor, as after a kill.
    """
    loop = asyncio.get_running_loop()

    def told() -> None:
        stop()
        force_exit_after(2 * STOP_SECONDS if seconds is None else seconds)

    for number in _ORDERS:
        loop.add_signal_handler(number, told)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_input, loop, told)


def ignore_stop_signals() -> None:
    """Pass over further orders to stop: what has ended is on its way out, and would be killed by them with another status."""
    loop = asyncio.get_running_loop()
    for number in _ORDERS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop, told: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        told()
