"""Computes exact answers to questions about public data."""

from __future__ import annotations

from fractions import Fraction

from schemas import Query, Source, TableSource, ValuesSource, form_of
from stream.privacy.accuracy.source_facts import range_of
from stream.tables import PredicateParser, PrivateTable, cell_codes, rows_are_public


class SimulationError(ValueError):
    """A simulation is refused or its input is invalid; the message has the remedy."""


class TableTruths:
    """Exact answers about a table."""

    def __init__(self, source: TableSource, table: PrivateTable) -> None:
        self._table = table
        self._parser = PredicateParser(source.attributes)
        self._attributes = source.attributes
        # If the number of rows is public, shares refer to all rows of the file.
        self._rows = table.public_size if rows_are_public(source) else table.private_row_count

    def numbers(self, query: Query) -> tuple[Fraction, ...]:
        """Return the exact numbers of a query in its answer's order; empty if undefined.

        Raises:
            ValueError: a worker would reject the query.
        """
        if query.group_by is not None:
            counts = self._table.group_counts(query.group_by, self._parser.parse(_where(query)))
            return tuple(map(Fraction, counts.ravel().tolist()))
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
                parts = [self._people(_where(query))]
            case "fraction":
                parts = [self._count(_where(query)) / self._rows] if self._rows else []
            case _:
                parts = [self._count(_where(query))]
        return (sum(parts, Fraction()),) if parts else ()

    def scores(self, query: Query) -> dict[str, Fraction]:
        """Return the exact score of each candidate."""
        return {
            one.name: self._score(one.where or "TRUE", one.sum, people=one.people)
            for one in query.candidates or ()
        }

    def _score(self, where: str, attribute: str | None, *, people: bool) -> Fraction:
        if attribute is not None:
            return self._total(attribute, where)
        return self._people(where) if people else self._count(where)

    def _people(self, where: str) -> Fraction:
        return Fraction(self._table.people_count(self._parser.parse(where)))

    def _count(self, where: str) -> Fraction:
        return Fraction(self._table.count(self._parser.parse(where)))

    def _total(self, attribute: str, where: str) -> Fraction:
        return Fraction(self._table.total(attribute, self._parser.parse(where)))

    def _cell(self, at: dict[str, str | int | float]) -> Fraction:
        domains = {name: self._attributes[name] for name in at}
        return Fraction(int(self._table.cell_counts(list(domains), [cell_codes(domains, at)])[0]))


class ValuesTruths:
    """Exact answers about a source of values, which queries contain; clamped to the source's range."""

    def __init__(self, source: ValuesSource) -> None:
        low, high = range_of(source.grid, source.minimum, source.maximum)
        self._low, self._high = Fraction(low), Fraction(high)

    def numbers(self, query: Query) -> tuple[Fraction, ...]:
        """Return the clamped values of a query."""
        given = query.values if query.value is None else (query.value,)
        return tuple(map(self._clamped, given or ()))

    def scores(self, query: Query) -> dict[str, Fraction]:
        """Return the exact score of each candidate."""
        return {one.name: self._clamped(one.value or 0.0) for one in query.candidates or ()}

    def _clamped(self, value: float) -> Fraction:
        # Use the shortest decimal of the double, as the query has it.
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
