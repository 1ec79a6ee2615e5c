"""Exact quantiles, variances and deviations of public data, and errors of published quantiles in rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from schemas import Query, TableSource
from stream.tables.columns_table import PrivateTable
from stream.tables.ordered_values import OrderedValues, ordered_values
from stream.tables.predicates import PredicateParser

Counts = npt.NDArray[np.int64]


class TrueStatistics:
    """The rows of each group with each value of an ordered attribute.

    Raises:
        ValueError: the attribute has no order.
    """

    def __init__(self, source: TableSource, table: PrivateTable, query: Query) -> None:
        attribute = query.quantile or query.iqr or query.variance or query.stddev or ""
        values = ordered_values(source.attributes[attribute])
        if values is None:
            raise ValueError(f"attribute '{attribute}' has no order; ask for one of integers or bins")
        predicate = PredicateParser(source.attributes).parse(query.where or "TRUE")
        counts = table.group_counts((*(query.group_by or ()), attribute), predicate)
        self._query = query
        self._values = values
        self._groups = counts.reshape(-1, values.size)

    def rank_errors(self, published: Sequence[float]) -> list[Fraction]:
        """Return by how many rows the rank of each published quantile misses the wanted rank."""
        q = self._query.q
        given = q if isinstance(q, tuple) else (0.5 if q is None else q,)
        wanted = [(counts, Fraction(repr(part))) for counts in self._groups for part in given]
        return [
            _rank_error(counts, self._values, part, number)
            for (counts, part), number in zip(wanted, published, strict=True)
        ]

    def code_of(self, text: str) -> float:
        """Return the number by which a date or an ordered category is compared."""
        label = self._values.text
        return float(next(code for code in range(self._values.size) if label is not None and label(code) == text))

    def numbers(self) -> tuple[Fraction, ...]:
        """Return the interquartile range, variance or deviation of each group; empty if a group has no rows."""
        if not all(counts.any() for counts in self._groups):
            return ()
        if self._query.iqr is not None:
            return tuple(_quartile(one, self._values, 3) - _quartile(one, self._values, 1) for one in self._groups)
        found = [_variance(one, self._values) for one in self._groups]
        return tuple(found if self._query.variance is not None else (Fraction(math.sqrt(one)) for one in found))


def _rank_error(counts: Counts, values: OrderedValues, part: Fraction, number: float) -> Fraction:
    rows = int(counts.sum())
    below = int(counts[[values.high(code) < number for code in range(values.size)]].sum())
    upto = int(counts[[values.low(code) <= number for code in range(values.size)]].sum())
    return max(Fraction(0), below - part * rows, part * rows - upto)


def _quartile(counts: Counts, values: OrderedValues, quarters: int) -> Fraction:
    upto = 4 * np.cumsum(counts)
    return Fraction(values.middle(int(np.argmax(upto >= quarters * counts.sum()))))


def _variance(counts: Counts, values: OrderedValues) -> Fraction:
    rows = int(counts.sum())
    numbers = [(Fraction(values.middle(code)), count) for code, count in enumerate(counts.tolist()) if count]
    mean = sum((value * count for value, count in numbers), Fraction()) / rows
    return sum(((value - mean) ** 2 * count for value, count in numbers), Fraction()) / rows
