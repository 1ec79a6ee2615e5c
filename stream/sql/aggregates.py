"""Parses the aggregate columns of a SELECT (counts, shares, sums, means, quantiles, spreads), and builds their queries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, Literal

from sqlglot import exp

from schemas import Bins, Categories, Dates, Decimals, Domain, Integers, TableSource
from stream.errors import Invalid
from stream.tables.sensitivity import ordered_values
from stream.tables.table_errors import to_one_line


class StatementError(Invalid):
    """No stream can answer the statement; the message names a supported form.

    The message depends only on the statement and the declared attributes, never on data.

    Examples:
        >>> try:
        ...     client.sql("SELECT MAX(age) FROM people")
        ... except StatementError as error:
        ...     print(isinstance(error, Invalid))
        True
    """


SUPPORTED_AGGREGATES: Final = "ask COUNT(*), SUM(a), AVG(a), MEDIAN(a), QUANTILE(a, q), STDDEV(a), VARIANCE(a) or AVG(CASE WHEN … THEN 1 ELSE 0 END)"


def condition_of(node: Any) -> str:
    """Return the text of a condition as a predicate; whether a stream supports it is checked later."""
    if node.find(exp.Subquery, exp.Select):
        raise StatementError("a condition compares attributes with literals; write one SELECT from one table")
    return str(node.sql(dialect="postgres", identify=True, comments=False))


def join_conditions(first: str | None, second: str) -> str:
    """Join two conditions with AND."""
    return second if first is None else f"({first}) AND ({second})"


def attribute_of(node: Any, clause: str) -> str:
    """Return the attribute that a node names; StatementError, which names the ``clause``, for another node."""
    column = strip_parentheses(node) if isinstance(node, exp.Expression) else None
    if (
        not isinstance(column, exp.Column)
        or column.args.get("table")
        or not isinstance(column.this, exp.Identifier)
    ):
        of_conditions = "; of a condition, write CASE WHEN … THEN 1 ELSE 0 END" if clause in {"SUM", "AVG"} else ""
        raise StatementError(
            f"{clause}: name an attribute alone (in double quotes if it has special characters){of_conditions}"
        )
    return str(column.this.this)


def strip_parentheses(node: exp.Expr) -> exp.Expr:
    """Remove the parentheses around a node."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def remove_table_names(select: exp.Select, table: exp.Table) -> None:
    """Remove the table's name and alias from attributes: ``t.age`` becomes ``age``."""
    for column in select.find_all(exp.Column):
        if column.table in {table.name, table.alias} and not column.args.get("db"):
            column.set("table", None)


def whole_number_of(node: exp.Expr | None, max_digits: int) -> int | None:
    """Return the value of a literal that is a whole number of at most ``max_digits`` digits, else None."""
    is_whole = isinstance(node, exp.Literal) and not node.is_string and node.this.isdecimal()
    return int(node.this) if is_whole and node is not None and len(node.this) <= max_digits else None


def is_number(node: exp.Expr, number: int) -> bool:
    """Return whether a node is a literal with this value, in any notation."""
    if not isinstance(node, exp.Literal) or node.is_string:
        return False
    try:
        return float(node.this) == number
    except ValueError:
        return False


def describe_node(node: exp.Expr) -> str:
    """Return the name of a node for messages."""
    if isinstance(node, exp.Anonymous):
        return to_one_line(node.name.upper(), 60)
    if isinstance(node, exp.Func):
        return f"{node.sql_name()}"
    return "this expression"


_REMEDIES: Final[tuple[tuple[type[exp.Expr], str], ...]] = (
    (exp.Min, "ask QUANTILE(a, 0.01); the least value is one person's"),
    (exp.Max, "ask QUANTILE(a, 0.99); the largest value is one person's"),
    (exp.WithinGroup, "ask PERCENTILE_CONT(q) WITHIN GROUP (ORDER BY a), q from 0 to 1"),
    (exp.Window, "ask counts, sums or means by GROUP BY"),
    (exp.Subquery, "write one SELECT from one table"),
)

_FUNCTION_REMEDIES: Final = {
    **dict.fromkeys(("QUANTILE_CONT", "QUANTILE_DISC"), "ask QUANTILE(a, q), q from 0 to 1"),
    "IQR": "ask QUANTILE(a, 0.25) and QUANTILE(a, 0.75); 'sotto ask STREAM --iqr a' answers it at one price",
}
"""Remedies for functions of other dialects, which the parser does not know."""

