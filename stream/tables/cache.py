"""Bounded caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def _weigh_as_one(_: object) -> int:
    return 1


class BoundedCache(Generic[Key, Value]):
    """An LRU cache with a total weight of at most ``capacity``; each value weighs 1 by default.

    Thread-safe. A value that weighs more than ``capacity`` is not cached.
    """

    def __init__(self, capacity: int, weigh: Callable[[Value], int] = _weigh_as_one) -> None:
        self._capacity = capacity
        self._weigh = weigh
        self._weight = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = Lock()

    @property
    def weight(self) -> int:
        """The total weight of all cached values."""
        return self._weight

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        """Return the cached value and mark it as used last, or return None."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Key, value: Value) -> None:
        """Cache a value, and evict the least recently used ones until it fits."""
        weight = self._weigh(value)
        with self._lock:
            if key in self._values:
                self._weight -= self._weigh(self._values.pop(key))
            if weight > self._capacity:
                return
            self._values[key] = value
            self._weight += weight
            while self._weight > self._capacity:
                self._weight -= self._weigh(self._values.popitem(last=False)[1])


class RecentCache(Generic[Key, Value]):
    """Caches the last ``capacity`` values in use and up to as many older ones; not thread-safe."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._recent: dict[Key, Value] = {}
        self._older: dict[Key, Value] = {}

    def get(self, key: Key) -> Value | None:
        """Return the cached value, or None."""
        value = self._recent.get(key)
        if value is None and (value := self._older.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: Key, value: Value) -> None:
        """Cache a value."""
        if len(self._recent) >= self._capacity:
            self._older, self._recent = self._recent, {}
        self._recent[key] = value
