"""Control: what the budget service tells the workers about each stream.

The topic is compacted by stream, so every event carries the whole definition: the latest alone is enough.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import ByKind, Event, Fingerprint, Reason
from schemas.calibrations import Calibration
from schemas.sources import Source
from schemas.streams import StreamIdentity, StreamSpec


class _Definition(Event):
    spec: StreamSpec
    source: Source
    identity: StreamIdentity
    fingerprint: Fingerprint | None
    calibration: Calibration


class StreamOpened(_Definition):
    """The stream may answer."""

    kind: Literal["opened"] = "opened"


class StreamHalted(_Definition):
    """The stream must not answer any more."""

    kind: Literal["halted"] = "halted"
    reason: Reason


class StreamClosed(_Definition):
    """The stream has ended; its worker reports the final spending once, which frees the refund."""

    kind: Literal["closed"] = "closed"
    reason: Reason


Control = Annotated[StreamOpened | StreamHalted | StreamClosed, Field(discriminator="kind"), ByKind()]
"""A stream's definition and what it may do."""