_SPREADS: Final[dict[type[exp.Expr], Literal["variance", "stddev"]]] = {
    exp.Variance: "variance",
    exp.VariancePop: "variance",
    exp.Stddev: "stddev",
    exp.StddevPop: "stddev",
    exp.StddevSamp: "stddev",
}
"""The form of each aggregate of a spread; the noise hides the difference between sample and population."""


def distinct_message(declared: str = "") -> str:
    """Return the message for an unsupported COUNT(DISTINCT …); ``declared`` has the source's person column."""
    return (
        f"COUNT(DISTINCT …) counts people, by the column that the source declares as person{declared}; COUNT(*) counts rows, and "
        "SELECT a, COUNT(*) … GROUP BY a shows which values of an attribute there are"
    )


@dataclass(frozen=True, slots=True)
class AnswerColumn:
    """An aggregate column of a statement: its form, condition and attribute.

    - The form ``fraction`` is the share of all rows that satisfy ``where``.
    - ``rate`` is the share of the rows of ``where`` that satisfy the condition ``rate``.
    - ``people`` counts the people, by the column ``person``, who have at least ``min_rows`` rows.
    - ``person_sum`` adds up the people's sums of ``attribute``, each clamped to ``bound``.

    ``counted_columns`` are the columns in COUNT(column). They must exist; tables have no nulls that COUNT would skip.
    """

    name: str
    form: Literal[
        "count", "people", "fraction", "sum", "mean", "rate", "person_sum", "quantile", "variance", "stddev"
    ]
    where: str | None = None
    attribute: str | None = None
    q: float | None = None
    person: str | None = None
    counted_columns: tuple[str, ...] = ()
    rate: str | None = None
    min_rows: int | None = None
    bound: int | None = None


def parse_aggregate(name: str, node: exp.Expr, where: str | None, *, grouped: bool) -> AnswerColumn:
    """Parse an aggregate over the rows that satisfy ``where``; StatementError if unsupported."""
    if isinstance(node, exp.Filter):
        inner = condition_of(node.expression.this)
        return parse_aggregate(name, strip_parentheses(node.this), join_conditions(where, inner), grouped=grouped)
    match node:
        case exp.Count() | exp.CountIf():
            return _parse_count(name, node, where)
        case exp.Sum() | exp.Avg():
            return _parse_sum_or_mean(name, node, where, grouped=grouped)
        case exp.Div():
            return _parse_share(name, node, where, grouped=grouped)
    if (statistic := _parse_statistic(name, node, where)) is not None:
        return statistic
    instead = next((words for kind, words in _REMEDIES if isinstance(node, kind)), SUPPORTED_AGGREGATES)
    if isinstance(node, exp.Anonymous):
        instead = _FUNCTION_REMEDIES.get(node.name.upper(), instead)
    raise StatementError(f"{describe_node(node)} cannot be asked; {instead}")


def _parse_count(name: str, node: exp.Count | exp.CountIf, where: str | None) -> AnswerColumn:
    if node.expressions:
        raise StatementError("COUNT of several columns cannot be asked; ask COUNT(*)")
    counted = strip_parentheses(node.this)
    if isinstance(node, exp.CountIf):
        return AnswerColumn(name, "count", join_conditions(where, condition_of(counted)))
    if isinstance(counted, exp.Distinct):
        if len(counted.expressions) != 1 or counted.args.get("on"):
            raise StatementError(distinct_message())
        person = attribute_of(counted.expressions[0], "COUNT(DISTINCT …)")
        return AnswerColumn(name, "people", where, person=person)
    if isinstance(counted, exp.Case):
        condition, value = _parse_case(counted)
        if not _is_null(counted.args.get("default")) or isinstance(value, exp.Null):
            raise StatementError(
                "COUNT(CASE …) counts values except NULL; write CASE WHEN … THEN 1 END, with NOT to exclude rows"
            )
        where, counted = join_conditions(where, condition), value
    return AnswerColumn(name, "count", where, counted_columns=_counted_columns(counted))


