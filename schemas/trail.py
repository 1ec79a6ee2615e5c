"""The audit trail: requests, decisions and automatic events, each exactly once.

The entries form a chain: each has its number and the digest of the previous entry's bytes. The
topic is never compacted, and contains nothing that is not in the ledger.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import (
    Amount,
    Analysts,
    ByKind,
    Count,
    Digest,
    Event,
    EventId,
    Identifier,
    Reason,
    SparingEvent,
    matching,
)

BEFORE_THE_FIRST = "0" * 64
"""The ``previous`` digest of the first entry."""

Word = Annotated[str, matching(r"^[a-z_]{1,64}$", "give 1 to 64 small letters and _")]
"""A word of an extensible list."""


class TrailHead(Event):
    """The end of a trail: number of entries, last digest and the ledger's clock."""

    entries: Count
    digest: Digest
    time: Count


class Totals(Event):
    """Amounts that an account has granted, spent, refunded and left."""

    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount


class TrailEntry(SparingEvent):
    """Fields of every entry: ``number`` from 0, previous digest and ledger time in ms.

    The clock is the latest Kafka timestamp that the budget service has processed; it never goes
    backwards.
    """

    number: Count
    previous: Digest
    time: Count


class TrailBeginning(TrailEntry):
    """The first entry: size of the ledger then. One ``standing`` entry per source follows."""

    kind: Literal["beginning"] = "beginning"
    sources: Count
    streams: Count


class TrailStanding(TrailEntry):
    """A source at the start of the trail; ``digest`` covers its streams' identities by name."""

    kind: Literal["standing"] = "standing"
    source: Identifier
    streams: Count
    digest: Digest
    totals: Totals


class TrailRequest(TrailEntry):
    """A request and its decision. A repeated request without effect has no entry.

    ``request`` and ``digest`` are those of its receipt; ``by`` is the requester. ``epsilon`` and
    ``delta`` are the requested amount: a source's budget, a stream's price, or the part of a budget
    that an ``allotment`` gives to ``analysts``. ``granted`` is the amount taken, and ``totals`` are
    the source's afterwards. ``stream_digest`` is the digest of an opened stream's definition.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset(
        {
            *("source", "stream", "population", "analyst", "allotment", "analysts", "by", "mechanism", "epsilon"),
            *("delta", "reason", "asked", "left", "granted", "answers", "stream_digest", "totals"),
        }
    )

    kind: Literal["request"] = "request"
    request: EventId
    digest: Digest
    action: Word
    outcome: Word
    source: Identifier | None = None
    stream: Identifier | None = None
    population: Identifier | None = None
    analyst: Identifier | None = None
    allotment: Identifier | None = None
    analysts: Analysts = ()
    by: Identifier | None = None
    mechanism: Word | None = None
    epsilon: float | None = None
    delta: float | None = None
    reason: Reason | None = None
    asked: Amount | None = None
    left: Amount | None = None
    granted: Amount | None = None
    answers: Count | None = None
    stream_digest: Digest | None = None
    totals: Totals | None = None


class TrailEvent(TrailEntry):
    """An automatic event: a stream is ``exhausted``, ``halted`` by its worker, or ``closed``.

    A budget that begins a new period is ``renewed``. ``spent`` and ``refunded`` are the stream's;
    ``totals`` are the source's afterwards.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset(
        {"stream", "population", "reason", "spent", "refunded", "totals"}
    )

    kind: Literal["event"] = "event"
    event: Word
    source: Identifier | None = None
    stream: Identifier | None = None
    population: Identifier | None = None
    reason: Reason | None = None
    spent: Amount | None = None
    refunded: Amount | None = None
    totals: Totals | None = None


class TrailPoint(TrailEntry):
    """An account's totals: at most one entry per minute, and only after spending."""

    wire_omits: ClassVar[frozenset[str]] = frozenset({"source", "population"})

    kind: Literal["point"] = "point"
    source: Identifier | None = None
    population: Identifier | None = None
    totals: Totals


Since = Literal["nothing", "halt", "accept_loss"]


class TrailRestored(TrailEntry):
    """The ledger was restored from a backup: everything after the previous entry is lost.

    ``since`` is the operator's statement about the lost time: ``nothing`` was granted, all sources
    must ``halt``, or they continue although lost grants are unknown (``accept_loss``). The ``lost``
    streams were open, and count as wholly spent.
    """

    kind: Literal["restored"] = "restored"
    since: Since
    lost: Count
    backup: Digest


TrailRecord = Annotated[
    TrailBeginning | TrailStanding | TrailRequest | TrailEvent | TrailPoint | TrailRestored,
    Field(discriminator="kind"),
    ByKind(),
]
"""Any entry of the trail."""
