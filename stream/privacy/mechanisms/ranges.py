"""Ranges of a feed's values, declared or limited by the grid, in exact decimal arithmetic."""

from __future__ import annotations

from decimal import Context, Decimal, Inexact

MAX_STEPS = 1 << 50
"""A feed's values and sums are clamped to ±2⁵⁰ steps, which leaves room for 52-digit noise."""

LARGEST_NUMBER = Decimal(10**15)
"""Default range ±10¹⁵ of a feed's values, unless the grid's range is smaller."""

LEAST_REACH = Decimal(10**9)
"""A grid with a smaller range requires a declared range."""

_exact = Context(prec=120, traps=[Inexact])


def written(number: float) -> Decimal:
    """Return the shortest decimal of a double."""
    return Decimal(repr(float(number)))


def reach_of(grid: float) -> Decimal:
    """Return the largest absolute value on a grid."""
    return _exact.multiply(written(grid), Decimal(MAX_STEPS))


def range_of(grid: float, minimum: float | None, maximum: float | None) -> tuple[Decimal, Decimal]:
    """Return the range to which a feed's values are clamped: declared or default."""
    end = min(LARGEST_NUMBER, reach_of(grid))
    return -end if minimum is None else written(minimum), end if maximum is None else written(maximum)
