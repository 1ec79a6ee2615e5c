"""Bounded caches, the memory that the named caches of this process hold, and rare garbage collection.

An evicted value is computed again, so the size of a cache changes no answer.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import wraps
from threading import Lock
from typing import Any, Final, Generic, TypeVar, TypeVarTuple
from weakref import WeakSet

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Objects = TypeVarTuple("Objects")

ENTRY_BYTES: Final = 512
"""Bytes of a cache entry in addition to its value: for the key, the order and Python's objects."""

_named_caches: Final[WeakSet[Any]] = WeakSet()
_named_caches_lock: Final = Lock()


def weigh_array(array: Any) -> int:
    """Return the bytes of a cache entry whose value is an array."""
    return ENTRY_BYTES + int(array.nbytes)


def cache_bytes() -> Mapping[str, int]:
    """Return the bytes that the process's named caches hold, by name."""
    with _named_caches_lock:
        caches = list(_named_caches)
    found: dict[str, int] = {}
    for cache in caches:
        found[cache.name] = found.get(cache.name, 0) + cache.weight
    return dict(sorted(found.items()))


def _register(cache: object) -> None:
    with _named_caches_lock:
        _named_caches.add(cache)


class BoundedCache(Generic[Key, Value]):
    """An LRU cache with a total weight of at most ``capacity``; each value weighs 1 by default.

    It is thread-safe. A value that weighs more than ``capacity`` is not cached. A value that grows must
    be put again. The metrics show a cache with a ``name``; its weights must be bytes.
    """

    def __init__(self, capacity: int, weigh: Callable[[Value], int] = lambda _: 1, name: str = "") -> None:
        self.name = name
        self._capacity = capacity
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._lock = Lock()
        if name:
            _register(self)

    @property
    def weight(self) -> int:
        """The total weight of all cached values."""
        return self._weight

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """Return the cached value and mark it as used last, or return None."""
        with self._lock:
            if (entry := self._values.get(key)) is None:
                return None
            self._values.move_to_end(key)
            return entry[0]

    def put(self, key: Key, value: Value, weight: int | None = None) -> None:
        """Cache a value, and evict the least recently used ones until it fits."""
        weight = self._weigh(value) if weight is None else weight
        with self._lock:
            self._remove(key)
            if weight > self._capacity:
                return
            self._values[key] = value, weight
            self._weight += weight
            while self._weight > self._capacity:
                self._weight -= self._values.popitem(last=False)[1][1]

    def pop(self, key: Key) -> None:
        """Remove a value, if it is cached."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: Key) -> None:
        if (entry := self._values.pop(key, None)) is not None:
            self._weight -= entry[1]


def cache_by_identity(capacity: int) -> Callable[[Callable[[*Objects], Value]], Callable[[*Objects], Value]]:
    """Cache a function of immutable objects; an entry keeps its objects, so that no others get their ids."""

    def decorate(compute: Callable[[*Objects], Value]) -> Callable[[*Objects], Value]:
        cache: BoundedCache[tuple[int, ...], tuple[object, Value]] = BoundedCache(capacity)

        @wraps(compute)
        def find(*objects: *Objects) -> Value:
            ids = tuple(map(id, objects))
            if (known := cache.get(ids)) is None:
                known = objects, compute(*objects)
                cache.put(ids, known)
            return known[1]

        return find

    return decorate


class RecentCache(Generic[Key, Value]):
    """A cache of two generations of values, each with a weight of at most ``capacity``.

    A value that is put or read belongs to the recent generation. When the recent generation is full,
    it replaces the older generation, whose values are dropped. Each value weighs 1 by default; a value
    that weighs more than ``capacity`` is not cached. This cache is faster than `BoundedCache`, and not
    thread-safe. The metrics show a cache with a ``name``; its weights must be bytes.
    """

    def __init__(self, capacity: int, name: str = "") -> None:
        self.name = name
        self._capacity = capacity
        self.clear()
        if name:
            _register(self)

    @property
    def weight(self) -> int:
        """The total weight of all cached values."""
        return self._recent_weight + self._older_weight

    def clear(self) -> None:
        """Remove all values."""
        self._recent: dict[Key, tuple[Value, int]] = {}
        self._older: dict[Key, tuple[Value, int]] = {}
        self._recent_weight = self._older_weight = 0

    def get(self, key: Key) -> Value | None:
        """Return the cached value, or None."""
        entry = self._recent.get(key)
        if entry is None:
            if (entry := self._older.get(key)) is None:
                return None
            self.put(key, *entry)
        return entry[0]

    def put(self, key: Key, value: Value, weight: int = 1) -> None:
        """Cache a value, and replace an earlier value of the key."""
        if (known := self._recent.pop(key, None)) is not None:
            self._recent_weight -= known[1]
        elif (known := self._older.pop(key, None)) is not None:
            self._older_weight -= known[1]
        if weight > self._capacity:
            return
        if self._recent_weight + weight > self._capacity:
            self._older, self._recent = self._recent, {}
            self._older_weight, self._recent_weight = self._recent_weight, 0
        self._recent[key] = value, weight
        self._recent_weight += weight


def reduce_gc_frequency() -> None:
    """Collect garbage rarely, and exempt the objects that exist now, such as imported modules."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
