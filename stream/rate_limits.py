"""How often one may ask: a token bucket for each asker."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

MAX_ASKERS = 10_000
"""Askers remembered; whoever has been silent longest is forgotten, and starts with a full bucket again."""


class RateLimiter:
    """Each asker may send ``burst`` requests at once and ``per_second`` for long."""

    def __init__(
        self,
        per_second: float,
        burst: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        askers: int = MAX_ASKERS,
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._askers = askers
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def wait(self, asker: Hashable) -> float:
        """Take one request from an asker's bucket. Gives 0, or the seconds to wait where the bucket is empty."""
        now = self._clock()
        left, before = self._buckets.pop(asker, (self._burst, now))
        left = min(self._burst, left + (now - before) * self._per_second)
        allowed = left >= 1.0
        self._buckets[asker] = (left - 1.0 if allowed else left, now)
        if len(self._buckets) > self._askers:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else math.ceil((1.0 - left) / self._per_second * 1000) / 1000
