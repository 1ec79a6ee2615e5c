"""The ledger: the budget service's own record, and everyone's view of budgets, grants and refunds.

The topic is compacted; a source's record, each grant and each receipt have keys of their own, and so has the progress.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import (
    Amount,
    ByKind,
    Count,
    Digest,
    EventId,
    Fingerprint,
    Identifier,
    Reason,
    SparingEvent,
    Surplus,
)
from schemas.calibrations import Calibration
from schemas.charges import StreamState
from schemas.sources import Source
from schemas.streams import Extensions, StreamIdentity, StreamSpec
from schemas.trail import TrailHead


class SourceRecord(SparingEvent):
    """A source with its totals: ``granted`` less ``refunded`` is what counts against the budget.

    ``noted`` is when the trail last had its totals, by the ledger's clock in milliseconds; ``unnoted`` says that something was
    spent since.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"noted", "unnoted"})

    kind: Literal["source"] = "source"
    source: Source
    fingerprint: Fingerprint | None
    state: Literal["open", "halted"]
    reason: Reason | None = None
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount
    streams: Count
    noted: Count | None = None
    unnoted: bool = False


class GrantRecord(SparingEvent):
    """A stream's grant: its cost with all extensions, what is known to be spent of it, and what went back.

    ``ending`` is what was asked of it; a stream that is ``exhausted`` has ended by itself.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"extensions"})

    kind: Literal["grant"] = "grant"
    spec: StreamSpec
    calibration: Calibration
    identity: StreamIdentity
    state: StreamState
    ending: Literal["halted", "closed"] | None = None
    settled: bool = False
    reason: Reason | None = None
    cost: Amount
    spent: Amount
    refunded: Amount
    answered: Count
    tops: Count
    surplus: Surplus = 0
    extensions: Extensions = ()


class Receipt(SparingEvent):
    """What became of one request, told apart by id and digest; ``asked`` and ``left`` are set where budget was the question.

    ``closing`` waits for the worker's last totals; with ``state`` ``closed`` there was nothing left to do. ``state`` is that of
    the stream when a request that ends it was done; null elsewhere. A stream that was extended is ``opened`` for ``answers`` more
    charged answers, for which ``granted`` was taken from its source.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"answers", "granted"})

    kind: Literal["receipt"] = "receipt"
    request: EventId
    digest: Digest
    sequence: Count
    source: Identifier
    stream: Identifier | None = None
    outcome: Literal["registered", "opened", "closing", "halted", "refused"]
    reason: Reason | None = None
    asked: Amount | None = None
    left: Amount | None = None
    state: StreamState | None = None
    answers: Count | None = None
    granted: Amount | None = None


class LedgerProgress(SparingEvent):
    """How far the ledger is: the next offset to read of requests and of charges, and where its trail ends.

    There is no ``trail`` where an earlier version wrote it last.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"trail"})

    kind: Literal["progress"] = "progress"
    requests: Count
    charges: Count
    trail: TrailHead | None = None


LedgerRecord = Annotated[
    SourceRecord | GrantRecord | Receipt | LedgerProgress, Field(discriminator="kind"), ByKind()
]
"""Any record of the ledger."""
