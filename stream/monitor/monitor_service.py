"""Runs the monitor's parts in one process: topic reader, web server and periodic checks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from stream import tracing
from stream.client.async_client import AsyncClient
from stream.engine.health import require_free
from stream.kafka.client.availability import Stopped, patiently
from stream.kafka.topics.acls import AclRole
from stream.kafka.topics.creation import look_up
from stream.log import get_logger
from stream.monitor.api.models import Readiness
from stream.monitor.api.monitor_state import HISTORY_SPACING, Monitor, MonitorEndedError
from stream.monitor.api.question_routes import Asker, OnDemandClient
from stream.monitor.api.server import add_api
from stream.monitor.api.tokens import TokenFile
from stream.monitor.state.consumer_groups import GroupWatch
from stream.monitor.state.monitor_alerts import Alerts
from stream.monitor.state.monitor_metrics import TopicWatch
from stream.monitor.state.monitor_tables import Tables
from stream.monitor.state.topic_reader import AlertReader, Reader
from stream.services.runner import ignore_stop_signals, install_stop_handlers
from stream.settings import Settings

CONTACT_SECONDS = 15.0
"""Seconds without contact to Kafka after which the monitor is not ready."""

log = get_logger("monitor")


async def serve_monitor(
    settings: Settings, names: Callable[[], TokenFile], *, stop_with_stdin: bool = False
) -> None:
    """Run the monitor until SIGTERM, SIGINT or, with ``stop_with_stdin``, the end of standard input.

    Raises:
        ListenError: its port is not free.
    """
    require_free("monitor", settings.monitor_host, settings.monitor_port)
    tracing.configure("monitor")
    stopping = asyncio.Event()
    install_stop_handlers(stopping.set, stop_with_stdin=stop_with_stdin)
    try:
        await patiently(lambda: look_up(settings, attempts=50, role=AclRole.MONITOR), stopping)
    except Stopped:
        ignore_stop_signals()
        return
    async with AsyncClient(settings) as client:
        tables = Tables(client.topics)
        reader = Reader(settings, client.topics, tables)
        asking = OnDemandClient(settings)
        asker = Asker(asking) if settings.monitor_asks else None
        alerts = Alerts(tables) if settings.monitor_alerts else None
        monitor = Monitor(
            tables, names, settings, client, lambda: _readiness(reader, groups), asker=asker, alerts=alerts
        )
        groups = GroupWatch(settings, client.topics, tables, monitor.show_workers)
        add_api(reader.web, monitor)
        async with reader:
            log.info("monitor is up", host=settings.monitor_host, port=settings.monitor_port)
            works: list[Coroutine[Any, Any, None]] = [
                groups.run(),
                TopicWatch(settings, monitor.show_topics).run(),
                _remember(monitor),
                asking.disconnect_when_idle(),
            ]
            if alerts is not None:
                works.append(AlertReader(settings, client.topics, alerts).run())
            tasks = [asyncio.create_task(one) for one in works]
            ends = [asyncio.create_task(stopping.wait()), asyncio.create_task(reader.ended())]
            try:
                ended, _ = await asyncio.wait([*tasks, *ends], return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    if (error := task.exception()) is not None:
                        log.error("part of the monitor failed", error=type(error).__name__)
            finally:
                if asker is not None:
                    await asker.close()
                for task in (*tasks, *ends):
                    task.cancel()
                await asyncio.gather(*tasks, *ends, return_exceptions=True)
    ignore_stop_signals()
    if not stopping.is_set():
        raise MonitorEndedError("the monitor's reader ended; see its log, and start it again")
    log.info("left")


def _readiness(reader: Reader, groups: GroupWatch) -> Readiness:
    if reader.behind is None:
        return Readiness(ready=False, behind=0, reason="the topics' ends are not known yet")
    if reader.behind:
        return Readiness(ready=False, behind=reader.behind, reason="the tables are still being read")
    if groups.seen is None or time.monotonic() - groups.seen > CONTACT_SECONDS:
        return Readiness(ready=False, behind=0, reason="Kafka does not answer")
    return Readiness(ready=True, behind=0)


async def _remember(monitor: Monitor) -> None:
    while True:
        if monitor.readiness().ready:
            monitor.remember()
        await asyncio.sleep(HISTORY_SPACING)
