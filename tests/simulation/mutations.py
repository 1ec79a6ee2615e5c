"""Engines with one possible mistake of an exactly-once engine each; the simulation must find all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from aiokafka import ConsumerRecord, TopicPartition

from stream.budget.budget_processor import BudgetProcessor
from stream.budget.decision_records import TrailWriter
from stream.budget.receipts import Receipts
from stream.budget.waiting_requests import WaitingRequests
from stream.engine import group_engine, restore, session
from stream.engine.batch_loop import BatchLoop
from stream.engine.group_engine import Engine
from stream.engine.partition_input import FETCH_WAIT_MS, Extent, Prefetch
from stream.engine.partition_task import PartitionTask
from stream.engine.session import EngineRole, PartitionSession, SessionOpener
from stream.engine.supervision import Membership
from stream.engine.writer import RecordClock, Writer
from stream.kafka.client.adapter import KAFKA, Clients, Consumer
from stream.kafka.client.broker_connections import Stopped
from stream.privacy.ledger.accounts import Account
from stream.processing.protocol import Outputs, Processor, RecordLike
from stream.services.witness_guards import AnchoringGuard
from stream.settings import Settings
from stream.worker import stream_control
from stream.worker.admission import QueryBatch
from stream.worker.fair_shares import Shares
from stream.worker.hosted_streams import HostedStreams, LifeCycle
from stream.worker.stream_records import StreamDefinition, UpdateLog
from stream.worker.table_loads import PartitionTables
from stream.worker.worker_processor import QueryProcessor
from tests.simulation.clients import MAX_POLL_INTERVAL_MS, SimulatedProducer
from tests.simulation.retirement_mutations import RETIREMENT

SCHEDULES = 150
"""The number of schedules that every run of the tests plays. They reveal each engine with one thing wrong. An error that shows in 3 of 100
schedules is found in 99 of 100 runs of so many schedules with other seeds."""

Mutation = Callable[[], AbstractContextManager[Any]]

NOTHING_KNOWN: Mapping[str, int] = {}


def found(
    mutation: Mutation, play: Callable[[int], Any], schedules: int, found_by: Mapping[str, int] = NOTHING_KNOWN
) -> bool:
    """Return whether one of so many schedules reveals the mutation; the first such schedule is printed.

    ``found_by`` has a schedule that once revealed each of some mutations. It is tried first; if it fails to, all schedules are tried.
    """
    first = found_by.get(mutation.__name__)
    with mutation():
        for seed in (*(() if first is None else (first,)), *range(schedules)):
            report = play(seed)
            if report.violations:
                print(f"{mutation.__name__}: found by seed {seed}: {report.violations[0]}")  # noqa: T201
                return True
    return False


@contextmanager
def no_fencing() -> Iterator[None]:
    """Every session of a partition has a separate transactional id, so none is ever fenced."""
    births = iter(range(10**9))
    with patch.object(
        EngineRole, "transactional_id", lambda self, number: f"{self.group}-{number}-{next(births)}"
    ):
        yield


@contextmanager
def fence_after_restore() -> Iterator[None]:
    """The predecessor can still commit while its successor restores."""
    fence = Writer.fence

    class Late:
        """Stands for the writer until the restore is over."""

        def __init__(self, *arguments: Any) -> None:
            self._arguments = arguments
            self._writer: Writer | None = None

        @property
        def _producer(self) -> Any:
            return self._writer._producer if self._writer is not None else SimpleNamespace(in_transaction=False)

        async def commit(self, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
            if self._writer is None:
                self._writer = await fence(*self._arguments)
            await self._writer.commit(outputs, positions)

        async def close(self) -> None:
            if self._writer is not None:
                await self._writer.close()

    async def late(*arguments: Any) -> Late:
        return Late(*arguments)

    with patch.object(Writer, "fence", late):
        yield


@contextmanager
def offsets_before_the_transaction() -> Iterator[None]:
    """Input positions are committed separately, before the outputs of their input."""
    commit = Writer.commit

    async def apart(self: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
        if positions:
            await commit(self, Outputs(), positions)
        await commit(self, outputs, {})

    with patch.object(Writer, "commit", apart):
        yield


@contextmanager
def offsets_after_the_transaction() -> Iterator[None]:
    """Input positions are committed separately, after the outputs, and the progress in the changelog is ignored."""
    commit, resume_at = Writer.commit, SessionOpener._resume_at

    async def apart(self: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
        await commit(self, outputs, {})
        if positions:
            await commit(self, Outputs(), positions)

    def without(self: SessionOpener, processor: Processor, extent: Extent, reached: int) -> int:
        del reached
        return resume_at(self, processor, extent, extent.committed)

    with patch.object(Writer, "commit", apart), patch.object(SessionOpener, "_resume_at", without):
        yield


@contextmanager
def progress_not_asked() -> Iterator[None]:
    """Only the committed offsets are used, which expire."""
    resume_at = SessionOpener._resume_at

    def without(self: SessionOpener, processor: Processor, extent: Extent, reached: int) -> int:
        del reached
        return resume_at(self, processor, extent, extent.committed)

    with patch.object(SessionOpener, "_resume_at", without):
        yield


@contextmanager
def state_kept_after_a_failed_commit() -> Iterator[None]:
    """The state is installed before the commit, and stays when the commit fails."""
    begin, close = SessionOpener.open_session, PartitionTask.close
    kept: dict[SessionOpener, Any] = {}

    async def keep(self: PartitionTask) -> None:
        if self._session is not None and self._role.name == "worker":
            kept[self._opener] = self._session.processor
        await close(self)

    async def again(self: SessionOpener) -> Any:
        life = await begin(self)
        if (processor := kept.pop(self, None)) is not None:
            life.processor = processor
        return life

    with patch.object(PartitionTask, "close", keep), patch.object(SessionOpener, "open_session", again):
        yield


@contextmanager
def restore_reads_uncommitted() -> Iterator[None]:
    """The changelog is read with the records of open and aborted transactions."""

    def dirty(settings: Settings, clients: Clients = KAFKA, **overrides: Any) -> Any:
        return restore.create_reader(settings, clients, **{**overrides, "isolation_level": "read_uncommitted"})

    with patch.object(session, "create_reader", dirty):
        yield


@contextmanager
def warm_copies_read_uncommitted() -> Iterator[None]:
    """Standby copies apply records that may still be aborted."""
    reader = restore.create_reader

    def dirty(settings: Settings, clients: Clients = KAFKA, **overrides: Any) -> Any:
        return reader(settings, clients, **{**overrides, "isolation_level": "read_uncommitted"})

    with patch.object(restore, "create_reader", dirty):
        yield


@contextmanager
def warm_copies_taken_as_they_are() -> Iterator[None]:
    """A worker that takes over a warm copy does not read the records committed after the copy's last update."""
    whole = restore.read_to_end

    async def nothing_more(
        consumer: Consumer, source: TopicPartition, limit: int, start: int | None = None
    ) -> AsyncIterator[Sequence[ConsumerRecord]]:
        async for records in whole(consumer, source, limit, start):
            if start is None:
                yield records

    with patch.object(session, "read_to_end", nothing_more):
        yield


