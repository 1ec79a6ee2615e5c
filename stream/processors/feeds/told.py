"""What control tells of standing streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas import MAX_RECORD_BYTES, Calibration, Control, EventsSource
from schemas.streams import StandingQuery, StreamSpec
from schemas.wire import Codec, MalformedEventError
from stream.processors.base import RecordLike
from stream.processors.endings import undoes

_codec: Codec[Control] = Codec(Control, limit=MAX_RECORD_BYTES)


@dataclass(frozen=True, slots=True)
class Told:
    """The latest that control has told of a standing stream."""

    spec: StreamSpec
    standing: StandingQuery
    source: EventsSource
    incarnation: str
    calibration: Calibration
    kind: Literal["opened", "halted", "closed"]
    value: bytes
    """The control event itself."""
    moment: int = 0
    """The broker's stamp on the event since which its windows are asked."""

    @property
    def asks(self) -> bool:
        """Whether its windows are asked."""
        return self.kind == "opened"


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
    goes_on = known is not None and known.asks and known.incarnation == control.identity.incarnation
    return Told(
        spec,
        spec.standing,
        source,
        control.identity.incarnation,
        control.calibration,
        control.kind,
        value,
        known.moment if known is not None and goes_on else record.timestamp,
    )
