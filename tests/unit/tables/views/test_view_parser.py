"""The SQL of views: accepted views, and the places and reasons of refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas import TableSource
from stream.tables.readers.view_parser import parse_view
from stream.tables.readers.view_syntax import ViewError
from tests.docs.pages import DOCS
from tests.views import view_source

TABLES: dict[str, Any] = {
    "flights": {"person": "tail", "columns": {"origin": "text", "delay": "number", "day": "date"}},
    "planes": {"person": "tail", "columns": {"seats": "integer"}},
    "airports": {"key": ["code"], "columns": {"code": "text", "state": "text"}},
    "weather": {"key": ["code", "day"], "columns": {"code": "text", "day": "date", "wind": "number"}},
}


def plan(select: str, **fields: Any) -> Any:
    used = {name: table for name, table in TABLES.items() if name in select} or TABLES
    return parse_view(view_source(select, used, ["tail"], **{"person": "tail", **fields}))


@pytest.mark.parametrize(
    "select",
    [
        "SELECT tail FROM flights",
        "SELECT \"tail\" FROM flights AS f WHERE f.Delay > 15 AND NOT (origin IN ('EWR') OR day IS NULL)",
        "SELECT f.tail, a.name FROM flights f INNER JOIN airports a ON f.origin = a.code -- the state",
        "SELECT f.tail FROM flights f LEFT OUTER JOIN weather w ON (w.day = f.day AND UPPER(f.origin) = w.code)",
        "SELECT f.tail FROM flights f JOIN airports a ON a.code = f.origin LEFT JOIN airports b ON b.code = a.state",
        "SELECT f.tail FROM flights f JOIN flights g ON g.tail = f.tail LEFT JOIN planes p ON g.tail = p.tail",
        'SELECT f.tail, f."odd name" AS x, f.date, f."count" FROM flights f',
    ],
)
def test_views_of_single_rows_and_two_kinds_of_joins_are_accepted(select: str) -> None:
    """Expressions of a row, WHERE, joins to lookup tables by their keys, and joins on the person are accepted."""
    assert "tail" in plan(select).outputs


@pytest.mark.parametrize(
    ("select", "message"),
    [
        ("SELECT COUNT(*) AS c FROM flights", "line 1, column 8: 'COUNT' in a view; a view has rows as they are"),
        ("SELECT f.tail,\n  SUM(f.delay) OVER () AS s FROM flights f", "line 2, column 3: 'SUM' in a view; a view has rows"),
        ("SELECT tail FROM flights GROUP BY tail", "line 1, column 26: 'GROUP BY' in a view; a view has rows"),
        ("SELECT tail FROM flights LIMIT 5", "line 1, column 26: 'LIMIT' in a view; a view has rows"),
        ("SELECT DISTINCT tail FROM flights", "line 1, column 8: 'DISTINCT' in a view; a view has rows"),
        ("SELECT tail FROM flights TABLESAMPLE (10)", "line 1, column 26: 'TABLESAMPLE' in a view; a view has rows"),
        ("SELECT tail FROM flights UNION SELECT tail FROM planes", "line 1, column 26: 'UNION' in a view; a view is one"),
        ("SELECT tail FROM flights WHERE tail IN (SELECT tail FROM planes)", "line 1, column 41: a second SELECT"),
        ("WITH f AS (SELECT tail FROM flights) SELECT tail FROM f", "line 1, column 1: 'WITH' in a view"),
        ("SELECT tail FROM flights; DROP TABLE flights", "line 1, column 25: ';' in a view; give one SELECT"),
        ("SELECT * FROM flights", "line 1, column 8: * for all columns; name the columns"),
        ("SELECT f.* FROM flights f", "line 1, column 10: * for all columns"),
        ("SELECT tail FROM read_csv('/etc/passwd')", "line 1, column 18: 'READ_CSV' in a view; its functions are ABS"),
        ("SELECT tail, random() AS r FROM flights", "line 1, column 14: 'RANDOM' in a view; its functions are"),
        ("SELECT tail, current_date AS d FROM flights", "line 1, column 14: 'CURRENT_DATE' in a view"),
        ("SELECT tail FROM flights WHERE origin LIKE 'E%'", "line 1, column 39: 'LIKE' in a view; compare with ="),
        ("SELECT tail FROM flights WHERE delay = $1", "line 1, column 40: '$' in a view; write the value itself"),
        ("SELECT tail FROM flights WHERE delay IS TRUE", "line 1, column 32: IS without NULL; compare with ="),
        ("SELECT tail FROM flights WHERE CAST(origin AS TEXT[]) = 'x'", "line 1, column 51: '[' in a view"),
        ("SELECT tail FROM flights WHERE origin::VARCHAR(3) = 'x'", "line 1, column 40: 'VARCHAR' in a view"),
        ("SELECT tail FROM x.flights", "line 1, column 18: TABLE with DB; leave it out"),
        ("SELECT tail FROM flights AS f (a)", "line 1, column 29: 'F' in a view"),
        ("SELECT a.code AS tail FROM airports a JOIN flights f ON f.tail = a.code", "line 1, column 28: FROM names the lookup table 'airports'"),
        ("SELECT tail FROM trains", "line 1, column 18: no table 'trains' is declared; name one of 'flights', 'planes'"),
        ("SELECT f.tail FROM flights f, planes", "line 1, column 31: JOIN without ON; use JOIN"),
        ("SELECT f.tail FROM flights f CROSS JOIN planes", "line 1, column 30: 'CROSS' in a view; use JOIN"),
        ("SELECT f.tail FROM flights f RIGHT JOIN planes p ON p.tail = f.tail", "line 1, column 30: 'RIGHT' in a view; use JOIN"),
        ("SELECT f.tail FROM flights f JOIN airports a ON a.state = f.origin", "line 1, column 49: the lookup table 'airports' is not joined on its key; compare each of 'code'"),
        ("SELECT f.tail FROM flights f JOIN airports a ON a.code < f.origin", "line 1, column 49: the lookup table 'airports' is not"),
        ("SELECT f.tail FROM flights f JOIN airports a ON TRUE", "line 1, column 35: the lookup table 'airports' is not joined"),
        ("SELECT f.tail FROM flights f JOIN airports a ON a.code = a.state", "line 1, column 49: the lookup table 'airports' is not"),
        ("SELECT f.tail FROM flights f JOIN airports a ON a.code = f.origin OR a.code = 'x'", "line 1, column 49: the lookup table 'airports' is not"),
        ("SELECT f.tail FROM flights f JOIN weather w ON w.code = f.origin", "line 1, column 48: the lookup table 'weather' is not joined on its key; compare each of 'code', 'day'"),
        ("SELECT f.tail FROM flights f JOIN airports a ON a.code = f.delay", "line 1, column 49: the key 'code' is text, and the other side number; declare both as one kind"),
        ("SELECT f.tail FROM flights f JOIN airports a ON a.code = f.orign", "line 1, column 49: the key 'code' is text, and the other side is not declared; check its name"),
        ("SELECT f.tail FROM flights f JOIN flights g ON g.origin = f.origin", "line 1, column 48: the table 'flights' of people is not joined on the person"),
        ("SELECT f.tail FROM flights f JOIN planes p ON p.tail = f.origin", "line 1, column 47: the table 'planes' of people is not joined"),
        ("SELECT f.tail FROM flights f JOIN planes p ON p.tail = LOWER(f.tail)", "line 1, column 47: the table 'planes' of people is not"),
        ("SELECT f.tail FROM flights f JOIN planes p ON p.tail = f.tail AND p.seats = 1", "line 1, column 67: the table 'planes' of people is not"),
        ("SELECT p.tail FROM flights f JOIN planes p ON p.tail = f.tail", "line 1, column 8: the person is not column 'tail' of 'f'"),
        ("SELECT f.tail || 'x' AS tail FROM flights f", "line 1, column 8: the person is not column 'tail' of 'f'"),
        ("SELECT origin FROM flights", "it selects no person 'tail'; select the person's column under this name"),
        ("SELECT tail, origin, delay AS origin FROM flights", "line 1, column 22: two columns are called 'origin'"),
        ("SELECT tail, delay + 1 FROM flights", "line 1, column 14: an expression without a name; name it with AS"),
        ("SELECT tail, other + 1 AS o FROM flights", "line 1, column 14: a column without a kind in an expression; declare its kind"),
        ("SELECT tail FROM flights WHERE delay", "line 1, column 32: a number instead of a boolean; compare it with a value, or cast it"),
        ("SELECT tail FROM flights WHERE origin = 1", "line 1, column 32: an integer with a text; cast one of them"),
        ("SELECT tail FROM flights WHERE day > 'March'", "line 1, column 32: a date with a text that is no day; write the day as '2024-03-31'"),
        ("SELECT tail FROM flights WHERE (delay, origin) IN ((1, 'x'))", "line 1, column 53: TUPLE in a view; use columns"),
        ("SELECT f.tail FROM flights f JOIN planes p ON p.tail = f.tail WHERE tail = 'x'", "line 1, column 69: column 'tail' is declared in 2 tables; name its table, as in f.tail"),
        ("SELECT tail FROM flights WHERE x.delay = 1", "line 1, column 32: no table is called 'x'; name one of 'flights'"),
        ("SELECT tail FROM", "line 1, column 13: the SQL is not valid; check commas and parentheses"),
        ("SELECT tail FROM flights WHERE origin = 'x", "the SQL cannot be read; check that every quote is closed"),
        ("SELECT tail FROM flights WHERE delay > 1e", "line 1, column 40: a malformed number; write it as 1.5 or 1e5"),
        ("SELECT tail FROM flights WHERE delay > " + "9" * 5000, "line 1, column 40: a number beyond 1.8e308; write a smaller"),
        ("SELECT tail, SUBSTRING(origin, " + "9" * 5000 + ") AS s FROM flights", "line 1, column 24: SUBSTRING at no fixed place"),
        ("SELECT tail, origin" + "::TEXT" * 800 + " AS s FROM flights", "line 1, column 14: it nests deeper than 128 operations"),
        ("SELECT tail FROM flights WHERE " + "(" * 12 + "delay = 1" + " IN (TRUE, FALSE))" * 12 + " IN (TRUE, FALSE)", "line 1, column 44: more than 8192 operations on a row; nest fewer"),
        ("SELECT tail, " + "NULLIF(" * 30 + "delay" + ", 1)" * 30 + " AS d FROM flights", "line 1, column 140: more than 8192 operations on a row"),
        ('SELECT tail, origin AS "\0kept" FROM flights', "line 1, column 25: a NUL character; leave it out"),
        ('SELECT "".tail FROM flights AS ""', "line 1, column 32: the alias '' is no plain name; use letters, digits and _"),
        ('SELECT "^a".tail FROM flights AS "^a"', "line 1, column 34: the alias '^a' is no plain name"),
        ("SELECT tail FROM flights WHERE " + "(" * 40 + "delay = 1" + ")" * 40, "line 1, column 64: it nests deeper than 32"),
    ],
)  # fmt: skip
def test_refusals_name_the_place_and_the_remedy(select: str, message: str) -> None:
    """Everything else is refused with its line and column, the problem and a remedy."""
    with pytest.raises(ViewError) as refused:
        plan(select)
    assert str(refused.value).startswith(f"view: {message}")
    assert ";" in str(refused.value)


def test_view_must_use_its_tables_and_select_its_attributes() -> None:
    """A table that the view does not use, and an attribute's column that it does not select, are refused."""
    with pytest.raises(ViewError, match=r"^tables: the view does not use 'planes'; join it, or leave it out"):
        parse_view(
            view_source(
                "SELECT tail FROM flights",
                {one: TABLES[one] for one in ("flights", "planes")},
                ["tail"],
                person="tail",
            )
        )
    with pytest.raises(ViewError, match=r"^view: it selects no column 'late'; select it, or name"):
        parse_view(
            view_source("SELECT tail FROM flights", {"flights": TABLES["flights"]}, ["late"], person="tail")
        )
    with pytest.raises(ViewError, match=r"^view: it uses no column of 'f'; select one"):
        parse_view(view_source("SELECT 1 AS one FROM flights f", {"flights": {}}, ["one"]))


