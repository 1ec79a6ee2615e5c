"""Statements become questions; a statement without an equivalent question is refused with possible ones."""

from __future__ import annotations

import logging
import re
from contextlib import suppress

import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st

from stream.sql.aggregates import AnswerColumn, StatementError
from stream.sql.select_statements import GroupColumn, parse_statement
from stream.sql.statement_clauses import Comparison, satisfies_having


def test_counts_by_a_group_are_read() -> None:
    statement = parse_statement("SELECT sex, COUNT(*) FROM adult WHERE age >= 65 GROUP BY sex")
    assert statement.table == "adult"
    assert statement.groups == ("sex",)
    assert statement.columns == (GroupColumn("sex", "sex"), AnswerColumn("count(*)", "count", '"age" >= 65'))


COUNT = AnswerColumn("n", "count", "\"sex\" = 'F'")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ("COUNT(*) FILTER (WHERE sex = 'F')", COUNT),
        ("COUNT(CASE WHEN sex = 'F' THEN 1 END)", COUNT),
        ("COUNT(CASE WHEN sex = 'F' THEN 1 ELSE NULL END)", COUNT),
        ("SUM(CASE WHEN sex = 'F' THEN 1 ELSE 0 END)", COUNT),
        ("SUM(CASE WHEN sex = 'F' THEN 1 END)", COUNT),
        ("COUNT_IF(sex = 'F')", COUNT),
        ("COUNT(1)", AnswerColumn("n", "count")),
        ("COUNT(age)", AnswerColumn("n", "count", counted_columns=("age",))),
        ("SUM(age)", AnswerColumn("n", "sum", None, "age")),
        ("SUM(CASE WHEN sex = 'F' THEN age ELSE 0 END)", AnswerColumn("n", "sum", "\"sex\" = 'F'", "age")),
        ("AVG(age) FILTER (WHERE sex = 'F')", AnswerColumn("n", "mean", "\"sex\" = 'F'", "age")),
        ("AVG(CASE WHEN sex = 'F' THEN age END)", AnswerColumn("n", "mean", "\"sex\" = 'F'", "age")),
        ("AVG(CASE WHEN sex = 'F' THEN 1.0 ELSE 0 END)", AnswerColumn("n", "fraction", "\"sex\" = 'F'")),
        ("COUNT(*) FILTER (WHERE sex = 'F') * 1.0 / COUNT(*)", AnswerColumn("n", "fraction", "\"sex\" = 'F'")),
        ("COUNT_IF(sex = 'F')::float / COUNT(*)", AnswerColumn("n", "fraction", "\"sex\" = 'F'")),
        ("MEDIAN(age)", AnswerColumn("n", "quantile", None, "age")),
        ("QUANTILE(age, 0.9)", AnswerColumn("n", "quantile", None, "age", 0.9)),
        ("PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY age)", AnswerColumn("n", "quantile", None, "age", 0.9)),
        ("PERCENTILE_DISC(0.1) WITHIN GROUP (ORDER BY age DESC)", AnswerColumn("n", "quantile", None, "age", 0.9)),
        (
            "MEDIAN(age) FILTER (WHERE sex = 'F')",
            AnswerColumn("n", "quantile", "\"sex\" = 'F'", "age"),
        ),
        ("STDDEV(age)", AnswerColumn("n", "stddev", None, "age")),
        ("STDDEV_SAMP(age)", AnswerColumn("n", "stddev", None, "age")),
        ("VAR_POP(age)", AnswerColumn("n", "variance", None, "age")),
    ],
)
def test_notations_of_one_question_are_one_question(column: str, expected: AnswerColumn) -> None:
    assert parse_statement("SELECT ? AS n FROM adult".replace("?", column)).columns == (expected,)


def test_conditions_of_column_and_statement_both_hold() -> None:
    (column,) = parse_statement(
        "SELECT COUNT(*) FILTER (WHERE sex = 'F') AS n FROM adult WHERE age < 5 OR age > 70"
    ).columns
    assert column == AnswerColumn("n", "count", '("age" < 5 OR "age" > 70) AND ("sex" = \'F\')')


