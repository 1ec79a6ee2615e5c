"""The ledger: the budget service's own record, and everyone's view of budgets, grants and refunds.

The topic is compacted; each source, population, allotment, grant and receipt has a key of its own, and so has the progress.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from schemas.base import (
    FIRST_VERSION,
    Amount,
    Analysts,
    ByKind,
    Count,
    Delta,
    Digest,
    Epsilon,
    EventId,
    Fingerprint,
    Identifier,
    Reason,
    SparingEvent,
    Surplus,
    Version,
)
from schemas.calibrations import Calibration
from schemas.checkpoints import StreamState
from schemas.populations import Period, Population, Standing
from schemas.sources import Source
from schemas.streams import Extensions, StreamIdentity, StreamSpec
from schemas.trail import TrailHead
from schemas.windows import Moment


class SourceRecord(SparingEvent):
    """A source with its totals: ``granted`` less ``refunded`` is what counts against the budget.

    Where the budget renews, these are totals of all periods, ``period`` says what counts in the present one, and ``left`` is left
    of it. ``version`` is that of the data which ``fingerprint`` is of. ``noted`` is when the trail last had its totals, by the ledger's clock in milliseconds; ``unnoted`` says that something
    was spent since.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"noted", "unnoted", "population", "period", "version"})

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
    population: Identifier | None = None
    period: Period | None = None
    version: Version = FIRST_VERSION


class PopulationRecord(SparingEvent):
    """A population with the totals of all its sources, as a source has them. Nothing more is granted of one that is ``halted``."""

    wire_omits: ClassVar[frozenset[str]] = frozenset({"period", "state", "reason"})

    kind: Literal["population"] = "population"
    population: Population
    state: Literal["open", "halted"] = "open"
    reason: Reason | None = None
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount
    sources: Count
    streams: Count
    period: Period | None = None


class AllotmentRecord(SparingEvent):
    """A part of a source's or a population's budget, who has it, and the totals of the streams that these have opened.

    What may still be granted is what is ``left`` of it, and no more than is left of the budget itself.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"source", "population", "period"})

    kind: Literal["allotment"] = "allotment"
    allotment: Identifier
    source: Identifier | None = None
    population: Identifier | None = None
    analysts: Analysts
    epsilon: Epsilon
    delta: Delta
    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount
    streams: Count
    period: Period | None = None


class GrantRecord(SparingEvent):
    """A stream's grant: its cost with all extensions, what is known to be spent of it, and what went back.

    ``ending`` is what was asked of it; a stream that is ``exhausted`` has ended by itself. ``analyst`` is who asked for it. The
    standings are there where its source's budget or that of its population renews. One that is ``lost`` came back with a backup that did
    not know all that it had answered: it counts as wholly spent, and nothing of it goes back.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset(
        {"extensions", "analyst", "standing", "population_standing", "lost"}
    )

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
    analyst: Identifier | None = None
    standing: Standing | None = None
    population_standing: Standing | None = None
    lost: bool = False


class Receipt(SparingEvent):
    """What became of one request, told apart by id and digest; ``asked`` and ``left`` are set where budget was the question.

    ``closing`` waits for the worker's last totals; with ``state`` ``closed`` there was nothing left to do. ``state`` is that of
    the stream when a request that ends it was done; null elsewhere. A stream that was extended is ``opened`` for ``answers`` more
    charged answers, for which ``granted`` was taken from its source. A population that is made known, a source that joins one and an
    allotment are ``registered``; ``population`` is set where the request is about one, and ``source`` names it too if it is about
    no source. ``meaning`` says what a budget that renews promises, and what its earlier periods did not count of a source that joins. A source that was refreshed is ``registered`` with the
    data of ``version``. Of a standing stream, ``begins`` is the moment from which its windows are asked, and ``windows`` over how
    many of them its α holds.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset(
        {"answers", "granted", "population", "meaning", "version", "begins", "windows"}
    )

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
    population: Identifier | None = None
    meaning: Reason | None = None
    version: Version | None = None
    begins: Moment | None = None
    windows: Count | None = None


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
    SourceRecord | PopulationRecord | AllotmentRecord | GrantRecord | Receipt | LedgerProgress,
    Field(discriminator="kind"),
    ByKind(),
]
"""Any record of the ledger."""
