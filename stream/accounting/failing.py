"""Which errors are too small: the least that is not is found with few of the bounds that a search by halves would compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

_CLEARLY: Final = 1.001
"""Bounds apart by this factor are in the order of their errors: how blocks are cut moves them by far less."""
_LOOKS: Final = 8
"""Most chords that are drawn before halves decide."""


class Failing:
    """Says of errors whether their failures are above β: what follows clearly from a smaller or larger error is not computed."""

    def __init__(self, bound: Callable[[int], float], beta: float) -> None:
        """Take the failure probability of each error in steps: none is larger than that of a smaller error but by rounding."""
        self._compute, self._beta = bound, beta
        self._known: dict[int, float] = {}
        self._low, self._high = 0, math.inf

    def __call__(self, alpha: int) -> bool:
        """Whether an error is too small."""
        if alpha <= self._low:
            return True
        return alpha < self._high and self._bound(alpha) > self._beta

    def look_near(self, guess: float, ends: tuple[int, int], resolution: int) -> None:
        """Close in on the least error by steps from a guess, then by chords of the logarithm, which is nearly a line."""
        least, most = ends
        at = max(least, min(round(guess), most))
        while self._clearly(at) is True and at < most:
            at = min(2 * at, most)
        while self._clearly(at) is False and at > least:
            at = max(at // 2, least)
        for _ in range(_LOOKS):
            low, high = self._low, self._high
            if not (low and high < math.inf) or high - low <= 2 * (1 + high // resolution):
                return
            above, below = (math.log(max(self._known[int(one)], 1e-300) / self._beta) for one in (low, high))
            # Not at the very ends, which would tell nothing new.
            share = min(max(above / (above - below), 0.02), 0.98)
            if self._clearly(low + round(share * (high - low))) is None:
                return

    def _clearly(self, alpha: int) -> bool | None:
        """Whether an error fails by more than bounds may be out of order; None if it is too near to β."""
        bound = self._bound(alpha)
        if bound > self._beta * _CLEARLY:
            self._low = max(self._low, alpha)
            return True
        if bound * _CLEARLY < self._beta:
            self._high = min(self._high, alpha)
            return False
        return None

    def _bound(self, alpha: int) -> float:
        if (known := self._known.get(alpha)) is None:
            known = self._known[alpha] = self._compute(alpha)
        return known
