"""Control: what the budget service tells the workers about each stream.

The topic is compacted by stream, so every event carries the whole definition: the latest alone is enough.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import FIRST_VERSION, ByKind, Fingerprint, Reason, SparingEvent, Version
from schemas.calibrations import Calibration
from schemas.sources import Source
from schemas.streams import Extensions, StreamIdentity, StreamSpec


class _Definition(SparingEvent):
    wire_omits: ClassVar[frozenset[str]] = frozenset({"extensions", "version"})

    spec: StreamSpec
    source: Source
    identity: StreamIdentity
    fingerprint: Fingerprint | None
    calibration: Calibration
    extensions: Extensions = ()
    version: Version = FIRST_VERSION


class StreamOpened(_Definition):
    """The stream may answer, for as long as its calibration and its extensions have charged answers."""

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
