"""The standing streams of all live topics, as defined by control; one copy per process.

The cost of an update or a lookup does not grow with past periods: of their streams, only names and
digests are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, Literal

from schemas import MAX_RECORD_BYTES, Calibration, Control, EventsSource
from schemas.streams import StandingQuery, StreamSpec
from schemas.wire import Codec, MalformedEventError
from stream.processing.control_order import control_summary, is_stale
from stream.processing.protocol import RecordLike

_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)


@dataclass(frozen=True, slots=True)
class Epoch:
    """An interval in which a stream's windows are asked: from opening or extension to an end.

    ``number`` is the number of extensions before it. ``begins`` and ``ends`` are broker timestamps
    of control events; None for an event that is missing or removed by compaction.
    """

    number: int = 0
    begins: int | None = None
    ends: int | None = None


@dataclass(frozen=True, slots=True)
class StandingDefinition:
    """The latest definition of a standing stream, and the timestamps of earlier ones."""

    spec: StreamSpec
    standing: StandingQuery
    source: EventsSource
    incarnation: str
    calibration: Calibration
    kind: Literal["opened", "halted", "closed"]
    value: bytes
    """The control event."""
    epochs: tuple[Epoch, ...] = (Epoch(begins=0),)
    """In their order; at least one."""

    @property
    def asks(self) -> bool:
        """Whether the stream is open, so that its windows are asked."""
        return self.kind == "opened"

    @property
    def is_merged(self) -> bool:
        """Whether merging asks its partials' windows; a halted stream may have some from before."""
        return self.asks or (self.kind == "halted" and not self.source.has_periods)

    @property
    def moment(self) -> int:
        """Timestamp of its latest epoch's beginning, or of its end if the beginning is unknown."""
        latest = self.epochs[-1]
        return next((stamp for stamp in (latest.begins, latest.ends) if stamp is not None), 0)

    def epoch(self, number: int) -> Epoch:
        """Return the latest epoch with at most this number of extensions, else the first known."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.number <= number), self.epochs[0])


def parse_definition(record: RecordLike, known: StandingDefinition | None = None) -> StandingDefinition | None:
    """Parse a control event; return ``known`` if it is irrelevant, unreadable or stale."""
    value = record.value
    if value is None or b'"standing":' not in value or (known is not None and is_stale(known.value, value)):
        return known
    try:
        control = _codec.decode_own(value)
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
            # Compaction has removed its end, which was before the next known timestamp.
            epochs[number] = epoch = replace(epoch, ends=later)
        later = epoch.ends if epoch.begins is None else epoch.begins
    return tuple(epochs[number] for number in sorted(epochs))


TAKEN_AT_ONCE: Final = 100
"""Control records that are applied before the streams of closed periods are dropped."""


class FeedDefinitions:
    """The definitions of standing streams by source; other threads may read during an update.

    ``version`` changes with each definition.
    """

    def __init__(self) -> None:
        self.version = 0
        # Keys are added while others read; no reader iterates.
        self._told: dict[str, Mapping[str, StandingDefinition]] = {}
        self._latest: dict[str, StandingDefinition] = {}
        self._over: dict[str, bytes] = {}
        """For each stream of a closed period, the digest of its last event; no more is kept."""
        # Readers iterate over it: it is replaced, never changed.
        self._counted: Mapping[str, EventsSource] = {}
        self._in_periods: Mapping[tuple[str, str], Mapping[str, StandingDefinition]] = {}

    def apply_control(self, records: Iterable[RecordLike]) -> None:
        """Apply control records in the order of their partition, from the beginning."""
        left = iter(records)
        while some := list(islice(left, TAKEN_AT_ONCE)):
            self._apply(some)

    def _apply(self, records: Sequence[RecordLike]) -> None:
        changed: dict[str, dict[str, StandingDefinition]] = {}
        for record in records:
            name = (record.key or b"").decode(errors="replace")
            if (over := self._over.get(name)) is not None and is_stale(over, record.value):
                continue
            known = self._latest.get(name)
            told = parse_definition(record, known)
            if told is None or told is known or told.spec.stream != name:
                continue
            self._latest[name] = told
            source = told.source.source
            changed.setdefault(source, dict(self._told.get(source, {})))[name] = told
        if changed:
            self._told.update(changed)
            self._index(changed)
            self._put_away(changed)
            self.version += 1

    def streams_of(self, source: str) -> tuple[StandingDefinition, ...]:
        """Return a source's standing streams by name, including ended ones."""
        return tuple(told for _, told in sorted(self._told.get(source, {}).items()))

    def find_stream(self, source: str, stream: str) -> StandingDefinition | None:
        """Return a stream of a source, if it is defined and its period is not closed."""
        return self._told.get(source, {}).get(stream)

    def knows(self, source: str, stream: str) -> bool:
        """Return whether a stream of a source is defined, open or closed."""
        return self.find_stream(source, stream) is not None or stream in self._over

    def asking_in_periods(self, source: str, stream: str) -> list[StandingDefinition]:
        """Return a model's open streams in the periods of its source, in order."""
        return [told for _, told in sorted(self._in_periods.get((source, stream), {}).items())]

    def sources(self) -> dict[str, EventsSource]:
        """Return the sources with an open standing stream by name, without period accounts."""
        return dict(self._counted)

    def _index(self, changed: Mapping[str, Mapping[str, StandingDefinition]]) -> None:
        counted, in_periods = dict(self._counted), dict(self._in_periods)
        for source, streams in changed.items():
            for name, told in streams.items():
                if told.source.period_of is not None:
                    place = (told.source.period_of, _model_of(told))
                    asking = {**in_periods.get(place, {}), name: told}
                    in_periods[place] = {one: found for one, found in asking.items() if found.asks}
            asking_now = [told for told in streams.values() if told.asks and told.source.period_of is None]
            if asking_now:
                counted[source] = asking_now[0].source
            else:
                counted.pop(source, None)
        self._counted, self._in_periods = counted, in_periods

    def _put_away(self, changed: Mapping[str, Mapping[str, StandingDefinition]]) -> None:
        """Keep only names and digests of closed streams of periods, which are never asked again."""
        for source, streams in changed.items():
            left = {
                name: told
                for name, told in streams.items()
                if told.kind != "closed" or told.source.period_of is None
            }
            if len(left) == len(streams):
                continue
            # Added here before it is removed below: other threads always find it.
            self._over.update(
                (name, control_summary(told.value)) for name, told in streams.items() if name not in left
            )
            for name in streams.keys() - left.keys():
                del self._latest[name]
            self._told[source] = left
            if not left:
                del self._told[source]


def _model_of(told: StandingDefinition) -> str:
    """Return the name of a stream's model: its own name without the start of its period."""
    return (
        told.spec.stream if told.source.starts is None else told.spec.stream.removesuffix(f"@{told.source.starts}")
    )
