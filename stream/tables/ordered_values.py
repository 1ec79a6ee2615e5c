"""Ordered attributes: the value of each code, for quantiles and variances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from schemas import Bins, Dates, Decimals, Domain, Integers


@dataclass(frozen=True, slots=True)
class OrderedValues:
    """The values of the codes 0 … ``size`` − 1 of an attribute, in increasing order.

    A code stands for the values from ``low`` to ``high``, and ``middle`` represents them. ``step``
    is the distance of neighboring values, or None if a code is a bin: it has a rank, but no value
    to square.
    """

    size: int
    low: Callable[[int], float]
    middle: Callable[[int], float]
    high: Callable[[int], float]
    step: Fraction | None


def ordered_values(domain: Domain) -> OrderedValues | None:
    """Return the values of an ordered domain; None for categories and for dates, which are no numbers.

    A part of a date, such as its hour, is ordered, but has no variance.
    """
    match domain:
        case Integers() | Decimals():
            return _numbers(domain.in_steps, domain.unit, domain.unit)
        case Dates() if domain.part is not None:
            return _numbers(domain.part, Fraction(1), None)
        case Bins(edges=edges):
            return OrderedValues(
                domain.size,
                lambda code: float(edges[code]),
                lambda code: 0.5 * (edges[code] + edges[code + 1]),
                lambda code: float(edges[code + 1]),
                None,
            )
        case _:
            return None


def _numbers(whole: Integers, unit: Fraction, step: Fraction | None) -> OrderedValues:
    def value(code: int) -> float:
        return (whole.minimum + code) * unit.numerator / unit.denominator

    return OrderedValues(whole.size, value, value, value, step)
