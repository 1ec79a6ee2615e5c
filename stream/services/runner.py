"""Runs a worker, the budget service or a feed: builds its engine, checks topics, writes heartbeats."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import KafkaError

from schemas import MemberStatus
from stream import VERSION
from stream.caches import reduce_gc_frequency
from stream.diagnostics import configure_tracing, get_logger
from stream.engine.group_engine import Engine
from stream.engine.health import ServiceHealth, ServiceName
from stream.engine.session import EngineRole, SessionGuard
from stream.kafka import acls
from stream.kafka.acls import AclRole
from stream.kafka.client import column_batches
from stream.kafka.client.broker_connections import Stopped, connection_options, retry_until_available
from stream.kafka.client.client_patches import KafkaProducer
from stream.kafka.topic_creation import inspect_topics, require_topics
from stream.kafka.topic_layouts import TopicsError, budget_group, format_differences, worker_group
from stream.kernel import compiled_kernel, describe_missing_kernel
from stream.privacy.noise.keys import NoiseKey
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics
from stream.services.processes import STOP_SECONDS
from stream.settings import MS_PER_DAY, Settings

if TYPE_CHECKING:
    from stream.services.feed_service import FeedService
    from stream.tables.store import TableStore


CHECK_SECONDS = 10.0
"""Longest time of one check of the topics before a retry."""

topics_log = get_logger("topics")


async def guard_topics(settings: Settings, role: AclRole) -> None:
    """Refuse a role's topics if Kafka deletes records that must be kept, or refuses writes; log other differences.

    Raises:
        TopicsError: Kafka deletes such records because of the settings that the message names, or Write is missing.
        KafkaError, TimeoutError: Kafka does not answer.
    """
    async with asyncio.timeout(CHECK_SECONDS):
        found = await inspect_topics(settings, attempts=20, role=role)
        unwritable = await acls.unwritable_topics(settings, role)
    if unwritable:
        raise TopicsError(
            f"Kafka does not let this principal write: {', '.join(unwritable)}; grant it the access of 'sotto topics acl --role {role}'"
        )
    if found.retention_differences:
        raise TopicsError(
            f"Kafka deletes records that must be kept: {format_differences(found.retention_differences)}; run 'sotto ledger verify' before this {role} is started again "
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


HEARTBEAT_SECONDS: Final = 10.0

KEY_PREFIX: Final = "@member|"

_STATM: Final = Path("/proc/self/statm")
_DELETION_SECONDS: Final = 3.0
_MAX_REASON: Final = 1024

log = get_logger("service")


async def write_heartbeats(
    settings: Settings,
    role: EngineRole,
    started: float,
    find_reason: Callable[[], str] = str,
    has_failed: Callable[[], bool] = bool,
) -> None:
    """Write heartbeats to the status topic until cancelled, then a tombstone.

    ``find_reason`` returns the reason why the service is not ready; empty if it is.
    If a heartbeat fails, the next one is tried: the service does not depend on heartbeats.
    A named process that has failed writes no tombstone, because another one may have its name already.
    """
    key, is_shown = f"{KEY_PREFIX}{role.member}".encode(), False
    while True:
        producer: Any = None
        try:
            # Secrets are read at each connection: their files may be replaced at any time.
            producer = KafkaProducer(**connection_options(settings))
            await producer.start()
            while True:
                status = MemberStatus(
                    role=role.name,
                    member=role.member,
                    version=VERSION,
                    started=started,
                    memory=resident_bytes(),
                    not_ready=find_reason()[:_MAX_REASON] or None,
                )
                await producer.send_and_wait(role.status_topic, key=key, value=status.model_dump_json().encode())
                is_shown = True
                await asyncio.sleep(HEARTBEAT_SECONDS)
        except (KafkaError, OSError) as error:
            log.warning("heartbeat failed", role=role.name, error=type(error).__name__)
            await asyncio.sleep(HEARTBEAT_SECONDS)
        except asyncio.CancelledError:
            if is_shown and not (settings.instance and has_failed()):
                await _delete_heartbeat(producer, role, key)
            raise
        finally:
            if producer is not None:
                await producer.stop()


async def _delete_heartbeat(producer: Any, role: EngineRole, key: bytes) -> None:
    try:
        async with asyncio.timeout(_DELETION_SECONDS):
            await producer.send_and_wait(role.status_topic, key=key, value=None)
    except (KafkaError, OSError, TimeoutError):
        log.info("could not remove the heartbeat", role=role.name)


def resident_bytes() -> int:
    """Return this process's memory, or its peak if the system does not report the current value."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


