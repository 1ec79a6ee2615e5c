"""Caches: the values that they keep, their weights, and their metrics."""

from __future__ import annotations

import numpy as np
from prometheus_client import CollectorRegistry

from stream.caches import ENTRY_BYTES, BoundedCache, RecentCache, cache_by_identity, weigh_array
from stream.engine.health import CacheCollector


def test_bounded_cache_keeps_the_latest_used_values_in_its_weight() -> None:
    cache: BoundedCache[str, bytes] = BoundedCache(10, len)
    cache.put("a", b"1234")
    cache.put("b", b"1234")
    assert cache.get("a") == b"1234"
    cache.put("c", b"1234")
    assert cache.get("b") is None
    assert (len(cache), cache.weight) == (2, 8)
    cache.put("a", b"12")
    assert cache.weight == 6
    cache.put("huge", b"x" * 11)
    assert cache.get("huge") is None
    assert (len(cache), cache.weight) == (2, 6)
    cache.put("all", b"x" * 10)
    assert (len(cache), cache.weight) == (1, 10)


def test_function_is_computed_once_for_the_same_objects() -> None:
    """Equal objects are others, and no object gets the id of one that an entry needs."""
    computed: list[str] = []

    @cache_by_identity(2)
    def join(*objects: list[str]) -> str:
        computed.append("".join(map("".join, objects)))
        return computed[-1]

    one, other = ["a"], ["b"]
    assert [join(one, other), join(one, other), join(other, one)] == ["ab", "ab", "ba"]
    assert [join([str(number)]) for number in range(9)] == [str(number) for number in range(9)]
    assert computed == ["ab", "ba", *map(str, range(9))]


def test_recent_cache_keeps_the_latest_used_values() -> None:
    cache: RecentCache[int, str] = RecentCache(3)
    for number in range(3):
        cache.put(number, str(number))
    cache.put(3, "3")
    assert cache.get(0) == "0"
    for number in range(4, 7):
        cache.put(number, str(number))
    assert cache.get(0) == "0"
    assert cache.get(1) is None
    assert len(cache._recent) + len(cache._older) <= 6


def test_recent_cache_weighs_at_most_twice_its_capacity() -> None:
    cache: RecentCache[int, str] = RecentCache(10)
    for number in range(100):
        cache.put(number % 7, "x", number % 12)
        assert cache.weight <= 20
        assert cache.weight == sum(weight for _, weight in (*cache._recent.values(), *cache._older.values()))
    cache.put(99, "x", 11)
    assert cache.get(99) is None
    cache.clear()
    assert (cache.weight, cache.get(1)) == (0, None)


def test_recent_cache_weighs_a_value_once() -> None:
    """A value that is read or put again leaves the older generation; a value that is too heavy leaves both."""
    cache: RecentCache[str, str] = RecentCache(10)
    cache.put("a", "1", 6)
    cache.put("b", "2", 6)
    assert cache.get("a") == "1"
    assert cache.weight == 12
    cache.put("a", "3", 2)
    assert (cache.get("a"), cache.weight) == ("3", 8)
    cache.put("a", "4", 11)
    assert (cache.get("a"), cache.weight) == (None, 6)


def test_bounded_cache_counts_a_value_that_grew_when_it_is_put_again() -> None:
    cache: BoundedCache[str, list[int]] = BoundedCache(10, len)
    cache.put("grows", value := [1, 2])
    value.extend([3] * 6)
    cache.put("other", [1, 2])
    assert cache.weight == 4
    cache.put("grows", value)
    assert cache.weight == 10
    cache.pop("grows")
    assert (cache.weight, cache.get("grows")) == (2, None)


def test_metrics_show_the_bytes_of_named_caches_of_equal_name_together() -> None:
    caches = [BoundedCache[int, np.ndarray](1 << 20, weigh_array, "test arrays") for _ in range(2)]
    for place, cache in enumerate(caches):
        cache.put(place, np.zeros(100))
    registry = CollectorRegistry()
    registry.register(CacheCollector("worker"))
    shown = registry.get_sample_value("sotto_worker_cache_bytes", {"cache": "test arrays"})
    assert shown == 2 * (800 + ENTRY_BYTES)
