"""``pandas.read_sql`` through the SQLAlchemy dialect, against real Kafka."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import registry

from sotto import AsyncClient
from stream.settings import Settings
from tests.builders import source, stream
from tests.conftest import StartService

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:rows with a missing or invalid cell are left out"),
]


async def test_pandas_reads_a_statement_over_kafka(
    settings: Settings, client: AsyncClient, start: StartService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL has the address and the options; the connection is closed with its engine."""
    path = tmp_path / "people.csv"
    path.write_text("age,sex\n" + "30,F\n" * 300 + "40,M\n" * 100)
    start("budget")
    start("worker")
    await client.register(source("people", "table", epsilon=100.0, path=str(path)))
    await client.open(stream("few", "people", "laplace", mechanism={"answers": 3}, epsilon=60.0))

    registry.register("sotto", "stream.dbapi.dialect", "SottoDialect")
    monkeypatch.setenv("SOTTO_PREFIX", settings.prefix)
    options = "?intervals=true&epsilon=true&max_price=20"
    engine = sa.create_engine(f"sotto://{settings.bootstrap}/people{options}")
    assert sa.inspect(engine).get_table_names() == ["people"]
    statement = sa.text("SELECT sex, COUNT(*) AS n FROM people WHERE age > :age GROUP BY sex ORDER BY n DESC")
    frame = pd.read_sql(statement, engine, params={"age": 18})
    assert frame["sex"].tolist() == ["F", "M"]
    assert frame["n"].tolist() == pytest.approx([300, 100], abs=10)
    assert frame["epsilon"].tolist() == pytest.approx([20.0, 20.0])

    cheap = sa.create_engine(f"sotto://{settings.bootstrap}?max_price=1")
    with pytest.raises(pd.errors.DatabaseError, match="max_price: the answer costs ε = 20"):
        pd.read_sql("SELECT COUNT(*) FROM few", cheap)
    for each in (engine, cheap):
        each.dispose()
    assert (await client.grant("people", "few")).tops <= 1