@pytest.mark.parametrize("name", ["alter", "Create", "drop", "grant", "insert", "rollback"])
def test_verbs_of_other_statements_are_names_of_attributes(name: str) -> None:
    """``alter`` is German for age."""
    text = "SELECT ?, AVG(?) AS m FROM staff WHERE ? > 40 AND NOT ? = 50 GROUP BY ? ORDER BY ?"
    assert parse_statement(text.replace("?", name)) == parse_statement(text.replace("?", f'"{name}"'))
    with pytest.raises(StatementError, match="2 statements"):
        parse_statement("SELECT COUNT(*) FROM a; DROP TABLE a")


def test_mean_over_some_rows_is_not_read_as_one_over_all() -> None:
    with pytest.raises(StatementError, match="CASE"):
        parse_statement("SELECT AVG(CASE WHEN sex = 'F' THEN age ELSE 0 END) FROM adult")
    with pytest.raises(StatementError, match="CASE"):
        parse_statement("SELECT AVG(CASE WHEN sex = 'F' THEN 1 END) FROM adult")
    for ending in ("1 ELSE 0", "NULL ELSE 1", "NULL"):
        with pytest.raises(StatementError, match="counts values except NULL; write CASE WHEN … THEN 1 END"):
            parse_statement(f"SELECT COUNT(CASE WHEN sex = 'F' THEN {ending} END) FROM adult")  # noqa: S608


@pytest.mark.parametrize(
    "column", ["AVG(CASE WHEN sex = 'F' THEN 1 ELSE 0 END)", "COUNT(*) FILTER (WHERE sex = 'F') / COUNT(*)"]
)
def test_shares_of_some_rows_are_rates(column: str) -> None:
    rate = "\"sex\" = 'F'"
    statement = "SELECT race, ? AS r FROM adult WHERE age < 5 GROUP BY race".replace("?", column)
    assert parse_statement(statement).columns[1] == AnswerColumn("r", "rate", '"age" < 5', rate=rate)


def test_subqueries_by_person_count_and_sum_people() -> None:
    repeaters = (
        "SELECT COUNT(*) AS n FROM (SELECT who FROM visits WHERE days > 1 GROUP BY who HAVING COUNT(*) >= 2)"
    )
    statement = parse_statement(repeaters)
    assert statement.table == "visits"
    assert statement.columns == (AnswerColumn("n", "people", '"days" > 1', person="who", min_rows=2),)
    assert parse_statement(repeaters.replace(">= 2", "> 1") + " AS x").columns == statement.columns
    [column] = parse_statement(
        "SELECT SUM(LEAST(s, 9)) AS t FROM (SELECT who, SUM(days) AS s FROM visits GROUP BY who)"
    ).columns
    assert column == AnswerColumn("t", "person_sum", None, "days", person="who", bound=9)


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("COUNT(*) >= 3", [3, 5]),
        ("3 > n", [1]),
        ("n BETWEEN 2 AND 4", [3]),
        ("n < 2 OR n = 5.0", [1, 5]),
        ("NOT n <> 3", [3]),
        ("n > -1 AND (n <= 3)", [1, 3]),
    ],
)
def test_having_keeps_rows_by_their_published_numbers(condition: str, kept: list[int]) -> None:
    statement = parse_statement(f"SELECT sex, COUNT(*) AS n FROM adult GROUP BY sex HAVING {condition}")  # noqa: S608
    assert statement.having is not None
    rows = [{"sex": "F", "n": number} for number in (1, 3, 5, None)]
    found = [row["n"] for row in rows if satisfies_having(statement.having, row, ("sex", "n"))]
    assert found == kept


def test_names_may_be_qualified_by_the_table_or_its_alias() -> None:
    statement = parse_statement(
        'SELECT t.sex, COUNT(*) FROM "adult" AS t WHERE t.age > 3 AND adult.age < 9 GROUP BY t.sex'
    )
    assert statement.columns[1] == AnswerColumn("count(*)", "count", '"age" > 3 AND "age" < 9')
    with pytest.raises(StatementError, match="name an attribute alone"):
        parse_statement("SELECT COUNT(*) FROM adult GROUP BY other.sex")


