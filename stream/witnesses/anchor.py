"""Anchors: heads of the audit trail with the ends of topics, and the protocol of a witness.

An anchor holds facts that stay true unless Kafka's topics are rolled back. When an operator accepts a rollback, a new
*generation* of anchors begins in all witnesses, and anchors of earlier generations are not compared any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas import TrailHead
from stream.errors import SottoError

MAX_ANCHORS_READ: Final = 100
"""Maximum number of anchors that a witness returns."""
LARGEST_TIME: Final = 9_999_999_999_999
"""Largest time of an anchor, in milliseconds since 1970: 13 digits, in the year 2286."""

Offset = Annotated[int, Field(ge=0)]


class WitnessError(SottoError):
    """A witness cannot be used; the message has the reason, but no credentials."""


class Anchor(BaseModel):
    """A committed head of the trail, and end offsets of topics by partition, at one time.

    - ``written`` is the time of writing in milliseconds since 1970 (``next_anchor_time``).
    - ``reason`` is set if the anchor begins a generation: an operator has accepted that earlier anchors no longer hold.
    - ``stamp`` is the stamp of a time-stamp authority, in base64, on installation and head
      (``time_stamps.stamped_statement``).
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    installation: str
    generation: Offset = 0
    written: Annotated[int, Field(ge=0, le=LARGEST_TIME)]
    head: TrailHead
    ends: dict[str, tuple[Offset, ...]] = {}
    reason: str | None = None
    stamp: str | None = None

    @property
    def time(self) -> str:
        """The time of writing, in UTC."""
        return datetime.fromtimestamp(self.written / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    def encode(self) -> bytes:
        """Return the anchor as one line of JSON, without the newline."""
        return self.model_dump_json(exclude_none=True).encode()


class Witness(Protocol):
    """A place that keeps anchors and is administered apart from Kafka; its methods block."""

    @property
    def name(self) -> str:
        """The witness's address, without credentials."""

    def write(self, anchor: Anchor) -> None:
        """Append an anchor durably; WitnessError unless it was certainly written."""

    def read_newest(self, installation: str) -> list[Anchor]:
        """Return the latest ``MAX_ANCHORS_READ`` anchors of an installation; WitnessError if it cannot."""


def parse_anchor(text: bytes | str) -> Anchor | None:
    """Parse an anchor; None if the text is no anchor, for example because a crash cut a line off."""
    try:
        return Anchor.model_validate_json(text)
    except ValidationError:
        return None


def next_anchor_time(latest: int) -> int:
    """Return the time of the next anchor: now, or just after the time ``latest`` if the clock went back."""
    return min(LARGEST_TIME, max(round(1000 * time.time()), latest + 1))


def newest_generation(anchors: Iterable[Anchor]) -> list[Anchor]:
    """Return the anchors of the newest generation; the anchor of the longest trail comes first."""
    found = list(anchors)
    generation = max((one.generation for one in found), default=0)
    newest = [one for one in found if one.generation == generation]
    return sorted(newest, key=lambda one: (one.head.entries, one.written), reverse=True)


def largest_end(anchors: Iterable[Anchor], topic: str, partition: int) -> int:
    """Return the largest end offset of a partition in these anchors; 0 if no anchor has the partition."""
    ends = (anchor.ends.get(topic, ()) for anchor in anchors)
    return max((one[partition] for one in ends if partition < len(one)), default=0)


def read_newest_generations(witnesses: Sequence[Witness], installation: str) -> list[list[Anchor]]:
    """Return the newest generation of each witness; WitnessError if a witness cannot be read."""
    return [newest_generation(one.read_newest(installation)) for one in witnesses]


def begin_generation(
    witnesses: Sequence[Witness],
    installation: str,
    head: TrailHead,
    reason: str,
    ends: Mapping[str, tuple[int, ...]] | None = None,
) -> None:
    """Begin a new generation in each witness with one anchor, so that earlier anchors are not compared any more.

    Call this before the topics change: if a later step fails, services grant nothing until all steps are repeated.

    Raises:
        WitnessError: a witness cannot be read or written.
    """
    newest = read_newest_generations(witnesses, installation)
    latest = max((one[0].generation for one in newest if one), default=0)
    anchor = Anchor(
        installation=installation,
        generation=latest + 1,
        written=next_anchor_time(max((one.written for found in newest for one in found), default=0)),
        head=head,
        ends=dict(ends or {}),
        reason=reason,
    )
    for witness in witnesses:
        witness.write(anchor)
