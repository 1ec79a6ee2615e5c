"""Engines with one possible mistake of an exactly-once engine each; the simulation must find all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from stream.engine.partition_input import Extent
from stream.engine.partition_task import PartitionTask
from stream.engine.session import EngineRole, PartitionSession, SessionOpener
from stream.engine.supervision import Membership
from stream.engine.writer import RecordClock, Writer
from stream.kafka.client.adapter import KAFKA, Clients, Consumer
from stream.privacy.ledger.accounts import Account
from stream.processing.protocol import Outputs, Processor, RecordLike
from stream.services.witness_guards import AnchoringGuard
from stream.settings import Settings
from stream.worker import stream_control
from stream.worker.fair_shares import Shares
from stream.worker.hosted_streams import HostedStreams, LifeCycle
from stream.worker.stream_records import StreamDefinition, UpdateLog
from stream.worker.table_loads import PartitionTables
from stream.worker.worker_processor import QueryProcessor
from tests.simulation.clients import MAX_POLL_INTERVAL_MS, SimulatedProducer
from tests.simulation.replacements import Mutation, replacing
from tests.simulation.retirement_mutations import RETIREMENT
from tests.simulation.stopping_mutations import waits_that_an_order_to_stop_does_not_end

SCHEDULES = 150
"""The number of schedules that every run of the tests plays. They reveal each engine with one thing wrong. An error that shows in 3 of 100
schedules is found in 99 of 100 runs of so many schedules with other seeds."""


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


@replacing(Writer, "commit")
async def offsets_before_the_transaction(
    commit: Any, self: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]
) -> None:
    """Input positions are committed separately, before the outputs of their input."""
    if positions:
        await commit(self, Outputs(), positions)
    await commit(self, outputs, {})


@replacing(SessionOpener, "_resume_at")
def progress_not_asked(
    resume_at: Any, self: SessionOpener, processor: Processor, extent: Extent, reached: int
) -> Any:
    """Only the committed offsets are used, which expire."""
    del reached
    return resume_at(self, processor, extent, extent.committed)


@replacing(Writer, "commit")
async def _offsets_after_outputs(
    commit: Any, self: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]
) -> None:
    await commit(self, outputs, {})
    if positions:
        await commit(self, Outputs(), positions)


@contextmanager
def offsets_after_the_transaction() -> Iterator[None]:
    """Input positions are committed separately, after the outputs, and the progress in the changelog is ignored."""
    with _offsets_after_outputs(), progress_not_asked():
        yield


@contextmanager
def state_kept_after_a_failed_commit() -> Iterator[None]:
    """The state is installed before the commit, and stays when the commit fails."""
    begin, close = SessionOpener.open_session, PartitionTask.close
    kept: dict[SessionOpener, Any] = {}

    async def keep(self: PartitionTask) -> None:
        if self.session is not None and self._role.name == "worker":
            kept[self._opener] = self.session.processor
        await close(self)

    async def again(self: SessionOpener) -> Any:
        life = await begin(self)
        if (processor := kept.pop(self, None)) is not None:
            life.processor = processor
        return life

    with patch.object(PartitionTask, "close", keep), patch.object(SessionOpener, "open_session", again):
        yield


@replacing(session, "create_reader")
def restore_reads_uncommitted(_: Any, settings: Settings, clients: Clients = KAFKA, **overrides: Any) -> Any:
    """The changelog is read with the records of open and aborted transactions."""
    return restore.create_reader(settings, clients, **{**overrides, "isolation_level": "read_uncommitted"})


@replacing(restore, "create_reader")
def warm_copies_read_uncommitted(
    reader: Any, settings: Settings, clients: Clients = KAFKA, **overrides: Any
) -> Any:
    """Standby copies apply records that may still be aborted."""
    return reader(settings, clients, **{**overrides, "isolation_level": "read_uncommitted"})


@replacing(session, "read_to_end")
async def warm_copies_taken_as_they_are(
    read: Any, consumer: Consumer, source: TopicPartition, limit: int, start: int | None, *, whole: bool
) -> AsyncIterator[Sequence[ConsumerRecord]]:
    """A worker that takes over a warm copy does not read the records committed after the copy's last update."""
    async for records in read(consumer, source, limit, start, whole=whole):
        if start is None:
            yield records


@replacing(SessionOpener, "_restore")
async def tables_followed_from_the_high_watermark(
    restored: Any, self: SessionOpener, processor: Processor, *rest: Any
) -> Any:
    """The restore ends at the last stable offset, and the tables are followed from the high watermark."""
    positions, offsets = await restored(self, processor, *rest)
    tables = [TopicPartition(topic, self.partition) for topic in processor.lookup_topics]
    positions.update(await self.equipment.offsets_consumer.end_offsets(tables))
    return positions, offsets


@replacing(session, "read_to_end")
async def restore_stops_at_the_first_gap(
    read: Any, consumer: Consumer, source: TopicPartition, limit: int, start: int | None, *, whole: bool
) -> AsyncIterator[Sequence[ConsumerRecord]]:
    """The restore ends when records stop being consecutive: compaction and markers leave gaps."""
    following = start
    async for records in read(consumer, source, limit, start, whole=whole):
        for record in records:
            if following is not None and record.offset != following:
                return
            following = record.offset + 1
            yield [record]


