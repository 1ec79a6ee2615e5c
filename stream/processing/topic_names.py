"""Topic names and the partitioner that all producers share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from functools import lru_cache

from aiokafka.partitioner import murmur2
from blake3 import blake3

LEDGER_PARTITIONS = 1
"""Number of partitions of requests, charges, ledger and trail (docs/decisions/0008-ledger-topics-have-one-partition.md)."""


@dataclass(frozen=True)
class Topics:
    """The topics of one installation; topics that are keyed by stream have ``partitions`` partitions."""

    prefix: str = "sotto"
    partitions: int = 4
    queries: str = field(init=False)
    """Queries from producers, by stream."""
    control: str = field(init=False)
    """Definitions and halts from the budget service, by stream; compacted."""
    answers: str = field(init=False)
    """Answers from workers, by stream."""
    state: str = field(init=False)
    """The workers' changelog, by stream; compacted."""
    partials: str = field(init=False)
    """Counts of live topics' partitions in closed windows, by stream; private."""
    merges: str = field(init=False)
    """The changelog of merging, by stream; compacted, private."""
    requests: str = field(init=False)
    """Requests from operators, by source."""
    charges: str = field(init=False)
    """Charges of streams, by source."""
    ledger: str = field(init=False)
    """The budget service's ledger, by source; compacted."""
    trail: str = field(init=False)
    """The audit trail; never deleted."""
    rejected: str = field(init=False)
    """Dead letters, by stream."""
    status: str = field(init=False)
    """Status of streams and heartbeats of processes; keyed by both, compacted."""

    def __post_init__(self) -> None:
        for topic in fields(self):
            if not topic.init:
                object.__setattr__(self, topic.name, f"{self.prefix}.{topic.name}")

    def feed_state(self, source: str) -> str:
        """Return the name of a live topic's changelog.

        The changelog is compacted and private, and has as many partitions as the live topic.
        """
        return f"{self.feed_changelog_prefix()}{_escape_name(source)}"

    def feed_changelog_prefix(self) -> str:
        """Return the prefix of the names of all live topics' changelogs."""
        return f"{self.prefix}.feed."

    def is_own(self, topic: str) -> bool:
        """Return whether the installation itself writes or reads this topic."""
        names = {getattr(self, one.name) for one in fields(self) if not one.init}
        return topic in names or topic.startswith(self.feed_changelog_prefix())


_NESTED_PREFIX_END = re.compile(r"\.feed(?=\.|$)|-(?:feed|alerts)(?=-|$)")


def conflicting_prefixes(prefix: str) -> list[str]:
    """List the prefixes under which another installation may have topics or groups of this one.

    With the prefix `sotto`, the changelog of a live source `ledger` has the name of the ledger topic with the prefix
    `sotto.feed`. The feed group of a source `workers` has the name of the worker group with the prefix `sotto-feed`.
    """
    return [prefix[: match.start()] for match in _NESTED_PREFIX_END.finditer(prefix) if match.start()]


_MAX_ESCAPED_LENGTH = 180
_UNSAFE = re.compile(rb"[^A-Za-z0-9.]")


@lru_cache(maxsize=4096)
def _escape_name(name: str) -> str:
    """Escape a name for Kafka topics, without underscores, which may collide with dots."""
    escaped = _UNSAFE.sub(lambda match: b"-%02X" % match[0][0], name.encode()).decode()
    if len(escaped) <= _MAX_ESCAPED_LENGTH:
        return escaped
    return f"{escaped[: _MAX_ESCAPED_LENGTH - 34]}--{blake3(name.encode()).hexdigest(16)}"


MAX_NAME_BYTES = 128
"""Longest name of a source or a stream, and the longest valid key."""


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition by Kafka's default partitioner (murmur2); 0 if the key is too long.

    Hashing is slow and results are cached, so the length of keys must be bounded.
    """
    return _cached_partition(key, partitions) if len(key) <= MAX_NAME_BYTES else 0


@lru_cache(maxsize=65536)
def _cached_partition(key: bytes, partitions: int) -> int:
    return int(murmur2(key) & 0x7FFFFFFF) % partitions
