"""Rounding of private values to the declared grid.

Private values are compared as integers: v becomes ⌊v/γ + ½⌋, where v, the grid γ and the
sensitivity Δ are exact decimals. So |v − v′| ≤ Δ gives integers at most ⌈Δ/γ⌉ apart, to which noise
is calibrated. A value is rounded from its double or, if this is so near to a tie that its rounding
error matters, from its decimal. Proof: ``docs/noise.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stream.privacy.accuracy.intervals import clip_interval
from stream.privacy.accuracy.source_facts import MAX_STEPS, clamping_range
from stream.privacy.composition.costs import shortest_decimal
from stream.privacy.composition.refusals import LARGEST_TOTAL

THRESHOLD_STEPS = 2 * MAX_STEPS
"""Thresholds are clamped to ±2⁵¹ steps; values of a feed are at most 2⁵⁰."""

_ROUNDING = 6 * 2.0**-53
"""Upper bound of the error of ½ + x/γ in doubles, relative to 1 + |x/γ|."""

_EXACT_GUESSES = MAX_STEPS // 4

_exact = Context(prec=120, traps=[Inexact])
_multiply = _exact.multiply

Scalar = TypeVar("Scalar", np.int64, np.float64)
Steps = npt.NDArray[np.int64]
ExactDecimal = Callable[[int], Decimal]
"""Returns the decimal of the number at an index of an array."""


def published_numbers(steps: Iterable[int], grid: float, divisor: int | Fraction = 1) -> list[float]:
    """Return the doubles nearest to steps·γ/``divisor``, as they are published."""
    numerator, denominator = _ratio(grid)
    numerator *= divisor.denominator
    denominator *= divisor.numerator
    # A quotient of two integers is rounded once, a product of doubles twice.
    return [step * numerator / denominator for step in steps]


def published_interval(
    steps: int,
    half: int,
    grid: float,
    divisor: int | Fraction = 1,
    *,
    low: float | None = None,
    high: float | None = None,
    rounded: bool = False,
) -> tuple[float, float]:
    """Return the published interval of ±``half`` steps around steps·γ/``divisor``.

    It is cut off at the public limits ``low`` and ``high`` of the true number. If values are
    ``rounded`` to the grid, it is wider by half a step on each side.
    """
    extra = 1 if rounded else 0
    first, last = published_numbers((2 * (steps - half) - extra, 2 * (steps + half) + extra), grid, 2 * divisor)
    return clip_interval((first, last), low, high)


def _clamp(numbers: npt.NDArray[Scalar], low: float, high: float) -> npt.NDArray[Scalar]:
    """Clamp numbers; numpy's own function takes three times as long for short arrays."""
    clamped: npt.NDArray[Scalar] = np.minimum(np.maximum(numbers, low), high)
    return clamped


@lru_cache(maxsize=4096)
def _ratio(grid: float) -> tuple[int, int]:
    return shortest_decimal(grid).as_integer_ratio()


@dataclass(frozen=True, slots=True)
class Grid:
    """Multiples of ``gamma``; private numbers are clamped from ``low`` to ``high`` steps."""

    gamma: Decimal
    low: int = -MAX_STEPS
    high: int = MAX_STEPS
    half: Decimal = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "half", _exact.divide(self.gamma, Decimal(2)))

    @classmethod
    def for_feed(cls, grid: float, minimum: float | None = None, maximum: float | None = None) -> Grid:
        """Return the grid of a feed's values, with their declared or default range."""
        gamma = shortest_decimal(grid)
        low, high = (cls(gamma).step_of(end) for end in clamping_range(grid, minimum, maximum))
        return cls(gamma, low, high)

    @classmethod
    def for_table(cls, grid: float) -> Grid:
        """Return the grid of a table's counts and totals, which are multiples of it."""
        return cls(shortest_decimal(grid), -LARGEST_TOTAL, LARGEST_TOTAL)

    def round_private(self, doubles: npt.ArrayLike, exact_decimal: ExactDecimal) -> Steps:
        """Return ⌊v/γ + ½⌋, clamped, for numbers v; ``doubles`` are the nearest doubles.

        ``exact_decimal`` is called only for the few numbers next to a tie.
        """
        return self._steps(doubles, exact_decimal, self.low, self.high)

    def round_public(self, doubles: npt.ArrayLike) -> Steps:
        """Return the steps of thresholds; each double stands for its shortest decimal."""
        numbers = np.asarray(doubles, dtype=np.float64)
        return self._steps(
            numbers, lambda place: shortest_decimal(float(numbers[place])), -THRESHOLD_STEPS, THRESHOLD_STEPS
        )

    def step_of(self, number: Decimal) -> int:
        """Return the step of one number, clamped to ±2⁵⁰."""
        return int(self._steps([float(number)], lambda _: number, -MAX_STEPS, MAX_STEPS)[0])

    def _steps(self, doubles: npt.ArrayLike, exact_decimal: ExactDecimal, low: int, high: int) -> Steps:
        gamma = float(self.gamma)
        end = 2.0 * max(THRESHOLD_STEPS, -low, high) * gamma
        quotients = _clamp(np.asarray(doubles, dtype=np.float64), -end, end) / gamma
        shifted = quotients + 0.5
        steps = np.floor(shifted).astype(np.int64)
        near_tie = np.abs(shifted - np.rint(shifted)) <= _ROUNDING * (np.abs(quotients) + 1.0)
        if near_tie.any():
            # Numbers far beyond the ends are clamped in any case.
            near_tie &= (quotients > low - 16.0) & (quotients < high + 16.0)
            places = np.flatnonzero(near_tie)
            guesses = np.rint(shifted[places])
            # A guess errs by less than ½ up to 2⁴⁸ steps, else by less than 2 (integers: at most 1).
            guesses += np.where(np.abs(guesses) < _EXACT_GUESSES, 0.0, 2.0)
            steps[places] = [
                self._at_most(guess, exact_decimal(place))
                for place, guess in zip(places.tolist(), guesses.astype(np.int64).tolist(), strict=True)
            ]
        return _clamp(steps, low, high)

    def _at_most(self, steps: int, number: Decimal) -> int:
        """Return ⌊number/γ + ½⌋ exactly, given the upper bound ``steps``."""
        while number < _multiply(2 * steps - 1, self.half):
            steps -= 1
        return steps
