"""All events of the contract, with topic, key, writer and readers."""

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
"""Version of the contract: a major number breaks readers or producers, a minor number adds."""

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
"""A topic's name without the prefix; also an attribute of ``Topics``."""

Side = Literal["input", "output", "internal"]
"""Direction: ``input`` to Sotto, ``output`` from Sotto, or ``internal``."""


@dataclass(frozen=True)
class Channel:
    """A topic with its writer, keys and purpose."""

    name: TopicName
    side: Side
    key: str
    writer: str
    summary: str
    compacted: bool = False


CHANNELS: Final = (
    Channel("queries", "input", "the stream's name", "producers and feeds", "Questions, one event each."),
    Channel("answers", "output", "the stream's name", "workers", "Exactly one answer to each query."),
    Channel(
        "requests",
        "input",
        "the source's name or the population's name",
        "operators",
        "Requests to register sources and populations, allot budgets, and open, extend or end streams.",
    ),
    Channel(
        "ledger",
        "output",
        "source|SOURCE, grant|SOURCE|STREAM, receipt|REQUEST, population|POPULATION, allotment|source|SOURCE|ALLOTMENT, "
        "allotment|population|POPULATION|ALLOTMENT or @progress",
        "the budget service",
        "Budgets, allotments, grants, refunds, and receipts of requests; the latest record of each key is valid.",
        compacted=True,
    ),
    Channel(
        "trail",
        "output",
        "the source's name, or nothing",
        "the budget service",
        "The audit trail: each request, its decision and effects; chained by digests and kept for ever.",
    ),
    Channel(
        "rejected",
        "output",
        "the refused event's own key",
        "workers and the budget service",
        "Dead letters: the refused event's bytes and headers, with its reason and origin in further headers.",
    ),
    Channel(
        "status",
        "output",
        "the stream's name, or @ROLE|PARTITION",
        "workers and the budget service",
        "Status for dashboards; the latest record of each key is valid.",
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
    Channel(
        "charges", "internal", "the source's name", "workers", "The charge of each stream, as a running total."
    ),
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
        "The counts of each partition of a live topic in each closed window of a standing stream; private.",
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
        "The changelog of the counts of one live topic, with the same partitions as that topic; private.",
        compacted=True,
    ),
)


@dataclass(frozen=True)
class EventKind:
    """A kind of event: its model, topic, and most bytes of JSON (None: unlimited).

    With ``read_back``, later versions of Sotto read events of earlier ones.
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
"""All JSON events; dead letters have arbitrary bytes, and the pieces of a feed are binary."""


def channel_named(name: TopicName) -> Channel:
    """Return the channel of a topic."""
    return next(channel for channel in CHANNELS if channel.name == name)


def side_of(event: EventKind) -> Side:
    """Return the direction of an event."""
    return channel_named(event.channel).side
