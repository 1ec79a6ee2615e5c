"""The alerts service; each target has a separate task and a separate consumer group on the answers."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NoReturn

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, ConsumerRecord, TopicPartition
from aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    InvalidSessionTimeoutError,
    KafkaError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)

from schemas.windows import span_ms
from stream.alerts.alerts_file import AlertmanagerTarget, AlertsError, AlertsFile, Target, WebhookTarget
from stream.alerts.delivery import Alert, AlertMetrics, TargetMetrics, TargetSender, parse_alert
from stream.alerts.targets import Alertmanager, Webhook
from stream.client.kafka_connection import KafkaConnection
from stream.client.ledger_reader import FollowedLedger, OpeningReader
from stream.diagnostics import configure_tracing, get_logger
from stream.engine.health import Probes
from stream.engine.restore import select_readable
from stream.errors import SottoError
from stream.kafka.acls import AclRole
from stream.kafka.client.broker_connections import (
    RETRY_PAUSES,
    Stopped,
    connection_options,
    is_temporary,
    retry_until_available,
    wait_for_stop,
)
from stream.kafka.client.client_patches import GroupObserver, KafkaConsumer, session_timeout_error
from stream.kafka.topic_creation import require_topics
from stream.kafka.topic_layouts import alerts_group
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import partition_of
from stream.questions.alert_states import ABOVE_BYTES, BELOW_BYTES, matches_patterns
from stream.services.runner import force_exit_after, ignore_stop_signals, install_stop_handlers
from stream.settings import Settings

COMMIT_SECONDS: Final = 1.0
"""Seconds between commits for a webhook; after a kill, deliveries since the last commit are repeated."""
REBUILD_RECORDS: Final = 1_000_000
"""Maximum number of answers per partition that are read at the start to restore firing alarms."""
STOP_SECONDS: Final = 75.0
"""Time limit for stopping: a little longer than the longest request to a target."""

log = get_logger("alerts")


async def serve_alerts(settings: Settings, file: AlertsFile, *, stop_with_stdin: bool = False) -> None:
    """Deliver alerts to all targets until a stop signal or, with ``stop_with_stdin``, the end of stdin."""
    configure_tracing("alerts")
    stopping = asyncio.Event()
    install_stop_handlers(stopping.set, stop_with_stdin=stop_with_stdin, seconds=STOP_SECONDS)
    metrics = AlertMetrics()
    all_metrics = [TargetMetrics(metrics, one.name) for one in file.targets]  # all start at 0 before any delivery
    probes = Probes(metrics.registry, metrics.ready)
    probes.serve(settings.metrics_host, settings.metrics_port)
    heartbeat_task = asyncio.create_task(probes.record_heartbeats())
    try:
        connection = KafkaConnection(settings)
        find_own_topics = partial(require_topics, settings, attempts=50, role=AclRole.ALERTS)
        connection.topics = await retry_until_available(find_own_topics, stopping, probes.set_not_ready_reason)
        connection.is_open = True
        deliveries = [
            TargetDelivery(connection, target, file.page, target_metrics, stopping)
            for target, target_metrics in zip(file.targets, all_metrics, strict=True)
        ]
        await _run_deliveries(deliveries, probes, stopping)
    except Stopped:
        log.info("stopped before the topics were found")
    finally:
        heartbeat_task.cancel()
        ignore_stop_signals()
    log.info("alerts stopped")


async def _run_deliveries(deliveries: list[TargetDelivery], probes: Probes, stopping: asyncio.Event) -> None:
    tasks = [asyncio.create_task(one.run()) for one in deliveries]
    readiness = asyncio.create_task(report_readiness([one.follower for one in deliveries], probes))
    log.info("alerts are up", targets=[one.name for one in deliveries])
    try:
        while not stopping.is_set():
            done, _ = await asyncio.wait((*tasks, readiness), timeout=0.5, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        await asyncio.gather(*tasks)
    except Exception:
        force_exit_after()
        raise
    finally:
        for task in (*tasks, readiness):
            task.cancel()
        await asyncio.gather(*tasks, readiness, return_exceptions=True)


def warn_of_unknown_sources(target: Target, registered: Iterable[str]) -> None:
    """Log the patterns of a target's ``sources`` that match no registered source: a mistyped name gets no alerts."""
    names = list(registered)
    unknown = [one for one in target.sources if not any(matches_patterns(name, (one,)) for name in names)]
    if unknown:
        log.warning("no registered source matches", target=target.name, sources=unknown)


