"""Private numbers as integers: how values meet the declared grid.

Everything private is compared as a whole number of grid steps. A number v on the wire is a decimal, and so are the
grid γ and the sensitivity Δ that an operator declares; in exact arithmetic on these decimals v becomes ⌊v/γ + ½⌋.
Hence |v − v′| ≤ Δ gives integers at most ⌈Δ/γ⌉ apart, which is what noise is calibrated to. A double is off its decimal
by a rounding error, which decides nothing except beside a tie; there alone the decimal itself is looked at. The proof
stands in ``docs/noise.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, Context, Decimal, Inexact
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stream.privacy.composition.refusals import LARGEST_TOTAL
from stream.privacy.mechanisms.ranges import MAX_STEPS, range_of, written

THRESHOLD_STEPS = 2 * MAX_STEPS
"""Public thresholds are clamped to ±2⁵¹ steps: one beyond a feed's range stays beyond every value."""

_ROUNDING = 6 * 2.0**-53
"""Above the error of ½ + x/γ in doubles, relative to 1 + |x/γ|: a number's, the grid's, the quotient's and the sum's."""

_FEW = MAX_STEPS // 4

_exact = Context(prec=120, traps=[Inexact])
_multiply = _exact.multiply
_upwards = Context(prec=40, rounding=ROUND_CEILING)

Scalar = TypeVar("Scalar", np.int64, np.float64)
Steps = npt.NDArray[np.int64]
Written = Callable[[int], Decimal]
"""The number at a place of an array, as it was written."""


def shown(steps: Iterable[int], grid: float, parts: int = 1) -> list[float]:
    """Numbers of steps as they are published: the double nearest to steps·γ/``parts``, γ the decimal that the grid is."""
    numerator, denominator = _ratio(grid)
    denominator *= parts
    # A quotient of two integers is rounded once, a product of doubles twice.
    return [step * numerator / denominator for step in steps]


def _between(numbers: npt.NDArray[Scalar], low: float, high: float) -> npt.NDArray[Scalar]:
    """Numbers, clamped; numpy's own takes three times as long for a few."""
    clamped: npt.NDArray[Scalar] = np.minimum(np.maximum(numbers, low), high)
    return clamped


@lru_cache(maxsize=4096)
def _ratio(grid: float) -> tuple[int, int]:
    return written(grid).as_integer_ratio()


@dataclass(frozen=True, slots=True)
class Grid:
    """Multiples of ``gamma``; private numbers are clamped to ``low`` … ``high`` steps, which takes no two further apart."""

    gamma: Decimal
    low: int = -MAX_STEPS
    high: int = MAX_STEPS
    half: Decimal = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "half", _exact.divide(self.gamma, Decimal(2)))

    @classmethod
    def of_feed(
        cls,
        grid: float,
        *,
        sensitivity: float,
        sensitivity_steps: int,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> Grid:
        """The grid on which values ``sensitivity`` apart are at most ``sensitivity_steps`` apart.

        It is the declared one; where the steps were counted otherwise (by an earlier version, on the nearest doubles),
        that may take a grid coarser by less than doubles can tell.
        """
        gamma = max(written(grid), _upwards.divide(written(sensitivity), Decimal(sensitivity_steps)))
        low, high = (cls(gamma).step_of(end) for end in range_of(grid, minimum, maximum))
        return cls(gamma, low, high)

    @classmethod
    def whole(cls, grid: float) -> Grid:
        """The grid of a table's counts and totals, which are whole numbers of it."""
        return cls(written(grid), -LARGEST_TOTAL, LARGEST_TOTAL)

    def private(self, doubles: npt.ArrayLike, exactly: Written) -> Steps:
        """⌊v/γ + ½⌋, clamped, for the numbers v that ``exactly`` gives and ``doubles`` are nearest to.

        ``exactly`` is asked for few of them only: those beside a tie.
        """
        return self._steps(doubles, exactly, self.low, self.high)

    def public(self, doubles: npt.ArrayLike) -> Steps:
        """The steps of thresholds: each double stands for its shortest decimal."""
        numbers = np.asarray(doubles, dtype=np.float64)
        return self._steps(
            numbers, lambda place: written(float(numbers[place])), -THRESHOLD_STEPS, THRESHOLD_STEPS
        )

    def step_of(self, number: Decimal) -> int:
        """The step of one number, clamped to ±2⁵⁰."""
        return int(self._steps([float(number)], lambda _: number, -MAX_STEPS, MAX_STEPS)[0])

    def _steps(self, doubles: npt.ArrayLike, exactly: Written, low: int, high: int) -> Steps:
        gamma = float(self.gamma)
        end = 2.0 * max(THRESHOLD_STEPS, -low, high) * gamma
        quotients = _between(np.asarray(doubles, dtype=np.float64), -end, end) / gamma
        raised = quotients + 0.5
        steps = np.floor(raised).astype(np.int64)
        beside = np.abs(raised - np.rint(raised)) <= _ROUNDING * (np.abs(quotients) + 1.0)
        if beside.any():
            # Whatever lies well beyond the ends is clamped to them, tie or not.
            beside &= (quotients > low - 16.0) & (quotients < high + 16.0)
            places = np.flatnonzero(beside)
            guesses = np.rint(raised[places])
            # The error is below ½ for fewer than 2⁴⁸ steps, and below 2 for all; of whole numbers up to 2⁵³ it is 1 at most.
            guesses += np.where(np.abs(guesses) < _FEW, 0.0, 2.0)
            steps[places] = [
                self._at_most(guess, exactly(place))
                for place, guess in zip(places.tolist(), guesses.astype(np.int64).tolist(), strict=True)
            ]
        return _between(steps, low, high)

    def _at_most(self, steps: int, number: Decimal) -> int:
        """⌊number/γ + ½⌋ in exact arithmetic, where it is not above so many steps."""
        while number < _multiply(2 * steps - 1, self.half):
            steps -= 1
        return steps
