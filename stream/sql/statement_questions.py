"""Plans the questions of a statement, and the cells of the result table that their answers fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import prod
from typing import Any, Final

from schemas import (
    MAX_CATEGORIES,
    MAX_UNIVERSE,
    AnswersCalibration,
    Decimals,
    GrantRecord,
    Histogram,
    Integers,
    Pmw,
    TableSource,
)
from schemas.queries import STATISTICS, Query
from stream.privacy.noise import samplers
from stream.processing.dead_letters import Rejection
from stream.questions.results import Group, groups_of
from stream.sql.aggregates import (
    GROUPED_FORMS,
    AnswerColumn,
    StatementError,
    cell_predicates,
    column_query,
    statistic_query,
    where_field,
)
from stream.sql.select_statements import Column, GroupColumn, SelectStatement, no_aggregates_error
from stream.sql.statement_clauses import compared_columns
from stream.sql.statement_text import DeclaredNames, require_declared, require_person
from stream.tables.expressions import TRUE, attributes_of
from stream.tables.predicates import PredicateParser
from stream.tables.sensitivity import (
    excluded_groups,
    ordered_values,
    person_sensitivity,
    restrict_domain,
    total_sensitivity,
)
from stream.tables.table_errors import PredicateError, quote_names, to_one_line

_WEIGHTS_FIELDS: Final = frozenset({"where", "fraction"})
"""Fields of a query that a ``pmw`` stream by multiplicative weights supports."""

_SUM_FORMS: Final = ("sum", "mean")
_HISTOGRAM_FIELDS: Final = frozenset({"where", "fraction", "group_by", "rate", "q", *STATISTICS})
"""Fields of a query that a ``histogram`` stream supports."""


class StreamCheck:
    """Checks whether a stream's mechanism supports questions, from public definitions only."""

    def __init__(
        self, source: TableSource, grant: GrantRecord, conditions: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._conditions = conditions
        self._source = source
        self._attributes = source.attributes
        self._calibration = grant.calibration
        self._parser = PredicateParser(source.attributes, source.texts)
        self._stream = grant.spec.stream
        self._pmw = grant.spec.mechanism if isinstance(grant.spec.mechanism, Pmw) else None
        self._histogram = grant.spec.mechanism if isinstance(grant.spec.mechanism, Histogram) else None
        self._by_weights = grant.calibration.kind == "hypothesis"
        self._lacks_counts = not getattr(grant.spec.mechanism, "counts", True)

    def check_groups(self, names: Sequence[str], where: str | None) -> None:
        """Refuse repeated attributes, several texts, and too many declared groups."""
        if len(set(names)) < len(names):
            raise StatementError("GROUP BY: an attribute is named twice; name it once")
        texts = [name for name in names if name in self._source.texts]
        if len(texts) > 1:
            raise StatementError(
                f"GROUP BY: {quote_names(texts)} are texts; group by one of them, alone or with declared attributes"
            )
        cells = self._cell_count([name for name in names if name not in texts])
        if cells > MAX_CATEGORIES:
            counted = " of each text" * bool(texts) + ", counting those that WHERE excludes" * (where is not None)
            raise StatementError(
                f"GROUP BY: there are {cells:,} groups{counted}; group by fewer or smaller attributes, with at most {MAX_CATEGORIES:,}"
            )

    def check_question(self, column: str, query: Mapping[str, Any]) -> int:
        """Return the number of attributes; the StatementError names the column or quotes the condition."""
        forms = (*_SUM_FORMS, *STATISTICS)
        named = {*query.get("group_by", ()), *(query[form] for form in forms if form in query)}
        for where in (query.get("where"), query.get("rate")):
            if where is None:
                continue
            try:
                named |= attributes_of(self._parser.parse(where))
            except PredicateError as error:
                message = f"column '{to_one_line(column)}', where {to_one_line(where)}: {error}"
                raise StatementError(self._condition_error() or message) from None
        if isinstance(self._calibration, AnswersCalibration) and not self._noise_fits(self._calibration, query):
            raise StatementError(f"column '{to_one_line(column)}': {samplers.wide_noise_message('answers')}")
        if self._lacks_counts and column:
            raise StatementError(
                f"column '{column}': stream '{self._stream}' names texts and releases no counts; leave the column out, or name a stream "
                "with mechanism.counts"
            )
        ranked = [query[form] for form in STATISTICS if form in query]
        if ranked and self._cell_count([*query.get("group_by", ()), *ranked]) > MAX_UNIVERSE:
            many = f"the groups have more than {MAX_UNIVERSE:,} values of '{ranked[0]}' together"
            raise StatementError(f"column '{column}': {many}; group by fewer or smaller attributes")
        if ranked and isinstance(self._calibration, AnswersCalibration):
            self._check_statistic(column, query, self._calibration)
        if self._pmw is not None:
            self._check_pmw(column, query, named, self._pmw)
        if self._histogram is not None:
            self._check_histogram(column, query, named, self._histogram)
        return len(named)

    def _condition_error(self) -> str | None:
        """Return the error of the statement's first invalid condition, which it quotes as written."""
        for written, without_tables in self._conditions:
            try:
                self._parser.parse(without_tables)
            except PredicateError as error:
                return f"where {to_one_line(written)}: {error}"
        return None

    def _noise_fits(self, calibration: AnswersCalibration, query: Mapping[str, Any]) -> bool:
        """Return whether the noise of a sum, or a mean (a sum and a count), fits 52 binary digits."""
        if "person_sum" in query:
            summed = self._attributes[query["person_sum"]]
            width = person_sensitivity(self._source, summed, query["bound"]) if isinstance(summed, Integers) else 1
            return samplers.noise_fits(calibration, max(1, width), 1)
        form = next((form for form in _SUM_FORMS if form in query), None)
        domain = None if form is None else self._attributes[query[form]]
        if form is None or not isinstance(domain, Integers | Decimals):
            return True
        domain = domain.in_steps
        if (where := query.get("where")) is not None:
            domain = restrict_domain(domain, query[form], self._parser.parse(where))
        numbers, center = (1, 0) if form == "sum" else (2, (domain.minimum + domain.maximum) // 2)
        width = numbers * max(1, total_sensitivity(self._source, domain, center))
        return samplers.noise_fits(calibration, width, numbers)

    def _check_statistic(self, column: str, query: Mapping[str, Any], calibration: AnswersCalibration) -> None:
        """Refuse a statistic that a worker would refuse."""
        # The worker's module loads numpy, which no other statement needs.
        from stream.worker.families.laplace_statistics import plan_statistic  # noqa: PLC0415
        from stream.worker.families.statistics import build_statistic, statistic_form  # noqa: PLC0415

        asked = Query(id="planned", stream=self._stream, **query)
        form = statistic_form(asked)
        values = None if form is None else ordered_values(self._attributes[query[form]])
        if form is None or values is None:
            raise TypeError("the question is not about a statistic of an ordered attribute")
        predicate = TRUE if asked.where is None else self._parser.parse(asked.where)
        try:
            plan_statistic(
                build_statistic(self._source, asked, form, values, predicate), calibration, self._source
            )
        except Rejection as error:
            raise StatementError(f"column '{to_one_line(column)}': {error.message}") from None

    def _check_pmw(self, column: str, query: Mapping[str, Any], named: set[str], mechanism: Pmw) -> None:
        if "people" in query or "person_sum" in query:
            raise StatementError(
                f"column '{column}': stream '{self._stream}' has the mechanism pmw, which counts rows but not people; name a stream with laplace"
            )
        if self._by_weights and not query.keys() <= _WEIGHTS_FIELDS:
            raise StatementError(
                f"column '{column}': stream '{self._stream}' answers by multiplicative weights, which support counts and shares without "
                "GROUP BY; name a stream with laplace, or with pmw planned neither for the worst case nor by the textbook"
            )
        self._require_attributes(column, named, mechanism.attributes)
        ranked = [query["quantile"], *query.get("group_by", ())] if "quantile" in query else []
        for names, most in ((sorted(named), MAX_UNIVERSE), (ranked, MAX_CATEGORIES)):
            if not self._by_weights and self._cell_count(names) > most:
                cells = f"there are more than {most:,} cells of {quote_names(names)}"
                raise StatementError(f"column '{column}': {cells}; take fewer or smaller ones, or ask laplace")

    def _check_histogram(
        self, column: str, query: Mapping[str, Any], named: set[str], mechanism: Histogram
    ) -> None:
        if not query.keys() <= _HISTOGRAM_FIELDS:
            raise StatementError(
                f"column '{column}': stream '{self._stream}' has the mechanism histogram, which answers counts, shares, "
                "quantiles and spreads of rows; name a stream with laplace or pmw"
            )
        self._require_attributes(column, named, mechanism.attributes)

    def _require_attributes(self, column: str, named: set[str], attributes: Sequence[str]) -> None:
        if lacking := sorted(named - {*attributes}):
            raise StatementError(
                f"column '{column}': attribute '{lacking[0]}' is not among the mechanism.attributes of stream '{self._stream}'; ask about "
                + ", ".join(attributes[:8])
            )

    def _cell_count(self, names: set[str] | Sequence[str]) -> int:
        return prod(self._attributes[name].size for name in names)


MAX_QUESTIONS: Final = 256
"""Maximum number of questions of one statement."""


@dataclass(frozen=True, slots=True)
class StatementQuestion:
    """A question of a statement: a ``query`` without stream and id.

    Its answer fills ``column`` in the row ``row`` or, if that is None, in all rows. If ``column`` is None, the answer
    names the groups of a text, which become the rows.
    """

    column: int | None
    row: int | None
    query: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StatementPlan:
    """A planned statement: its columns, the attributes of GROUP BY, the group of each row, and its questions.

    ``excluded`` has the positions of rows that are left out whatever the table has: WHERE excludes their groups, or they
    are beyond LIMIT in an order of groups. ``most_attributes`` is the largest number of attributes of a question.
    """

    columns: tuple[Column, ...]
    groups: tuple[str, ...]
    rows: tuple[Group, ...]
    questions: tuple[StatementQuestion, ...]
    excluded: frozenset[int] = frozenset()
    most_attributes: int = 0


def plan_statement(statement: SelectStatement, source: TableSource, grant: GrantRecord) -> StatementPlan:
    """Plan the questions of a statement to a stream.

    With GROUP BY, a count, rate, quantile or variance is one question for all groups. A sum or mean is one question for
    each group except those that WHERE, or LIMIT in an order of groups, leaves out. A statement of which
    a worker would refuse a question is refused here, so that its other questions are not charged.

    Raises:
        StatementError: an attribute or condition is invalid, or the stream does not support a question.
    """
    named = DeclaredNames(source)
    columns = tuple(_resolve_column(column, named, source) for column in statement.columns)
    has_functions = any(
        one != two for one, two in zip(_conditions_of(statement.columns), _conditions_of(columns), strict=True)
    )
    for column in columns:
        if isinstance(column, AnswerColumn) and column.person is not None:
            require_person(column.person, source)
        for name in column.counted_columns if isinstance(column, AnswerColumn) else ():
            if source.person is None or name.casefold() != source.person.casefold():
                require_declared(named.find_attribute(name, "COUNT"), source)
    groups = tuple(named.find_attribute(attribute, "GROUP BY") for attribute in statement.groups)
    _require_groups(statement, columns, groups, named)
    check = StreamCheck(source, grant, () if has_functions else statement.conditions)
    check.check_groups(groups, statement.where)
    _require_numbers(statement, columns, source)
    if any(name in source.texts for name in groups):
        _require_one_count(columns)
    rows = groups_of(source, groups) or ()
    where = named.resolve_condition(statement.where)
    asked = [
        question
        for index, column in enumerate(columns)
        if isinstance(column, AnswerColumn)
        for question in _column_questions(index, column, source, groups)
    ]
    if not asked:
        # A statement without aggregates asks one question: for the groups of a text.
        if not any(name in source.texts for name in groups):
            raise no_aggregates_error()
        asked = [StatementQuestion(None, None, {"group_by": groups, **where_field(where)})]
    most_attributes = max(
        check.check_question("" if one.column is None else columns[one.column].name, one.query) for one in asked
    )
    excluded = (
        frozenset[int]()
        if where is None or not groups or not rows
        else excluded_groups(PredicateParser(source.attributes).parse(where), source, groups)
    )
    shown = [at for at in range(len(rows)) if at not in excluded]
    excluded |= _rows_beyond_limit(statement, columns, source, groups, shown)
    # If WHERE excludes all groups, a question is asked nevertheless: the result names its stream and price.
    questions = [one for one in asked if one.row not in excluded] or asked[:1]
    if len(questions) > MAX_QUESTIONS:
        raise StatementError(
            f"{len(questions):,} questions are asked, one for each sum or mean of each group; ask at most {MAX_QUESTIONS} at once: "
            "take fewer groups, or COUNT(*), which is one question for all groups"
        )
    return StatementPlan(columns, groups, rows, tuple(questions), excluded, most_attributes)


def _rows_beyond_limit(
    statement: SelectStatement,
    columns: Sequence[Column],
    source: TableSource,
    groups: Sequence[str],
    shown: list[int],
) -> frozenset[int]:
    """Return the rows that LIMIT leaves out; none if HAVING or the order depends on answers."""
    if statement.limit is None or statement.having is not None:
        return frozenset()
    for index, descending in reversed(statement.order):
        if not isinstance(column := columns[index], GroupColumn):
            return frozenset()
        shown.sort(key=partial(code_in_group, source, groups, column.attribute), reverse=descending)
    return frozenset(shown[statement.limit :])


def code_in_group(source: TableSource, groups: Sequence[str], name: str, row: int) -> int:
    """Return the code of an attribute of GROUP BY in the group of a row."""
    size, *others = (source.attributes[one].size for one in groups[groups.index(name) :])
    return row // prod(others) % size


def _conditions_of(columns: Sequence[Column]) -> list[tuple[str | None, str | None]]:
    return [(one.where, one.rate) if isinstance(one, AnswerColumn) else (None, None) for one in columns]


def _require_groups(
    statement: SelectStatement, columns: tuple[Column, ...], groups: tuple[str, ...], named: DeclaredNames
) -> None:
    same = {one.name for one in columns if isinstance(one, GroupColumn) and one.name == one.attribute}
    if clash := next((name for name in statement.aliases if name in named and name not in same), None):
        raise StatementError(
            f"GROUP BY: '{clash}' is an attribute and also the alias of another attribute's column; give the column another alias with AS"
        )
    for column in columns:
        if isinstance(column, GroupColumn) and column.attribute not in groups:
            raise StatementError(
                f"'{column.attribute}' is neither grouped by nor added up; GROUP BY it, or ask AVG of it"
            )


def _require_numbers(statement: SelectStatement, columns: Sequence[Column], source: TableSource) -> None:
    """Refuse a HAVING that compares a column of dates or categories."""
    for index in compared_columns(statement.having):
        column = columns[index]
        if isinstance(column, AnswerColumn) and column.form == "quantile":
            values = ordered_values(source.attributes[column.attribute or ""])
            if values is not None and values.text is not None:
                raise StatementError(
                    f"HAVING: '{to_one_line(column.name)}' is not a number; compare a number of the result"
                )


def _require_one_count(columns: Sequence[Column]) -> None:
    counts = [column for column in columns if isinstance(column, AnswerColumn)]
    if len(counts) > 1 or any(one.form not in {"count", "people"} or one.min_rows is not None for one in counts):
        raise StatementError(
            "GROUP BY a text: each count releases other texts; SELECT the text and one COUNT(*) or COUNT(DISTINCT person), and ask other "
            "counts in separate statements"
        )


def _resolve_column(column: Column, named: DeclaredNames, source: TableSource) -> Column:
    if isinstance(column, GroupColumn):
        return GroupColumn(column.name, named.find_attribute(column.attribute, "SELECT"))
    column = replace(
        column, where=named.resolve_condition(column.where), rate=named.resolve_condition(column.rate)
    )
    if column.attribute is None:
        return column
    clause = "SUM" if column.form == "person_sum" else column.form.upper()
    found = named.find_attribute(column.attribute, clause)
    require_declared(found, source)
    return replace(column, attribute=found)


def _column_questions(
    index: int, column: AnswerColumn, source: TableSource, groups: tuple[str, ...]
) -> Iterator[StatementQuestion]:
    if column.form in STATISTICS and column.attribute is not None:
        yield StatementQuestion(index, None, statistic_query(column, source, groups))
        return
    if column.attribute is not None and not isinstance(source.attributes[column.attribute], Integers | Decimals):
        raise StatementError(
            f"'{column.attribute}' is declared neither as integers nor as decimals, so it cannot be added up; ask COUNT(*) … GROUP BY it"
        )
    if not groups:
        yield StatementQuestion(index, None, column_query(column, column.where))
        return
    if column.form in GROUPED_FORMS:
        query = column_query(column, column.where)
        if column.form == "count" and column.where is None:
            query = {}
        yield StatementQuestion(index, None, {**query, "group_by": groups})
        return
    domains = [source.attributes[name] for name in groups]
    if prod(domain.size for domain in domains) > MAX_QUESTIONS:
        raise StatementError(
            f"there are {prod(domain.size for domain in domains):,} groups, and each sum or mean is a separate question; "
            f"ask for at most {MAX_QUESTIONS}, or COUNT(*), which is one question for all groups"
        )
    for row, cell in enumerate(product(*(cell_predicates(*one) for one in zip(groups, domains, strict=True)))):
        parts = [*([] if column.where is None else [f"({column.where})"]), *cell]
        yield StatementQuestion(index, row, column_query(column, " AND ".join(parts)))
