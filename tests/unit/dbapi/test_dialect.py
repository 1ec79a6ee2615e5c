"""The SQLAlchemy dialect: reflection, statements that SQLAlchemy builds, and pandas."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from datetime import date
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry

from sotto import Driver, dbapi
from tests.builders import installation, source, stream

pytestmark = pytest.mark.filterwarnings("ignore:rows with a missing or invalid cell are left out")
PROJECT = Path(__file__).parents[3]
NAMES = ["cells", "few", "towns", "visits"]
ROWS = 2000
VISITS = {
    "age": [number % 100 for number in range(ROWS)],
    "sex": ["FM"[number % 2] for number in range(ROWS)],
    "day": [f"2024-01-{number % 4 + 1:02}" for number in range(ROWS)],
    "month": ["2024-02-14"] * ROWS,
    "hour": ["2024-02-14T10:30:00"] * ROWS,
    "fee": [0.5] * ROWS,
    "bmi": [20.0] * ROWS,
    "town": ["Linz"] * ROWS,
}
ATTRIBUTES = {
    "age": 100,
    "sex": ["F", "M"],
    "day": {"kind": "date", "minimum": "2024-01-01", "maximum": "2024-01-04", "outside": "reject"},
    "month": {"kind": "date", "granularity": "month", "minimum": "2024-01-01", "maximum": "2024-03-31"},
    "hour": {"kind": "timestamp", "granularity": "hour-of-day"},
    "fee": {"kind": "decimal", "minimum": 0, "maximum": 2, "step": 0.5},
    "bmi": {"kind": "bins", "edges": [10, 18.5, 30, 60]},
    "town": {"kind": "text", "max_length": 20},
}


@pytest.fixture(autouse=True)
def _register() -> None:
    """Register the dialect by the entry point of this tree, also if an older one is installed."""
    groups = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"]
    [(name, place)] = groups["sqlalchemy.dialects"].items()
    found = EntryPoint(name, place, "sqlalchemy.dialects")
    registry.register(name, found.module, found.attr)


@pytest.fixture(scope="module")
def driver() -> Driver:
    """Return an installation with the table `visits` and three streams."""
    streams = [
        stream("few", "visits", "laplace", mechanism={"answers": 60}, epsilon=600.0),
        stream("cells", "visits", "histogram", mechanism={"attributes": ["sex", "age"]}, epsilon=10.0),
        stream("towns", "visits", "unknown_groups", epsilon=10.0, delta=1e-9),
        stream("ended", "visits", "laplace", mechanism={"answers": 1}),
        stream("alarm", "wards"),
    ]
    table = source("visits", "table", attributes=ATTRIBUTES, epsilon=1000.0, delta=1e-6)
    made = installation(*streams, sources=[table, source("wards")], rows={"visits": VISITS})
    made.close("visits", "ended")
    return made


def engine_of(driver: Driver, url: str = "sotto://", **options: Any) -> Any:
    return sa.create_engine(url, creator=lambda: dbapi.connect(driver, **options))


@pytest.fixture
def engine(driver: Driver) -> Iterator[Any]:
    made = engine_of(driver)
    yield made
    made.dispose()


def test_inspector_lists_tables_that_from_accepts(engine: Any) -> None:
    """The inspector lists sources and open streams that answer statements as tables, with their attributes."""
    found = sa.inspect(engine)
    assert (found.get_table_names(), found.get_schema_names()) == (NAMES, ["main"])
    assert found.get_view_names() == found.get_foreign_keys("few") == found.get_indexes("few") == []
    assert [found.has_table(name) for name in ("visits", "ended", "alarm", "wards")] == [True, False, False, False]
    assert {one["name"]: str(one["type"]) for one in found.get_columns("visits")} == {
        "age": "INTEGER",
        "sex": "VARCHAR",
        "day": "DATE",
        "month": "VARCHAR",
        "hour": "INTEGER",
        "fee": "FLOAT",
        "bmi": "VARCHAR",
        "town": "VARCHAR",
    }
    assert [one["name"] for one in found.get_columns("cells")] == ["age", "sex"]
    assert "town" not in {one["name"] for one in found.get_columns("few")}
    with pytest.raises(sa.exc.NoSuchTableError, match="ended"):
        found.get_columns("ended")


def test_url_with_name_has_one_table(driver: Driver) -> None:
    """An unknown name is an error of each connection: nothing is asked."""
    assert sa.inspect(engine_of(driver, "sotto:///few")).get_table_names() == ["few"]
    engine = engine_of(driver, "sotto:///fewer")
    for _ in range(2):
        with pytest.raises(sa.exc.NoSuchTableError, match=r"'fewer'; an installation is named by \?prefix="):
            pd.read_sql("SELECT COUNT(*) FROM few", engine)


def test_core_statements_are_answered(engine: Any) -> None:
    """Answers to statements that SQLAlchemy builds from reflected tables, with bound values, are within their errors."""
    metadata = sa.MetaData()
    metadata.reflect(engine)
    few, count = metadata.tables["few"], sa.func.count().label("n")
    with engine.connect() as connection:
        older = sa.select(few.c.sex, count).where(few.c.age >= 50, few.c.sex.in_(["F", "M"])).group_by(few.c.sex)
        rows = connection.execute(older.order_by(sa.desc(few.c.sex)).limit(1)).all()
        assert rows == [("M", pytest.approx(500, abs=20))]
        assert rows[0]._fields == ("sex", "n")

        days = sa.select(few.c.day, count).where(few.c.day > date(2024, 1, 2)).group_by(few.c.day)
        found = dict(connection.execute(days.having(sa.func.count() > 100)).all())
        assert list(found) == [date(2024, 1, 3), date(2024, 1, 4)]

        share = sa.func.avg(sa.case((few.c.sex == "F", 1), else_=0))
        assert connection.scalar(sa.select(share)) == pytest.approx(0.5, abs=0.1)
        clamped = pytest.warns(dbapi.Warning, match="values of 'fee' outside 0 to 2 count as its ends")
        with clamped, pytest.warns(dbapi.Warning, match="values of 'fee' are rounded to multiples of 0.5"):
            assert connection.scalar(sa.select(sa.func.avg(few.c.fee))) == pytest.approx(0.5, abs=0.1)
        assert connection.scalar(sa.text("SELECT COUNT(*) FROM few WHERE age < :age"), {"age": 50}) > 500


@pytest.mark.parametrize("schema", [None, "main"])
def test_schema_is_removed_from_statements(engine: Any, schema: str | None) -> None:
    """Tools that need a schema find one, but statements name only the table."""
    few = sa.Table("few", sa.MetaData(), schema=schema, autoload_with=engine)
    statement = sa.select(few.c.sex, sa.func.count()).group_by(few.c.sex)
    assert "main" not in str(statement.compile(engine))
    with engine.connect() as connection:
        assert len(connection.execute(statement).all()) == 2
    assert sa.inspect(engine).get_table_names("other") == []


def test_unsupported_statements_keep_message_of_sql_layer(engine: Any) -> None:
    """Errors keep the message of the SQL layer, for reads and for writes."""
    few = sa.Table("few", sa.MetaData(), autoload_with=engine)
    with engine.connect() as connection:
        for statement, message in (
            (sa.select(few), "neither grouped by nor added up"),
            (few.insert().values(age=1), "begins with SELECT"),
            (few.delete(), "begins with SELECT"),
            (sa.select(sa.func.count()).select_from(few).offset(1), "OFFSET"),
        ):
            with pytest.raises(sa.exc.ProgrammingError, match=message):
                connection.execute(statement)


def test_pandas_reads_statements(engine: Any, driver: Driver) -> None:
    """Texts with parameters and Core statements become frames, with the added columns."""
    text = sa.text("SELECT sex, COUNT(*) AS n FROM few WHERE age < :age GROUP BY sex")
    frame = pd.read_sql(text, engine, params={"age": 50})
    assert frame["sex"].tolist() == ["F", "M"]
    assert frame["n"].between(480, 520).all()

    wide = engine_of(driver, intervals=True, epsilon=True)
    few = sa.Table("few", sa.MetaData(), autoload_with=wide)
    built = sa.select(few.c.sex, sa.func.count().label("n")).group_by(few.c.sex)
    for statement in ("SELECT sex, COUNT(*) AS n FROM few GROUP BY sex", built):
        frame = pd.read_sql(statement, wide)
        assert list(frame) == ["sex", "n", "n_error", "n_low", "n_high", "n_informative", "epsilon"]
        assert (frame["n_low"] <= frame["n_high"]).all()
        assert frame["epsilon"].tolist() == pytest.approx([10.0, 10.0])


@pytest.mark.parametrize(
    ("url", "arguments", "options"),
    [
        ("sotto://kafka/few", ["kafka:9092"], {}),
        ("sotto://[::1]:9093/", ["[::1]:9093"], {}),
        ("sotto:///few?intervals=true&epsilon=False", [], {"intervals": True, "epsilon": False}),
        ("sotto://k?max_price=0.1&timeout=5", ["k:9092"], {"max_price": 0.1, "timeout": 5.0}),
        ("sotto://k?max_price=10%25&prefix=lab", ["k:9092"], {"max_price": "10%", "prefix": "lab"}),
    ],
)
def test_url_gives_address_and_options(url: str, arguments: list[str], options: dict[str, Any]) -> None:
    """The host is Kafka's address; without one, the environment's settings apply."""
    made = sa.make_url(url)
    assert made.get_dialect()().create_connect_args(made) == (arguments, options)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sotto://ana:secret@kafka", "SOTTO_SASL_USERNAME"),
        ("sotto://kafka?sasl_password=secret", "'sasl_password' is not an option; there are intervals"),
        ("sotto://kafka?intervals=1", "intervals is not valid; give true or false"),
        ("sotto://kafka?max_price=cheap", "max_price is not valid; give an ε"),
        ("sotto://kafka?timeout=1&timeout=2", "timeout is not valid"),
        ("sotto://kafka?timeout=0", "timeout is not valid; give seconds above 0"),
        ("sotto://kafka?timeout=nan", "timeout is not valid"),
    ],
)
def test_url_errors_name_the_option(url: str, message: str) -> None:
    """A wrong option is refused when the engine is made, and no message has a password."""
    with pytest.raises(sa.exc.ArgumentError, match=message) as caught:
        sa.create_engine(url)
    assert "secret" not in str(caught.value)
