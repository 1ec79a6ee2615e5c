"""Runs the monitor's parts in one process: topic reader, web server and periodic checks.

The checks query the services' consumer groups (``GroupWatch``), compare the topics with their
layout (``TopicWatch``) and the readers' positions with the topics' ends (``ReaderWatch``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError

from stream.client.answer_history import AnswerLog
from stream.client.async_client import AsyncClient
from stream.diagnostics import configure_tracing, get_logger
from stream.engine.health import ServiceName, require_free
from stream.engine.restore import create_reader
from stream.kafka.acls import AclRole
from stream.kafka.client.broker_connections import Stopped, admin_client, retry_until_available
from stream.kafka.client.client_patches import group_members
from stream.kafka.topic_creation import Inspection, inspect_topics, read_topics
from stream.kafka.topic_layouts import Difference, TopicsError, budget_group, merging_group, worker_group
from stream.monitor.api.models import Readiness
from stream.monitor.api.monitor_state import HISTORY_SPACING, Monitor, MonitorEndedError
from stream.monitor.api.question_routes import Asker, OnDemandClient
from stream.monitor.api.server import add_api
from stream.monitor.api.service_models import MemberRow, PartitionRow, Restore, WorkersView
from stream.monitor.api.tokens import TokenFile
from stream.monitor.entries import Series
from stream.monitor.monitor_alerts import AlertReader, Alerts
from stream.monitor.monitor_tables import MonitorTables
from stream.monitor.reader_watch import SILENT, ReaderWatch
from stream.monitor.topic_readers import TopicReader, TrailReader
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics
from stream.services.runner import ignore_stop_signals, install_stop_handlers
from stream.settings import Settings

if TYPE_CHECKING:
    from stream.monitor.api.single_sign_on import SingleSignOn

CONTACT_SECONDS = 15.0
"""Seconds without answers from Kafka to a check or a reader after which the monitor is not ready."""
GROUPS_SECONDS = 2.0
"""Seconds between two queries of the groups."""
THROUGHPUT_SECONDS = 60
METADATA_MS = 60_000
"""Longest age of topic metadata, in milliseconds; new partitions are found at this interval."""
TOPICS_SECONDS: Final = 60.0
"""Seconds between two checks of the topics."""

log = get_logger("monitor")


async def serve_monitor(
    settings: Settings,
    read_tokens: Callable[[], TokenFile],
    *,
    sign_on: SingleSignOn | None = None,
    stop_with_stdin: bool = False,
) -> None:
    """Run the monitor until SIGTERM, SIGINT or, with ``stop_with_stdin``, the end of standard input.

    Raises:
        ListenError: the monitor's port is not free.
    """
    require_free("monitor", settings.monitor_host, settings.monitor_port)
    configure_tracing("monitor")
    stopping = asyncio.Event()
    install_stop_handlers(stopping.set, stop_with_stdin=stop_with_stdin)
    try:
        await retry_until_available(lambda: read_topics(settings, attempts=50, role=AclRole.MONITOR), stopping)
    except Stopped:
        ignore_stop_signals()
        return
    async with AsyncClient(settings) as client:
        tables = MonitorTables(client.topics)
        reader = TopicReader(settings, client.topics, tables)
        trail_reader = TrailReader(settings, client.topics, tables, lambda: monitor.readiness().ready)
        on_demand_client = OnDemandClient(settings)
        asker = Asker(on_demand_client.ask) if settings.monitor_asks else None
        alerts = Alerts(tables) if settings.monitor_alerts else None
        alert_readers = [] if alerts is None else [AlertReader(settings, client.topics, alerts)]
        reader_watch = ReaderWatch(settings, [reader, trail_reader, *alert_readers])
        monitor = Monitor(
            tables,
            read_tokens,
            settings,
            client.request,
            lambda: _readiness(reader, trail_reader, groups, reader_watch),
            lambda: reader.unread_offsets == 0,
            asker=asker,
            alerts=alerts,
            answers=AnswerLog(settings, client.topics) if asker is not None or alerts is not None else None,
            sign_on=sign_on,
        )
        groups = GroupWatch(settings, client.topics, tables, monitor.set_workers)
        add_api(reader.web, monitor)
        if sign_on is not None:
            sign_on.add_routes(reader.web)
        async with reader:
            log.info("monitor is up", host=settings.monitor_host, port=settings.monitor_port)
            coroutines: list[Coroutine[Any, Any, None]] = [
                trail_reader.run(),
                *(one.run() for one in alert_readers),
                groups.run(),
                reader_watch.run(),
                TopicWatch(settings, monitor.set_topics).run(),
                _record_history(monitor),
                on_demand_client.disconnect_when_idle(),
            ]
            tasks = [asyncio.create_task(one) for one in coroutines]
            ends = [asyncio.create_task(stopping.wait()), asyncio.create_task(reader.app.wait_until_stopped())]
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
    log.info("monitor stopped")


_SET_BACK: Final = (
    "was set back behind records that the monitor has read, so figures may be old: restart the monitor"
)
_CUT_OFF: Final = "the monitor's readers get no answers from Kafka; restart the monitor if certificates or passwords were changed"


def _readiness(
    reader: TopicReader, trail_reader: TrailReader, groups: GroupWatch, reader_watch: ReaderWatch
) -> Readiness:
    if reader.unread_offsets is None or trail_reader.unread_offsets is None:
        return Readiness(ready=False, behind=0, reason="the topics' ends are not known yet")
    if behind := reader.unread_offsets + trail_reader.unread_offsets:
        return Readiness(
            ready=False, behind=behind, reason="the monitor has not yet read its topics to their ends"
        )
    for watch in (groups, reader_watch):
        if watch.answered_at is None or time.monotonic() - watch.answered_at > CONTACT_SECONDS:
            return Readiness(ready=False, behind=0, reason=watch.fault)
    if reader_watch.set_back is not None:
        return Readiness(ready=False, behind=0, reason=f"{reader_watch.set_back.topic} {_SET_BACK}")
    if reader_watch.longest_wait > CONTACT_SECONDS:
        return Readiness(ready=False, behind=0, reason=_CUT_OFF)
    return Readiness(ready=True, behind=0)


async def _record_history(monitor: Monitor) -> None:
    while True:
        if monitor.readiness().ready:
            monitor.record_history()
        await asyncio.sleep(HISTORY_SPACING)


@dataclass(frozen=True)
class _Group:
    role: ServiceName
    name: str
    inputs: tuple[str, ...]
    partitions: int


@dataclass(frozen=True)
class _Member:
    name: str
    host: str
    partitions: frozenset[int]


_REFUSED: Final = "Kafka refuses to describe the services' groups; see 'sotto topics acl --role monitor'"


class GroupWatch:
    """Queries the services' consumer groups periodically and passes each result to ``show``."""

    def __init__(
        self, settings: Settings, topics: Topics, tables: MonitorTables, show: Callable[[WorkersView], None]
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._tables = tables
        self._show = show
        self._groups = (
            _Group("worker", worker_group(settings), (topics.queries,), topics.partitions),
            _Group("feed", merging_group(settings), (topics.partials,), topics.partitions),
            _Group("budget", budget_group(settings), (topics.requests, topics.charges), LEDGER_PARTITIONS),
        )
        self._throughput: dict[tuple[str, int], Series] = {}
        self.answered_at: float | None = None
        """Time of Kafka's last answer, on the monotonic clock."""
        self.fault = SILENT
        """The reason for which Kafka's last answer is old, if it is."""

    async def run(self) -> None:
        """Query until cancelled; retry after errors."""
        options: dict[str, Any] = {"isolation_level": "read_uncommitted", "metadata_max_age_ms": METADATA_MS}
        while True:
            try:
                async with (
                    admin_client(self._settings) as admin,
                    create_reader(self._settings, **options) as end_reader,
                ):
                    while True:
                        self._show(await self._query_groups(admin, end_reader))
                        self.answered_at = time.monotonic()
                        await asyncio.sleep(GROUPS_SECONDS)
            except (KafkaError, OSError) as error:
                self.fault = _REFUSED if isinstance(error, GroupAuthorizationFailedError) else SILENT
                log.warning("cannot query the consumer groups", error=type(error).__name__)
            await asyncio.sleep(GROUPS_SECONDS)

    async def _query_groups(self, admin: AIOKafkaAdminClient, end_reader: AIOKafkaConsumer) -> WorkersView:
        partitions: list[PartitionRow] = []
        members: list[MemberRow] = []
        for group in self._groups:
            present = await _query_members(admin, group)
            rows = await self._partition_rows(admin, end_reader, group, present)
            if group.role == "feed" and not present and not any(row.end for row in rows):
                continue  # this installation has no feed
            partitions += rows
            for member in present:
                own = [row for row in rows if row.partition in member.partitions]
                heartbeat = self._tables.members.get(member.name)
                members.append(
                    MemberRow(
                        member=member.name,
                        role=group.role,
                        host=member.host,
                        partitions=sorted(member.partitions),
                        lag=sum(row.lag for row in own),
                        hidden_lag=sum(row.hidden_lag for row in own),
                        events_per_second=sum(row.events_per_second for row in own),
                        version=heartbeat and heartbeat.record.version,
                        started=heartbeat and heartbeat.record.started,
                        memory=heartbeat and heartbeat.record.memory,
                        heard=heartbeat and heartbeat.last_heartbeat_at,
                        not_ready=heartbeat and heartbeat.record.not_ready,
                    )
                )
        return WorkersView(time=time.time(), members=members, partitions=partitions)

    async def _partition_rows(
        self, admin: AIOKafkaAdminClient, end_reader: AIOKafkaConsumer, group: _Group, present: list[_Member]
    ) -> list[PartitionRow]:
        committed: dict[TopicPartition, Any] = await admin.list_consumer_group_offsets(group.name)
        # Use only partitions in the client's metadata; for any other partition it would wait until a timeout.
        counts = {
            topic: len(end_reader.partitions_for_topic(topic) or range(group.partitions)) for topic in group.inputs
        }
        sources = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
        beginning: dict[TopicPartition, int] = await end_reader.beginning_offsets(sources)
        end: dict[TopicPartition, int] = await end_reader.end_offsets(sources)
        rows = []
        owners = {number: member.name for member in reversed(present) for number in member.partitions}
        for number in range(max(counts.values())):
            inputs = [TopicPartition(topic, number) for topic, count in counts.items() if number < count]
            positions = [committed[one].offset if one in committed else beginning[one] for one in inputs]
            lags = [
                self._split_lag(one, position, end[one] - position)
                for one, position in zip(inputs, positions, strict=True)
            ]
            rows.append(
                PartitionRow(
                    role=group.role,
                    partition=number,
                    member=owners.get(number),
                    position=positions[0] if inputs[0] in committed else None,
                    end=end[inputs[0]],
                    lag=sum(lag for lag, _ in lags),
                    hidden_lag=sum(hidden for _, hidden in lags),
                    events_per_second=self._events_per_second(group.role, number, sum(positions)),
                    restore=self._restore_of(group.role, number, owners.get(number)),
                )
            )
        return rows

    def _restore_of(self, role: ServiceName, partition: int, owner: str | None) -> Restore | None:
        """Return the last restore of a partition; None without an owner, or if it was before the owner began."""
        if owner is None or (restore := self._tables.restores.get((role, partition))) is None:
            return None
        heartbeat = self._tables.members.get(owner)
        return None if heartbeat is not None and restore.updated < heartbeat.record.started else restore

    def _split_lag(self, topic_partition: TopicPartition, position: int, offsets: int) -> tuple[int, int]:
        """Return the lag without transaction markers at the end of a partition, and how many of these may be questions.

        Each worker writes ``charges`` in transactions, and each partition's feed writes ``partials``. In
        ``queries`` only feeds write in transactions, so its last offset is a marker only after a feed's question.
        """
        asker = self._tables.asker_of(topic_partition.partition, position - 1)
        sources = self._tables.sources
        has_live_topics = any(
            sources[name].record.source.kind == "events" for name in self._tables.source_periods if name in sources
        )
        markers = {
            self._topics.charges: self._topics.partitions,
            self._topics.partials: self._topics.partitions,
            self._topics.queries: int(position > 0 and asker != "client" and has_live_topics),
        }
        at_most = markers.get(topic_partition.topic, 0)
        if topic_partition.topic != self._topics.queries:
            return (offsets, 0) if offsets > at_most else (0, 0)
        marker = min(offsets, at_most)
        return offsets - marker, marker if asker is None else 0

    def _events_per_second(self, role: ServiceName, partition: int, position: int) -> float:
        now = time.time()
        series = self._throughput.setdefault((role, partition), Series(width=2, spacing=GROUPS_SECONDS, limit=32))
        series.add((now, position))
        before = series.row_at(now - THROUGHPUT_SECONDS)
        if before is None or now <= before[0]:
            return 0.0
        return max(position - before[1], 0.0) / (now - before[0])


async def _query_members(admin: AIOKafkaAdminClient, group: _Group) -> list[_Member]:
    """Return a group's members; during a rebalance they have no partitions."""
    members = []
    for member in await group_members(admin, group.name):
        encoded = member.assignment
        assigned = ConsumerProtocolMemberAssignment.decode(encoded).partitions() if encoded else []
        numbers = frozenset(one.partition for one in assigned if one.topic == group.inputs[0])
        members.append(_Member(member.client_id, member.host.removeprefix("/"), numbers))
    return sorted(members, key=lambda member: member.name)


class TopicWatch:
    """Compares all topics with their layout periodically and passes each result to ``show``."""

    def __init__(self, settings: Settings, show: Callable[[Inspection], None]) -> None:
        self._settings = settings
        self._show = show
        self._logged: set[Difference] = set()
        self._ledger, self._ledger_id = Topics(settings.prefix).ledger, ""

    async def run(self) -> None:
        """Check until the ledger is another topic than at first; retry after errors."""
        while True:
            try:
                self.add_inspection(await inspect_topics(self._settings))
                if self.is_recreated(await self._read_ledger_id()):
                    return
            except (KafkaError, TopicsError, OSError, TimeoutError) as error:
                reason = str(error) if isinstance(error, TopicsError) else type(error).__name__
                log.warning("cannot inspect the topics", reason=reason)
            await asyncio.sleep(TOPICS_SECONDS)

    async def _read_ledger_id(self) -> str:
        async with create_reader(self._settings) as reader:
            found: str = await reader.topic_id(TopicPartition(self._ledger, 0))
        return found

    def is_recreated(self, ledger_id: str) -> bool:
        """Return whether the ledger was deleted and created again: the monitor would still show the old one."""
        before, self._ledger_id = self._ledger_id or ledger_id, ledger_id
        if before != ledger_id:
            log.error("input recreated", topic=self._ledger, before=before, now=ledger_id)
        return before != ledger_id

    def add_inspection(self, inspection: Inspection) -> None:
        """Show an inspection and log new differences."""
        for one in inspection.differences:
            if one not in self._logged:
                log.warning(
                    "topic differs", topic=one.topic, setting=one.setting, actual=one.actual, wanted=one.wanted
                )
        self._logged = set(inspection.differences)
        self._show(inspection)
