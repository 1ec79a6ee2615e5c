"""Every event of the contract: on which topic, under which key, and who reads it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pydantic import BaseModel

from schemas import (
    MAX_ANSWER_BYTES,
    MAX_DEFINITION_BYTES,
    MAX_EVENT_BYTES,
    MAX_RECORD_BYTES,
    Allot,
    AllotmentRecord,
    Answer,
    BeginPeriod,
    Charge,
    Checkpoint,
    CloseStream,
    ExtendStream,
    FeedProgress,
    FeedStream,
    GrantRecord,
    HaltSource,
    HaltStream,
    HypothesisUpdate,
    JoinPopulation,
    LedgerProgress,
    Measurement,
    MemberStatus,
    MergedStream,
    NodeSums,
    OpenStream,
    Partial,
    PartitionStatus,
    PopulationRecord,
    Progress,
    Query,
    Receipt,
    RefreshSource,
    RegisterPopulation,
    RegisterSource,
    SourceRecord,
    StreamClosed,
    StreamHalted,
    StreamOpened,
    StreamStatus,
    TrailBeginning,
    TrailEvent,
    TrailPoint,
    TrailRequest,
    TrailRestored,
    TrailStanding,
)

CONTRACT_VERSION: Final = "0.2.0"
"""The contract's own version: a new major number breaks readers or producers, a new minor one adds to the contract."""

TopicName = Literal[
    "queries",
    "control",
    "answers",
    "state",
    "partials",
    "merges",
    "feed_state",
    "requests",
    "charges",
    "ledger",
    "trail",
    "rejected",
    "status",
]
"""A topic's name within an installation, without the prefix; also an attribute of ``Topics``."""

Side = Literal["input", "output", "internal"]
"""``input``: sent to Sotto. ``output``: sent by Sotto for anybody. ``internal``: sent by Sotto to itself."""


@dataclass(frozen=True)
class Channel:
    """One topic: who writes it, what its keys are, and what it is for."""

    name: TopicName
    side: Side
    key: str
    writer: str
    summary: str
    compacted: bool = False


CHANNELS: Final = (
    Channel("queries", "input", "the stream's name", "producers and feeds", "Questions, one event each."),
    Channel("answers", "output", "the stream's name", "workers", "The one answer to each query."),
    Channel(
        "requests",
        "input",
        "the source's name or the population's name",
        "operators",
        "Sources and populations to register, budgets to allot; streams to open, extend or end.",
    ),
    Channel(
        "ledger",
        "output",
        "source|SOURCE, grant|SOURCE|STREAM, receipt|REQUEST, population|POPULATION, allotment|source|SOURCE|ALLOTMENT, "
        "allotment|population|POPULATION|ALLOTMENT or @progress",
        "the budget service",
        "Budgets, allotments, grants, refunds, and what became of each request; the latest of each key holds.",
        compacted=True,
    ),
    Channel(
        "trail",
        "output",
        "the source's name, or nothing",
        "the budget service",
        "The audit trail: each request, what was decided, and what followed; a chain of digests, kept for ever.",
    ),
    Channel(
        "rejected",
        "output",
        "the refused event's own key",
        "workers and the budget service",
        "Dead letters: the refused event's bytes and headers as they came, and why and where from in further headers.",
    ),
    Channel(
        "status",
        "output",
        "the stream's name, or @ROLE|PARTITION",
        "workers and the budget service",
        "Digests for dashboards; the latest of each key holds.",
        compacted=True,
    ),
    Channel(
        "control",
        "internal",
        "the stream's name",
        "the budget service",
        "Each stream's definition and whether it may answer.",
        compacted=True,
    ),
    Channel("charges", "internal", "the source's name", "workers", "What each stream has spent, as totals."),
    Channel(
        "state",
        "internal",
        "the stream's name, @update|NUMBER|STREAM or @progress",
        "workers",
        "The workers' changelog.",
        compacted=True,
    ),
    Channel(
        "partials",
        "internal",
        "the stream's name",
        "feeds",
        "What each partition of a live topic has in each closed window of each standing stream; private.",
    ),
    Channel(
        "merges",
        "internal",
        "the stream's name, @partial|STREAM|START|PARTITION, @node|STREAM|NUMBER or @progress",
        "feeds",
        "The changelog of merging; private.",
        compacted=True,
    ),
    Channel(
        "feed_state",
        "internal",
        "stream|STREAM, piece|NUMBER or @progress",
        "feeds",
        "The changelog of one live topic's counting, in the partition of the topic that it is about; private.",
        compacted=True,
    ),
)