def test_people_without_a_person_column_are_not_joined() -> None:
    """Without a person's column, there is no column on which a table of people could be joined."""
    flights = {"columns": {"origin": "text"}}
    with pytest.raises(ViewError, match=r"column 54: the table 'flights' of people is not joined on the person"):
        parse_view(
            view_source(
                "SELECT f.origin FROM flights f JOIN flights g ON     f.origin = g.origin",
                {"flights": flights},
                ["origin"],
            )
        )


@pytest.mark.parametrize(
    ("tables", "fields", "message"),
    [
        ({"f": {"person": "who"}}, {}, "person: a table of the view has persons"),
        ({"f": {}, "g": {}}, {}, "view: 2 tables without a key, and no person"),
        ({"f": {"person": "who"}, "g": {}}, {"person": "who"}, "view: each table needs a person or"),
        ({"f": {"key": ["a"], "columns": {"a": "text"}}}, {"person": "who"}, "view: each table needs a person or"),
        ({"f": {"person": "who", "key": ["a"], "columns": {"a": "text"}}}, {}, "key, person: a table with a key is public"),
        ({"f": {}, "g": {"key": ["a"]}}, {}, "key: its columns need a kind"),
        ({"f": {}, "g": {"key": ["a", "a"], "columns": {"a": "text"}}}, {}, "key: names a column twice"),
        ({"f": {"person": "who", "columns": {"who": "text"}}}, {"person": "who"}, "columns: the person's column has no kind"),
        ({"f": {"path": "/d/p.csv"}, "g": {"path": "/d/./p.csv", "key": ["a"], "columns": {"a": "text"}}}, {}, "key: a table with a key is public, and another table with its path has rows"),
        ({"f": {}, "F": {"key": ["a"], "columns": {"a": "text"}}}, {}, "tables: two names differ in case only"),
        ({"f": {}}, {"path": "f.csv"}, "path, view: a table has either a path or a view"),
    ],
)  # fmt: skip
def test_definitions_of_tables_are_checked(tables: Any, fields: dict[str, Any], message: str) -> None:
    """A definition is refused if its tables do not say whose rows they have."""
    with pytest.raises(ValidationError, match=message):
        view_source("SELECT x FROM f", tables, ["x"], **fields)