@pytest.mark.parametrize(
    "name", ["fever-watch", "fever-watch-2", "visits@2013-01", "a:b", "a/b", "a+b", "ward.7", "7up"]
)
@pytest.mark.parametrize("rest", ["", ";", " WHERE age > 3", " AS t", " LIMIT 1"])
def test_name_with_special_characters_needs_double_quotes(name: str, rest: str) -> None:
    """Without quotes it is refused, and never read as another name."""
    with pytest.raises(
        StatementError,
        match=f'in double quotes if it has special characters.*: FROM "{re.escape(name)}"(, or without the schema|$)',
    ):
        parse_statement(f"SELECT COUNT(*) FROM {name}{rest}")  # noqa: S608
    assert parse_statement(f'SELECT COUNT(*) FROM "{name}"{rest}').table == name  # noqa: S608


def test_result_can_be_ordered_and_limited() -> None:
    statement = parse_statement("SELECT race, COUNT(*) n FROM adult GROUP BY 1 ORDER BY n DESC, 1 LIMIT 3")
    assert (statement.groups, statement.order, statement.limit) == (("race",), ((1, True), (0, False)), 3)


def test_order_finds_aliased_column_by_its_expression() -> None:
    """ORDER BY and HAVING accept the expression of a column with an alias; an alias goes before an attribute."""
    statement = parse_statement(
        "SELECT race, (COUNT(*)) AS n FROM adult GROUP BY 1 HAVING COUNT(*) > 9 ORDER BY COUNT(*)"
    )
    assert (statement.order, statement.having) == (((1, False),), Comparison(1, ">", 9.0))
    assert parse_statement("SELECT COUNT(*) FROM a; -- all") == parse_statement("SELECT COUNT(*) FROM a")
    swapped = parse_statement("SELECT a AS b, b AS a, COUNT(*) FROM t GROUP BY t.a, t.b ORDER BY a")
    assert swapped.order == ((1, False),)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "statements are given; give one SELECT"),
        ("SELECT COUNT(*) FROM a; SELECT COUNT(*) FROM a", "statements are given; give one SELECT"),
        ("selec", "begins with SELECT, not with 'selec'"),
        ("SELECT (", "cannot be read near line 1, column 8; ask COUNT"),
        ("SELECT COUNT(*) FROM a WHERE union = 'b'", '; if union is a name, write "union"; ask COUNT'),
        ("SELECT b, union, COUNT(*) FROM a GROUP BY b, union", '; if union is a name, write "union"; ask COUNT'),
        ("SELECT b" + " " * 200 + ", union" + " " * 200 + ", 1 FROM a", "cannot be read near"),
        ("SELECT COUNT(*) FROM a WHERE b c d", "near line 1, column [0-9]+; ask COUNT"),
        ("SELECT QUANTILE_DISC(b, 0.5) FROM a", "QUANTILE_DISC cannot be asked; ask QUANTILE"),
        ("SELECT IQR(b) FROM a", "IQR cannot be asked; ask QUANTILE"),
        ("SELECT FOO(b) FROM a", r"FOO cannot be asked; ask COUNT.*, QUANTILE\(a, q\), "),
        ("SELECT COUNT(*) FROM a WHERE b = 'c", "character 34: this quote is not closed; close it"),
        ("SELECT COUNT(*) FROM a WHERE b = %(c)s", r"'%\(c\)s' is no placeholder"),
        ("DELETE FROM a", "begins with SELECT, not with 'DELETE'"),
        ("SELECT COUNT(*) FROM a UNION SELECT COUNT(*) FROM b", "one SELECT"),
        ("SELECT COUNT(*)", "FROM"),
        ("SELECT COUNT(*) FROM a, b", "statements are about one table"),
        ("SELECT COUNT(*) FROM a JOIN b ON a.x = b.x", "statements are about one table"),
        ("SELECT COUNT(*) FROM (SELECT 1) AS x", "FROM"),
        ("SELECT COUNT(*) FROM f(3)", "FROM"),
        ("SELECT COUNT(*) FROM main.a", 'FROM "main.a", or without the schema: FROM "a"$'),
        ('SELECT COUNT(*) FROM "main"."a"', "by its name alone .*, and without a schema"),
        (
            "SELECT q.b, q.n FROM (SELECT b, COUNT(*) AS n FROM a GROUP BY b) AS q",
            "leave the outer SELECT out: SELECT a",
        ),
        (
            "SELECT * FROM (SELECT b, COUNT(*) AS n FROM a GROUP BY b) AS q",
            "FROM a subquery: .*leave the outer SELECT out",
        ),
        ("SELECT COUNT(*) FROM a TABLESAMPLE (10)", "by its name alone"),
        ("WITH x AS (SELECT 1) SELECT COUNT(*) FROM x", "one SELECT from one table"),
        ("SELECT COUNT(*) FROM a HAVING SUM(b) > 1", "write it in SELECT as well"),
        ("SELECT sex, COUNT(*) FROM a GROUP BY sex HAVING sex > 1", "into WHERE"),
        ("SELECT COUNT(*) AS n FROM a HAVING n > m", "compare a number of the result"),
        ("SELECT COUNT(*) FROM (SELECT who FROM a GROUP BY who HAVING COUNT(*) < 2)", "whole number k"),
        ("SELECT COUNT(*) FROM (SELECT who FROM a GROUP BY who) WHERE x = 1", "inside the subquery"),
        ("SELECT AVG(s) FROM (SELECT who, SUM(x) AS s FROM a GROUP BY who)", "SUM\\(LEAST"),
        ("SELECT SUM(s) FROM (SELECT who, SUM(x) AS s FROM a GROUP BY who)", "SUM\\(LEAST"),
        ("SELECT COUNT(*) INTO b FROM a", "INTO"),
        ("SELECT COUNT(*) FROM a FOR UPDATE", "LOCK"),
        ("SELECT COUNT(*) FROM a OFFSET 3", "drop rows from the result"),
        ("SELECT COUNT(*) FROM a LIMIT 1 + 1", "whole number"),
        ("SELECT COUNT(*) FROM a LIMIT 0", "0 would return no row but charge for all"),
        ("SELECT COUNT(*) FROM a FETCH FIRST 0 ROWS ONLY", "0 would return no row"),
        ("SELECT sex, COUNT(*) FROM a GROUP BY sex FETCH FIRST 20 PERCENT ROWS ONLY", "without PERCENT"),
        ("SELECT sex, COUNT(*) FROM a GROUP BY sex FETCH FIRST 2 ROWS WITH TIES", "WITH TIES"),
        ("SELECT COUNT(age, sex) FROM a", "several columns"),
        ("SELECT COUNT(b.age) FROM a", "name an attribute alone"),
        ("SELECT COUNT(CASE WHEN age > 3 THEN age + 1 END) FROM a", "COUNT"),
        ('SELECT COUNT(*) AS n, SUM(age) AS "n ±" FROM a', "give the column another name with AS"),
        ("SELECT COUNT(*) FROM a ORDER BY age", "a column of the result"),
        ("SELECT COUNT(*) FROM a ORDER BY 2", "a column of the result"),
        ("SELECT * FROM a", "COUNT"),
        ("SELECT age FROM a", "GROUP BY it, or ask AVG"),
        ("SELECT DISTINCT age + 1 FROM a", "GROUP BY a"),
        ("SELECT COUNT(DISTINCT age, sex) FROM a", "COUNT\\(\\*\\) counts"),
        ("SELECT MAX(age) FROM a", r"ask QUANTILE\(a, 0.99\)"),
        ("SELECT MIN(age) FROM a", r"ask QUANTILE\(a, 0.01\)"),
        ("SELECT MEDIAN(age + 1) FROM a", "MEDIAN: name an attribute alone"),
        ("SELECT MODE() WITHIN GROUP (ORDER BY age) FROM a", "ask PERCENTILE_CONT"),
        ("SELECT PERCENTILE_CONT(1.5) WITHIN GROUP (ORDER BY age) FROM a", "one number from 0 to 1"),
        ("SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY age, sex) FROM a", "order by one attribute"),
        ("SELECT QUANTILE(age, q) FROM a", "one number from 0 to 1"),
        ("SELECT SUM(COUNT(*)) OVER () FROM a", "by GROUP BY"),
        ("SELECT age + 1 FROM a", "ask COUNT"),
        ("SELECT unheard(age) FROM a", "ask COUNT"),
        ("SELECT SUM(age) / COUNT(*) FROM a", "ask for each number in a separate column"),
        ("SELECT COUNT(*) FROM a WHERE age IN (SELECT 1)", "literals"),
        ("SELECT COUNT(*) FROM a GROUP BY ROLLUP (sex)", "GROUP BY"),
        ("SELECT sex, sex, COUNT(*) FROM a GROUP BY sex", "AS"),
        ("SELECT sex, COUNT(*) FROM a GROUP BY sex, sex", "once"),
        ("SELECT SUM(age + 1) FROM a", "SUM"),
        ("SELECT COUNT(*) FROM a -- " + "x" * 9000, "characters"),
    ],
)
def test_unsupported_statement_is_refused_with_a_supported_form(text: str, remedy: str) -> None:
    with pytest.raises(StatementError, match=remedy):
        parse_statement(text)


