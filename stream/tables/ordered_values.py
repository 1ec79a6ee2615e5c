"""Ordered attributes: the value of each code, for quantiles and variances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from schemas import Bins, Categories, Dates, Decimals, Domain, Integers


@dataclass(frozen=True, slots=True)
class OrderedValues:
    """The values of the codes 0 … ``size`` − 1 of an attribute, in increasing order.

    - ``low``, ``high``: the ends of the values for which a code stands; ``middle`` represents them.
    - ``step``: the distance of neighboring values; None if a code is a bin, which has no variance.
    - ``text``: returns the text of a code, for dates and ordered categories, whose numbers are the codes.
    - ``distances``: False for ordered categories, which have no distances.
    """

    size: int
    low: Callable[[int], float]
    middle: Callable[[int], float]
    high: Callable[[int], float]
    step: Fraction | None
    text: Callable[[int], str] | None = None
    distances: bool = True

    def has(self, form: str) -> bool:
        """Return whether a statistic of this form is defined for the values."""
        match form:
            case "quantile":
                return True
            case "iqr":
                return self.distances
            case _:
                return self.step is not None


def ordered_values(domain: Domain) -> OrderedValues | None:
    """Return the values of an ordered domain; None for categories without an order.

    Dates, their parts, such as an hour, and ordered categories have ranks, but no variance. The
    distance of two dates is a number of days, weeks or other cells; categories have none.
    """
    match domain:
        case Integers() | Decimals():
            return _numbers(domain.in_steps, domain.unit, domain.unit)
        case Dates() if domain.part is not None:
            return _numbers(domain.part, Fraction(1), None)
        case Dates() | Categories(ordered=True):
            text = domain.calendar.label if isinstance(domain, Dates) else domain.values.__getitem__
            return OrderedValues(domain.size, float, float, float, None, text, isinstance(domain, Dates))
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
