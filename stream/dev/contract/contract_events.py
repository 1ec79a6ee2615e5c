"""Lists all events and topics of the contract, with keys, writers and purposes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from pydantic import BaseModel

import schemas

CONTRACT_VERSION: Final = "0.2.0"
"""Version of the contract: a new major number breaks readers or producers, a new minor number only adds."""

Side = Literal["input", "output", "internal"]
"""Direction: ``input`` to Sotto, ``output`` from Sotto, or ``internal``."""


@dataclass(frozen=True)
class Channel:
    """A topic with its writer, keys and purpose."""

    name: str
    """The topic's name without the prefix, and the name of an attribute of ``Topics``."""

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
    """A kind of event: its model, topic, and most bytes of JSON (None: unlimited)."""

    model: type[BaseModel]
    channel: str
    limit: int | None

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model.__name__


def _kinds_of(union: Any) -> tuple[type[BaseModel], ...]:
    """Return the members of a union that ``kind`` discriminates."""
    return get_args(get_args(union)[0])


*_ACCOUNTS, _PROGRESS = _kinds_of(schemas.LedgerRecord)
_KINDS: Final[tuple[tuple[str, int | None, tuple[type[BaseModel], ...]], ...]] = (
    ("queries", schemas.MAX_EVENT_BYTES, (schemas.Query,)),
    ("answers", schemas.MAX_ANSWER_BYTES, (schemas.Answer,)),
    ("requests", schemas.MAX_DEFINITION_BYTES, _kinds_of(schemas.Request)),
    ("ledger", schemas.MAX_RECORD_BYTES, (*_ACCOUNTS,)),
    ("ledger", None, (_PROGRESS,)),
    ("trail", None, _kinds_of(schemas.TrailRecord)),
    ("status", None, (schemas.StreamStatus, schemas.PartitionStatus, schemas.MemberStatus)),
    ("control", schemas.MAX_RECORD_BYTES, _kinds_of(schemas.Control)),
    ("charges", schemas.MAX_DEFINITION_BYTES, (schemas.Charge,)),
    ("state", None, (schemas.Checkpoint, schemas.Progress)),
    ("partials", None, (schemas.Partial,)),
    ("merges", None, (schemas.MergedStream, schemas.NodeSums)),
    ("feed_state", None, (schemas.FeedProgress, schemas.FeedStream)),
    ("state", None, (schemas.HypothesisUpdate, schemas.Measurement)),
)
EVENTS: Final = tuple(EventKind(model, channel, limit) for channel, limit, models in _KINDS for model in models)
"""All JSON events; dead letters have arbitrary bytes, and the pieces of feeds' changelogs are binary."""


def channel_named(name: str) -> Channel:
    """Return the channel of a topic."""
    return next(channel for channel in CHANNELS if channel.name == name)


def side_of(event: EventKind) -> Side:
    """Return the direction of an event."""
    return channel_named(event.channel).side