SWITCH_SECONDS: Final = 0.0005
"""Longest time for which a busy thread delays the event loop; Python's default is 5 ms."""
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def table_store(settings: Settings, key: NoiseKey, *, keeps_tables: bool = True) -> TableStore:
    """Return the store from which a service reads tables within the limits of its settings.

    With ``keeps_tables``, the most recently read tables stay in memory.
    """
    from stream.tables.engine_limits import EngineLimits  # noqa: PLC0415  (feeds read no tables)
    from stream.tables.readers.table_reading import GuardedReader, ReadingLimits  # noqa: PLC0415
    from stream.tables.store import TableStore  # noqa: PLC0415

    limits = ReadingLimits.parse(
        settings.table_roots,
        table_bytes=settings.table_bytes,
        reading_bytes=settings.table_reading_bytes,
        seconds=settings.table_reading_seconds,
        reveals_causes=settings.table_causes,
        engine=EngineLimits.from_settings(settings),
    )
    reader = GuardedReader(limits)
    return TableStore.keyed_by(key, read=reader.read, stamp=reader.stamp, keeps_tables=keeps_tables)


def witness_guard(
    settings: Settings, topics: Topics, health: ServiceHealth, *, anchors: bool = False
) -> SessionGuard:
    """Return the guard that compares partitions with the witnesses; with ``anchors``, it also writes them.

    Raises:
        WitnessError: an address in the setting does not name a witness.
        Missing: a witness needs a package that is not installed.
    """
    if not settings.witnesses:
        log.info("no witness; a rollback of topics and offsets is not detected")
        return SessionGuard()
    from stream.services.witness_guards import AnchoringGuard, WitnessGuard  # noqa: PLC0415  (few have witnesses)
    from stream.witnesses.witness_kinds import open_witnesses  # noqa: PLC0415

    guard = AnchoringGuard if anchors else WitnessGuard
    return guard(settings, topics, open_witnesses(settings.witnesses), health.metrics)


def build_worker_engine(
    settings: Settings, topics: Topics, key: NoiseKey, health: ServiceHealth | None = None
) -> Engine:
    """Return an engine that answers queries."""
    from stream.worker.fair_shares import Limits  # noqa: PLC0415
    from stream.worker.table_loads import TableLoads  # noqa: PLC0415
    from stream.worker.worker_processor import QueryProcessor  # noqa: PLC0415  (imports of the other role are slow)

    tables = table_store(settings, key)
    loads = TableLoads(tables, ThreadPoolExecutor(settings.table_readings, thread_name_prefix="reading"))
    limits = Limits.from_seconds(settings.work_outstanding, settings.work_rate)
    health = health or ServiceHealth("worker")
    role = EngineRole(
        name="worker",
        group=worker_group(settings),
        status_topic=topics.status,
        make_processor=lambda partition: QueryProcessor(topics, partition, key, tables, limits, loads),
        guard=witness_guard(settings, topics, health),
        process=_name_process("worker", settings),
    )
    return Engine(role, settings, [topics.queries, topics.control], partitions=topics.partitions, health=health)


def build_budget_engine(
    settings: Settings, topics: Topics, key: NoiseKey, health: ServiceHealth | None = None
) -> Engine:
    """Return an engine that decides requests and writes the ledger."""
    from stream.budget.budget_processor import BudgetProcessor  # noqa: PLC0415  (imports of the other role are slow)

    tables = table_store(settings, key, keeps_tables=False)
    threads = ThreadPoolExecutor(settings.table_readings, thread_name_prefix="reading")
    health = health or ServiceHealth("budget")
    role = EngineRole(
        name="budget",
        group=budget_group(settings),
        status_topic=topics.status,
        make_processor=lambda partition: BudgetProcessor(
            topics,
            partition,
            key_id=key.key_id,
            tables=tables,
            new_incarnation=lambda _: secrets.token_bytes(16),
            retire_after_ms=round(settings.retire_days * MS_PER_DAY),
            threads=threads,
        ),
        guard=witness_guard(settings, topics, health, anchors=True),
        process=_name_process("budget", settings),
    )
    return Engine(
        role,
        settings,
        [topics.requests, topics.charges],
        partitions=LEDGER_PARTITIONS,
        copies=False,
        health=health,
    )


