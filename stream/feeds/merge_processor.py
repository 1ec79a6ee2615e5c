"""Merging: adds the partials of all partitions and asks the questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from schemas import MAX_GROUPS
from stream.feeds.feed_definitions import FeedDefinitions, StandingDefinition, parse_definition
from stream.feeds.merge_state import (
    NODE,
    PARTIAL,
    MergedStreamState,
    MergePeriods,
    Partials,
    RunningSums,
    WaitingWindows,
    decode_node,
    decode_progress,
    decode_stream,
    kept_node,
    kept_progress,
    kept_stream,
    node_key,
    partial_key,
    period_of,
)
from stream.feeds.window_queries import decode_partial, fits, groups_in, partial_of, questions
from stream.processing.dead_letters import Rejection, Unread, dead_letter
from stream.processing.protocol import (
    PROGRESS_KEY,
    Batch,
    Outputs,
    RecordLike,
    decode_kept,
    topic_ids_of,
    with_topic_ids,
)
from stream.processing.topic_names import Topics, partition_of

QUESTIONS_AT_ONCE: Final = MAX_GROUPS
"""A step ends with the window that reaches this number of questions."""

_MALFORMED = Rejection("malformed", "partial: is none; see that nobody but the feeds may write this topic")
_UNFIT = Rejection(
    "malformed", "partial: does not fit its stream; see that nobody but the feeds may write this topic"
)
_UNKNOWN = Rejection("unknown-stream", "stream: control tells of no standing stream of this name")
_RECUT = Rejection(
    "malformed", "partitions: the topic of the source has another number than when the stream began; open another"
)
_LOST = Rejection(
    "malformed",
    "partial: what was known of earlier windows of its running count is lost, which asks no more; open another stream",
)


@dataclass(frozen=True)
class PartialBatch(Batch):
    """Records with their partials; the partial of an unreadable record is None."""

    partials: Sequence[Any] = ()


class MergeProcessor:
    """Merges the standing streams of one partition.

    It asks the windows of a stream in order, each window once, when every partition of the source
    has published it. Feeds publish the windows of an ended stream up to its end, and each is asked.
    Nothing is asked or kept for a closed stream. If a source has periods, a window asks the stream
    of its period in ``definitions``; that stream may be in any partition.
    """

    heavy = False
    repeatable = False
    """If a window were asked again, its queries would have other offsets and so other noise."""

    def __init__(self, topics: Topics, partition: int, definitions: FeedDefinitions) -> None:
        self.inputs = (topics.partials,)
        self.tables = (topics.control,)
        self.changelog = topics.merges
        self._topics = topics
        self._partition = partition
        self._told: dict[str, StandingDefinition] = {}
        self._streams: dict[str, MergedStreamState] = {}
        self._offset = 0
        self.topic_ids: dict[str, str] = {}
        self._kept: dict[bytes, RecordLike] = {}
        self._ended: set[str] = set()
        """Ended streams whose changelog records ``_settle`` has to drop."""
        self._periods = MergePeriods(topics, definitions)
        self._waiting = WaitingWindows()

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Read records of control and of the changelog; either topic may come first."""
        for record in records:
            if record.topic == self._topics.control:
                self._follow_control(record)
            else:
                self._kept[record.key or b""] = record

    def restored(self) -> Mapping[str, int]:
        """End the restore, and return the partials' next offset according to the changelog."""
        kept, self._kept = self._kept, {}
        partials: list[Any] = []
        nodes: list[tuple[str, int, Any]] = []
        for key, record in kept.items():
            if record.value is None:
                continue
            kind, _, rest = key.decode().partition("|")
            if key == PROGRESS_KEY:
                self._offset = decode_kept(record, decode_progress).offset
                self.topic_ids = topic_ids_of(record)
            elif kind == PARTIAL:
                partials.append(decode_kept(record, decode_partial))
            elif kind == NODE:
                stream, _, place = rest.rpartition("|")
                nodes.append((stream, int(place), decode_kept(record, decode_node)))
            else:
                found = decode_kept(record, decode_stream)
                self._streams[kind] = MergedStreamState(found.incarnation, found.partitions, found.reached)
                running = self._streams[kind].running
                running.windows, running.lost = found.windows, found.lost
        for partial in sorted(partials, key=lambda one: one.start):
            self._stream_of(partial).add_partial(partial)
        for stream, number, node in nodes:
            if (merged := self._streams.get(stream)) is not None and merged.incarnation == node.incarnation:
                merged.running.kept[number] = node
        self._ended = {name for name, told in self._told.items() if not told.is_merged and name in self._streams}
        self._waiting.names = {name for name, merged in self._streams.items() if merged.open}
        return {self._topics.partials: self._offset}

    def recreated(self, topic: str) -> None:
        """Read the partials again; only the first of each window and partition has an effect."""

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """Apply definitions, and drop the records of ended streams."""
        for record in records:
            self._follow_control(record)
        outputs = Outputs()
        self._settle(outputs)
        return outputs

    def prepare(self, records: Sequence[RecordLike]) -> PartialBatch:
        """Decode partials until they complete windows with ``QUESTIONS_AT_ONCE`` groups.

        The tables are needed if a partial belongs to a stream that control has not defined yet.
        """
        asked, waiting, needs_tables = 0, set[tuple[str, int, int]](), False
        partials: list[Any] = []
        for record in records:
            partials.append(partial := partial_of(record))
            told = None if partial is None else self._definition_of(partial)
            needs_tables = needs_tables or (partial is not None and told is None)
            if told is None or partial is None or not told.is_merged:
                continue
            waiting.add((partial.stream, partial.start, partial.partition))
            merged = self._streams.get(partial.stream)
            there = merged.open.get(partial.start, {}) if merged is not None else {}
            if all(
                number in there or (partial.stream, partial.start, number) in waiting
                for number in range(partial.partitions)
            ):
                asked += groups_in(told)
                if asked >= QUESTIONS_AT_ONCE:
                    break
        return PartialBatch(records[: len(partials)], needs_tables, partials)

    def idle(self, now: float) -> Outputs:
        """Drop ended streams, ask the windows of begun periods and close past periods."""
        del now
        outputs = Outputs()
        self._settle(outputs)
        if self._periods.has_news():
            for name, stream in sorted(self._streams.items()):
                if (known := self._told.get(name)) is not None and known.asks:
                    self._periods.close(outputs, known, stream.reached)
        self._ask_waiting(outputs)
        return outputs

    def process(self, batch: PartialBatch) -> Outputs:
        """Apply partials in order, and ask each window when it is complete."""
        outputs, records = Outputs(), batch.records
        self._settle(outputs)
        for record, partial in zip(records, batch.partials, strict=True):
            try:
                self._apply(outputs, record, partial)
            except Rejection as rejection:
                self._reject(outputs, record, rejection)
        for name in self._ask_waiting(outputs):
            if (last := next((one for one in reversed(records) if one.key == name.encode()), None)) is not None:
                self._reject(outputs, last, _LOST)
        if records:
            self._offset = records[-1].offset + 1
            progress = (PROGRESS_KEY, kept_progress(self._offset), with_topic_ids(self.topic_ids))
            outputs.add(self._topics.merges, self._partition, progress)
        return outputs

    def _follow_control(self, record: RecordLike) -> None:
        name = (record.key or b"").decode(errors="replace")
        told = parse_definition(record, self._told.get(name))
        if told is None or told.spec.stream != name or told.source.period_of is not None:
            return  # feeds publish partials of models, not of periods' streams
        self._told[name] = told
        if not told.is_merged:
            self._ended.add(name)

    def _definition_of(self, partial: Any) -> StandingDefinition | None:
        told = self._told.get(partial.stream)
        return told if told is not None and told.incarnation == partial.incarnation else None

    def _apply(self, outputs: Outputs, record: RecordLike, partial: Any) -> None:
        told = self._require_definition(record, partial)
        if not told.is_merged:
            return
        merged = self._stream_of(partial)
        if partial.partitions != merged.partitions:
            raise _RECUT
        was_lost = merged.running.lost
        if not merged.is_news(partial):
            # It repeats a window, so the partition has lost its counts of people.
            if told.spec.mechanism.kind == "running_count" and not was_lost:
                merged.running.lost = True
                self._keep(outputs, {partial.stream.encode(): kept_stream(merged)})
                raise _LOST
            return
        merged.add_partial(partial)
        written: dict[bytes, bytes | None] = {
            partial_key(partial.stream, partial.start, partial.partition): record.value
        }
        if told.source.has_periods:
            self._waiting.names.add(partial.stream)
        else:
            self._advance(outputs, told, merged, written)
        self._keep(outputs, written)
        if merged.running.lost and not was_lost:
            raise _LOST

    def _advance(
        self,
        outputs: Outputs,
        told: StandingDefinition,
        merged: MergedStreamState,
        written: dict[bytes, bytes | None],
    ) -> None:
        """Ask the complete windows of a stream."""
        before = merged.reached
        for start, partials in merged.due():
            self._pass(outputs, told, merged, (before, start), partials, written)
            before = start

    def _ask_waiting(self, outputs: Outputs) -> list[str]:
        def is_ready(told: StandingDefinition, start: int) -> bool:
            return self._periods.is_ready(outputs, told, start)

        asked, lost = 0, []
        written: dict[bytes, bytes | None] = {}
        for name, start in self._waiting.ready(self._told, self._streams, is_ready):
            told, merged = self._told[name], self._streams[name]
            step, was_lost = (merged.reached, start), merged.running.lost
            asked += self._pass(outputs, told, merged, step, merged.close(start), written)
            if merged.running.lost and not was_lost:
                lost.append(name)
            if asked >= QUESTIONS_AT_ONCE:
                break
        self._keep(outputs, written)
        return lost

    def _pass(
        self,
        outputs: Outputs,
        told: StandingDefinition,
        merged: MergedStreamState,
        step: tuple[int, int],
        partials: Partials,
        written: dict[bytes, bytes | None],
    ) -> int:
        """Advance by one window, ask it if it is complete, and return the number of questions."""
        name, (before, start), asked = told.spec.stream, step, 0
        written |= {partial_key(name, start, number): None for number in partials}
        if told.source.has_periods and period_of(told, before) != period_of(told, start):
            # After a loss, the partition may have counted people twice in later periods too.
            merged.running = RunningSums(lost=merged.running.lost)
        asking = self._periods.asked_by(told, start)
        if len(partials) == merged.partitions and asking is not None:
            for place in self._ask(outputs, asking, merged, start, partials):
                # Node records of a period's stream have the model's name.
                written[node_key(name, place)] = kept_node(merged, place)
            asked = groups_in(asking)
        written[name.encode()] = kept_stream(merged)
        self._periods.passed(outputs, told, before, start)
        return asked

    def _require_definition(self, record: RecordLike, partial: Any) -> StandingDefinition:
        if isinstance(record.value, Unread):
            raise record.value.rejection
        if partial is None:
            raise _MALFORMED
        told = self._definition_of(partial)
        if told is None:
            raise _UNKNOWN
        if not fits(partial, told):
            raise _UNFIT
        return told

    def _ask(
        self, outputs: Outputs, told: StandingDefinition, merged: MergedStreamState, start: int, partials: Partials
    ) -> Sequence[int]:
        """Ask all groups of a window; return the changed nodes of a running count."""
        counts = [0] * groups_in(told)
        for partial in partials.values():
            for cell, count in zip(partial.cells, partial.counts, strict=True):
                counts[cell] += count
        name, numbers = told.spec.stream, cast("list[Any]", counts)
        changed: Sequence[int] = ()
        if told.spec.mechanism.kind == "running_count":
            changed = merged.running.add(told, start, counts)
            if not changed:
                return changed
            numbers = merged.running.groups
        asked = questions(told, start, numbers)
        home = partition_of(name.encode(), self._topics.partitions)
        outputs.extend(self._topics.queries, home, [(name.encode(), value, ()) for value in asked])
        return changed

    def _stream_of(self, partial: Any) -> MergedStreamState:
        merged = self._streams.get(partial.stream)
        if merged is None or merged.incarnation != partial.incarnation:
            merged = self._streams[partial.stream] = MergedStreamState(partial.incarnation, partial.partitions)
        return merged

    def _settle(self, outputs: Outputs) -> None:
        """Drop the records of closed streams, and of ended ones in a source with periods."""
        ended, self._ended = self._ended, set()
        for name in sorted(ended):
            told, merged = self._told[name], self._streams.get(name)
            if told.is_merged or merged is None:
                continue
            written: dict[bytes, bytes | None] = {
                partial_key(name, start, number): None
                for start, partials in merged.open.items()
                for number in partials
            }
            merged.forget()
            if told.kind == "closed":
                nodes = (
                    getattr(told.calibration, "nodes", 0)
                    if merged.running.windows or told.source.has_periods
                    else 0
                )
                written |= {node_key(name, place): None for place in range(nodes)}
                written[name.encode()] = None
                del self._streams[name]
            self._keep(outputs, written)

    def _keep(self, outputs: Outputs, written: Mapping[bytes, bytes | None]) -> None:
        outputs.extend(self._topics.merges, self._partition, [(key, value, ()) for key, value in written.items()])

    def _reject(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> None:
        outputs.add(self._topics.rejected, self._partition, dead_letter(record, rejection))