WORDS = (
    "SELECT COUNT ( * ) FROM a WHERE GROUP BY sex = 'F' AND NOT CASE WHEN THEN ELSE END 1 0 , AVG SUM / . :: AS IN"
)


@given(st.lists(st.sampled_from(WORDS.split()), max_size=25))
def test_every_text_is_a_statement_or_refused(words: list[str]) -> None:
    with suppress(StatementError):
        parse_statement(" ".join(words))


@pytest.mark.parametrize("nested", ["(" * 1000 + "1" + ")" * 1000, "NOT " * 1500 + "TRUE", "- " * 2000 + "1"])
def test_deeply_nested_statement_is_refused(nested: str) -> None:
    with pytest.raises(StatementError):
        parse_statement("SELECT COUNT(*) FROM a WHERE ?".replace("?", nested))


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("SELECT COUNT(*) FROM a WHERE `age` = 3", "character 30: ` quotes no name; put names in double quotes"),
        ("SELECT COUNT(*) FROM `a`", "character 22: ` quotes no name; put names in double quotes"),
        ("SELECT [a b], COUNT(*) FROM a GROUP BY 1", "character 8: [ quotes no name; put names in double quotes"),
        ("SELECT COUNT(*) FROM a WHERE b = 'O\\'Brien'", "double a quote inside a text, as in 'O''Brien'"),
        ("EXPLAIN SELECT COUNT(*) FROM a", "not with 'EXPLAIN'; leave it out: each result shows its cost"),
        ("SHOW TABLES", "not with 'SHOW'; 'sotto source list', list_sources() and the shell's \\sources show"),
        ("(SELECT COUNT(*) FROM a)", "is in parentheses; leave them out"),
        ("SELECT COUNT(*) FROM a LIMIT " + "1" * 4500, "LIMIT: give a whole number of at most 18 digits"),
        (
            "SELECT COUNT(*) FROM a ORDER BY " + "1" * 4500,
            "ORDER BY: name a column of the result, or its position",
        ),
        ("SELECT b, COUNT(*) FROM a GROUP BY " + "1" * 4500, "GROUP BY: name an attribute"),
    ],
)
def test_read_names_the_remedy_for_sql_of_other_dialects(
    text: str, remedy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A statement of another dialect is refused in Sotto's words, and the parser writes nothing to standard error."""
    with pytest.raises(StatementError) as refused:
        parse_statement(text)
    assert remedy in str(refused.value)
    assert capfd.readouterr().err == ""


def test_read_keeps_the_parsers_log_for_other_programs(caplog: pytest.LogCaptureFixture) -> None:
    """The parser's warnings are dropped while a statement is read, but not for other users of the parser."""
    with caplog.at_level(logging.WARNING, "sqlglot"):
        sqlglot.parse_one("SHOW TABLES", dialect="postgres")
        assert "Falling back" in caplog.text
        caplog.clear()
        parse_statement("SELECT COUNT(*) FROM a WHERE b -> 'x[[' = 1")
        assert not caplog.text


@pytest.mark.parametrize(
    "text", ["SELECT sex FROM a WHERE age > 3 GROUP BY sex", "SELECT DISTINCT sex FROM a WHERE age > 3"]
)
def test_statement_may_ask_for_groups_alone(text: str) -> None:
    statement = parse_statement(text)
    assert statement.groups == ("sex",)
    assert statement.where == '"age" > 3'
