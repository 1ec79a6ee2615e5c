"""Streams that were opened, asked, closed and retired leave only the items listed here in the services."""

from __future__ import annotations

import tracemalloc
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np
import pytest

from benchmarks.lifetime import Lifetime, resident_bytes
from stream.budget import receipts
from stream.caches import BoundedCache, RecentCache
from stream.monitor import budget_history
from stream.processing import digest_table, topic_names
from stream.settings import Settings
from stream.worker.families import estimate_family

KEEPS_ENDED: Final = {
    "budget service: at most 4,096 names": ("NameDigests._last_block",),
    "all: digests of names until a file is written": ("DigestTable._recent",),
}
"""The collections that hold ended streams; nothing else may grow with history."""
LEAST_GROWTH: Final = 0.02
"""Least number of items for each stream with which a collection counts as growing."""
OPEN: Final = 100
"""The number of open streams, and also of streams that have ended but are not retired yet."""
RETIRE_SECONDS: Final = Settings().retire_days * 86_400
STREAMS: Final = 200_000
MAX_TRACED_BYTES: Final = 1_000
"""Most growth of traced memory for each stream, which includes new entries of full caches."""
MAX_RESIDENT_BYTES: Final = 32 << 20
"""Most growth of the process."""


def _items_by_attribute(*roots: object) -> Counter[str]:
    """Count the items of all collections that the roots reach, by class and attribute.

    Caches with a bound and queues with a greatest length are left out.
    """
    found: Counter[str] = Counter()
    seen = set(map(id, roots))
    left = list(roots)
    kept = []  # keep the object, so that no other one gets its id
    while left:
        one = left.pop()
        kept.append(one)
        for name, value in _parts(one):
            if (
                name
                and isinstance(value, Mapping | AbstractSet | list | deque | np.ndarray)
                and not _is_bounded(value)
            ):
                found[f"{type(one).__name__}.{name}"] += len(value)
            if id(value) not in seen and not isinstance(value, str | bytes | int | float | np.ndarray | type):
                seen.add(id(value))
                left.append(value)
    return found


def _is_bounded(one: object) -> bool:
    return isinstance(one, BoundedCache | RecentCache) or (isinstance(one, deque) and one.maxlen is not None)


def _parts(one: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object, or the items of a collection (with an empty name)."""
    if _is_bounded(one):
        return
    if isinstance(one, Mapping):
        yield from (("", part) for pair in list(one.items()) for part in pair)
    elif isinstance(one, list | tuple | AbstractSet | deque):
        yield from (("", part) for part in list(one))
    elif type(one).__module__.split(".")[0] in {"stream", "schemas"}:
        slots = (name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ()))
        names: set[str] = {*slots, *getattr(one, "__dict__", ())}
        yield from (
            (name, getattr(one, name)) for name in sorted(names) if name[:2] != "__" and hasattr(one, name)
        )


@pytest.fixture(autouse=True)
def small_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the bounds of caches, so that a short history reaches them."""
    monkeypatch.setattr(receipts, "MAX_RECEIPTS", 10)
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", 64)
    partition_of = topic_names._cached_partition.__wrapped__
    monkeypatch.setattr(topic_names, "_cached_partition", lru_cache(maxsize=1000)(partition_of))
    monkeypatch.setattr(budget_history, "MAX_HELD_ENTRIES", 100)
    for cache in ("ESTIMATE_CACHE_BYTES", "EXACT_COUNT_CACHE_BYTES", "QUESTION_CACHE_BYTES"):
        monkeypatch.setattr(estimate_family, cache, 100_000)


@pytest.fixture
def lifetime() -> Lifetime:
    """Return an installation with few open streams and few ended streams that are not retired yet."""
    return Lifetime(OPEN, RETIRE_SECONDS / OPEN, keeps=False)


def check_collections(lifetime: Lifetime, first: int, last: int) -> None:
    """Open ``first`` and then ``last`` streams, and find the collections that have grown in between."""
    roles = (lifetime._workers, lifetime._budget, lifetime._feeds, lifetime._tables, lifetime.monitor)
    before: Counter[str] = Counter()
    for streams in range(first, first + 4 * OPEN, OPEN // 2):
        lifetime.live(streams)
        before |= _items_by_attribute(*roles)
    lifetime.live(last)
    grown = _items_by_attribute(*roles) - before
    growing = {name for name, items in grown.items() if items > LEAST_GROWTH * (last - first)}
    assert growing - set(chain(*KEEPS_ENDED.values())) == set()


def test_history_grows_no_unlisted_collection(lifetime: Lifetime) -> None:
    """Only the collections in ``KEEPS_ENDED`` grow with the number of retired streams."""
    check_collections(lifetime, 5 * OPEN, 20 * OPEN)


def test_memory_does_not_grow_with_history(lifetime: Lifetime) -> None:
    """After the first tenth, neither the process nor its traced memory grows."""
    traced = STREAMS // 40
    lifetime.live(STREAMS // 10)
    before = resident_bytes()
    check_collections(lifetime, STREAMS // 10, STREAMS - 2 * traced)
    assert resident_bytes() - before < MAX_RESIDENT_BYTES
    tracemalloc.start()
    try:
        lifetime.live(STREAMS - traced)  # replaces all objects that were not traced
        first = tracemalloc.take_snapshot()
        lifetime.live(STREAMS)
        grown = tracemalloc.take_snapshot().compare_to(first, "lineno")
    finally:
        tracemalloc.stop()
    assert sum(line.size_diff for line in grown) < traced * MAX_TRACED_BYTES, list(map(str, grown[:10]))


def test_compacted_topics_do_not_grow_with_history() -> None:
    """A retired stream leaves 32 bytes in ``ledger``, some 50 in ``control`` and none in ``state``."""
    sizes = []
    with Lifetime(OPEN, RETIRE_SECONDS / OPEN) as lifetime:
        for streams in (5 * OPEN, 20 * OPEN):
            lifetime.live(streams)
            sizes.append({topic: kept.size for topic, kept in lifetime.kept.items()})
    first, last = sizes
    topics, retired = lifetime.topics, 15 * OPEN
    for topic, most in ((topics.state, 2), (topics.ledger, 40), (topics.control, 60)):
        assert last[topic] - first[topic] < retired * most, topic
