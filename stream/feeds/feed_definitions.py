"""The standing streams of all live topics, as control events define them; one copy per process.

The cost of an update or a lookup does not grow with past periods. Streams of past periods are kept only
as names and summaries of control events, and retired streams only as digests of their names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock
from typing import Final, Literal

from schemas import Calibration, Control, EventsSource, control_codec, retired_streams_codec
from schemas.streams import StandingQuery, StreamSpec
from schemas.wire import MalformedEventError
from stream.privacy.ledger.retirement import name_digest, split_digests
from stream.processing.digest_table import DigestTable, find_retired
from stream.processing.protocol import RETIRED_PREFIX, RecordLike, control_summary, is_stale


@dataclass(frozen=True, slots=True)
class Epoch:
    """The part of a stream from its opening, or an extension after its end, to its next end.

    ``number`` counts the extensions before it. ``begins`` and ``ends`` are broker timestamps of
    control events; None for an event that has not come yet or that compaction has removed.
    """

    number: int = 0
    begins: int | None = None
    ends: int | None = None


@dataclass(frozen=True, slots=True)
class StandingDefinition:
    """The latest definition of a standing stream, with all of its epochs."""

    spec: StreamSpec
    standing: StandingQuery
    source: EventsSource
    incarnation: str
    calibration: Calibration
    kind: Literal["opened", "halted", "closed"]
    value: bytes
    """The control event."""
    epochs: tuple[Epoch, ...] = (Epoch(begins=0),)
    """The epochs in the order of their numbers; there is at least one."""

    @property
    def is_open(self) -> bool:
        """True if the stream is open, so that its windows are asked questions."""
        return self.kind == "opened"

    @property
    def is_merged(self) -> bool:
        """True if merging still asks windows of the stream; for a halted stream, these are the windows from before the halt."""
        return self.is_open or (self.kind == "halted" and not self.source.has_periods)

    @property
    def has_texts(self) -> bool:
        """True if the stream's windows are grouped by private texts."""
        return self.most_bytes > 0

    @property
    def most_bytes(self) -> int:
        """The limit on the texts of a window, or of all windows so far; 0 for a stream without texts."""
        return getattr(self.calibration, "most_bytes", None) or 0

    @property
    def is_running(self) -> bool:
        """True if the stream's counts cover all windows so far."""
        return self.spec.mechanism.kind == "running_count"

    def epoch(self, number: int) -> Epoch:
        """Return the latest epoch whose number is at most ``number``, or else the first epoch."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.number <= number), self.epochs[0])


def parse_definition(record: RecordLike, known: StandingDefinition | None = None) -> StandingDefinition | None:
    """Parse a control event; return ``known`` if it is irrelevant, unreadable or stale."""
    value = record.value
    if value is None or b'"standing":' not in value or (known is not None and is_stale(known.value, value)):
        return known
    try:
        control = control_codec.decode_trusted(value)
    except MalformedEventError:
        return known
    spec, source = control.spec, control.source
    if spec.standing is None or not isinstance(source, EventsSource):
        return known
    if known is not None and known.incarnation != control.identity.incarnation:
        known = None
    return StandingDefinition(
        spec,
        spec.standing,
        source,
        control.identity.incarnation,
        control.calibration,
        control.kind,
        value,
        _epochs(known, control, record.timestamp),
    )


def _epochs(known: StandingDefinition | None, control: Control, stamp: int) -> tuple[Epoch, ...]:
    """Return the epochs of a stream after a control event."""
    epochs = {epoch.number: epoch for epoch in known.epochs} if known is not None else {0: Epoch()}
    for number, extension in enumerate(control.extensions, 1):
        if extension.resumes:
            epochs.setdefault(number, Epoch(number))
    latest = epochs[max(epochs)]
    begins, ends = latest.begins, latest.ends
    if control.kind == "opened":
        begins = stamp if begins is None else begins
    else:
        ends = stamp if ends is None else ends
    epochs[latest.number] = replace(latest, begins=begins, ends=ends)
    later: int | None = None
    for number in sorted(epochs, reverse=True):
        epoch = epochs[number]
        if epoch.ends is None:
            # Compaction has removed the event of the epoch's end, which came before the next epoch's event.
            epochs[number] = epoch = replace(epoch, ends=later)
        later = epoch.ends if epoch.begins is None else epoch.begins
    return tuple(epochs[number] for number in sorted(epochs))


class RetiredStreamNames:
    """The digests of retired streams' names; other threads may look names up while digests are added."""

    def __init__(self) -> None:
        self._digests = DigestTable()
        self._lock = Lock()

    def contains(self, stream: str) -> bool:
        """Return whether a stream is retired."""
        if not self._digests:
            return False
        with self._lock:
            return self._digests.find(name_digest("stream", stream)) is not None

    def select(self, streams: Iterable[str]) -> set[str]:
        """Return the streams that are retired."""
        with self._lock:
            return find_retired(self._digests, streams)

    def add_records(self, records: Iterable[RecordLike]) -> None:
        """Add the digests in control records; ignore records that this release of Sotto cannot read."""
        for record in records:
            if (record.key or b"").startswith(RETIRED_PREFIX):
                with suppress(MalformedEventError), self._lock:
                    digests = split_digests(retired_streams_codec.decode_trusted(record.value or b"").names)
                    self._digests.add_all((digest, b"") for digest in digests)

    def list_deleted(self, records: Iterable[RecordLike]) -> list[str]:
        """Return the names of the retired streams whose definitions these control records delete."""
        names = [(record.key or b"").decode(errors="replace") for record in records if record.value is None]
        return list(self.select(names))


RECORDS_PER_UPDATE: Final = 100
"""Number of control records that are applied before closed streams of periods are dropped."""