def _counted_columns(node: exp.Expr) -> tuple[str, ...]:
    if isinstance(node, exp.Column):
        return (attribute_of(node, "COUNT"),)
    if not isinstance(node, exp.Star | exp.Literal | exp.Boolean):
        raise StatementError(f"COUNT({describe_node(node)}) cannot be asked; ask COUNT(*)")
    return ()


def _parse_sum_or_mean(name: str, node: exp.Sum | exp.Avg, where: str | None, *, grouped: bool) -> AnswerColumn:
    form: Literal["sum", "mean"] = "sum" if isinstance(node, exp.Sum) else "mean"
    inner = strip_parentheses(node.this)
    if not isinstance(inner, exp.Case):
        return AnswerColumn(name, form, where, attribute_of(inner, node.key.upper()))
    condition, value = _parse_case(inner)
    default = inner.args.get("default")
    else_null = _is_null(default)
    else_zero = default is not None and is_number(default, 0)
    if is_number(value, 1) and (else_zero or (else_null and form == "sum")):
        if form == "sum":
            return AnswerColumn(name, "count", join_conditions(where, condition))
        return _make_share(name, condition, where, grouped=grouped)
    if isinstance(value, exp.Column) and (else_null or (else_zero and form == "sum")):
        return AnswerColumn(name, form, join_conditions(where, condition), attribute_of(value, node.key.upper()))
    raise StatementError(
        f"this {node.key.upper()}(CASE …) cannot be asked; write CASE WHEN … THEN 1 ELSE 0 END, or CASE WHEN … THEN attribute END"
    )


def _parse_share(name: str, node: exp.Div, where: str | None, *, grouped: bool) -> AnswerColumn:
    denominator = parse_aggregate("", strip_parentheses(node.expression), None, grouped=grouped)
    numerator = parse_aggregate("", _without_factor(strip_parentheses(node.this)), None, grouped=grouped)
    forms = denominator.form, numerator.form
    if forms != ("count", "count") or denominator.where is not None or numerator.where is None:
        raise StatementError(
            "only COUNT(*) FILTER (WHERE …) / COUNT(*) can be divided; ask for each number in a separate column"
        )
    return replace(
        _make_share(name, numerator.where, where, grouped=grouped),
        counted_columns=(*numerator.counted_columns, *denominator.counted_columns),
    )


def _make_share(name: str, condition: str, where: str | None, *, grouped: bool) -> AnswerColumn:
    if where is not None or grouped:
        return AnswerColumn(name, "rate", where, rate=condition)
    return AnswerColumn(name, "fraction", condition)


def _parse_statistic(name: str, node: exp.Expr, where: str | None) -> AnswerColumn | None:
    """Parse a quantile, variance or deviation; None for other aggregates."""
    match node:
        case exp.Median():
            return AnswerColumn(name, "quantile", where, attribute_of(node.this, "MEDIAN"))
        case exp.Quantile() | exp.ApproxQuantile():
            return _parse_quantile(name, node.this, node.args.get("quantile"), where)
        case exp.WithinGroup(this=exp.PercentileCont() | exp.PercentileDisc()):
            return _parse_percentile(name, node, where)
    form = _SPREADS.get(type(node))
    return None if form is None else AnswerColumn(name, form, where, attribute_of(node.this, describe_node(node)))


def _parse_percentile(name: str, node: exp.WithinGroup, where: str | None) -> AnswerColumn:
    """Parse PERCENTILE_CONT or PERCENTILE_DISC; with DESC, the quantile is counted from the largest value."""
    ordered = node.expression.expressions if isinstance(node.expression, exp.Order) else []
    if len(ordered) != 1 or not isinstance(ordered[0], exp.Ordered):
        raise StatementError("WITHIN GROUP: order by one attribute")
    found = _parse_quantile(name, ordered[0].this, node.this.this, where)
    if not ordered[0].args.get("desc"):
        return found
    return replace(found, q=float(1 - Decimal(repr(found.q))))


def _parse_quantile(name: str, attribute: exp.Expr, q: exp.Expr | None, where: str | None) -> AnswerColumn:
    number = None if q is None else strip_parentheses(q)
    if not isinstance(number, exp.Literal) or number.is_string or not 0.0 <= float(number.this) <= 1.0:
        raise StatementError(
            "a quantile is one number from 0 to 1, such as 0.25; ask for further quantiles in separate columns"
        )
    return AnswerColumn(name, "quantile", where, attribute_of(attribute, "the quantile"), float(number.this))


