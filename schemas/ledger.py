"""The ledger and its audit trail.

The ledger (budgets, grants and refunds) is a compacted topic; each record has its own key. The audit trail has each
request, decision and automatic event exactly once. It is a chain: each entry has a number and the digest of the previous
entry's bytes. It is never compacted, and has only facts that were in the ledger too.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import (
    FIRST_VERSION,
    MAX_RECORD_BYTES,
    Amount,
    Analysts,
    ByKind,
    Count,
    Delta,
    Digest,
    Epsilon,
    Event,
    EventId,
    Fingerprint,
    Identifier,
    Reason,
    Surplus,
    Version,
    Word,
    text_matching,
)
from schemas.calibrations import Calibration
from schemas.changelogs import StreamState
from schemas.requests import Receipt
from schemas.sources import GrantPeriod, Period, Population, Source
from schemas.streams import Digests, Extensions, StreamIdentity, StreamSpec
from schemas.wire import Codec

NO_PREVIOUS_DIGEST = "0" * 64
"""The ``previous`` digest of a trail's first entry."""


class TrailHead(Event):
    """The end of a trail: its number of entries, the digest of the last entry, and the ledger's clock."""

    entries: Count
    digest: Digest
    time: Count


class Totals(Event):
    """The granted, spent, refunded and remaining amounts of a source or a population."""

    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount


class TrailEntry(Event):
    """The fields of every entry: ``number`` from 0, previous digest and ledger time in ms.

    The ledger's clock is the latest Kafka timestamp that the budget service has processed; it never goes backwards.
    """

    number: Count
    previous: Digest
    time: Count


class TrailBeginning(TrailEntry):
    """The first entry: the size of the ledger when the trail began.

    For each source, an entry of kind ``standing`` with its totals follows.
    """

    kind: Literal["beginning"] = "beginning"
    sources: Count
    streams: Count


class TrailStanding(TrailEntry):
    """A source at the start of the trail; ``digest`` is computed from its streams' names and identities."""

    kind: Literal["standing"] = "standing"
    source: Identifier
    streams: Count
    digest: Digest
    totals: Totals


class TrailRequest(
    TrailEntry,
    wire_omits={
        *("source", "stream", "population", "analyst", "allotment", "analysts", "by", "mechanism", "epsilon"),
        *("delta", "reason", "asked", "left", "granted", "answers", "stream_digest", "totals"),
    },
):
    """A request and its decision. A repeated request without effect has no entry.

    ``request`` and ``digest`` are the id and the digest of the request, as in its receipt; ``by`` is the requester. ``epsilon`` and ``delta``
    are the requested amount: a source's budget, a stream's price, or the part of a budget that an ``allotment``
    gives to ``analysts``. ``granted`` is the amount that was taken from the budget, and ``totals`` are the source's
    totals afterwards. ``stream_digest`` is the digest of an opened stream's definition. If a budget refused the
    request, ``asked`` is the amount that did not fit, and ``left`` what was left. An extension adds ``answers``.
    """

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


class TrailEvent(TrailEntry, wire_omits={"stream", "population", "reason", "spent", "refunded", "totals"}):
    """An automatic event: a stream is ``exhausted``, ``halted`` by its worker, or ``closed``.

    When a budget begins a new period, the event is ``renewed``. ``spent`` and ``refunded`` are amounts of the stream;
    ``totals`` are the source's totals afterwards.
    """

    kind: Literal["event"] = "event"
    event: Word
    source: Identifier | None = None
    stream: Identifier | None = None
    population: Identifier | None = None
    reason: Reason | None = None
    spent: Amount | None = None
    refunded: Amount | None = None
    totals: Totals | None = None


class TrailPoint(TrailEntry, wire_omits={"source", "population"}):
    """The totals of a source or a population: at most one entry each minute, and only after charges."""

    kind: Literal["point"] = "point"
    source: Identifier | None = None
    population: Identifier | None = None
    totals: Totals


LostTimeStatement = Literal["nothing", "halt", "accept_loss"]
"""An operator's statement about the requests after a restored backup; see ``TrailRestored``."""


class TrailRestored(TrailEntry, wire_omits={"reason"}):
    """The ledger was restored from a backup: everything after the previous entry is lost.

    - ``since`` is the operator's statement about the lost time: ``nothing`` was granted, all sources must ``halt``, or
      they continue although lost grants are unknown (``accept_loss``).
    - The ``lost`` streams were open; their grants count as spent in full.
    - ``backup`` is the digest of the backup's file.
    - If the topics themselves were rolled back, ``reason`` is the operator's reason for accepting this, and ``backup``
      is the digest of the previous entry.
    """

    kind: Literal["restored"] = "restored"
    since: LostTimeStatement
    lost: Count
    backup: Digest
    reason: Reason | None = None


TrailRecord = Annotated[
    TrailBeginning | TrailStanding | TrailRequest | TrailEvent | TrailPoint | TrailRestored,
    Field(discriminator="kind"),
    ByKind(),
]