class FeedDefinitions:
    """The definitions of standing streams by source; other threads may read during an update.

    ``version`` changes with each definition.
    """

    def __init__(self) -> None:
        self.version = 0
        # Keys are added while other threads read; no reader iterates.
        self._by_source: dict[str, Mapping[str, StandingDefinition]] = {}
        self._latest: dict[str, StandingDefinition] = {}
        self._closed_summaries: dict[str, bytes] = {}
        """For each closed stream of a period, the summary of its last control event."""
        # Readers iterate over this mapping, so it is replaced and never changed.
        self._counted_sources: Mapping[str, EventsSource] = {}
        self._open_in_periods: Mapping[tuple[str, str], Mapping[str, StandingDefinition]] = {}
        self._retired = RetiredStreamNames()

    def apply_control(self, records: Iterable[RecordLike]) -> None:
        """Apply control records in the order of their partition, from the beginning."""
        left = iter(records)
        while portion := list(islice(left, RECORDS_PER_UPDATE)):
            self._apply_records(portion)

    def drop_retired(self) -> None:
        """Drop all retired streams, also if compaction has removed the deletion of their definitions."""
        self._drop_streams(self._retired.select((*self._latest, *self._closed_summaries)))

    def is_retired(self, stream: str) -> bool:
        """Return whether a stream is retired."""
        return self._retired.contains(stream)

    def _drop_streams(self, names: Iterable[str]) -> None:
        changed: dict[str, dict[str, StandingDefinition]] = {}
        for name in names:
            self._closed_summaries.pop(name, None)
            if (definition := self._latest.pop(name, None)) is None:
                continue
            source = definition.source.source
            left = changed.setdefault(source, dict(self._by_source.get(source, {})))
            left.pop(name, None)
        if not changed:
            return
        for source, left in changed.items():
            self._replace_streams(source, left)
        self._open_in_periods = {
            place: streams
            for place, streams in self._open_in_periods.items()
            if streams or not self._retired.contains(place[1])
        }
        self._index(changed)
        self.version += 1

    def _apply_records(self, records: Sequence[RecordLike]) -> None:
        changed: dict[str, dict[str, StandingDefinition]] = {}
        self._retired.add_records(records)
        self._drop_streams(self._retired.list_deleted(records))
        for record in records:
            name = (record.key or b"").decode(errors="replace")
            if (summary := self._closed_summaries.get(name)) is not None and is_stale(summary, record.value):
                continue
            known = self._latest.get(name)
            definition = parse_definition(record, known)
            if definition is None or definition is known or definition.spec.stream != name:
                continue
            if self._retired.contains(name):
                continue
            self._latest[name] = definition
            source = definition.source.source
            changed.setdefault(source, dict(self._by_source.get(source, {})))[name] = definition
        if changed:
            self._by_source.update(changed)
            self._index(changed)
            self._forget_closed_streams(changed)
            self.version += 1

    def _replace_streams(self, source: str, streams: Mapping[str, StandingDefinition]) -> None:
        if streams:
            self._by_source[source] = streams
        else:
            self._by_source.pop(source, None)

    def streams_of(self, source: str) -> tuple[StandingDefinition, ...]:
        """Return a source's standing streams by name, including ended ones."""
        return tuple(definition for _, definition in sorted(self._by_source.get(source, {}).items()))

    def find_stream(self, source: str, stream: str) -> StandingDefinition | None:
        """Return a stream of a source, if it is defined and its period is not closed."""
        return self._by_source.get(source, {}).get(stream)

    def has_stream(self, source: str, stream: str) -> bool:
        """Return whether a stream of a source is defined; it may be closed or retired."""
        return (
            self.find_stream(source, stream) is not None
            or stream in self._closed_summaries
            or self._retired.contains(stream)
        )

    def open_streams_in_periods(self, source: str, stream: str) -> list[StandingDefinition]:
        """Return the open streams of a model's periods, in the order of the periods."""
        return [definition for _, definition in sorted(self._open_in_periods.get((source, stream), {}).items())]

    def sources(self) -> dict[str, EventsSource]:
        """Return the sources that have an open standing stream, by name, without period accounts."""
        return dict(self._counted_sources)

    def _index(self, changed: Mapping[str, Mapping[str, StandingDefinition]]) -> None:
        counted, in_periods = dict(self._counted_sources), dict(self._open_in_periods)
        for source, streams in changed.items():
            for name, definition in streams.items():
                if definition.source.period_of is not None:
                    # A period's stream has the name of its model, followed by the start of the period.
                    model = definition.spec.stream.removesuffix(f"@{definition.source.starts}")
                    place = (definition.source.period_of, model)
                    in_period = {**in_periods.get(place, {}), name: definition}
                    in_periods[place] = {one: found for one, found in in_period.items() if found.is_open}
            open_streams = [
                definition
                for definition in streams.values()
                if definition.is_open and definition.source.period_of is None
            ]
            if open_streams:
                counted[source] = open_streams[0].source
            else:
                counted.pop(source, None)
        self._counted_sources, self._open_in_periods = counted, in_periods

    def _forget_closed_streams(self, changed: Mapping[str, Mapping[str, StandingDefinition]]) -> None:
        """Keep only names and summaries of closed streams of periods, which are never asked again."""
        for source, streams in changed.items():
            left = {
                name: definition
                for name, definition in streams.items()
                if definition.kind != "closed" or definition.source.period_of is None
            }
            if len(left) == len(streams):
                continue
            # The name is added here before the definition is removed, so that other threads always find it.
            self._closed_summaries.update(
                (name, control_summary(definition.value))
                for name, definition in streams.items()
                if name not in left
            )
            for name in streams.keys() - left.keys():
                del self._latest[name]
            self._replace_streams(source, left)
