"""The audit trail: what was asked of the budget service, what it decided, and what followed by itself, each once.

The entries are a chain: each has its number and the digest of the one before it, byte for byte. Nothing is ever compacted
away, and nothing stands here that the ledger does not tell.
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
"""What the first entry has in place of the digest of one before it."""

Word = Annotated[str, matching(r"^[a-z_]{1,64}$", "give 1 to 64 small letters and _")]
"""A word of an open list."""


class TrailHead(Event):
    """The end of a trail: how many entries it has, the digest of the last one, and the ledger's clock there."""

    entries: Count
    digest: Digest
    time: Count


class Totals(Event):
    """What an account has granted, known to be spent, got back and left."""

    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount


class TrailEntry(SparingEvent):
    """What every entry has: its ``number`` from 0, the digest of the one before it, and the ledger's clock in milliseconds.

    The clock is that of Kafka's stamps on what the budget service has taken in, and never goes backwards.
    """

    number: Count
    previous: Digest
    time: Count


class TrailBeginning(TrailEntry):
    """The first entry: how much the ledger knew when its trail began. One ``standing`` entry a source follows."""

    kind: Literal["beginning"] = "beginning"
    sources: Count
    streams: Count


class TrailStanding(TrailEntry):
    """A source as it was when the trail began; ``digest`` is one over the identities of its streams, by name."""

    kind: Literal["standing"] = "standing"
    source: Identifier
    streams: Count
    digest: Digest
    totals: Totals


class TrailRequest(TrailEntry):
    """A request and its decision. One that is sent again, and changes nothing, has no entry of its own.

    ``request`` and ``digest`` are those of its receipt; ``by`` is who asked, as the request says. ``epsilon`` and ``delta`` are
    what was asked for: a source's budget, a stream's price, or the part of a budget that an ``allotment`` gives to ``analysts``;
    ``granted`` is what was taken for it, and ``totals`` are the source's behind it. ``stream_digest`` is that of the definition
    which a stream was opened with.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset(
        {
            *(
                "source",
                "stream",
                "population",
                "analyst",
                "allotment",
                "analysts",
                "by",
                "mechanism",
                "epsilon",
                "delta",
                "reason",
                "asked",
                "left",
            ),
            *("granted", "answers", "stream_digest", "totals"),
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
    """What followed by itself: a stream ``exhausted``, ``halted`` by its worker, ``closed`` with what went back.

    ``spent`` and ``refunded`` are the stream's; ``totals`` are the source's behind it.
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
    """What an account has granted and spent by then: one a minute at most, and only where something was spent."""

    wire_omits: ClassVar[frozenset[str]] = frozenset({"source", "population"})

    kind: Literal["point"] = "point"
    source: Identifier | None = None
    population: Identifier | None = None
    totals: Totals


Since = Literal["nothing", "halt", "accept_loss"]


class TrailRestored(TrailEntry):
    """The ledger was brought back from a backup: what came after the entry before this one is lost.

    ``since`` is what the operator said of that time: that ``nothing`` was granted, that all sources are to ``halt``, or that
    they go on though it is not known what was granted (``accept_loss``). ``lost`` streams were open, and count as wholly spent.
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