class TargetDelivery:
    """Delivers alerts to one target and tracks its position in the answers."""

    def __init__(
        self,
        connection: KafkaConnection,
        target: Target,
        monitor_url: str | None,
        metrics: TargetMetrics,
        stopping: asyncio.Event,
    ) -> None:
        self.name = target.name
        self._target = target
        self._monitor_url = monitor_url
        self._connection = connection
        self._metrics = metrics
        self._stopping = stopping
        self._openings = OpeningReader(connection, target.wants)
        self._ledger = FollowedLedger(connection)
        self.follower = AnswerFollower(
            connection.settings, connection.topics.answers, target.name, self._start_offset
        )
        self._committed: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        """Follow the answers until the service stops; restart after temporary errors."""
        failures = 0
        while not self._stopping.is_set():
            try:
                async with (
                    TargetSender(self._target.timeout_seconds, self._target.tls()) as sender,
                    self.follower.join_group(),
                ):
                    await self._follow(sender)
            except (KafkaError, SottoError, OSError, TimeoutError, AlertsError) as error:
                if isinstance(error, (KafkaError, OSError)) and not is_temporary(error):
                    raise
                pause = RETRY_PAUSES[min(failures, len(RETRY_PAUSES) - 1)]
                failures += 1
                reason = str(error) if isinstance(error, AlertsError) else type(error).__name__
                log.warning("target restarts", target=self.name, reason=reason, seconds=pause)
                await wait_for_stop(self._stopping, pause)
            finally:
                await self._openings.stop()
                await self._ledger.stop()

    async def _follow(self, sender: TargetSender) -> None:
        if self._target.sources:
            await self._openings.read()
            warn_of_unknown_sources(self._target, self._openings.sources)
        if isinstance(self._target, WebhookTarget):
            await self._deliver_to_webhook(Webhook(self._target, sender, self._metrics, self._stopping))
        else:
            await self._deliver_to_alertmanager(
                Alertmanager(self._target, sender, self._metrics, monitor_url=self._monitor_url)
            )

    async def _deliver_to_webhook(self, webhook: Webhook) -> None:
        async for partition, records in self.follower.batches(self._stopping):
            batch_round, committed = self.follower.round, time.monotonic()
            next_offset: dict[TopicPartition, int] = {}
            for record in records:
                alert = await self._parse_alert(record) if ABOVE_BYTES in (record.value or b"") else None
                if alert is not None and alert.answer.outcome == "above":
                    still_ours = lambda: self.follower.round == batch_round  # noqa: B023, E731  (called within this iteration only)
                    if not await webhook.deliver(alert, still_ours):
                        break
                next_offset = {partition: record.offset + 1}
                if time.monotonic() - committed >= COMMIT_SECONDS:
                    await self.follower.commit(next_offset, batch_round)
                    committed = time.monotonic()
            await self.follower.commit(next_offset, batch_round)

    async def _deliver_to_alertmanager(self, alertmanager: Alertmanager) -> None:

        def drop_alarms(revoked: Iterable[TopicPartition]) -> None:
            lost, count = {one.partition for one in revoked}, self._connection.topics.partitions
            alertmanager.drop_alarms(lambda stream: partition_of(stream.encode(), count) in lost)

        self.follower.on_revoked = drop_alarms
        next_offsets: dict[TopicPartition, int] = {}
        async for partition, records in self.follower.batches(self._stopping):
            batch_round = self.follower.round
            for record in records:
                value = record.value or b""
                stream = (record.key or b"").decode(errors="replace")
                if ABOVE_BYTES not in value and not (
                    BELOW_BYTES in value and alertmanager.alarm_table.has_alarm(stream)
                ):
                    continue
                alert = await self._parse_alert(record)
                if alert is not None and batch_round == self.follower.round:
                    known = record.offset < self._committed.get(partition, 0)
                    alertmanager.add_answer(alert, known=known)
            if records and batch_round == self.follower.round:
                next_offsets[partition] = records[-1].offset + 1
            if await self._is_rebuilt():
                await alertmanager.send()
                if alertmanager.all_accepted:
                    still_ours = {
                        one: offset for one, offset in next_offsets.items() if one in self.follower.partitions
                    }
                    await self.follower.commit(still_ours, self.follower.round)
                    next_offsets = {}

    async def _is_rebuilt(self) -> bool:
        """Return True if all answers from before the start are read; until then, alarms may be incomplete."""
        for partition, end in list(self._ends.items()):
            if partition not in self.follower.partitions or await self.follower.position(partition) >= end:
                del self._ends[partition]
        return not self._ends and self.follower.is_joined

    async def _parse_alert(self, record: RecordLike) -> Alert | None:
        installation = self._connection.topics.prefix
        return await parse_alert(
            record, self._openings, self._ledger, installation, self._monitor_url, self._metrics.unreadable
        )

    async def _start_offset(
        self, consumer: AIOKafkaConsumer, partition: TopicPartition, committed: int | None, end: int
    ) -> int:
        """Return the committed offset, or else the partition's end; for Alertmanager, go back by ``look_back``."""
        position = end if committed is None else committed
        if not isinstance(self._target, AlertmanagerTarget):
            return position
        since = round(1000 * time.time()) - span_ms(self._target.look_back)
        found = (await consumer.offsets_for_times({partition: since}))[partition]
        look_back_offset = end if found is None else found.offset
        self._committed[partition], self._ends[partition] = position, end
        return max(min(look_back_offset, position), end - REBUILD_RECORDS, 0)


