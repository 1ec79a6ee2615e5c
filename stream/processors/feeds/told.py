"""What control tells of standing streams."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from schemas import MAX_RECORD_BYTES, Calibration, Control, EventsSource
from schemas.streams import StandingQuery, StreamSpec
from schemas.wire import Codec, MalformedEventError
from stream.processors.base import RecordLike
from stream.processors.endings import undoes

_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)


@dataclass(frozen=True, slots=True)
class Epoch:
    """A stretch of time in which the windows of a stream are asked: from an opening, or an extension after an end, up to the next end.

    ``number`` is how many extensions the stream had when it began. ``begins`` and ``ends`` are the broker's stamps on the control
    events; None for an event that is still to come, or that compaction has removed.
    """

    number: int = 0
    begins: int | None = None
    ends: int | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """The latest that control has told of a standing stream, and the stamps of what it told before."""

    spec: StreamSpec
    standing: StandingQuery
    source: EventsSource
    incarnation: str
    calibration: Calibration
    kind: Literal["opened", "halted", "closed"]
    value: bytes
    """The control event itself."""
    epochs: tuple[Epoch, ...] = (Epoch(begins=0),)
    """In their order; there is always one."""

    @property
    def asks(self) -> bool:
        """Whether its windows are asked, for all that control has told by now."""
        return self.kind == "opened"

    @property
    def is_merged(self) -> bool:
        """Whether windows that partitions tell of are asked. A stream that has ended has windows from before its end."""
        return self.asks or (self.kind == "halted" and not self.source.has_periods)

    @property
    def moment(self) -> int:
        """When its latest epoch began, or ended if no more than that is known."""
        latest = self.epochs[-1]
        return next((stamp for stamp in (latest.begins, latest.ends) if stamp is not None), 0)

    def epoch(self, number: int) -> Epoch:
        """The epoch in which the stream had this many extensions."""
        return next((epoch for epoch in reversed(self.epochs) if epoch.number <= number), self.epochs[0])


def told_of(record: RecordLike, known: Told | None = None) -> Told | None:
    """What a control event says; what was known already if it is about no standing stream, unreadable, or takes back what was told."""
    value = record.value
    if value is None or b'"standing":' not in value or (known is not None and undoes(known.value, value)):
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
    return Told(
        spec,
        spec.standing,
        source,
        control.identity.incarnation,
        control.calibration,
        control.kind,
        value,
        _epochs(known, control, record.timestamp),
    )


def _epochs(known: Told | None, control: Control, stamp: int) -> tuple[Epoch, ...]:
    """The epochs of a stream, by an event with a stamp and by what was known before."""
    epochs = {epoch.number: epoch for epoch in known.epochs} if known is not None else {0: Epoch()}
    count = len(epochs)
    for number, extension in enumerate(control.extensions, 1):
        if extension.resumes:
            epochs.setdefault(number, Epoch(number))
    if known is not None and not known.asks and control.kind == "opened" and len(epochs) == count:
        # Earlier versions do not say of an extension that the stream had ended.
        number = len(control.extensions)
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
            # Compaction has removed its end: it was before the next moment that is known.
            epochs[number] = epoch = replace(epoch, ends=later)
        later = epoch.ends if epoch.begins is None else epoch.begins
    return tuple(epochs[number] for number in sorted(epochs))