WORDS = st.sampled_from(
    [
        "SELECT",
        "tail",
        "FROM",
        "flights",
        "f",
        "WHERE",
        "JOIN",
        "airports",
        "a",
        "ON",
        "f.origin",
        "=",
        "a.code",
        "(",
        ")",
        ",",
        ".",
        "'",
        '"',
        "1",
        "CASE",
        "WHEN",
        "THEN",
        "END",
        "NOT",
        "AND",
        "IN",
        "NULL",
        "IS",
        "AS",
        "LEFT",
        "||",
        "-",
        "/",
        "*",
        "::",
        "INT",
        "DATE",
        "COALESCE(",
        "CAST(",
        "[",
        "]",
        "{",
        "}",
        ";",
        "--",
        "/*",
        "*/",
        "$",
        "?",
        "é",
        "\x00",
        "\ud800",
    ]
)


@given(st.lists(WORDS, max_size=12).map(" ".join))
@settings(deadline=None, max_examples=300)
def test_any_text_is_accepted_or_refused_with_a_reason(select: str) -> None:
    """No text crashes the parser."""
    accepted = "accepted"
    try:
        parse_view(view_source(f"SELECT tail FROM flights f {select}", TABLES, ["tail"], person="tail"))  # noqa: S608
    except ValidationError:
        assert not select.isprintable()
    except ViewError as error:
        accepted = str(error)
    assert accepted.startswith(("accepted", "view: ", "tables: "))


def test_view_of_the_guide_is_accepted() -> None:
    """The definition in the guide is accepted."""
    text = (DOCS / "how-to" / "views.md").read_text(encoding="utf-8")
    [definition] = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert list(parse_view(TableSource.model_validate_json(definition)).outputs) == [
        "aircraft",
        "state",
        "seats",
        "departed",
    ]


def test_name_with_a_control_character_is_refused() -> None:
    """Names of columns are printable, so that no column can be confused with another table's."""
    with pytest.raises(ViewError, match=r"a name with a control character; rename the column"):
        plan('SELECT tail, origin AS "a\x01b" FROM flights')
