"""How an installation's topics are to be: partitions, configuration, and which of them must lose nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from stream.processors.topics import LEDGER_PARTITIONS, Topics

_MEGABYTE = 1024 * 1024
STAMPED = {"message.timestamp.type": "LogAppendTime"}
"""The broker's clock alone gives records their time: no writer's can be wrong, be refused, or gain a stream a share."""
_AS_SENT = {"compression.type": "producer"}
"""Brokers keep batches as they are sent. Any other setting has them unfold what others have compressed, without a bound, in
their own memory: a batch of 38 KB that holds 900 MB ends a broker with a heap of a gigabyte."""
_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2", "segment.ms": "3600000"}
_FOR_EVER = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(4 * _MEGABYTE),
}
"""Kafka deletes the oldest records of other topics after a week: a trail without its beginning proves little."""
_OUTLASTING = {"cleanup.policy": "delete", "retention.ms": str(28 * 24 * 3_600_000), "retention.bytes": "-1"}
"""What is asked of the budget service waits for it for four weeks: by Kafka's own week an opening would be lost in an outage."""
_CHANGELOG = {**_COMPACTED, "max.message.bytes": str(4 * _MEGABYTE)}


@dataclass(frozen=True)
class TopicLayout:
    """How one topic must be."""

    name: str
    partitions: int
    configuration: dict[str, str] = field(default_factory=dict)

    stamped: bool = True
    """Whether the broker's clock gives its records their time."""

    kept: bool = False
    """Whether all that it holds must stay: what is lost of it is granted or answered a second time, or can be proved no more."""

    def configuration_with(self, replication: int) -> dict[str, str]:
        """All that is set of it when it is kept so many times."""
        return {**self.configuration, **_AS_SENT, **(STAMPED if self.stamped else {}), **durability(replication)}


def durability(replication: int) -> dict[str, str]:
    """What keeps a committed record: a majority of the replicas has it, and no other replica may lead."""
    return {"min.insync.replicas": str(replication // 2 + 1), "unclean.leader.election.enable": "false"}


def layout(topics: Topics) -> list[TopicLayout]:
    """Every topic of an installation, with its partitions and configuration."""
    wide, serial = topics.partitions, LEDGER_PARTITIONS
    return [
        TopicLayout(topics.queries, wide, {"cleanup.policy": "delete", "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.control, wide, _CHANGELOG, kept=True),
        TopicLayout(topics.answers, wide, {"cleanup.policy": "delete", "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.state, wide, _CHANGELOG, kept=True),
        TopicLayout(topics.partials, wide, {"cleanup.policy": "delete", "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.merges, wide, _CHANGELOG, kept=True),
        TopicLayout(topics.requests, serial, {**_OUTLASTING, "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.charges, serial, _OUTLASTING),
        TopicLayout(topics.ledger, serial, _CHANGELOG, kept=True),
        TopicLayout(topics.trail, serial, _FOR_EVER, kept=True),
        TopicLayout(topics.rejected, wide, {"cleanup.policy": "delete", "max.message.bytes": str(8 * _MEGABYTE)}),
        TopicLayout(topics.status, wide, _COMPACTED),
    ]


def feed_layout(topics: Topics, source: str, partitions: int) -> TopicLayout:
    """The changelog of a live topic's tasks, which the feeds make themselves."""
    return TopicLayout(topics.feed_state(source), partitions, _CHANGELOG, kept=True)


def is_there(prefix: str, listed: Collection[str]) -> bool:
    """Whether an installation's topics are among those listed, or most of them: a live source may have the name of one."""
    names = [one.name for one in layout(Topics(prefix))]
    return 2 * len(set(names).intersection(listed)) > len(names)


def prefixes_of(topic: str) -> list[str]:
    """List the prefixes under which a topic would be an installation's own."""
    beginnings = [topic[:place] for place, character in enumerate(topic) if character == "."]
    return [
        prefix
        for prefix in beginnings
        if topic.startswith(Topics(prefix).feed_states()) or topic in {one.name for one in layout(Topics(prefix))}
    ]


def shared_partitions(prefix: str, counts: Mapping[str, int]) -> int | None:
    """How many partitions the co-partitioned ones of some topics have: as most of them; None if there is none among them.

    Where as many have one number as another, the fewer: partitions are added, and never taken away.
    """
    serial = {
        one.name for one in layout(Topics(prefix, LEDGER_PARTITIONS + 1)) if one.partitions == LEDGER_PARTITIONS
    }
    numbers = Counter(count for name, count in counts.items() if name not in serial)
    return min(numbers, key=lambda number: (-numbers[number], number), default=None)
