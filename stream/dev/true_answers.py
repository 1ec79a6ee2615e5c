"""Exact answers about public data, and errors of published quantiles in rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from schemas import Numeric, Query, Source, TableSource, ValuesSource, form_of
from stream.dev.simulation_inputs import SimulationError
from stream.formatting import cells_of
from stream.privacy.accuracy.source_facts import clamping_range
from stream.tables.columns_table import PrivateTable
from stream.tables.counted_table import CellReader
from stream.tables.predicates import PredicateParser
from stream.tables.sensitivity import OrderedValues, ordered_values, rows_are_public

Counts = npt.NDArray[np.int64]


class TableTruths:
    """Exact answers about a table."""

    def __init__(self, source: TableSource, table: PrivateTable) -> None:
        self._source = source
        self._table = table
        self._parser = PredicateParser(source.attributes, source.texts)
        self._attributes = source.attributes
        # If the number of rows is public, shares refer to all rows of the file.
        self._rows = table.public_size if rows_are_public(source) else table.private_row_count

    def numbers(self, query: Query) -> tuple[Fraction, ...]:
        """Return a query's exact numbers in its answer's order; empty if undefined, ValueError if workers reject it."""
        if query.rate is not None:
            return self._rates(query, query.rate)
        if query.group_by is not None:
            return tuple(map(Fraction, self._groups(query, _where(query))))
        match form_of(query):
            case "terms":
                parts = [Fraction(term.weight) * self._count(term.where) for term in query.terms or ()]
            case "cells":
                parts = [Fraction(cell.weight) * self._cell(cell.at) for cell in query.cells or ()]
            case "sum":
                parts = [self._total(query.sum or "", _where(query))]
            case "mean":
                rows = self._count(_where(query))
                parts = [self._total(query.mean or "", _where(query)) / rows] if rows else []
            case "people":
                parts = [self._people(_where(query), query.min_rows or 1)]
            case "person_sum":
                name, unit = query.person_sum or "", self._unit(query.person_sum or "")
                bound = math.floor((query.bound or 1) / unit)
                parts = [self._table.person_total(name, self._parser.parse(_where(query)), bound) * unit]
            case "fraction":
                parts = [self._count(_where(query)) / self._rows] if self._rows else []
            case _:
                parts = [self._count(_where(query))]
        return (sum(parts, Fraction()),) if parts else ()

    def text_groups(self, query: Query, *, people: bool) -> dict[tuple[str | int | float, ...], int] | None:
        """Map each group's values to its exact count, if the question groups by a text; else None."""
        names = query.group_by or ()
        text = next((name for name in names if name in self._source.texts), None)
        if text is None:
            return None
        declared = [name for name in names if name != text]
        found = self._table.text_groups(text, self._parser.parse(_where(query)), declared, people=people)
        cells = cells_of(self._attributes, declared)
        ranks = [0] * len(found.private_texts) if found.private_cells is None else found.private_cells.tolist()
        groups = [
            {**cells[place], text: label.decode()} for place, label in zip(ranks, found.private_texts, strict=True)
        ]
        labels = [tuple(group[name] for name in names) for group in groups]
        return dict(zip(labels, found.private_counts.tolist(), strict=True))

    def statistics(self, query: Query) -> OrderedTruths:
        """Return the exact counts behind a question about an ordered attribute."""
        return OrderedTruths(self._source, self._table, query)

    def scores(self, query: Query) -> dict[str, Fraction]:
        """Return the exact score of each candidate."""
        return {
            candidate.name: self._score(candidate.where or "TRUE", candidate.sum, people=candidate.people)
            for candidate in query.candidates or ()
        }

    def _score(self, where: str, attribute: str | None, *, people: bool) -> Fraction:
        if attribute is not None:
            return self._total(attribute, where)
        return self._people(where) if people else self._count(where)

    def _people(self, where: str, min_rows: int = 1) -> Fraction:
        return Fraction(self._table.people_count(self._parser.parse(where), min_rows))

    def _groups(self, query: Query, where: str) -> list[int]:
        """Return the count of each group; for a question with ``top``, only the largest groups' counts."""
        predicate, group_by = self._parser.parse(where), query.group_by or ()
        counts: list[int] = self._table.group_counts(group_by, predicate, people=query.people).ravel().tolist()
        return counts if query.top is None else sorted(counts, reverse=True)[: query.top]

    def _rates(self, query: Query, rate: str) -> tuple[Fraction, ...]:
        """Return the rate of each group; empty if a group has no rows."""
        where = _where(query)
        both = f"({where}) AND ({rate})"
        if query.group_by is None:
            hits, rows = [int(self._count(both))], [int(self._count(where))]
        else:
            hits, rows = self._groups(query, both), self._groups(query, where)
        return tuple(map(Fraction, hits, rows)) if all(rows) else ()

    def _count(self, where: str) -> Fraction:
        return Fraction(self._table.count(self._parser.parse(where)))

    def _total(self, attribute: str, where: str) -> Fraction:
        return self._table.total(attribute, self._parser.parse(where)) * self._unit(attribute)

    def _unit(self, attribute: str) -> Fraction:
        domain = self._attributes[attribute]
        return domain.unit if isinstance(domain, Numeric) else Fraction(1)

    def _cell(self, at: dict[str, str | int | float]) -> Fraction:
        domains = {name: self._attributes[name] for name in at}
        return Fraction(int(self._table.cell_counts(list(domains), [CellReader(domains).read(at)])[0]))


