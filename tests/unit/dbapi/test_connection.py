"""DB-API 2.0: cursors, added columns, parameters and errors, over an installation in memory."""

from __future__ import annotations

import inspect
import warnings
from datetime import date, datetime
from typing import Any

import pytest

from sotto import Driver, dbapi
from stream.formatting import ROWS_LEFT_OUT
from tests.builders import installation, stream

pytestmark = pytest.mark.filterwarnings("ignore:rows with a missing or invalid cell are left out")

GROUPS = "SELECT sex, COUNT(*) AS n FROM people WHERE age >= ? GROUP BY sex"


def people(answers: int = 10, epsilon: float = 10.0) -> Driver:
    """Return an installation with the streams `few` of laplace and `cells` of histogram, of 200 people."""
    few = stream("few", "people", "laplace", mechanism={"answers": answers}, epsilon=epsilon - 1.0)
    return installation(few, stream("cells", "people", "histogram", mechanism={"attributes": ["sex"]}))


def test_module_has_the_names_of_pep_249() -> None:
    """The module's globals, errors and type codes are those of the standard."""
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 2, "qmark")
    for name in ("DataError", "OperationalError", "IntegrityError", "InternalError", "ProgrammingError"):
        assert issubclass(getattr(dbapi, name), dbapi.DatabaseError)
    assert issubclass(dbapi.NotSupportedError, dbapi.DatabaseError)
    assert issubclass(dbapi.DatabaseError, dbapi.Error)
    assert issubclass(dbapi.InterfaceError, dbapi.Error)
    assert issubclass(dbapi.Warning, Exception)
    assert dbapi.Date(2024, 1, 31) == date(2024, 1, 31)
    assert dbapi.TimestampFromTicks(0) == datetime.fromtimestamp(0)  # noqa: DTZ006


@pytest.mark.filterwarnings("ignore:not informative", "ignore:'age'. 0 also counts")
def test_cursor_has_the_columns_and_rows_of_the_statement() -> None:
    """Description, row count, iteration and the three fetch methods agree."""
    cursor = dbapi.connect(people()).cursor()
    assert cursor.execute(GROUPS, [50]).description == [
        ("sex", dbapi.STRING, None, None, None, None, None),
        ("n", dbapi.NUMBER, None, None, None, None, None),
    ]
    assert cursor.rowcount == 2
    assert [sex for sex, _ in cursor] == ["F", "M"]
    assert cursor.fetchone() is None

    cursor.execute("SELECT age, COUNT(*) FROM people GROUP BY age")
    first, second = cursor.fetchone(), cursor.fetchmany()
    assert first is not None
    assert [first[0], second[0][0], *(age for age, _ in cursor.fetchmany(3))] == [0, 1, 2, 3, 4]
    assert len(cursor.fetchall()) == 95


def test_connection_adds_columns_on_request() -> None:
    """Error bound and interval follow each number, and ε of the statement is last."""
    driver = people()
    cursor = dbapi.connect(driver, intervals=True, epsilon=True).cursor()
    cursor.execute("SELECT sex, COUNT(*) AS n FROM few GROUP BY sex")
    assert cursor.description is not None
    assert [name for name, *_ in cursor.description] == [
        "sex",
        "n",
        "n_error",
        "n_low",
        "n_high",
        "n_informative",
        "epsilon",
    ]
    for _, n, error, low, high, informative, epsilon in cursor:
        assert (low < n < high, informative) == (True, True)
        assert error > 0
        assert epsilon == pytest.approx(0.9)

    spent = driver.grant("people", "few").tops
    for name in ("n_low", "epsilon"):
        with pytest.raises(dbapi.ProgrammingError, match=f"column '{name}'"):
            cursor.execute(f"SELECT COUNT(*) AS n, SUM(age) AS {name} FROM few")  # noqa: S608
    assert driver.grant("people", "few").tops == spent


def test_executemany_returns_the_rows_of_all_parameters() -> None:
    """Each set of parameters is one statement."""
    driver = people()
    cursor = dbapi.connect(driver).cursor().executemany("SELECT COUNT(*) FROM few WHERE age < ?", [[10], [90]])
    few, many = (count for (count,) in cursor)
    assert few < 100 < many
    assert driver.grant("people", "few").tops == 2