@replacing(SimulatedProducer, "deliver")
async def answers_outside_the_transaction(
    deliver: Any, self: SimulatedProducer, place: TopicPartition, batch: Any
) -> None:
    """Answers are written at once; the other outputs follow in a transaction."""
    if not place.topic.endswith(".answers"):
        await deliver(self, place, batch)
        return
    await self._process.step()
    for key, value, _ in batch.messages:
        self._broker.append(place.topic, place.partition, key, value)


@replacing(BatchLoop, "_select_unprocessed")
def old_fetches_not_filtered(*arguments: Any) -> Any:
    """Records from before the seek are answered as well."""
    return arguments[-1]


@replacing(QueryProcessor, "prepare")
def unknown_streams_refused_at_once(prepare: Any, self: QueryProcessor, records: Sequence[RecordLike]) -> Any:
    """A query to an unknown stream does not wait for a control event that is under way."""
    return replace(prepare(self, records), needs_lookup_topics=False)


@replacing(BudgetProcessor, "end_restore")
def requests_granted_again(restored: Any, self: BudgetProcessor) -> Any:
    """The budget service forgets which requests it has answered."""
    found = restored(self)
    self.request_handler.receipts = Receipts()
    self.ledger.source_of_stream.clear()
    return found


@replacing(WaitingRequests, "restore")
def waiting_requests_forgotten(*_: Any) -> None:
    """A budget service that starts does not read again the tables for which requests wait."""


@replacing(WaitingRequests, "has")
def requests_overtaken(*_: Any) -> bool:
    """A request is decided while an earlier one about its source waits for the table."""
    return False


@replacing(PartitionTables, "take_ended_loads")
def refreshes_forgotten(settle: Any, self: PartitionTables) -> list[RecordLike]:
    """A worker forgets the control events that it has held until a table was loaded."""
    settle(self)
    return []


@replacing(BudgetProcessor, "end_restore")
def periods_begun_by_a_restart(restored: Any, self: BudgetProcessor) -> Any:
    """The budget service begins a new period at each start."""
    found = restored(self)
    for owner in self.ledger.renewing_owners:
        owner.budget.start_ms = self.ledger.clock
    return found


@replacing(Account, "budgets")
def claims_of_populations_lost(_: Any, self: Any, grant: Any) -> Any:
    """The budget service charges grants to their sources alone."""
    return iter([(self.budget, grant.claim)])


@replacing(TrailWriter, "restore")
def trail_begun_again(*_: Any) -> None:
    """The budget service does not ask the ledger where its trail ends."""


@replacing(Writer, "commit")
async def trail_outside_the_transaction(
    commit: Any, self: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]
) -> None:
    """Entries of the trail are committed before the decisions that they describe, which may then fail."""
    noted = Outputs({place: messages for place, messages in outputs.messages.items() if ".trail" in place[0]})
    if noted:
        await commit(self, noted, {})
    rest = {place: messages for place, messages in outputs.messages.items() if ".trail" not in place[0]}
    await commit(self, Outputs(rest, outputs.busy), positions)


@replacing(UpdateLog, "first_updates")
def updates_not_written(*_: Any) -> list[Any]:
    """A hypothesis keeps its updates only in memory, and begins again after a restore."""
    return []


@replacing(Shares, "resume")
def shares_forgotten(*_: Any) -> None:
    """A worker that takes over a partition treats none of its work as outstanding."""


@replacing(stream_control, "is_stale")
def a_late_opening_undoes_a_halt(*_: Any) -> bool:
    """A repeated opening after a halt opens the stream again."""
    return False


@replacing(HostedStreams, "host_streams")
def extensions_of_a_latest_definition_only(
    host: Any, self: HostedStreams, definitions: Sequence[StreamDefinition]
) -> Any:
    """A repeated opening undoes an extension."""
    slots = host(self, definitions)
    for slot, definition in zip(slots, definitions, strict=True):
        if not definition.extensions and self.extensions.pop(slot, ()):
            self.columns.cutoff[slot] = self.terms_at(slot).calibration.cutoff
    return slots


@replacing(HostedStreams, "host_streams")
def versions_of_a_latest_definition_only(
    host: Any, self: HostedStreams, definitions: Sequence[StreamDefinition]
) -> Any:
    """A repeated opening brings an earlier version of the data back."""
    slots = host(self, definitions)
    for slot, definition in zip(slots, definitions, strict=True):
        self.columns.terms_of[slot] = definition.terms
    return slots


@replacing(LifeCycle, "reopen_exhausted")
def streams_that_ran_dry_stay_so(*_: Any) -> None:
    """A worker does not reopen an exhausted stream when it reads the stream's extension."""


@replacing(RecordClock, "refuse")
def refused_times_written_again(*_: Any) -> None:
    """A clock whose time Kafka has refused is used again."""


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


@replacing(BatchLoop, "commit")
async def heads_anchored_before_their_commit(
    commit: Any, self: BatchLoop, session: PartitionSession, outputs: Outputs, *, idle: bool = False
) -> None:
    """A witness gets each head before its commit. If the commit fails, the next budget service grants nothing."""
    guard = self._role.guard
    guard.note_committed(self._partition, session.processor)
    if isinstance(guard, AnchoringGuard):
        await guard._write_anchors()
    await commit(self, session, outputs, idle=idle)


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
