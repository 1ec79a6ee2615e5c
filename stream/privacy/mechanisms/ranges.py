"""How far a feed's values reach: the declared range, or what its grid can hold. In exact arithmetic on decimals."""

from __future__ import annotations

from decimal import Context, Decimal, Inexact

MAX_STEPS = 1 << 50
"""A feed's values, and numbers of windows, are clamped to ±2⁵⁰ steps at most; noise of 52 digits still fits beside them."""

LARGEST_NUMBER = Decimal(10**15)
"""A feed without a declared range has values up to ±10¹⁵, or as far as its grid reaches if that is less."""

LEAST_REACH = Decimal(10**9)
"""A grid that reaches less far is only taken with a declared range, within its reach."""

_exact = Context(prec=120, traps=[Inexact])


def written(number: float) -> Decimal:
    """A double as the decimal that it was written as: its shortest."""
    return Decimal(repr(float(number)))


def reach_of(grid: float) -> Decimal:
    """How far a grid reaches to either side."""
    return _exact.multiply(written(grid), Decimal(MAX_STEPS))


def range_of(grid: float, minimum: float | None, maximum: float | None) -> tuple[Decimal, Decimal]:
    """The range that a feed's values are clamped to: the declared one, or ±10¹⁵ as far as the grid reaches."""
    end = min(LARGEST_NUMBER, reach_of(grid))
    return -end if minimum is None else written(minimum), end if maximum is None else written(maximum)