@contextmanager
def tables_followed_from_the_high_watermark() -> Iterator[None]:
    """The restore ends at the last stable offset, and the tables are followed from the high watermark."""
    restored = SessionOpener._restore

    async def skipping(self: SessionOpener, processor: Processor, *rest: Any) -> Any:
        positions, offsets = await restored(self, processor, *rest)
        tables = [TopicPartition(topic, self._partition) for topic in processor.lookup_topics]
        positions.update(await self._equipment.offsets_consumer.end_offsets(tables))
        return positions, offsets

    with patch.object(SessionOpener, "_restore", skipping):
        yield


@contextmanager
def restore_stops_at_the_first_gap() -> Iterator[None]:
    """The restore ends when records stop being consecutive: compaction and markers leave gaps."""
    whole = restore.read_to_end

    async def until_gap(
        consumer: Consumer, source: TopicPartition, limit: int, start: int | None = None
    ) -> AsyncIterator[Sequence[ConsumerRecord]]:
        following = start
        async for records in whole(consumer, source, limit, start):
            for record in records:
                if following is not None and record.offset != following:
                    return
                following = record.offset + 1
                yield [record]

    with patch.object(session, "read_to_end", until_gap):
        yield


@contextmanager
def answers_outside_the_transaction() -> Iterator[None]:
    """Answers are written at once; the other outputs follow in a transaction."""
    deliver = SimulatedProducer.deliver

    async def at_once(self: SimulatedProducer, place: TopicPartition, batch: Any) -> None:
        if not place.topic.endswith(".answers"):
            await deliver(self, place, batch)
            return
        await self._process.step()
        for key, value, _ in batch.messages:
            self._broker.append(place.topic, place.partition, key, value)

    with patch.object(SimulatedProducer, "deliver", at_once):
        yield


