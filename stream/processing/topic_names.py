"""Topic names and the partitioner that all producers share."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from aiokafka.partitioner import murmur2
from blake3 import blake3

LEDGER_PARTITIONS = 1
"""Requests, charges, ledger and trail have one partition: stream names are unique across all sources, and a privacy ledger
is serial by nature. See docs/architecture.md."""


@dataclass(frozen=True)
class Topics:
    """The topics of one installation; ``partitions`` is the count of the co-partitioned ones."""

    prefix: str = "sotto"
    partitions: int = 4

    @property
    def queries(self) -> str:
        """Queries from producers, by stream."""
        return f"{self.prefix}.queries"

    @property
    def control(self) -> str:
        """Definitions and halts from the budget service, by stream; compacted."""
        return f"{self.prefix}.control"

    @property
    def answers(self) -> str:
        """Answers from workers, by stream."""
        return f"{self.prefix}.answers"

    @property
    def state(self) -> str:
        """The workers' changelog, by stream; compacted."""
        return f"{self.prefix}.state"

    @property
    def partials(self) -> str:
        """What partitions of live topics have in closed windows, by stream; private."""
        return f"{self.prefix}.partials"

    @property
    def merges(self) -> str:
        """Merging's changelog, by stream; compacted, private."""
        return f"{self.prefix}.merges"

    def feed_state(self, source: str) -> str:
        """The changelog of a live topic's tasks, with as many partitions as that topic; compacted, private."""
        return f"{self.feed_states()}{_escaped(source)}"

    def feed_states(self) -> str:
        """How the names of all live topics' changelogs begin."""
        return f"{self.prefix}.feed."

    @property
    def requests(self) -> str:
        """Requests from operators, by source."""
        return f"{self.prefix}.requests"

    @property
    def charges(self) -> str:
        """What streams have spent, by source."""
        return f"{self.prefix}.charges"

    @property
    def ledger(self) -> str:
        """The budget service's record, by source; compacted."""
        return f"{self.prefix}.ledger"

    @property
    def trail(self) -> str:
        """What was asked and decided, entry by entry; kept for ever."""
        return f"{self.prefix}.trail"

    @property
    def rejected(self) -> str:
        """Dead letters, by stream."""
        return f"{self.prefix}.rejected"

    @property
    def status(self) -> str:
        """Digests per stream, by stream; compacted."""
        return f"{self.prefix}.status"


_SHARED = re.compile(r"\.feed(?=\.|$)|-(?:feed|alerts)(?=-|$)")


def outer_prefixes(prefix: str) -> list[str]:
    """List the prefixes whose installations could have topics or groups of the same names as this one's.

    Live sources and targets of alerts name some of them: the changelog of a live source `ledger` under `sotto` is the ledger under
    `sotto.feed`, and the feeds' group of a source `workers` is the workers' under `sotto-feed`.
    """
    return [prefix[: found.start()] for found in _SHARED.finditer(prefix) if found.start()]


_LONGEST_ESCAPED = 180
_UNSAFE = re.compile(rb"[^A-Za-z0-9.]")


@lru_cache(maxsize=4096)
def _escaped(name: str) -> str:
    """A name in characters that Kafka's topics may have: no underscores, which it takes for dots now and then."""
    written = _UNSAFE.sub(lambda match: b"-%02X" % match[0][0], name.encode()).decode()
    if len(written) <= _LONGEST_ESCAPED:
        return written
    return f"{written[: _LONGEST_ESCAPED - 34]}--{blake3(name.encode()).hexdigest(16)}"


MAX_NAME_BYTES = 128
"""Longest name of a source or a stream, and so the longest key that is anybody's."""


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that Kafka's default partitioner (murmur2) gives a name; 0 for a key too long to be one.

    Hashing is slow, and results are kept: neither may be had with keys of any length.
    """
    return _hashed(key, partitions) if len(key) <= MAX_NAME_BYTES else 0


@lru_cache(maxsize=65536)
def _hashed(key: bytes, partitions: int) -> int:
    return int(murmur2(key) & 0x7FFFFFFF) % partitions