def _is_null(default: exp.Expr | None) -> bool:
    return default is None or isinstance(default, exp.Null)


def _without_factor(node: exp.Expr) -> exp.Expr:
    """Remove a factor ``1.0 *`` or a cast, which statements use to divide as decimals."""
    if isinstance(node, exp.Cast):
        return strip_parentheses(node.this)
    if isinstance(node, exp.Mul):
        sides = [strip_parentheses(node.this), strip_parentheses(node.expression)]
        kept = [side for side in sides if not is_number(side, 1)]
        if len(kept) == 1:
            return kept[0]
    return node


def _parse_case(node: exp.Case) -> tuple[str, exp.Expr]:
    branches = node.args["ifs"]
    if node.this is not None or len(branches) != 1:
        raise StatementError("a CASE has one WHEN with a condition; write one column for each condition")
    return condition_of(branches[0].this), strip_parentheses(branches[0].args["true"])


SPREAD_FORMS: Final = ("variance", "stddev")

GROUPED_FORMS: Final = frozenset({"count", "people", "rate"})
"""Forms whose numbers for all groups are one question."""


def statistic_query(column: AnswerColumn, source: TableSource, groups: tuple[str, ...]) -> dict[str, Any]:
    """Return the query of a quantile, variance or deviation for all groups."""
    attribute = column.attribute or ""
    values = ordered_values(source.attributes[attribute])
    if values is None or not values.has_statistic(column.form):
        is_spread = column.form in SPREAD_FORMS
        wanted = "integers or decimals" if is_spread else "numbers, bins, dates or ordered categories"
        raise StatementError(f"'{attribute}' is not declared as {wanted}; ask COUNT(*) … GROUP BY it")
    if attribute in groups:
        raise StatementError(
            f"GROUP BY: '{attribute}' is also the attribute of a column; group by other attributes"
        )
    found: dict[str, Any] = {column.form: attribute, **where_field(column.where)}
    found |= {} if column.q is None else {"q": column.q}
    return found | ({"group_by": groups} if groups else {})


def column_query(column: AnswerColumn, where: str | None) -> dict[str, Any]:
    """Return the query of a column over the rows that satisfy a condition."""
    condition = where_field(where)
    match column.form:
        case "count":
            return {"where": where or "TRUE"}
        case "people":
            least = {} if column.min_rows is None else {"min_rows": column.min_rows}
            return {"people": True, **least, **condition}
        case "rate":
            return {"rate": column.rate, **condition}
        case "person_sum":
            return {"person_sum": column.attribute, "bound": column.bound, **condition}
        case "fraction":
            return {**condition, "fraction": True}
        case form:
            return {form: column.attribute, **condition}


def where_field(where: str | None) -> dict[str, str]:
    """Return the field of a condition; no field without one."""
    return {} if where is None else {"where": where}


def cell_predicates(name: str, domain: Domain) -> tuple[str, ...]:
    """Return the predicate of each value or bin; the first and the last bin are open at their outer end."""
    quoted = '"' + name.replace('"', '""') + '"'
    match domain:
        case Categories(values=values):
            return tuple(f"{quoted} = '{value.replace(chr(39), chr(39) * 2)}'" for value in values)
        case Integers(minimum=minimum, maximum=maximum):
            return tuple(f"{quoted} = {value}" for value in range(minimum, maximum + 1))
        case Dates(part=Integers()):
            return tuple(f"{quoted} = {value}" for value in domain.values())
        case Dates():
            return tuple(f"{quoted} = '{value}'" for value in domain.values())
        case Decimals(in_steps=whole):
            return tuple(
                f"{quoted} = {domain.format_steps(step)}" for step in range(whole.minimum, whole.maximum + 1)
            )
        case Bins(edges=edges):
            last = len(edges) - 2
            found = []
            for index, (low, high) in enumerate(pairwise(edges)):
                sides = [f"{quoted} >= {low!r}"] * (index > 0) + [f"{quoted} < {high!r}"] * (index < last)
                found.append(" AND ".join(sides) or "TRUE")
            return tuple(found)
