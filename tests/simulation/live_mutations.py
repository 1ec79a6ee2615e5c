"""Feeds with one possible mistake of counting or merging each; the simulation must find all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

from aiokafka import TopicPartition

from stream.engine.partition_input import Extent
from stream.engine.partition_task import PartitionTask
from stream.engine.session import SessionOpener
from stream.engine.writer import Writer
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.counted_streams import StandingStreams, StreamEpoch
from stream.feeds.event_intake import EventClock
from stream.feeds.feed_definitions import Epoch, FeedDefinitions, StandingDefinition
from stream.feeds.merge_processor import MergeProcessor
from stream.feeds.merge_state import MergedStreamState
from stream.feeds.window_queries import PartialWriter
from stream.processing.protocol import PROGRESS_KEY, Outputs, Processor
from tests.simulation.mutations import Mutation, no_fencing


@contextmanager
def partials_outside_of_the_transaction() -> Iterator[None]:
    """A partition's counts of a window are written outside of the transaction, before the position up to which they count."""
    commit = Writer.commit

    async def apart(self: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
        early, rest = Outputs(), Outputs(busy=outputs.busy)
        for topic, partition, messages in outputs:
            (early if topic.endswith((".partials", ".queries")) else rest).extend(topic, partition, messages)
        if early:
            await commit(self, early, {})
        await commit(self, rest, positions)

    with patch.object(Writer, "commit", apart):
        yield


@contextmanager
def position_without_the_counts() -> Iterator[None]:
    """A partition writes its position to its changelog, but not its counts."""
    with patch.object(FeedProcessor, "_write_pieces", lambda *_: None):
        yield


@contextmanager
def counts_without_the_position() -> Iterator[None]:
    """A partition continues from its group's offsets, which lag behind its counts."""
    resume_at = SessionOpener._resume_at

    def without(self: SessionOpener, processor: Processor, extent: Extent, reached: int) -> int:
        del reached
        return resume_at(self, processor, extent, extent.committed)

    with patch.object(SessionOpener, "_resume_at", without):
        yield


@contextmanager
def merging_forgets_how_far_it_was() -> Iterator[None]:
    """After a restart, merging reads all partials again, and does not know which windows were asked."""
    keep, restored = MergeProcessor._write_changelog, MergeProcessor.end_restore

    def forgetful(self: MergeProcessor, outputs: Outputs, written: Mapping[bytes, bytes | None]) -> None:
        keep(self, outputs, {key: value for key, value in written.items() if key == PROGRESS_KEY})

    def anew(self: MergeProcessor) -> Mapping[str, int]:
        return dict.fromkeys(restored(self), 0)

    with (
        patch.object(MergeProcessor, "_write_changelog", forgetful),
        patch.object(MergeProcessor, "end_restore", anew),
        patch.object(MergeProcessor, "answers_are_repeatable", new=True),
    ):
        yield


@contextmanager
def partials_not_kept() -> Iterator[None]:
    """Merging writes its position, but after a restart it has lost the partials of incomplete windows."""
    keep = MergeProcessor._write_changelog

    def forgetful(self: MergeProcessor, outputs: Outputs, written: Mapping[bytes, bytes | None]) -> None:
        keep(self, outputs, {key: value for key, value in written.items() if not key.startswith(b"@partial")})

    with patch.object(MergeProcessor, "_write_changelog", forgetful):
        yield


@contextmanager
def the_first_partition_is_enough() -> Iterator[None]:
    """A window is asked as soon as one partition has published it."""

    def due(self: MergedStreamState) -> Iterator[tuple[int, Any]]:
        for start in sorted(self.open):
            self.last_closed = start
            partials = self.open.pop(start)
            yield start, dict.fromkeys(range(self.partitions), next(iter(partials.values())))

    with patch.object(MergedStreamState, "close_complete_windows", due):
        yield


@contextmanager
def the_end_is_taken_for_granted() -> Iterator[None]:
    """The clock advances as if there were no unread events."""
    keep_time = PartitionTask._keep_time

    async def hasty(self: PartitionTask, life: Any, processor: Any, inputs: Any, *, idle: bool) -> None:
        processor.note_end_of_input(self._clock() + 10.0)
        await keep_time(self, life, processor, inputs, idle=idle)

    with patch.object(PartitionTask, "_keep_time", hasty):
        yield


@contextmanager
def silent_partitions_stand_still() -> Iterator[None]:
    """Only events advance the clock."""
    with patch.object(EventClock, "note_end_of_input", lambda *_: None):
        yield


@contextmanager
def windows_stream_by_stream() -> Iterator[None]:
    """A step publishes all closed windows of one stream, and then those of the next stream."""
    due = PartialWriter.publish_due_windows

    def by_stream(
        self: PartialWriter, streams: StandingStreams, clock: int, outputs: Outputs
    ) -> list[StreamEpoch]:
        return [stream for one in streams for stream in due(self, cast("Any", (one,)), clock, outputs)]

    with patch.object(PartialWriter, "publish_due_windows", by_stream):
        yield


@contextmanager
def the_latest_definition_alone() -> Iterator[None]:
    """A feed goes on counting a stream that it finds open, although the stream had ended and was then extended."""
    of = FeedDefinitions.streams_of

    def latest(self: FeedDefinitions, source: str) -> tuple[StandingDefinition, ...]:
        found = of(self, source)
        return tuple(
            replace(one, epochs=(Epoch(begins=one.epochs[0].begins),)) if one.is_open else one for one in found
        )

    with patch.object(FeedDefinitions, "streams_of", latest):
        yield


@contextmanager
def retired_streams_unknown() -> Iterator[None]:
    """A feed that finds counts of a retired stream waits for its definition."""
    with patch.object(FeedDefinitions, "is_retired", lambda *_: False):
        yield


@contextmanager
def changelog_of_retired_streams_kept() -> Iterator[None]:
    """After a restart, merging leaves a retired stream's records in its changelog."""
    restored = MergeProcessor.end_restore

    def unaware(self: MergeProcessor) -> Mapping[str, int]:
        found = restored(self)
        self._stale_keys = []
        return found

    with patch.object(MergeProcessor, "end_restore", unaware):
        yield


MUTATIONS: tuple[Mutation, ...] = (
    no_fencing,
    partials_outside_of_the_transaction,
    position_without_the_counts,
    counts_without_the_position,
    merging_forgets_how_far_it_was,
    partials_not_kept,
    the_first_partition_is_enough,
    the_end_is_taken_for_granted,
    silent_partitions_stand_still,
    windows_stream_by_stream,
    the_latest_definition_alone,
    retired_streams_unknown,
    changelog_of_retired_streams_kept,
)