@pytest.mark.parametrize(
    ("statement", "parameters", "kind", "message"),
    [
        ("SELECT * FROM people", (), dbapi.ProgrammingError, "would return rows"),
        ("DELETE FROM people", (), dbapi.ProgrammingError, "begins with SELECT"),
        ("SELECT COUNT(*) FROM peopel", (), dbapi.ProgrammingError, "did you mean 'people'"),
        ("SELECT COUNT(*) FROM few WHERE age > ?", (), dbapi.ProgrammingError, r"1 '\?'"),
        ("SELECT COUNT(*) FROM few WHERE age > ?", [object()], dbapi.ProgrammingError, "type object"),
        ("SELECT COUNT(*) FROM few WHERE age > :a", {"b": 1}, dbapi.ProgrammingError, "':a' has no value"),
        ("SELECT COUNT(*) AS a, COUNT(*) AS b FROM few", (), dbapi.ProgrammingError, "pays for 1 more"),
    ],
)
def test_errors_are_db_api_errors_with_message(
    statement: str, parameters: Any, kind: type[Exception], message: str
) -> None:
    """Each error has Sotto's message and no chain of other errors."""
    with pytest.raises(kind, match=message) as caught:
        dbapi.connect(people(answers=1)).cursor().execute(statement, parameters)
    assert caught.value.__suppress_context__
    assert caught.value.__cause__ is None


def test_warnings_are_shown_after_the_rows_are_kept() -> None:
    """An answer is charged, so a warning that a filter turns into an error does not lose it."""
    cursor = dbapi.connect(people()).cursor()
    with pytest.raises(dbapi.Warning, match="holds for no row"):
        cursor.execute("SELECT COUNT(*) FROM few WHERE age > 200")
    assert len(cursor.fetchall()) == 1


@pytest.mark.filterwarnings("default")
def test_connection_warns_once_a_stream_that_rows_are_left_out() -> None:
    cursor = dbapi.connect(people()).cursor()
    with pytest.warns(dbapi.Warning, match="left out") as warned:
        cursor.executemany("SELECT COUNT(*) FROM few WHERE age > ?", [[50], [60]])
    assert [str(one.message) for one in warned] == [f"{ROWS_LEFT_OUT} (stream 'few')"]
    with warnings.catch_warnings(record=True) as later:
        cursor.execute("SELECT COUNT(*) FROM few WHERE age > 30")
    assert not later
    with pytest.warns(dbapi.Warning, match="stream 'cells'"):
        cursor.execute("SELECT COUNT(*) FROM cells")


@pytest.mark.filterwarnings("ignore:not informative", "ignore:'age'. 0 also counts")
def test_description_has_the_type_of_each_column() -> None:
    """Data frames then have whole numbers and truth values, not decimals."""
    cursor = dbapi.connect(people(), intervals=True).cursor()
    description = cursor.execute("SELECT age, COUNT(*) AS n FROM few GROUP BY age").description
    assert description is not None
    assert [code for _, code, *_ in description] == [int, float, float, float, float, bool]


@pytest.mark.parametrize("probe", ['SELECT * FROM "few" WHERE 1=0', "select * from few limit 0;"])
def test_probe_of_columns_is_free_and_has_no_rows(probe: str) -> None:
    """JupySQL and Superset read a table's columns by such statements."""
    driver = people()
    cursor = dbapi.connect(driver).cursor().execute(probe)
    assert cursor.description is not None
    assert [name for name, *_ in cursor.description] == ["age", "sex"]
    assert cursor.fetchall() == []
    assert driver.budget("people").spent.epsilon == 0.0
    with pytest.raises(dbapi.ProgrammingError, match="would return rows of all columns"):
        cursor.execute(probe.replace("few", "nobody"))


def test_max_price_refuses_dearer_statement_without_charge() -> None:
    """The limit holds for each mechanism, and repeats of a paid histogram stay free."""
    driver = people()
    dear = dbapi.connect(driver).cursor()
    cheap = dbapi.connect(driver, max_price=0.0).cursor()
    for name in ("few", "cells"):
        with pytest.raises(dbapi.OperationalError, match="max_price"):
            cheap.execute(f"SELECT COUNT(*) FROM {name}")  # noqa: S608
    assert driver.budget("people").spent.epsilon == 0.0
    dear.execute("SELECT COUNT(*) FROM cells")
    assert cheap.execute("SELECT COUNT(*) FROM cells").fetchone() == dear.fetchone()


def test_closed_cursors_and_connections_raise() -> None:
    """Every call of a closed object raises InterfaceError, and a given client stays connected."""
    driver = people()
    with dbapi.connect(driver) as connection:
        connection.commit()
        connection.rollback()
        with connection.cursor() as cursor, pytest.raises(dbapi.InterfaceError, match="no result"):
            cursor.fetchall()
        for call in (lambda: cursor.execute("SELECT COUNT(*) FROM few"), cursor.fetchone, cursor.fetchall):
            with pytest.raises(dbapi.InterfaceError, match="cursor: is closed"):
                call()
        cursor = connection.cursor()
    for call in (connection.cursor, connection.commit, connection.rollback, cursor.fetchone):
        with pytest.raises(dbapi.InterfaceError, match="connection: is closed"):
            call()
    assert driver.list_sources()


def test_public_names_are_documented() -> None:
    """Each function and class of the module has a docstring."""
    for name in dbapi.__all__:
        found = getattr(dbapi, name)
        assert not callable(found) or inspect.getdoc(found), name