class ValuesTruths:
    """Exact answers about the values in queries, which are clamped to the source's range."""

    def __init__(self, source: ValuesSource) -> None:
        low, high = clamping_range(source.grid, source.minimum, source.maximum)
        self._low, self._high = Fraction(low), Fraction(high)

    def numbers(self, query: Query) -> tuple[Fraction, ...]:
        """Return the clamped values of a query."""
        given = query.values if query.value is None else (query.value,)
        return tuple(map(self._clamp, given or ()))

    def scores(self, query: Query) -> dict[str, Fraction]:
        """Return the exact score of each candidate."""
        return {candidate.name: self._clamp(candidate.value or 0.0) for candidate in query.candidates or ()}

    def _clamp(self, value: float) -> Fraction:
        # The query's JSON has the shortest decimal of this double, so use that decimal.
        return max(self._low, min(self._high, Fraction(repr(value))))


Truths = TableTruths | ValuesTruths


def truths_of(source: Source, table: PrivateTable | None) -> Truths:
    """Return the exact answers about a source, computed from a public table."""
    if isinstance(source, TableSource) and table is not None:
        return TableTruths(source, table)
    if isinstance(source, ValuesSource):
        return ValuesTruths(source)
    raise SimulationError(
        f"source '{source.source}': a source of records has no true answers to compare with; see 'sotto estimate' "
        "for estimates from its answers, and 'sotto plan' for their errors"
    )


def _where(query: Query) -> str:
    return "TRUE" if query.where is None else query.where


class OrderedTruths:
    """Exact statistics of an ordered attribute, from the number of rows of each group with each value.

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
        """Return the distance of each published quantile's rank from the requested rank, in rows."""
        q = self._query.q
        given = q if isinstance(q, tuple) else (0.5 if q is None else q,)
        wanted = [(counts, Fraction(repr(one))) for counts in self._groups for one in given]
        return [
            _rank_error(counts, self._values, wanted_q, number)
            for (counts, wanted_q), number in zip(wanted, published, strict=True)
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


def _rank_error(counts: Counts, values: OrderedValues, q: Fraction, published: float) -> Fraction:
    rows = int(counts.sum())
    below = int(counts[[values.high(code) < published for code in range(values.size)]].sum())
    upto = int(counts[[values.low(code) <= published for code in range(values.size)]].sum())
    return max(Fraction(0), below - q * rows, q * rows - upto)


def _quartile(counts: Counts, values: OrderedValues, quarters: int) -> Fraction:
    upto = 4 * np.cumsum(counts)
    return Fraction(values.middle(int(np.argmax(upto >= quarters * counts.sum()))))


def _variance(counts: Counts, values: OrderedValues) -> Fraction:
    rows = int(counts.sum())
    numbers = [(Fraction(values.middle(code)), count) for code, count in enumerate(counts.tolist()) if count]
    mean = sum((value * count for value, count in numbers), Fraction()) / rows
    return sum(((value - mean) ** 2 * count for value, count in numbers), Fraction()) / rows
