"""Numbers and what they are off by, as people read them.

A bound is rounded up, and its number ends where the bound does: what is printed is no further off than what is printed beside it, but for
half of the last digit.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from math import isfinite
from typing import Final

_BOUND_DIGITS: Final = 4
_DIGITS: Final = 6
"""Of a number that comes without a bound."""

_WHOLE: Final = 2.0**53
"""From here on floats have no fraction, and are written as they are."""


def bound(alpha: float, *, grouped: bool = False) -> str:
    """A bound in four digits or all whole ones, never less than it is; ``grouped`` sets commas, as in tables and sentences."""
    return _written(alpha, _last(alpha, _BOUND_DIGITS), ROUND_CEILING, grouped=grouped)


def estimate(number: float, alpha: float | None, *, grouped: bool = False) -> str:
    """A number that is off by at most ``alpha``, to the last digit that its bound is written with."""
    place = _last(number, _DIGITS) if alpha is None else _last(alpha, _BOUND_DIGITS)
    return _written(number, place, ROUND_HALF_EVEN, grouped=grouped)


def _last(number: float, digits: int) -> int | None:
    """The power of ten of a number's last digit of so many, units at most; None where all of them are written."""
    if not number or not isfinite(number):
        return None
    return min(0, Decimal(repr(number)).adjusted() + 1 - digits)


def _written(number: float, place: int | None, rounding: str, *, grouped: bool) -> str:
    if not isfinite(number) or abs(number) >= _WHOLE:
        return f"{number:g}" if not isfinite(number) else repr(number)
    found = Decimal(repr(number))
    if place is not None and found.as_tuple().exponent < place:  # type: ignore[operator]  # it is finite
        found = found.quantize(Decimal((0, (1,), place)), rounding)
    found = found.normalize()
    if found >= 1 or found <= -1:
        found = found.quantize(Decimal((0, (1,), min(0, found.as_tuple().exponent))))  # type: ignore[arg-type]
    return f"{found or abs(found):{',' if grouped else ''}g}"
