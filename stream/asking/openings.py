"""Openings: what the ledger's bytes say of a stream to whoever watches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from schemas import StreamState
from schemas.wire import UNREADABLE
from stream.accounting.counted import bounded_words


class Opening(NamedTuple):
    """One opening of a stream, and whether it goes on; ``reason`` is why it does not.

    ``time`` is Kafka's stamp of the ledger's record of it, in seconds since the epoch.
    """

    stream: str
    source: str
    incarnation: str
    state: StreamState
    reason: str | None
    time: float

    @property
    def end(self) -> str | None:
        """That it has ended and why, in words; None while it has not."""
        if self.state == "open":
            return None
        if not self.reason or self.reason.startswith(f"{self.state}:"):
            return self.reason or self.state
        return f"{self.state}: {self.reason}"


def source_of(key: bytes | None) -> str | None:
    """The source that a record of the ledger registers; None if it is about something else."""
    kind, _, name = (key or b"").partition(b"|")
    return name.decode(errors="replace") if kind == b"source" else None


def counted_of(value: bytes | None) -> str:
    """How many rows or events of one person count, by a source's record; empty if it bounds none, or is a later version's."""
    try:
        source = _source_decoder.decode(value or b"").source
    except UNREADABLE:
        return ""
    return "" if source.person is None else bounded_words(source.kind, source.person, source.contribution)


def opening_of(
    key: bytes | None, value: bytes | None, stamp: int, wanted: Callable[[str, str], bool]
) -> Opening | None:
    """The opening that a record of the ledger tells of; None if it tells of none that is ``wanted`` by source and stream."""
    kind, _, rest = (key or b"").partition(b"|")
    if kind != b"grant" or value is None:
        return None
    source, _, stream = rest.decode(errors="replace").partition("|")
    if not wanted(source, stream):
        return None
    try:
        told = _decoder.decode(value)
    except UNREADABLE:
        return None  # a later version's
    state = told.state if told.state != "open" or told.ending is None else told.ending
    return Opening(stream, source, told.identity.incarnation, state, told.reason, stamp / 1000)


def is_news(known: dict[str, Opening], opening: Opening) -> bool:
    """Whether an opening is another than the one that is known by its name; if so it is known from now on.

    The ledger writes a stream's record for other reasons as well: what says no more keeps the time at which it was said first.
    """
    before = known.get(opening.stream)
    if before is not None and before._replace(time=opening.time) == opening:
        return False
    known[opening.stream] = opening
    return True


class _Identity(msgspec.Struct, gc=False):
    incarnation: str


class _Grant(msgspec.Struct, gc=False):
    """The fields of a GrantRecord that say which opening it is, and whether it goes on."""

    identity: _Identity
    state: StreamState
    ending: Literal["halted", "closed"] | None = None
    reason: str | None = None


class _Source(msgspec.Struct, gc=False):
    kind: str
    person: str | None = None
    contribution: int = 1


class _SourceRecord(msgspec.Struct, gc=False):
    """The fields of a SourceRecord that bound what one person contributes."""

    source: _Source


_decoder = msgspec.json.Decoder(_Grant)
_source_decoder = msgspec.json.Decoder(_SourceRecord)
