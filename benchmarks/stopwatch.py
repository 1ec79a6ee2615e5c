"""Timing single steps: the best of several repeats, for other programs on a machine only ever add."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_seconds(step: Callable[[], object], repeats: int) -> float:
    """The shortest time that a step took."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
