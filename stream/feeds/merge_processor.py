"""Adds the partials of all partitions of a live topic, and asks the questions of its windows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from schemas import MAX_GROUPS
from stream.feeds import window_queries
from stream.feeds.feed_definitions import FeedDefinitions, RetiredStreamNames, StandingDefinition, parse_definition
from stream.feeds.merge_state import (
    NODE,
    PARTIAL,
    TEXTS,
    MergedStreamState,
    Partials,
    PeriodRequests,
    RunningSums,
    decode_progress,
    decode_stream,
    encode_node,
    encode_progress,
    encode_stream,
    encode_texts,
    node_key,
    partial_key,
    period_of,
    ready_windows,
    restore_sums,
    stream_of_key,
    texts_key,
)
from stream.processing.dead_letters import Rejection, dead_letter
from stream.processing.protocol import (
    PROGRESS_KEY,
    Batch,
    Outputs,
    RecordLike,
    decode_changelog_record,
    topic_id_headers,
    topic_ids_of,
)
from stream.processing.topic_names import Topics, partition_of

MAX_QUESTIONS_PER_STEP: Final = MAX_GROUPS
"""A step (a batch of partials, or one pass over waiting windows) ends once the loads of its windows add up to this."""

_PARTITION_COUNT_CHANGED = Rejection(
    "malformed",
    "partitions: differs from the partial that began this stream, because the topic's partition count has changed; open another stream",
)
_SUMS_LOST = Rejection(
    "malformed",
    "partial: counts of earlier windows of its running count were lost, so the stream gets no more questions; open another stream",
)


@dataclass(frozen=True)
class PartialBatch(Batch):
    """Records with their partials; the partial of an unreadable record is None."""

    partials: Sequence[Any] = ()


class MergeProcessor:
    """Merges the standing streams of one partition.

    It asks the windows of a stream in order, each window once, as soon as every partition of the
    source has published it. Windows up to the end of a halted stream are asked too. Nothing is
    asked or kept for a closed stream. If a source has periods, ``definitions`` has a stream for each
    period, which gets the questions of the period's windows and may be in any partition.
    """

    runs_in_thread = False
    answers_are_repeatable = False
    """False, because the queries of a window that is asked again would have other offsets and other noise."""

    def __init__(self, topics: Topics, partition: int, definitions: FeedDefinitions) -> None:
        self.inputs = (topics.partials,)
        self.lookup_topics = (topics.control,)
        self.changelog = topics.merges
        self._topics = topics
        self._partition = partition
        self._definition_by_stream: dict[str, StandingDefinition] = {}
        self._streams: dict[str, MergedStreamState] = {}
        self._offset = 0
        self.topic_ids: dict[str, str] = {}
        self._restored_records: dict[bytes, RecordLike] = {}
        self._ended_streams: set[str] = set()
        """Ended streams whose changelog records ``_drop_ended_streams`` has to drop."""
        self._retired = RetiredStreamNames()
        self._stale_keys: list[bytes] = []
        """Keys of the changelog's records of retired streams that a restore found."""
        self._periods = PeriodRequests(topics, definitions)
        self._waiting: set[str] = set()
        """The streams with open windows whose period may not have begun."""

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Read records of control and of the changelog; either topic may come first."""
        control: list[RecordLike] = []
        for record in records:
            if record.topic == self._topics.control:
                control.append(record)
            else:
                self._restored_records[record.key or b""] = record
        self._follow_control(control)

    def end_restore(self) -> Mapping[str, int]:
        """End the restore, and return the partials' next offset according to the changelog."""
        kept, self._restored_records = self._restored_records, {}
        retired = self._retired.select({stream_of_key(key) for key in kept})
        self._stale_keys = [key for key, record in kept.items() if record.value and stream_of_key(key) in retired]
        for name in self._retired.select(self._definition_by_stream):
            del self._definition_by_stream[name]
        partials: list[Any] = []
        sums: list[tuple[str, str, RecordLike]] = []
        for key, record in kept.items():
            if record.value is None or stream_of_key(key) in retired:
                continue
            kind_or_stream, _, rest = key.decode().partition("|")
            if key == PROGRESS_KEY:
                self._offset = decode_changelog_record(record, decode_progress).offset
                self.topic_ids = topic_ids_of(record)
            elif kind_or_stream == PARTIAL:
                partials.append(decode_changelog_record(record, window_queries.decode_partial))
            elif kind_or_stream in {NODE, TEXTS}:
                sums.append((kind_or_stream, rest, record))
            else:
                found = decode_changelog_record(record, decode_stream)
                self._streams[kind_or_stream] = MergedStreamState(
                    found.incarnation, found.partitions, found.reached
                )
                running = self._streams[kind_or_stream].running
                running.windows, running.are_lost = found.windows, found.lost
        for partial in sorted(partials, key=lambda one: one.start):
            self._stream_of(partial).add_partial(partial)
        for kind, rest, record in sums:
            restore_sums(self._streams, kind, rest, record)
        self._ended_streams = {
            name
            for name, definition in self._definition_by_stream.items()
            if not definition.is_merged and name in self._streams
        }
        self._waiting = {name for name, merged in self._streams.items() if merged.open}
        return {self._topics.partials: self._offset}

    def restart_input(self, topic: str) -> None:
        """Accept a recreated topic: a partition's repeated partial of a window is not counted again."""

    def apply_lookup_records(self, records: Sequence[RecordLike]) -> Outputs:
        """Apply definitions, and drop the records of ended streams."""
        self._follow_control(records)
        outputs = Outputs()
        self._drop_ended_streams(outputs)
        return outputs

    def prepare(self, records: Sequence[RecordLike]) -> PartialBatch:
        """Decode partials until they complete windows with ``MAX_QUESTIONS_PER_STEP`` groups.

        ``needs_lookup_topics`` is true if a partial belongs to a stream that control has not defined yet.
        """
        load, waiting, needs_lookup_topics = 0, set[tuple[str, int, int]](), False
        partials: list[Any] = []
        for record in records:
            partials.append(partial := window_queries.parse_partial(record))
            definition = None if partial is None else self._definition_of(partial)
            needs_lookup_topics = needs_lookup_topics or (
                partial is not None and definition is None and not self._retired.contains(partial.stream)
            )
            if definition is None or partial is None or not definition.is_merged:
                continue
            waiting.add((partial.stream, partial.start, partial.partition))
            merged = self._streams.get(partial.stream)
            published = merged.open.get(partial.start, {}) if merged is not None else {}
            if all(
                number in published or (partial.stream, partial.start, number) in waiting
                for number in range(partial.partitions)
            ):
                load += window_queries.window_load(definition, MAX_QUESTIONS_PER_STEP)
                if load >= MAX_QUESTIONS_PER_STEP:
                    break
        return PartialBatch(records[: len(partials)], needs_lookup_topics, partials)

    def collect_due_outputs(self, now: float) -> Outputs:
        """Drop ended streams, ask the windows of begun periods and close past periods."""
        del now
        outputs = Outputs()
        self._drop_ended_streams(outputs)
        if self._periods.has_new_definitions():
            for name, stream in sorted(self._streams.items()):
                if (known := self._definition_by_stream.get(name)) is not None and known.is_open:
                    self._periods.close_streams(outputs, known, stream.last_closed)
        self._ask_waiting(outputs)
        return outputs

    def process(self, batch: PartialBatch) -> Outputs:
        """Apply partials in order, and ask each window when it is complete."""
        outputs, records = Outputs(), batch.records
        self._drop_ended_streams(outputs)
        for record, partial in zip(records, batch.partials, strict=True):
            try:
                self._apply_partial(outputs, record, partial)
            except Rejection as rejection:
                self._reject(outputs, record, rejection)
        for name in self._ask_waiting(outputs):
            if (last := next((one for one in reversed(records) if one.key == name.encode()), None)) is not None:
                self._reject(outputs, last, _SUMS_LOST)
        if records:
            self._offset = records[-1].offset + 1
            progress = (PROGRESS_KEY, encode_progress(self._offset), topic_id_headers(self.topic_ids))
            outputs.add(self._topics.merges, self._partition, progress)
        return outputs

    def _follow_control(self, records: Sequence[RecordLike]) -> None:
        """Apply definitions and ends; a retired stream counts as closed until its records are deleted."""
        self._retired.add_records(records)
        known = self._definition_by_stream
        for name in self._retired.list_deleted(records):
            if name in known:
                known[name] = replace(known[name], kind="closed")
                self._ended_streams.add(name)
        for record in records:
            name = (record.key or b"").decode(errors="replace")
            definition = parse_definition(record, known.get(name))
            if definition is None or definition.spec.stream != name or definition.source.period_of is not None:
                continue  # feeds publish partials of models, not of periods' streams
            if definition is known.get(name) or self._retired.contains(name):
                continue
            known[name] = definition
            if not definition.is_merged:
                self._ended_streams.add(name)

    def _definition_of(self, partial: Any) -> StandingDefinition | None:
        definition = self._definition_by_stream.get(partial.stream)
        return definition if definition is not None and definition.incarnation == partial.incarnation else None

    def _apply_partial(self, outputs: Outputs, record: RecordLike, partial: Any) -> None:
        if partial is not None and self._retired.contains(partial.stream):
            return
        definition = window_queries.require_definition(record, partial, partial and self._definition_of(partial))
        if not definition.is_merged:
            return
        merged = self._stream_of(partial)
        if partial.partitions != merged.partitions:
            raise _PARTITION_COUNT_CHANGED.with_traceback(None)
        was_lost = merged.running.are_lost
        if not merged.is_new(partial):
            # The partition publishes a window again, so it has lost its counts of people.
            if definition.is_running and not was_lost:
                merged.running.are_lost = True
                self._write_changelog(outputs, {partial.stream.encode(): encode_stream(merged)})
                raise _SUMS_LOST.with_traceback(None)
            return
        merged.add_partial(partial)
        written: dict[bytes, bytes | None] = {
            partial_key(partial.stream, partial.start, partial.partition): record.value
        }
        if definition.source.has_periods:
            self._waiting.add(partial.stream)
        else:
            before = merged.last_closed
            for start, partials in merged.close_complete_windows():
                self._close_window(outputs, definition, merged, (before, start), partials, written)
                before = start
        self._write_changelog(outputs, written)
        if merged.running.are_lost and not was_lost:
            raise _SUMS_LOST.with_traceback(None)

    def _ask_waiting(self, outputs: Outputs) -> list[str]:
        def is_ready(definition: StandingDefinition, start: int) -> bool:
            return self._periods.is_ready(outputs, definition, start)

        load, lost = 0, []
        written: dict[bytes, bytes | None] = {}
        for name, start in ready_windows(self._waiting, self._definition_by_stream, self._streams, is_ready):
            definition, merged = self._definition_by_stream[name], self._streams[name]
            starts, was_lost = (merged.last_closed, start), merged.running.are_lost
            load += self._close_window(outputs, definition, merged, starts, merged.close_window(start), written)
            if merged.running.are_lost and not was_lost:
                lost.append(name)
            if load >= MAX_QUESTIONS_PER_STEP:
                break
        self._write_changelog(outputs, written)
        return lost

    def _close_window(
        self,
        outputs: Outputs,
        definition: StandingDefinition,
        merged: MergedStreamState,
        starts: tuple[int, int],
        partials: Partials,
        changed_records: dict[bytes, bytes | None],
    ) -> int:
        """Close a window, ask it if all partitions have counted it, and return its load.

        ``starts`` are the starts of the last closed window and of this one.
        """
        name, (before, start), load = definition.spec.stream, starts, 0
        changed_records |= {partial_key(name, start, number): None for number in partials}
        if definition.source.has_periods and period_of(definition, before) != period_of(definition, start):
            # After a loss, the partition may have counted people twice in later periods too.
            merged.running = RunningSums(are_lost=merged.running.are_lost)
        asked_stream = self._periods.stream_asked_by(definition, start)
        if len(partials) == merged.partitions and asked_stream is not None:
            # Records of the running counts of a period's stream have the model's name.
            changed_records |= self._ask_window(outputs, name, asked_stream, merged, (start, partials))
            load = window_queries.window_load(asked_stream, MAX_QUESTIONS_PER_STEP)
        changed_records[name.encode()] = encode_stream(merged)
        self._periods.close_past_streams(outputs, definition, before, start)
        return load

    def _ask_window(
        self,
        outputs: Outputs,
        model: str,
        definition: StandingDefinition,
        merged: MergedStreamState,
        window: tuple[int, Partials],
    ) -> dict[bytes, bytes]:
        """Ask all groups of a window; return the changed records of the running count of ``model``."""
        start, partials = window
        name = definition.spec.stream
        home = partition_of(name.encode(), self._topics.partitions)
        if definition.has_texts:
            texts = window_queries.merge_texts(definition, partials.values())
            if definition.is_running:
                if not merged.running.add_texts(definition, start, texts):
                    return {}
                texts = merged.running.texts
            question = window_queries.build_texts_question(definition, start, texts)
            outputs.extend(self._topics.queries, home, [(name.encode(), question, ())])
            return {texts_key(model): encode_texts(merged)} if definition.is_running else {}
        counts = [0] * window_queries.count_cells(definition)
        for partial in partials.values():
            for cell, count in zip(partial.cells, partial.counts, strict=True):
                counts[cell] += count
        numbers = window_queries.numbers_of_groups(definition, counts)
        changed: Sequence[int] = ()
        if definition.is_running:
            changed = merged.running.add(definition, start, counts)
            if not changed:
                return {}
            numbers = merged.running.groups
        asked = window_queries.build_questions(definition, start, numbers)
        outputs.extend(self._topics.queries, home, [(name.encode(), value, ()) for value in asked])
        return {node_key(model, place): encode_node(merged, place) for place in changed}

    def _stream_of(self, partial: Any) -> MergedStreamState:
        merged = self._streams.get(partial.stream)
        if merged is None or merged.incarnation != partial.incarnation:
            merged = self._streams[partial.stream] = MergedStreamState(partial.incarnation, partial.partitions)
        return merged

    def _drop_ended_streams(self, outputs: Outputs) -> None:
        """Drop the records of closed and retired streams, and of halted streams of a source with periods."""
        ended, self._ended_streams = self._ended_streams, set()
        stale_keys, self._stale_keys = self._stale_keys, []
        self._write_changelog(outputs, dict.fromkeys(stale_keys))
        for name in sorted(ended):
            definition, merged = self._definition_by_stream[name], self._streams.get(name)
            if self._retired.contains(name):
                del self._definition_by_stream[name]
                self._periods.forget_model(name)
            if definition.is_merged or merged is None:
                continue
            written: dict[bytes, bytes | None] = {
                partial_key(name, start, number): None
                for start, partials in merged.open.items()
                for number in partials
            }
            merged.open.clear()
            merged.latest.clear()
            if definition.kind == "closed":
                nodes = (
                    getattr(definition.calibration, "nodes", 0)
                    if merged.running.windows or definition.source.has_periods
                    else 0
                )
                written |= {node_key(name, place): None for place in range(nodes)}
                if definition.has_texts and definition.is_running:
                    written[texts_key(name)] = None
                written[name.encode()] = None
                del self._streams[name]
            self._write_changelog(outputs, written)

    def _write_changelog(self, outputs: Outputs, written: Mapping[bytes, bytes | None]) -> None:
        outputs.extend(self._topics.merges, self._partition, [(key, value, ()) for key, value in written.items()])

    def _reject(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> None:
        outputs.add(self._topics.rejected, self._partition, dead_letter(record, rejection))
