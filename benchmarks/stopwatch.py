"""Times single steps; the best of several repeats counts, because other programs only add time."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_seconds(step: Callable[[], object], repeats: int) -> float:
    """Return the shortest time of a step."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