@contextmanager
def old_fetches_not_filtered() -> Iterator[None]:
    """Records from before the seek are answered as well."""
    with patch.object(BatchLoop, "_select_unprocessed", lambda *arguments: arguments[-1]):
        yield


@contextmanager
def unknown_streams_refused_at_once() -> Iterator[None]:
    """A query to an unknown stream does not wait for a control event that is under way."""
    prepare = QueryProcessor.prepare

    def without_tables(self: QueryProcessor, records: Sequence[RecordLike]) -> QueryBatch:
        return replace(prepare(self, records), needs_tables=False)

    with patch.object(QueryProcessor, "prepare", without_tables):
        yield


@contextmanager
def requests_granted_again() -> Iterator[None]:
    """The budget service forgets which requests it has answered."""
    restored = BudgetProcessor.end_restore

    def forgetful(self: BudgetProcessor) -> Mapping[str, int]:
        found = restored(self)
        self.request_handler.receipts = Receipts()
        self.ledger.source_of_stream.clear()
        return found

    with patch.object(BudgetProcessor, "end_restore", forgetful):
        yield


@contextmanager
def waiting_requests_forgotten() -> Iterator[None]:
    """A budget service that starts does not read again the tables for which requests wait."""
    with patch.object(WaitingRequests, "restore", lambda *_: None):
        yield


@contextmanager
def requests_overtaken() -> Iterator[None]:
    """A request is decided while an earlier one about its source waits for the table."""
    with patch.object(WaitingRequests, "has", lambda *_: False):
        yield


@contextmanager
def refreshes_forgotten() -> Iterator[None]:
    """A worker forgets the control events that it has held until a table was loaded."""
    settle = PartitionTables.take_loaded

    def forgetful(self: PartitionTables) -> list[RecordLike]:
        settle(self)
        return []

    with patch.object(PartitionTables, "take_loaded", forgetful):
        yield


@contextmanager
def periods_begun_by_a_restart() -> Iterator[None]:
    """The budget service begins a new period at each start."""
    restored = BudgetProcessor.end_restore

    def renewed(self: BudgetProcessor) -> Mapping[str, int]:
        found = restored(self)
        for owner in self.ledger.renewing_owners:
            owner.budget.start_ms = self.ledger.clock
        return found

    with patch.object(BudgetProcessor, "end_restore", renewed):
        yield


@contextmanager
def claims_of_populations_lost() -> Iterator[None]:
    """The budget service charges grants to their sources alone."""
    with patch.object(Account, "budgets", lambda self, grant: iter([(self.budget, grant.claim)])):
        yield


@contextmanager
def trail_begun_again() -> Iterator[None]:
    """The budget service does not ask the ledger where its trail ends."""
    with patch.object(TrailWriter, "restore", lambda *_: None):
        yield


