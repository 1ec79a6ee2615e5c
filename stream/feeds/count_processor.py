"""Counts a partition of a live topic and publishes closed windows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from schemas import EventsSource, FeedProgress, FeedStream
from schemas.wire import struct
from stream.feeds.changelog_pieces import Changes, PiecesLog, number_of
from stream.feeds.counted_streams import Beginning, StandingStreams, Stream, begins_at
from stream.feeds.event_clock import NOT_BEGUN, EventClock, RecreatedError, RecutError
from stream.feeds.feed_definitions import FeedDefinitions, StandingDefinition
from stream.feeds.intake import Intake
from stream.feeds.window_queries import PartialWriter
from stream.processing.dead_letters import Rejection, dead_letter
from stream.processing.protocol import (
    PROGRESS_KEY,
    Batch,
    Outputs,
    RecordLike,
    TableMissedError,
    decode_kept,
    keep_latest,
    topic_ids_of,
    with_topic_ids,
)
from stream.processing.topic_names import Topics

WORK_AT_ONCE: Final = 1_000_000
"""Most events × windows × conditions that one step counts."""

_STREAM: Final = b"stream|"
_LATER_EPOCH: Final = b"epoch|"

_WireProgress: Any = struct(FeedProgress)
_encode = msgspec.json.Encoder().encode
_decode_progress: Any = msgspec.json.Decoder(_WireProgress).decode
_decode_stream: Any = msgspec.json.Decoder(struct(FeedStream)).decode


class FeedProcessor:
    """Counts one partition of a source's topic for all standing streams of the source.

    ``partitions`` is the topic's partition count. The source's clock closes windows: it follows
    marks or the broker's timestamps, and without events ``reached_end``. ``definitions`` must be up
    to date when a restore ends.

    ``figures`` counts events, and ``rejected`` counts dead letters by code. Both start at 0 with
    each processor, and are private.
    """

    heavy = True
    repeatable = False
    """Repeated partials are ignored, but whether an event counts depends on its person's counts."""

    def __init__(
        self, topics: Topics, source: EventsSource, partition: int, partitions: int, definitions: FeedDefinitions
    ) -> None:
        self.inputs = (source.topic,)
        self.tables: tuple[str, ...] = ()
        self.changelog = topics.feed_state(source.source)
        self.rejected: Counter[str] = Counter()
        self._topics = topics
        self._source = source
        self._partition = partition
        self._partitions = partitions
        self._definitions = definitions
        self._clock = EventClock(source)
        self._intake = Intake(source, partition, partitions, self._clock)
        self._partial_writer = PartialWriter(topics, source, partition, partitions)
        self._streams = StandingStreams(source)
        self.figures = self._streams.figures
        self._kept: dict[str, dict[int, bytes]] = {}
        """Changelog keys by stream and epoch: epochs with open windows, and the latest epoch."""
        self._log = PiecesLog()
        self._offset = 0
        self.topic_ids: dict[str, str] = {}
        self._seen = -1
        self._is_new = False
        self._restoring: dict[bytes, RecordLike] = {}

    def reached_end(self, moment: float) -> None:
        """Note that all records before ``moment``, in seconds since 1970, have been read.

        ``moment`` is before the request for the partition's end. The end is the high watermark,
        because an open transaction may have earlier timestamps. ``idle`` returns the due windows.
        """
        self._clock.reached_end(moment)

    @property
    def behind(self) -> bool:
        """Whether more windows are due than one step publishes; ``idle`` publishes the next ones."""
        return any(stream.is_due(self._clock.now) for stream in self._streams)

    @property
    def next_close(self) -> int | None:
        """Clock, in ms since 1970, at which the next window closes; None without windows."""
        return self._streams.next_close()

    @property
    def due_at(self) -> float | None:
        """Time, in seconds since 1970, at which a window is due if no event follows, or None."""
        reading = self.next_close
        return None if reading is None else self._clock.end_time_of(reading)

    @property
    def closes_at(self) -> float | None:
        """Time, in seconds since 1970, from which an event closes a window; None if only marks do."""
        reading = self.next_close
        return None if reading is None else self._clock.stamped_at(reading)

    def restore(self, records: Iterable[RecordLike]) -> None:
        """Read records of the changelog; the latest of each key counts."""
        keep_latest(self._restoring, records)

    def restored(self) -> Mapping[str, int]:
        """End the restore and return the next offset.

        Raises:
            RecutError: the topic's partition count has changed.
            TableMissedError: a stream is missing in the definitions, which are not up to date.
        """
        kept_records, self._restoring = self._restoring, {}
        if (progress := kept_records.pop(PROGRESS_KEY, None)) is not None:
            found = decode_kept(progress, _decode_progress)
            self.topic_ids = topic_ids_of(progress)
            if found.partitions != self._partitions:
                raise RecutError(self._source.topic, found.partitions, self._partitions)
            self._offset, self._clock.now, self._clock.stamped = found.offset, found.clock, found.stamped
            self._log.next, self._streams.next_tally = found.piece, found.tally
            self._streams.first_windows.restore(found.first_windows)
        self._is_new = progress is None
        told = {one.spec.stream: one for one in self._definitions.streams_of(self._source.source)}
        pieces: dict[int, RecordLike] = {}
        for key, record in kept_records.items():
            if (number := number_of(key)) is not None:
                pieces[number] = record
            elif key.startswith((_STREAM, _LATER_EPOCH)):
                self._resume(key, decode_kept(record, _decode_stream), told)
        self._streams.settle()
        self._log.take(pieces, self._streams.forms)
        return {self._source.topic: self._offset}

    def recreated(self, topic: str) -> None:
        """Refuse a recreated topic: open windows may lack its deleted events or count events twice.

        Raises:
            RecreatedError: always.
        """
        raise RecreatedError(topic)

    def follow(self, records: Sequence[RecordLike]) -> Outputs:
        """Return no outputs: there are no tables; ``ControlFollower`` updates the definitions."""
        del records
        return Outputs()

    def prepare(self, records: Sequence[RecordLike]) -> Batch:
        """Return the events of one step; the more windows an event has, the fewer events."""
        return Batch(records[: max(1, WORK_AT_ONCE // max(1, self._streams.work))])

    def process(self, batch: Batch) -> Outputs:
        """Count events in order, and publish the windows that close.

        Raises:
            UnstampedError: the source's clock is the broker's, but the topic's timestamps are not.
        """
        records, outputs, is_first = batch.records, Outputs(), self._is_new
        self._sync(outputs, records[0].offset if records else self._offset)
        changes = self._count(records, outputs) if records else []
        self._write(outputs, changes)
        if self._clock.passed:
            self._update_epoch_bounds(outputs)
        if published := self._partial_writer.due(self._streams, self._clock.now, outputs):
            for stream in published:
                self._keep_stream(outputs, stream)
            self._streams.settle()
        if records:
            self._offset = records[-1].offset + 1
        if records or outputs or is_first:
            self._progress(outputs)
        return outputs

    def idle(self, now: float) -> Outputs:
        """Publish due windows: newly closed ones, and those that earlier steps left."""
        del now
        return self.process(Batch(()))

    @property
    def moment(self) -> int:
        """The clock in milliseconds since 1970; negative before it starts."""
        return self._clock.now

    @property
    def open_windows(self) -> int:
        """Windows with counts that are not published; streams with equal windows share them."""
        return sum(len(form.windows) for form in self._streams.forms)

    @property
    def people(self) -> int:
        """People counted in open windows, once for each window."""
        return sum(form.people for form in self._streams.forms)

    @property
    def table_bytes(self) -> int:
        """Memory of the tables of people, in bytes."""
        return sum(table.nbytes for form in self._streams.forms for table in form.tables())

    def _resume(self, key: bytes, found: Any, told: Mapping[str, StandingDefinition]) -> None:
        name = key.removeprefix(_STREAM).decode()
        if key.startswith(_LATER_EPOCH):
            name = key.split(b"|", 2)[2].decode()
        known = told.get(name)
        if known is None or known.incarnation != found.incarnation:
            raise TableMissedError(f"{self.changelog} counts for {name}, which control has not defined yet")
        epoch = found.epoch or 0
        self._kept.setdefault(name, {})[epoch] = key
        if found.state == "open":
            since = found.since if found.own is None else found.own_since
            waits = epoch > 0 and since is not None and not self._clock.has_read(since)
            self._streams.resume(known, found, epoch, waits=waits)

    def _sync(self, outputs: Outputs, offset: int) -> None:
        """Begin and end the epochs that control has added since the last step.

        An epoch known at the partition's first step counts the whole topic, a later one counts the
        events after its definition.
        """
        if self._seen == self._definitions.version:
            return
        self._seen = self._definitions.version
        news: list[Beginning] = []
        known = {one.spec.stream: one for one in self._definitions.streams_of(self._source.source)}
        for stream in self._streams:
            stream.told = known.get(stream.told.spec.stream, stream.told)
        for name, told in known.items():
            kept = self._kept.get(name, {})
            if told.kind == "closed":
                for epoch in list(kept):
                    self._drop(outputs, name, epoch)
                continue
            reached = max(kept, default=-1)
            epochs = [epoch for epoch in told.epochs if epoch.number > reached and epoch.begins is not None]
            news += [self._beginning(told, epoch.number, epoch.begins or 0) for epoch in epochs]
            for ended in [number for number in kept if epochs and (name, number) not in self._streams.streams]:
                self._drop(outputs, name, ended)
        for stream in self._streams.begin(news, offset):
            name, epoch = stream.key
            key = _LATER_EPOCH + b"%d|" % epoch if epoch else _STREAM
            self._kept.setdefault(name, {})[epoch] = key + name.encode()
            self._keep_stream(outputs, stream)
        self._is_new = False
        self._update_epoch_bounds(outputs)

    def _beginning(self, told: StandingDefinition, epoch: int, moment: int) -> Beginning:
        """Return the beginning of an epoch that control defined at a moment.

        A new stream's first windows may begin before that moment; an extended stream begins with a
        complete window.
        """
        if not epoch:
            since = NOT_BEGUN if self._is_new else self._clock.since(moment)
            return Beginning(told, begins_at(told, self._clock.first_after(moment)), since)
        since = self._clock.effect(moment)
        first = self._clock.first_window_after(since)
        return Beginning(
            told, self._clock.first_after(moment) if first is None else first, since, epoch, first is None
        )

    def _update_epoch_bounds(self, outputs: Outputs) -> None:
        """Set the first and last windows of epochs whose beginnings and ends have been read."""
        for stream in self._streams:
            was = stream.next, stream.last, stream.waits
            ends = stream.told.epoch(stream.epoch).ends
            last = None if ends is None else self._clock.reading_at(self._clock.effect(ends))
            if stream.waits and (first := self._clock.first_window_after(stream.since)) is not None:
                stream.begin_at(first)
            if last is not None and not stream.is_ending and not stream.waits:
                stream.end_at(last)
            if stream.is_over or was != (stream.next, stream.last, stream.waits):
                self._keep_stream(outputs, stream)
        self._streams.settle()
        self._clock.passed.clear()

    def _drop(self, outputs: Outputs, name: str, epoch: int) -> None:
        """Drop the counts and the changelog records of an epoch."""
        if (name, epoch) in self._streams.streams:
            self._streams.end((name, epoch))
        self._keep(outputs, self._kept[name].pop(epoch), None)
        if not self._kept[name]:
            del self._kept[name]

    def _count(self, records: Sequence[RecordLike], outputs: Outputs) -> Changes:
        self._clock.early = self._streams.early
        batch, rejections = self._intake.read(records, self._streams.first_windows)
        for place, rejection in sorted(rejections.items()):
            self._reject(outputs, records[place], rejection)
        if batch is None:
            return []
        found = ((form, form.count(batch, self._log.next)) for form in self._streams.forms)
        return [(form, touched) for form, touched in found if touched is not None]

    def _write(self, outputs: Outputs, changes: Changes) -> None:
        outputs.extend(self.changelog, self._partition, self._log.write(changes, self._streams.forms))

    def _keep(self, outputs: Outputs, key: bytes, value: bytes | None) -> None:
        outputs.add(self.changelog, self._partition, (key, value, ()))

    def _keep_stream(self, outputs: Outputs, stream: Stream) -> None:
        """Write an epoch's progress; after its end, the record remains until a later epoch begins."""
        name, epoch = stream.key
        kept = stream.kept
        if stream.is_over:
            self._streams.end(stream.key)
            if epoch < max(self._kept[name]):
                self._drop(outputs, name, epoch)
                return
            kept = FeedStream(
                incarnation=kept.incarnation, offset=kept.offset, next=kept.next, state="ended", epoch=epoch
            )
        value = kept.model_dump_json(exclude_defaults=True).encode()
        self._keep(outputs, self._kept[name][epoch], value)

    def _progress(self, outputs: Outputs) -> None:
        progress = _WireProgress(
            self._offset,
            self._clock.now,
            self._partitions,
            self._log.next,
            self._streams.next_tally,
            self._clock.stamped,
            self._streams.first_windows.kept,
        )
        headers = with_topic_ids(self.topic_ids)
        outputs.add(self.changelog, self._partition, (PROGRESS_KEY, _encode(progress), headers))

    def _reject(self, outputs: Outputs, record: RecordLike, rejection: Rejection) -> None:
        self.rejected[rejection.code] += 1
        partition = self._partition % self._topics.partitions
        outputs.add(self._topics.rejected, partition, dead_letter(record, rejection))