class SourceRecord(Event, wire_omits={"noted", "unnoted", "population", "period", "version"}):
    """A source with its totals: ``granted`` less ``refunded`` counts against the budget.

    ``spent`` is the sum over the streams. The budget service updates it within seconds; while none runs, it is too small.
    If the budget renews, the totals cover all periods, and ``period`` and ``left`` are about the current period.
    ``version`` is the version of the data with this ``fingerprint``. ``noted`` is the ledger's time, in milliseconds,
    of the last totals in the trail; ``unnoted`` is true if something was spent after that.

    Examples:
        >>> record = client.budget("people")
        >>> record.granted.epsilon, record.left.epsilon
        (2.0, 2.0)
    """

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


class PopulationRecord(Event, wire_omits={"period", "state", "reason"}):
    """A population with the totals of all its sources; if ``halted``, it gets no further grants.

    Examples:
        >>> receipt = client.register_population({"population": "residents", "epsilon": 8.0})
        >>> client.population("residents").left.epsilon
        8.0
    """

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


class AllotmentRecord(Event, wire_omits={"source", "population", "period"}):
    """A part of a budget, its analysts and the totals of the streams that they opened.

    A grant must fit into ``left`` of the allotment and of the budget itself.

    Examples:
        >>> receipt = client.allot("team", 1.0, source="people", analysts=["ana", "ben"])
        >>> [record.left.epsilon for record in client.list_allotments(source="people")]
        [1.0]
    """

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


class GrantRecord(Event, wire_omits={"extensions", "analyst", "standing", "population_standing", "lost"}):
    """A stream's grant: its cost with all extensions, its known spending and its refund.

    ``answered`` is as of the last charge: a stream's status also counts the answers since then that cost nothing.
    ``ending`` is the requested end; an ``exhausted`` stream ended without a request. ``analyst`` is the analyst who
    requested the grant. ``settled`` means that its spending is final. ``standing`` is the period of the source's budget in
    which the grant last changed, and ``population_standing`` that of the population's budget; each is set only if the
    budget renews. A ``lost`` grant was restored from a backup that may lack some of its answers; it counts as spent in
    full, and has no refund.

    Examples:
        >>> grant = client.grant("people", "counts")
        >>> grant.state, grant.calibration is None
        ('open', False)
    """

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
    standing: GrantPeriod | None = None
    population_standing: GrantPeriod | None = None
    lost: bool = False


class LedgerProgress(Event, wire_omits={"trail"}):
    """The progress of the ledger: next offsets of requests and charges, and the trail's head.

    Records of earlier versions have no ``trail``.
    """

    kind: Literal["progress"] = "progress"
    requests: Count
    charges: Count
    trail: TrailHead | None = None


Units = Annotated[str, text_matching(r"^[0-9]{1,80}$", "give a whole number of units")]
"""An exact amount as a decimal number, which may exceed 64 bits."""


class ExactCost(Event, wire_omits={"loss", "delta", "rho", "unbounded"}):
    """An exact amount: ``loss`` (ε) and ``rho`` in units of 10⁻¹², ``delta`` in units of 10⁻³⁰.

    ``unbounded`` is the number of streams whose pure ε is unbounded, because their noise is Gaussian.
    """

    loss: Units = "0"
    delta: Units = "0"
    rho: Units = "0"
    unbounded: Count = 0


class RetiredClaim(Event, wire_omits={"period"}):
    """Sums of retired grants of one budget; ``counted`` is the part that counts against it in ``period``."""

    accountant: Literal["pure", "zcdp"]
    cost: ExactCost
    spent: ExactCost
    refunded: ExactCost
    counted: ExactCost
    period: Count = 0


class RetiredTotals(Event, wire_omits={"analyst", "shared", "joining"}):
    """The sums of a source's retired streams that one ``analyst`` opened, or that name no analyst.

    ``own`` counts against the source, and ``shared`` against its population. If the source has no population,
    ``joining`` has the sums by each accountant. If it joins a population later, they count against that one.
    """

    kind: Literal["retired"] = "retired"
    source: Identifier
    analyst: Identifier | None = None
    streams: Count
    own: RetiredClaim
    shared: RetiredClaim | None = None
    joining: tuple[RetiredClaim, ...] = ()


class RetiredNames(Event):
    """A block of digests of retired names; each digest is 16 bytes in hexadecimal digits."""

    kind: Literal["retired_names"] = "retired_names"
    number: Count
    names: Digests


class WaitingRequest(Event):
    """A request that waits until a table is read, or for an earlier request about the same subject.

    ``value`` is the request's event. Requests wait in the order of their ``number``; the decision deletes the record.
    """

    kind: Literal["waiting"] = "waiting"
    number: Count
    value: str


LedgerRecord = Annotated[
    SourceRecord
    | PopulationRecord
    | AllotmentRecord
    | GrantRecord
    | RetiredTotals
    | RetiredNames
    | Receipt
    | WaitingRequest
    | LedgerProgress,
    Field(discriminator="kind"),
    ByKind(),
]

ledger_codec: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)

trail_codec: Codec[TrailRecord] = Codec(TrailRecord, limit=MAX_RECORD_BYTES)