POLL_MS: Final = 250
BATCH_RECORDS: Final = 2_000
PARTITION_BYTES: Final = 512 * 1024
"""Maximum number of prefetched bytes per partition and target; small, because a service may have many targets."""
_REBALANCE_ERRORS: Final = (CommitFailedError, IllegalStateError, RebalanceInProgressError, UnknownMemberIdError)
"""Errors of a commit whose partitions now belong to another process."""

StartOffset = Callable[[AIOKafkaConsumer, TopicPartition, int | None, int], Awaitable[int]]
"""Returns a partition's start offset, given its committed offset and its end."""


class AnswerFollower(ConsumerRebalanceListener):  # type: ignore[misc]
    """Reads the partitions that the group assigns to this process, from ``start_offset`` on.

    ``round`` grows with every rebalance. Records of an earlier round must not be used, because their
    partition may belong to another process.
    """

    def __init__(self, settings: Settings, topic: str, target: str, start_offset: StartOffset) -> None:
        self.round = 0
        self.is_joined = False  # True if the consumer has joined its group and all start offsets are known
        self.settings = settings
        self._topic = topic
        self.target = target
        self._start_offset = start_offset
        self._consumer: Any = None
        self._unprepared: set[TopicPartition] = set()
        self.on_revoked: Callable[[Iterable[TopicPartition]], None] = lambda _: None  # called with lost partitions

    @asynccontextmanager
    async def join_group(self) -> AsyncIterator[None]:
        """Join the group, and leave it at the context's end.

        Raises:
            RefusedTimeError: Kafka refuses the session timeout.
        """
        settings = self.settings
        consumer = KafkaConsumer(
            **connection_options(settings),
            group_id=alerts_group(settings, self.target),
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",  # if Kafka deleted the committed offset's records; see also `_seek_to_start`
            session_timeout_ms=settings.session_timeout_ms,
            heartbeat_interval_ms=settings.heartbeat_ms,
            max_poll_interval_ms=math.inf,  # a target may not answer for hours
            max_partition_fetch_bytes=PARTITION_BYTES,
            fetch_max_bytes=settings.fetch_bytes,
            fetch_max_wait_ms=100,
        )
        consumer.subscribe([self._topic], listener=self)
        self._consumer, self._unprepared = consumer, set()
        try:
            await consumer.start()
            yield
        except InvalidSessionTimeoutError:
            raise session_timeout_error(settings.session_timeout_ms) from None
        finally:
            self._consumer, self.is_joined = None, False
            await consumer.stop()

    async def batches(self, stopping: asyncio.Event) -> AsyncIterator[tuple[TopicPartition, list[ConsumerRecord]]]:
        """Yield the records of each partition, and an empty batch after each fetch without records."""
        while not stopping.is_set():
            if self._unprepared:
                await self._seek_to_start()
            current_round = self.round
            fetched = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=BATCH_RECORDS)
            for partition, records in fetched.items():
                if self.round != current_round or stopping.is_set():
                    break
                yield partition, list(select_readable(records))
            if not fetched:
                yield TopicPartition(self._topic, -1), []

    async def _seek_to_start(self) -> None:
        """Seek to the start offsets; a new target starts at the end of the answers."""
        current_round, unprepared, self._unprepared = self.round, self._unprepared, set()
        try:
            for partition in unprepared:
                committed = await self._consumer.committed(partition)
                end = (await self._consumer.end_offsets([partition]))[partition]
                if committed is None:
                    # Commit now: answers that come while this process is down must be delivered later.
                    await self._consumer.commit({partition: end})
                self._consumer.seek(partition, await self._start_offset(self._consumer, partition, committed, end))
                self._consumer.resume(partition)
        except _REBALANCE_ERRORS:
            return  # the group was rebalanced, and the partition's new owner seeks to the start offset
        self._mark_joined(current_round)

    async def commit(self, offsets: dict[TopicPartition, int], batch_round: int) -> None:
        """Commit offsets of records that were fetched in ``batch_round``, if it is the current round."""
        if not offsets or batch_round != self.round:
            return
        try:
            await self._consumer.commit(offsets)
        except _REBALANCE_ERRORS:
            log.info("position not committed: the group was rebalanced", target=self.target)

    async def position(self, partition: TopicPartition) -> int:
        """Return the next offset to read."""
        return int(await self._consumer.position(partition))

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions of this process."""
        return set(self._consumer.assignment())

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """End the round, and call ``on_revoked``."""
        self.round += 1
        self.is_joined = False
        self._unprepared = set()
        self.on_revoked(revoked)

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Pause new partitions until their start offsets are known."""
        self.round += 1
        self._unprepared = set(assigned)
        self._consumer.pause(*self._unprepared)
        if not self._unprepared:
            self._mark_joined(self.round)

    def _mark_joined(self, batch_round: int) -> None:
        if self.round == batch_round:
            self.is_joined = True
            log.info("group joined", target=self.target, partitions=len(self.partitions))


async def report_readiness(followers: list[AnswerFollower], probes: Probes) -> NoReturn:
    """Set the reason why the service is not ready, until cancelled; a consumer does not tell that Kafka is silent."""
    settings, group = followers[0].settings, alerts_group(followers[0].settings, followers[0].target)
    observer = GroupObserver(**connection_options(settings), request_timeout_ms=settings.session_timeout_ms)
    answered_at, seconds = time.monotonic(), settings.session_timeout_ms / 1000
    try:
        while True:
            if time.monotonic() - answered_at > seconds / 3:
                with suppress(KafkaError, OSError, TimeoutError):
                    await asyncio.wait_for(observer.members(group), seconds)
                    answered_at = time.monotonic()
            waiting = ", ".join(one.target for one in followers if not one.is_joined)
            reason = f"targets whose consumer group is not joined: {waiting}" if waiting else ""
            is_silent = time.monotonic() - answered_at > seconds
            probes.set_not_ready_reason("Kafka does not answer" if is_silent else reason)
            await asyncio.sleep(0.5)
    finally:
        await observer.close()
