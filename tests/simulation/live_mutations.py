"""Feeds with one possible mistake of counting or merging each; the simulation must find all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

from aiokafka import TopicPartition

from stream.engine.partition_task import PartitionTask
from stream.engine.writer import Writer
from stream.feeds.changelog_pieces import PiecesLog
from stream.feeds.counted_streams import StandingStreams, StreamEpoch
from stream.feeds.event_intake import EventClock
from stream.feeds.feed_definitions import Epoch, FeedDefinitions, StandingDefinition
from stream.feeds.merge_processor import MergeProcessor
from stream.feeds.merge_state import MergedStreamState
from stream.feeds.window_queries import PartialWriter
from stream.processing.protocol import PROGRESS_KEY, Outputs
from tests.simulation.mutations import no_fencing, progress_not_asked
from tests.simulation.replacements import Mutation, replacing


@replacing(Writer, "commit")
async def partials_outside_of_the_transaction(
    commit: Any, self: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]
) -> None:
    """A partition's counts of a window are written outside of the transaction, before the position up to which they count."""
    early, rest = Outputs(), Outputs(busy=outputs.busy)
    for topic, partition, messages in outputs:
        (early if topic.endswith((".partials", ".queries")) else rest).extend(topic, partition, messages)
    if early:
        await commit(self, early, {})
    await commit(self, rest, positions)


@replacing(PiecesLog, "write")
def position_without_the_counts(*_: Any) -> list[Any]:
    """A partition writes its position to its changelog, but not its counts."""
    return []


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


@replacing(MergeProcessor, "_write_changelog")
def partials_not_kept(
    keep: Any, self: MergeProcessor, outputs: Outputs, written: Mapping[bytes, bytes | None]
) -> None:
    """Merging writes its position, but after a restart it has lost the partials of incomplete windows."""
    keep(self, outputs, {key: value for key, value in written.items() if not key.startswith(b"@partial")})


@replacing(MergedStreamState, "close_complete_windows")
def the_first_partition_is_enough(_: Any, self: MergedStreamState) -> Iterator[tuple[int, Any]]:
    """A window is asked as soon as one partition has published it."""
    for start in sorted(self.open):
        self.last_closed = start
        partials = self.open.pop(start)
        yield start, dict.fromkeys(range(self.partitions), next(iter(partials.values())))


@replacing(PartitionTask, "_do_timed_work")
async def the_end_is_taken_for_granted(
    keep_time: Any, self: PartitionTask, life: Any, processor: Any, inputs: Any, *, idle: bool
) -> None:
    """The clock advances as if there were no unread events."""
    processor.note_end_of_input(self._clock() + 10.0)
    await keep_time(self, life, processor, inputs, idle=idle)


@replacing(EventClock, "note_end_of_input")
def silent_partitions_stand_still(*_: Any) -> None:
    """Only events advance the clock."""


@replacing(PartialWriter, "publish_due_windows")
def windows_stream_by_stream(
    due: Any, self: PartialWriter, streams: StandingStreams, clock: int, outputs: Outputs
) -> list[StreamEpoch]:
    """A step publishes all closed windows of one stream, and then those of the next stream."""
    return [stream for one in streams for stream in due(self, cast("Any", (one,)), clock, outputs)]


@replacing(FeedDefinitions, "streams_of")
def the_latest_definition_alone(of: Any, self: FeedDefinitions, source: str) -> tuple[StandingDefinition, ...]:
    """A feed continues to count a stream that it finds open, although the stream had ended and was then extended."""
    found = of(self, source)
    return tuple(
        replace(one, epochs=(Epoch(begins=one.epochs[0].begins),)) if one.is_open else one for one in found
    )


@replacing(FeedDefinitions, "is_retired")
def retired_streams_unknown(*_: Any) -> bool:
    """A feed that finds counts of a retired stream waits for its definition."""
    return False


@replacing(MergeProcessor, "end_restore")
def changelog_of_retired_streams_kept(restored: Any, self: MergeProcessor) -> Any:
    """After a restart, merging leaves a retired stream's records in its changelog."""
    found = restored(self)
    self._stale_keys = []
    return found


MUTATIONS: tuple[Mutation, ...] = (
    no_fencing,
    partials_outside_of_the_transaction,
    position_without_the_counts,
    progress_not_asked,
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
