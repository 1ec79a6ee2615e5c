"""What a comparison means for an attribute: the set of codes that satisfy it, by exact arithmetic."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Literal

from schemas import Bins, Categories, Domain, Integers
from stream.data.errors import PredicateError, shown
from stream.data.expressions import FALSE, TRUE, Predicate, codes, conjunction, disjunction, negation

Operator = Literal["=", "<>", "<", "<=", ">", ">="]
Constant = str | Decimal
"""A literal of a predicate: a string, or a number as it was written."""

MAX_DECIMAL_EXPONENT = 30
_LISTED_VALUES = 4


def number(text: str) -> Decimal:
    """Read a number literal exactly; its decimal exponent is at most 30 either way."""
    try:
        value = Decimal(text)
    except ArithmeticError:
        raise PredicateError(f"{shown(text)} is not a number") from None
    if not value:
        return Decimal(0)
    if not value.is_finite() or abs(value.adjusted()) > MAX_DECIMAL_EXPONENT:
        raise PredicateError(f"number {shown(text)} is beyond 1e±{MAX_DECIMAL_EXPONENT}; write one within")
    return value


@dataclass(frozen=True)
class Attribute:
    """A declared attribute, as comparisons see it."""

    name: str
    domain: Domain

    def compare(self, operator: Operator, literal: Constant) -> Predicate:
        """The rows whose value stands in the given relation to the literal."""
        match self.domain:
            case Categories():
                return self._compare_category(operator, literal)
            case Integers() as integers:
                return self._compare_integer(integers, operator, self._number(literal))
            case Bins() as bins:
                return self._compare_bin(bins, operator, self._number(literal))

    def between(self, low: Constant, high: Constant) -> Predicate:
        """The rows whose value lies between the literals, both included; none if they are the wrong way round."""
        return conjunction((self.compare(">=", low), self.compare("<=", high)))

    def among(self, literals: Iterable[Constant]) -> Predicate:
        """The rows whose value is one of the literals."""
        return disjunction([self.compare("=", literal) for literal in literals])

    @cached_property
    def _code_of(self) -> dict[str, int]:
        values = self.domain.values if isinstance(self.domain, Categories) else ()
        return {value: code for code, value in enumerate(values)}

    def _number(self, literal: Constant) -> Decimal:
        if isinstance(literal, str):
            raise PredicateError(
                f"{shown(self.name)} is numeric; write {shown(literal)} as a number without quotes"
            )
        return literal

    def _compare_category(self, operator: Operator, literal: Constant) -> Predicate:
        if operator not in {"=", "<>"}:
            raise PredicateError(f"categories of {shown(self.name)} have no order; compare with =, <> or IN")
        if not isinstance(literal, str):
            raise PredicateError(f"{shown(self.name)} holds categories; put '{literal}' in single quotes")
        code = self._code_of.get(literal)
        if code is None:
            listed = ", ".join(shown(value) for value in list(self._code_of)[:_LISTED_VALUES])
            more = ", …" if self.domain.size > _LISTED_VALUES else ""
            raise PredicateError(
                f"{shown(literal)} is not a declared value of {shown(self.name)}; declared are {listed}{more}",
            )
        equal = codes(self.name, self.domain.size, (code, code + 1))
        return equal if operator == "=" else negation(equal)

    def _compare_integer(self, domain: Integers, operator: Operator, literal: Decimal) -> Predicate:
        floor, ceiling = math.floor(literal) - domain.minimum, math.ceil(literal) - domain.minimum
        match operator:
            case "<" | ">=":
                below = codes(self.name, domain.size, (0, ceiling))
                return below if operator == "<" else negation(below)
            case "<=" | ">":
                up_to = codes(self.name, domain.size, (0, floor + 1))
                return up_to if operator == "<=" else negation(up_to)
            case "=" | "<>":
                equal = codes(self.name, domain.size, (floor, floor + 1)) if floor == ceiling else FALSE
                return equal if operator == "=" else negation(equal)

    def _compare_bin(self, domain: Bins, operator: Operator, literal: Decimal) -> Predicate:
        edge = bisect_left(domain.edges, float(literal))
        if edge == len(domain.edges) or domain.edges[edge] != float(literal):
            nearest = " or ".join(repr(value) for value in domain.edges[max(edge - 1, 0) : edge + 1])
            raise PredicateError(f"{literal:.15g} is not a bin edge of {shown(self.name)}; use {nearest}")
        # The last bin holds its upper edge, so that edge can be told from what lies above, but not from below.
        is_last = edge == domain.size
        if operator in {"<=", ">"} and is_last:
            return TRUE if operator == "<=" else FALSE
        if operator in {"<", ">="} and not is_last:
            below = codes(self.name, domain.size, (0, edge))
            return below if operator == "<" else negation(below)
        remedy = "use <= or > with the last edge" if is_last else "use < or >= with an edge"
        raise PredicateError(f"bins of {shown(self.name)} cannot tell {operator} {literal:.15g}; {remedy}")