def _name_process(role: ServiceName, settings: Settings) -> str:
    """Return a name for the process from ``SOTTO_INSTANCE``; empty without it."""
    return f"{role}-{settings.instance}" if settings.instance else ""


def _build_service(
    role: ServiceName, settings: Settings, topics: Topics, key: NoiseKey | None, health: ServiceHealth
) -> Engine | FeedService:
    if role == "feed":
        from stream.services.feed_service import FeedService  # noqa: PLC0415  (imports of the other roles are slow)

        return FeedService(settings, topics, health, process=_name_process("feed", settings))
    if key is None:
        raise ValueError(f"a {role} needs the noise key")
    return (build_worker_engine if role == "worker" else build_budget_engine)(settings, topics, key, health)


async def serve(
    role: ServiceName, settings: Settings, key: NoiseKey | None, *, stop_with_stdin: bool = False
) -> None:
    """Run a service until SIGTERM or SIGINT, then finish current batches and leave the group.

    The service waits for Kafka if necessary. With ``stop_with_stdin``, the end of standard input stops
    it too, so that a service ends with its parent. Feeds need no noise key.
    """
    configure_tracing(role)
    if (reason := describe_missing_kernel()) is not None:
        log.warning("no compiled kernel", role=role, reason=reason)
    started = time.time()
    stopping = asyncio.Event()
    install_stop_handlers(stopping.set, stop_with_stdin=stop_with_stdin)
    health = ServiceHealth(role)
    health.serve(settings.metrics_host, settings.metrics_port)
    health_task = asyncio.create_task(health.record_heartbeats())
    try:
        find = partial(require_topics, settings, attempts=50, role=acls.AclRole(role))
        topics = await retry_until_available(find, stopping, health.set_not_ready_reason)
        await retry_until_available(
            partial(guard_topics, settings, acls.AclRole(role)), stopping, health.set_not_ready_reason
        )
        gc.disable()  # during the following imports, because imported objects are never freed
        engine = _build_service(role, settings, topics, key, health)
        column_batches.install()
        log.info("ready to begin", role=role, kernel="python" if compiled_kernel() is None else "compiled")
        sys.setswitchinterval(SWITCH_SECONDS)
        reduce_gc_frequency()
        gc.enable()
        install_stop_handlers(engine.stop, stop_with_stdin=stop_with_stdin)
        engine.on_failure = force_exit_after
        if not stopping.is_set():
            failed = asyncio.Event()
            heartbeat_task = asyncio.create_task(
                write_heartbeats(settings, engine.role, started, lambda: health.not_ready_reason, failed.is_set)
            )
            try:
                await engine.run()
            except BaseException:
                failed.set()
                raise
            finally:
                heartbeat_task.cancel()
                await asyncio.gather(heartbeat_task, return_exceptions=True)
    except Stopped:
        log.info("stopped before it began", role=role)
    finally:
        health_task.cancel()
        ignore_stop_signals()


def force_exit_after(seconds: float = STOP_SECONDS) -> None:
    """Exit with status 1 after a while if the process still runs."""
    last_resort = threading.Timer(seconds, os._exit, (1,))
    last_resort.daemon = True
    last_resort.start()


def install_stop_handlers(
    stop: Callable[[], None], *, stop_with_stdin: bool, seconds: float | None = None
) -> None:
    """Call ``stop`` at SIGTERM, SIGINT or, if requested, at the end of standard input.

    The process exits by force ``seconds`` after the stop (by default twice ``STOP_SECONDS``), because a
    stop may wait for Kafka forever. The next owner of its partitions then completes the work.
    """
    loop = asyncio.get_running_loop()

    def stop_once() -> None:
        stop()
        force_exit_after(2 * STOP_SECONDS if seconds is None else seconds)

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop_once)
    if stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stop_at_end_of_input, loop, stop_once)


def ignore_stop_signals() -> None:
    """Ignore further stop signals, which would change the exit status."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def _stop_at_end_of_input(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        stop()
