"""What a worker would refuse of a statement's questions, said before any of them is asked and charged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

from schemas import MAX_CATEGORIES, MAX_UNIVERSE, AnswersCalibration, GrantRecord, Integers, Pmw, TableSource
from stream.accounting import hiding
from stream.data import PredicateError, PredicateParser, attributes_of, total_sensitivity, within
from stream.data.errors import one_line
from stream.sql.errors import StatementError

_BY_WEIGHTS: Final = frozenset({"where", "fraction"})
"""What the questions to a stream of pmw by multiplicative weights consist of."""

_SUMMED: Final = ("sum", "mean")


class Check:
    """What one stream answers, from public definitions alone."""

    def __init__(
        self, source: TableSource, grant: GrantRecord, conditions: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._conditions = conditions
        self._source = source
        self._attributes = source.attributes
        self._calibration = grant.calibration
        self._parser = PredicateParser(source.attributes)
        self._stream = grant.spec.stream
        self._pmw = grant.spec.mechanism if isinstance(grant.spec.mechanism, Pmw) else None
        self._by_weights = grant.calibration.kind == "hypothesis"

    def groups(self, names: Sequence[str]) -> None:
        """Refuse groups that no stream answers."""
        if len(set(names)) < len(names):
            raise StatementError("GROUP BY: an attribute stands there twice; name it once")
        if self._cells(names) > MAX_CATEGORIES:
            raise StatementError(
                f"GROUP BY: there are {self._cells(names):,} groups; group by fewer or smaller attributes, with at most {MAX_CATEGORIES:,}"
            )

    def question(self, column: str, query: Mapping[str, Any]) -> None:
        """Refuse a question; StatementError names the column that asks it, or quotes the condition that is none."""
        named = {*query.get("group_by", ()), *(query[form] for form in _SUMMED if form in query)}
        if (where := query.get("where")) is not None:
            try:
                named |= attributes_of(self._parser.parse(where))
            except PredicateError as error:
                told = self._told() or f"column '{one_line(column)}', where {one_line(where)}: {error}"
                raise StatementError(told) from None
        if not self._is_hidden(query):
            raise StatementError(f"column '{one_line(column)}': {hiding.too_wide('answers')}")
        if self._pmw is not None:
            self._on_pmw(column, query, named, self._pmw)

    def _told(self) -> str | None:
        """What is wrong with the first condition of the statement that is no predicate, as it is written there."""
        for written, alone in self._conditions:
            try:
                self._parser.parse(alone)
            except PredicateError as error:
                return f"where {one_line(written)}: {error}"
        return None

    def _is_hidden(self, query: Mapping[str, Any]) -> bool:
        """Whether a stream of laplace has noise for a sum, or for the sum within a mean, whose ε is shared with its count."""
        form = next((form for form in _SUMMED if form in query), None)
        domain = None if form is None else self._attributes[query[form]]
        if (
            form is None
            or not isinstance(domain, Integers)
            or not isinstance(self._calibration, AnswersCalibration)
        ):
            return True
        if (where := query.get("where")) is not None:
            domain = within(domain, query[form], self._parser.parse(where))
        numbers, centre = (1, 0) if form == "sum" else (2, (domain.minimum + domain.maximum) // 2)
        width = numbers * max(1, total_sensitivity(self._source, domain, centre))
        return hiding.hides(self._calibration, width, numbers)

    def _on_pmw(self, column: str, query: Mapping[str, Any], named: set[str], mechanism: Pmw) -> None:
        if "people" in query:
            raise StatementError(
                f"column '{column}': stream '{self._stream}' is one of pmw, which counts rows and no people; name one of laplace"
            )
        if self._by_weights and not query.keys() <= _BY_WEIGHTS:
            raise StatementError(
                f"column '{column}': stream '{self._stream}' answers by multiplicative weights, which take counts and shares without "
                "GROUP BY; name one of laplace, or of pmw that is planned neither for the worst case nor by the textbook"
            )
        if lacking := sorted(named - {*mechanism.attributes}):
            raise StatementError(
                f"column '{column}': attribute '{lacking[0]}' is none of the mechanism.attributes of stream '{self._stream}'; ask about "
                + ", ".join(mechanism.attributes[:8])
            )
        if not self._by_weights and self._cells(named) > MAX_UNIVERSE:
            raise StatementError(
                f"column '{column}': the attributes named have more than {MAX_UNIVERSE:,} cells together; ask about fewer of them, or "
                "smaller ones"
            )

    def _cells(self, names: set[str] | Sequence[str]) -> int:
        return prod(self._attributes[name].size for name in names)