@dataclass(frozen=True)
class EventKind:
    """One kind of event: its model, its topic, and the most bytes that its JSON may have, where that is bounded.

    ``read_back`` says that later versions of Sotto read what earlier ones wrote.
    """

    model: type[BaseModel]
    channel: TopicName
    limit: int | None
    read_back: bool = False

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.__name__


EVENTS: Final = (
    EventKind(Query, "queries", MAX_EVENT_BYTES),
    EventKind(Answer, "answers", MAX_ANSWER_BYTES),
    EventKind(RegisterSource, "requests", MAX_DEFINITION_BYTES),
    EventKind(OpenStream, "requests", MAX_DEFINITION_BYTES),
    EventKind(ExtendStream, "requests", MAX_DEFINITION_BYTES),
    EventKind(CloseStream, "requests", MAX_DEFINITION_BYTES),
    EventKind(HaltStream, "requests", MAX_DEFINITION_BYTES),
    EventKind(HaltSource, "requests", MAX_DEFINITION_BYTES),
    EventKind(RefreshSource, "requests", MAX_DEFINITION_BYTES),
    EventKind(RegisterPopulation, "requests", MAX_DEFINITION_BYTES),
    EventKind(JoinPopulation, "requests", MAX_DEFINITION_BYTES),
    EventKind(Allot, "requests", MAX_DEFINITION_BYTES),
    EventKind(BeginPeriod, "requests", MAX_DEFINITION_BYTES),
    EventKind(SourceRecord, "ledger", MAX_RECORD_BYTES, read_back=True),
    EventKind(PopulationRecord, "ledger", MAX_RECORD_BYTES, read_back=True),
    EventKind(AllotmentRecord, "ledger", MAX_RECORD_BYTES, read_back=True),
    EventKind(GrantRecord, "ledger", MAX_RECORD_BYTES, read_back=True),
    EventKind(Receipt, "ledger", MAX_RECORD_BYTES, read_back=True),
    EventKind(LedgerProgress, "ledger", None, read_back=True),
    EventKind(TrailBeginning, "trail", None, read_back=True),
    EventKind(TrailStanding, "trail", None, read_back=True),
    EventKind(TrailRequest, "trail", None, read_back=True),
    EventKind(TrailEvent, "trail", None, read_back=True),
    EventKind(TrailPoint, "trail", None, read_back=True),
    EventKind(TrailRestored, "trail", None, read_back=True),
    EventKind(StreamStatus, "status", None),
    EventKind(PartitionStatus, "status", None),
    EventKind(MemberStatus, "status", None),
    EventKind(StreamOpened, "control", MAX_RECORD_BYTES, read_back=True),
    EventKind(StreamHalted, "control", MAX_RECORD_BYTES, read_back=True),
    EventKind(StreamClosed, "control", MAX_RECORD_BYTES, read_back=True),
    EventKind(Charge, "charges", MAX_DEFINITION_BYTES, read_back=True),
    EventKind(Checkpoint, "state", None, read_back=True),
    EventKind(Progress, "state", None, read_back=True),
    EventKind(Partial, "partials", None, read_back=True),
    EventKind(MergedStream, "merges", None, read_back=True),
    EventKind(NodeSums, "merges", None, read_back=True),
    EventKind(FeedProgress, "feed_state", None, read_back=True),
    EventKind(FeedStream, "feed_state", None, read_back=True),
    EventKind(HypothesisUpdate, "state", None, read_back=True),
    EventKind(Measurement, "state", None, read_back=True),
)
"""Every event whose value is JSON; dead letters are the bytes of events that may be anything, and the pieces of a feed are binary."""


def channel_named(name: TopicName) -> Channel:
    """The channel of a topic."""
    return next(channel for channel in CHANNELS if channel.name == name)


def side_of(event: EventKind) -> Side:
    """Who writes and reads an event."""
    return channel_named(event.channel).side
