"""Counts the events of one partition of a live topic in windows, and publishes closed windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from schemas import EventsSource, FeedProgress, FeedStream
from schemas.wire import struct
from stream.feeds.changelog_pieces import Changes, PiecesLog, piece_number
from stream.feeds.counted_streams import Beginning, StandingStreams, StreamEpoch, begins_at
from stream.feeds.event_intake import NOT_BEGUN, EventClock, Intake, TopicRecreatedError
from stream.feeds.feed_definitions import FeedDefinitions, StandingDefinition
from stream.feeds.window_queries import PartialWriter
from stream.processing import protocol
from stream.processing.dead_letters import PartitionRefusals, Rejection, dead_letter
from stream.processing.topic_names import Topics

MAX_WORK_PER_STEP: Final = 1_000_000
"""Maximum work of one step: events × windows × conditions."""

_STREAM: Final = b"stream|"
_LATER_EPOCH: Final = b"epoch|"

_WireProgress: Any = struct(FeedProgress)
_encode = msgspec.json.Encoder().encode
_decode_progress: Any = msgspec.json.Decoder(_WireProgress).decode
_decode_stream: Any = msgspec.json.Decoder(struct(FeedStream)).decode


class FeedProcessor:
    """Counts one partition of a source's topic for all standing streams of the source.

    ``partitions`` is the topic's partition count. The source's clock closes windows. It follows
    watermarks or the broker's timestamps; if no events come, ``note_end_of_input`` advances it.
    ``definitions`` must be up to date when a restore ends.

    ``event_totals`` counts events, ``rejected`` counts dead letters by code, and ``latest_refused`` marks the
    latest refused events. They are private, and start empty with each processor.
    """

    runs_in_thread = True
    answers_are_repeatable = False
    """False, because earlier events decide whether an event is counted, so no event may be processed twice."""

    def __init__(
        self, topics: Topics, source: EventsSource, partition: int, partitions: int, definitions: FeedDefinitions
    ) -> None:
        self.inputs = (source.topic,)
        self.lookup_topics: tuple[str, ...] = ()
        self.changelog = topics.feed_state(source.source)
        self.rejected: Counter[str] = Counter()
        self.latest_refused = PartitionRefusals()
        self._topics = topics
        self._source = source
        self._partition = partition
        self._partitions = partitions
        self._definitions = definitions
        self._clock = EventClock(source)
        self._intake = Intake(source, partition, partitions, self._clock)
        self._partial_writer = PartialWriter(topics, source, partition, partitions)
        self._streams = StandingStreams(source)
        self.event_totals = self._streams.event_totals
        self._changelog_keys: dict[str, dict[int, bytes]] = {}
        """Changelog keys by stream and epoch, for epochs with open windows and the latest epoch."""
        self._log = PiecesLog()
        self._offset = 0
        self.topic_ids: dict[str, str] = {}
        self._seen_version = -1
        self._is_new = False
        self._latest_records: dict[bytes, protocol.RecordLike] = {}

    def note_end_of_input(self, moment: float) -> None:
        """Advance the clock: all records before ``moment``, in seconds since 1970, have been read.

        ``moment`` must be a time before the partition's end was requested. This end must be the high
        watermark, because records of an open transaction may have earlier timestamps. Afterwards
        ``collect_due_outputs`` returns the windows that are due.
        """
        self._clock.note_end_of_input(moment)

    @property
    def has_more_outputs(self) -> bool:
        """True if further windows are due; the next call of ``collect_due_outputs`` publishes them."""
        return any(stream.is_due(self._clock.now) for stream in self._streams)

    @property
    def next_close(self) -> int | None:
        """Time of the clock, in milliseconds since 1970, at which the next window closes; None without windows."""
        return min((stream.close_ms for stream in self._streams if stream.is_open), default=None)

    @property
    def due_at(self) -> float | None:
        """Time, in seconds since 1970, at which a window is due without further events, or None."""
        return None if self.next_close is None else self._clock.moment_for(self.next_close)

    @property
    def closing_timestamp(self) -> float | None:
        """Least timestamp, in seconds since 1970, with which an event closes a window; None if only marks do."""
        return None if self.next_close is None else self._clock.timestamp_for(self.next_close)

    def restore(self, records: Iterable[protocol.RecordLike]) -> None:
        """Collect records of the changelog; the latest record of each key is used."""
        protocol.keep_latest(self._latest_records, records)

    def end_restore(self) -> Mapping[str, int]:
        """End the restore and return the next offset.

        InputRefusedError if the topic's partition count has changed. MissedRecordError if a stream is
        missing in the definitions, which are not up to date.
        """
        kept_records, self._latest_records = self._latest_records, {}
        if (progress := kept_records.pop(protocol.PROGRESS_KEY, None)) is not None:
            found = protocol.decode_changelog_record(progress, _decode_progress)
            self.topic_ids = protocol.topic_ids_of(progress)
            if found.partitions != self._partitions:
                # New events of a person are in another partition.
                raise protocol.InputRefusedError(
                    f"{self._source.topic}: has {self._partitions} partitions now, and had {found.partitions} when its first "
                    "stream began; close the streams of this source, and register another source for the topic"
                )
            self._offset, self._clock.now, self._clock.stamped = found.offset, found.clock, found.stamped
            self._log.next, self._streams.next_tally = found.piece, found.tally
            self._streams.first_windows.restore(found.first_windows)
        self._is_new = progress is None
        definitions = {one.spec.stream: one for one in self._definitions.streams_of(self._source.source)}
        pieces: dict[int, protocol.RecordLike] = {}
        for key, record in kept_records.items():
            if (number := piece_number(key)) is not None:
                pieces[number] = record
            elif key.startswith((_STREAM, _LATER_EPOCH)):
                self._resume_stream(key, protocol.decode_changelog_record(record, _decode_stream), definitions)
        self._streams.drop_unused()
        self._log.apply_pieces(pieces, self._streams.tally_groups)
        self.latest_refused = PartitionRefusals(self._offset)
        return {self._source.topic: self._offset}

    def restart_input(self, topic: str) -> None:
        """Refuse a recreated topic: open windows may lack its deleted events or count events twice.

        Always raises TopicRecreatedError.
        """
        raise TopicRecreatedError(topic)

    def apply_lookup_records(self, records: Sequence[protocol.RecordLike]) -> protocol.Outputs:
        """Return no outputs: feeds have no lookup topics; ``ControlFollower`` updates the definitions."""
        del records
        return protocol.Outputs()

    def prepare(self, records: Sequence[protocol.RecordLike]) -> protocol.Batch:
        """Return the events of one step; the more windows each event lies in, the fewer events."""
        tallies = self._streams.tallies.values()
        windows_per_event = sum(tally.rule.size // tally.rule.interval_ms for tally in tallies)
        return protocol.Batch(records[: max(1, MAX_WORK_PER_STEP // max(1, windows_per_event))])

    def process(self, batch: protocol.Batch) -> protocol.Outputs:
        """Count events in order, and publish the windows that close.

        InputRefusedError if the source's clock is the broker's, but the topic's timestamps are not.
        """
        records, outputs, is_first = batch.records, protocol.Outputs(), self._is_new
        self._update_epochs(outputs, records[0].offset if records else self._offset)
        changes = self._count_events(records, outputs) if records else []
        outputs.extend(self.changelog, self._partition, self._log.write(changes, self._streams.tally_groups))
        if self._clock.clock_before_mark:
            self._update_epoch_bounds(outputs)
        if published := self._partial_writer.publish_due_windows(self._streams, self._clock.now, outputs):
            for stream in published:
                self._write_stream(outputs, stream)
            self._streams.drop_unused()
        if records:
            self._offset = records[-1].offset + 1
            self.latest_refused.advance(self._offset)
        if records or outputs or is_first:
            self._write_progress(outputs)
        return outputs

    def collect_due_outputs(self, now: float) -> protocol.Outputs:
        """Publish due windows: those that have closed since the last step, or were beyond its limit."""
        del now
        return self.process(protocol.Batch(()))

    @property
    def moment(self) -> int:
        """The clock in milliseconds since 1970; negative before it starts."""
        return self._clock.now

    @property
    def open_windows(self) -> int:
        """Number of windows with counts that are not published; streams with equal windows share them."""
        return sum(len(group.windows) for group in self._streams.tally_groups)

    @property
    def people(self) -> int:
        """Number of people that are counted in open windows; a person counts once for each window."""
        return sum(group.people for group in self._streams.tally_groups)

    def _resume_stream(self, key: bytes, record: Any, definitions: Mapping[str, StandingDefinition]) -> None:
        name = key.removeprefix(_STREAM).decode()
        if key.startswith(_LATER_EPOCH):
            name = key.split(b"|", 2)[2].decode()
        known, is_retired = definitions.get(name), self._definitions.is_retired(name)
        if not is_retired and (known is None or known.incarnation != record.incarnation):
            raise protocol.MissedRecordError(
                f"{self.changelog} counts for {name}, which control has not defined yet"
            )
        epoch = record.epoch or 0
        self._changelog_keys.setdefault(name, {})[epoch] = key
        if known is None or is_retired:
            return  # the next step deletes the record
        if record.state == "open":
            since = record.since if record.own is None else record.own_since
            awaits_first = epoch > 0 and since is not None and not self._clock.has_read(since)
            self._streams.resume(known, record, epoch, awaits_first=awaits_first)

    def _update_epochs(self, outputs: protocol.Outputs, offset: int) -> None:
        """Begin epochs that control has added since the last step; drop epochs of closed and retired streams.

        An epoch that is known at the partition's first step counts the whole topic. An epoch that is added
        later counts the events after its definition.
        """
        if self._seen_version == self._definitions.version:
            return
        self._seen_version = self._definitions.version
        beginnings: list[Beginning] = []
        known = {one.spec.stream: one for one in self._definitions.streams_of(self._source.source)}
        for stream in self._streams:
            stream.definition = known.get(stream.definition.spec.stream, stream.definition)
        for name, definition in known.items():
            kept = self._changelog_keys.get(name, {})
            if definition.kind == "closed":
                for epoch in list(kept):
                    self._drop_epoch(outputs, name, epoch)
                continue
            reached = max(kept, default=-1)
            epochs = [epoch for epoch in definition.epochs if epoch.number > reached and epoch.begins is not None]
            beginnings += [self._build_beginning(definition, epoch.number, epoch.begins or 0) for epoch in epochs]
            for ended in [number for number in kept if epochs and (name, number) not in self._streams.streams]:
                self._drop_epoch(outputs, name, ended)
        for name in [one for one in self._changelog_keys if one not in known]:
            for epoch in list(self._changelog_keys[name]) if self._definitions.is_retired(name) else ():
                self._drop_epoch(outputs, name, epoch)
        for stream in self._streams.begin(beginnings, offset):
            name, epoch = stream.key
            key = _LATER_EPOCH + b"%d|" % epoch if epoch else _STREAM
            self._changelog_keys.setdefault(name, {})[epoch] = key + name.encode()
            self._write_stream(outputs, stream)
        self._is_new = False
        self._update_epoch_bounds(outputs)

    def _build_beginning(self, definition: StandingDefinition, epoch: int, moment: int) -> Beginning:
        """Return the beginning of an epoch that control defined at a moment.

        A new stream's first windows may begin before that moment. An extended stream begins with
        the first window that has all of its events after the extension.
        """
        if not epoch:
            since = NOT_BEGUN if self._is_new else self._clock.first_timestamp_of(moment)
            return Beginning(definition, begins_at(definition, self._clock.first_window_of(moment)), since)
        since = self._clock.effective_timestamp(moment)
        first = self._clock.first_window_after(since)
        return Beginning(
            definition,
            self._clock.first_window_of(moment) if first is None else first,
            since,
            epoch,
            first is None,
        )

    def _update_epoch_bounds(self, outputs: protocol.Outputs) -> None:
        """Set the first and last window of each epoch whose beginning or end the clock has passed."""
        for stream in self._streams:
            was = stream.next, stream.last, stream.awaits_first
            ends = stream.definition.epoch(stream.epoch).ends
            last = None if ends is None else self._clock.clock_at(self._clock.effective_timestamp(ends))
            if stream.awaits_first and (first := self._clock.first_window_after(stream.since)) is not None:
                stream.begin_at(first)
            if last is not None and not stream.is_ending and not stream.awaits_first:
                stream.end_at(last)
            if stream.is_over or was != (stream.next, stream.last, stream.awaits_first):
                self._write_stream(outputs, stream)
        self._streams.drop_unused()
        self._clock.clock_before_mark.clear()

    def _drop_epoch(self, outputs: protocol.Outputs, name: str, epoch: int) -> None:
        if (name, epoch) in self._streams.streams:
            self._streams.end((name, epoch))
        self._write_changelog(outputs, self._changelog_keys[name].pop(epoch), None)
        if not self._changelog_keys[name]:
            del self._changelog_keys[name]

    def _count_events(self, records: Sequence[protocol.RecordLike], outputs: protocol.Outputs) -> Changes:
        self._clock.latest_time_before_marks = self._streams.latest_time_before_marks
        batch, rejections = self._intake.read(records, self._streams.first_windows)
        for place, rejection in sorted(rejections.items()):
            self._reject(outputs, records[place], rejection)
        if batch is None:
            return []
        found = ((group, group.count(batch, self._log.next)) for group in self._streams.tally_groups)
        return [(group, touched) for group, touched in found if touched is not None]

    def _write_changelog(self, outputs: protocol.Outputs, key: bytes, value: bytes | None) -> None:
        outputs.add(self.changelog, self._partition, (key, value, ()))

    def _write_stream(self, outputs: protocol.Outputs, stream: StreamEpoch) -> None:
        """Write an epoch's progress; the record of an ended epoch remains until a later epoch begins."""
        name, epoch = stream.key
        kept = stream.changelog_record
        if stream.is_over:
            self._streams.end(stream.key)
            if epoch < max(self._changelog_keys[name]):
                self._drop_epoch(outputs, name, epoch)
                return
            kept = FeedStream(
                incarnation=kept.incarnation, offset=kept.offset, next=kept.next, state="ended", epoch=epoch
            )
        value = kept.model_dump_json(exclude_defaults=True).encode()
        self._write_changelog(outputs, self._changelog_keys[name][epoch], value)

    def _write_progress(self, outputs: protocol.Outputs) -> None:
        progress = _WireProgress(
            self._offset,
            self._clock.now,
            self._partitions,
            self._log.next,
            self._streams.next_tally,
            self._clock.stamped,
            self._streams.first_windows.changelog_windows,
        )
        headers = protocol.topic_id_headers(self.topic_ids)
        outputs.add(self.changelog, self._partition, (protocol.PROGRESS_KEY, _encode(progress), headers))

    def _reject(self, outputs: protocol.Outputs, record: protocol.RecordLike, rejection: Rejection) -> None:
        self.rejected[rejection.code] += 1
        self.latest_refused.add(record.offset, rejection.reason)
        partition = self._partition % self._topics.partitions
        outputs.add(self._topics.rejected, partition, dead_letter(record, rejection))