@contextmanager
def trail_outside_the_transaction() -> Iterator[None]:
    """Entries of the trail are committed before the decisions that they describe, which may then fail."""
    commit = Writer.commit

    async def first(self: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
        noted = Outputs({place: messages for place, messages in outputs.messages.items() if ".trail" in place[0]})
        if noted:
            await commit(self, noted, {})
        rest = {place: messages for place, messages in outputs.messages.items() if ".trail" not in place[0]}
        await commit(self, Outputs(rest, outputs.busy), positions)

    with patch.object(Writer, "commit", first):
        yield


@contextmanager
def updates_not_written() -> Iterator[None]:
    """A hypothesis keeps its updates only in memory, and begins again after a restore."""
    with patch.object(UpdateLog, "first_updates", lambda *_: []):
        yield


@contextmanager
def shares_forgotten() -> Iterator[None]:
    """A worker that takes over a partition treats none of its work as outstanding."""
    with patch.object(Shares, "resume", lambda *_: None):
        yield


@contextmanager
def a_late_opening_undoes_a_halt() -> Iterator[None]:
    """A repeated opening after a halt opens the stream again."""
    with patch.object(stream_control, "is_stale", lambda *_: False):
        yield


@contextmanager
def extensions_of_a_latest_definition_only() -> Iterator[None]:
    """A repeated opening undoes an extension."""
    host = HostedStreams.host_streams

    def latest(self: HostedStreams, definitions: Sequence[StreamDefinition]) -> list[int]:
        slots = host(self, definitions)
        for slot, definition in zip(slots, definitions, strict=True):
            if not definition.extensions and self.extensions.pop(slot, ()):
                self.columns.cutoff[slot] = self.terms_at(slot).calibration.cutoff
        return slots

    with patch.object(HostedStreams, "host_streams", latest):
        yield


@contextmanager
def versions_of_a_latest_definition_only() -> Iterator[None]:
    """A repeated opening brings an earlier version of the data back."""
    host = HostedStreams.host_streams

    def latest(self: HostedStreams, definitions: Sequence[StreamDefinition]) -> list[int]:
        slots = host(self, definitions)
        for slot, definition in zip(slots, definitions, strict=True):
            self.columns.terms_of[slot] = definition.terms
        return slots

    with patch.object(HostedStreams, "host_streams", latest):
        yield


@contextmanager
def streams_that_ran_dry_stay_so() -> Iterator[None]:
    """A worker does not reopen an exhausted stream when it reads the stream's extension."""
    with patch.object(LifeCycle, "reopen_exhausted", lambda *_: None):
        yield


@contextmanager
def partitions_taken_while_leaving() -> Iterator[None]:
    """A rebalance between the order to stop and the end of membership starts tasks that nothing stops."""
    take = Engine.start_partitions

    class Deaf:
        """Passes the order to stop on, but does not show it."""

        def __init__(self, heard: asyncio.Event) -> None:
            self.set = heard.set

        def is_set(self) -> bool:
            return False

    async def deaf(self: Engine, *arguments: Any) -> None:
        heard = self._stopping
        self._stopping = Deaf(heard)  # type: ignore[assignment]
        try:
            await take(self, *arguments)
        finally:
            self._stopping = heard

    with patch.object(Engine, "start_partitions", deaf):
        yield


@contextmanager
def tasks_out_of_view_while_they_stop() -> Iterator[None]:
    """A task that is told to stop is treated as stopped, so nothing waits for its end."""
    park = Engine.park

    async def hidden(self: Engine, partitions: Iterable[int]) -> None:
        parked = asyncio.ensure_future(park(self, list(partitions)))
        await asyncio.sleep(0)
        self._tasks.clear()
        await parked

    with patch.object(Engine, "park", hidden):
        yield


@contextmanager
def restores_that_an_order_to_stop_does_not_end() -> Iterator[None]:
    """A rebalance waits for a fence and a restore, which may wait for Kafka for ever."""

    async def to_its_end(_: asyncio.Event, attempt: Awaitable[Any]) -> Any:
        return await attempt

    with patch.object(session, "unless_stopped", to_its_end):
        yield


@contextmanager
def refused_while_stopping() -> Iterator[None]:
    """A task that is told to stop while a control event is under way refuses the queries that wait for the event."""
    follow = BatchLoop._follow_to_end

    async def hasty(self: BatchLoop, life: Any) -> None:
        with suppress(Stopped):
            await follow(self, life)

    with patch.object(BatchLoop, "_follow_to_end", hasty):
        yield


@contextmanager
def waits_that_an_order_to_stop_does_not_end() -> Iterator[None]:
    """A rebalance waits for a task that waits for records, which the client holds until the rebalance is over."""

    async def fill(self: Prefetch) -> None:
        while not self._stopping.is_set():
            for source, records in (
                await self._consumer.getmany(*self._topic_partitions, timeout_ms=FETCH_WAIT_MS)
            ).items():
                self._buffers[source].add(records)
                self._records_arrived.set()

    async def leave(self: Prefetch, *_: object) -> None:
        if self._filling is not None:
            await self._filling

    with patch.object(Prefetch, "_fill_buffers", fill), patch.object(Prefetch, "__aexit__", leave):
        yield


@contextmanager
def refused_times_written_again() -> Iterator[None]:
    """A clock whose time Kafka has refused is used again."""
    with patch.object(RecordClock, "refuse", lambda _: None):
        yield


@contextmanager
def membership_left_to_the_client_library() -> Iterator[None]:
    """A process that fetches nothing or works for long leaves its group unnoticed, because nothing checks its membership."""

    async def trust(self: Membership) -> None:
        self.joined = True
        await asyncio.Event().wait()

    with (
        patch.object(group_engine, "POLL_INTERVAL_MS", MAX_POLL_INTERVAL_MS),
        patch.object(Membership, "watch", trust),
    ):
        yield


@contextmanager
def heads_anchored_before_their_commit() -> Iterator[None]:
    """A witness gets each head before its commit. If the commit fails, the next budget service grants nothing."""
    commit = BatchLoop.commit

    async def early(self: BatchLoop, session: PartitionSession, outputs: Outputs, *, idle: bool = False) -> None:
        guard = self._role.guard
        guard.note_committed(self._partition, session.processor)
        if isinstance(guard, AnchoringGuard):
            await guard._write_anchors()
        await commit(self, session, outputs, idle=idle)

    with patch.object(BatchLoop, "commit", early):
        yield


MUTATIONS: tuple[Mutation, ...] = (
    no_fencing,
    fence_after_restore,
    offsets_before_the_transaction,
    offsets_after_the_transaction,
    progress_not_asked,
    state_kept_after_a_failed_commit,
    restore_reads_uncommitted,
    warm_copies_read_uncommitted,
    warm_copies_taken_as_they_are,
    tables_followed_from_the_high_watermark,
    restore_stops_at_the_first_gap,
    answers_outside_the_transaction,
    old_fetches_not_filtered,
    unknown_streams_refused_at_once,
    requests_granted_again,
    waiting_requests_forgotten,
    requests_overtaken,
    refreshes_forgotten,
    *RETIREMENT,
    periods_begun_by_a_restart,
    claims_of_populations_lost,
    trail_begun_again,
    trail_outside_the_transaction,
    updates_not_written,
    shares_forgotten,
    a_late_opening_undoes_a_halt,
    extensions_of_a_latest_definition_only,
    versions_of_a_latest_definition_only,
    streams_that_ran_dry_stay_so,
    waits_that_an_order_to_stop_does_not_end,
    refused_times_written_again,
    membership_left_to_the_client_library,
    heads_anchored_before_their_commit,
)
"""Contexts in which one thing in the engine is broken."""
