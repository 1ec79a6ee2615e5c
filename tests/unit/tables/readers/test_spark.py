"""Tables that a Spark Connect server reads: Delta tables, their versions, and views."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stream.tables.readers.table_files import parse_roots
from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
from tests.unit.tables.hostile_tables import assert_reads_as_parquet, hostile_cells
from tests.unit.tables.readers.guarded import AGE, cause
from tests.unit.tables.small import source

pytestmark = pytest.mark.filterwarnings("ignore")  # pyspark's own
spark_delta = pytest.importorskip(
    "examples.spark_delta.visits", reason="pyspark, the extra spark, is not installed"
)


@pytest.fixture
def session(spark: str) -> Iterator[Any]:
    """A session that fills tables, in a zone other than UTC."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  (an optional package)

    found = SparkSession.builder.remote(f"sc://{spark}").create()
    found.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield found
    found.stop()


def reader(spark: str) -> GuardedReader:
    return GuardedReader(
        ReadingLimits(parse_roots(f"spark://{spark}/spark_catalog/default"), 8 << 20, 1 << 30, 300.0)
    )


def test_spark_delta_table_has_codes_of_parquet_file(spark: str, session: Any, tmp_path: Path) -> None:
    """So has an earlier version of it after its rows have changed, also with empty partitions."""
    cells, parquet = hostile_cells(), tmp_path / "hostile.parquet"
    cells.write_parquet(parquet)
    session.sql("DROP TABLE IF EXISTS hostile")
    session.read.parquet(str(parquet)).repartition(16, "who").write.format("delta").saveAsTable("hostile")
    path, read = f"spark://{spark}/spark_catalog/default/hostile", reader(spark)
    assert_reads_as_parquet(path, parquet, cells, read=read.read, stamp=read.stamp)
    session.sql("INSERT INTO hostile SELECT * FROM hostile")
    with pytest.raises(AssertionError):
        assert_reads_as_parquet(path, parquet, cells, read=read.read, stamp=read.stamp)
    assert_reads_as_parquet(f"{path}@0", parquet, cells, read=read.read, stamp=read.stamp)


def test_spark_refusal_has_error_code_without_text(spark: str, session: Any) -> None:
    """Clients cannot distinguish a missing table, a deleted version and a failing cell."""
    session.sql("DROP TABLE IF EXISTS ages")
    session.sql("CREATE TABLE ages USING delta AS SELECT 34 AS age")
    session.sql("CREATE OR REPLACE VIEW failing AS SELECT 1 / (age - 34) AS age FROM ages")

    def error_code(table: str) -> str:
        asked = source(AGE, path=f"spark://{spark}/spark_catalog/default/{table}")
        return cause(lambda: reader(spark)(asked)).removeprefix("its database was not reached, or refused: ")

    assert error_code("nothing") == "TABLE_OR_VIEW_NOT_FOUND"
    assert re.fullmatch("[A-Za-z_]+", error_code("ages@99"))
    assert error_code("failing") == "DIVIDE_BY_ZERO"
    elsewhere = source(AGE, path="spark://127.0.0.1:1/spark_catalog/default/ages")
    assert cause(
        lambda: GuardedReader(ReadingLimits(parse_roots("spark://127.0.0.1:1"), 1, 1 << 30, 60.0))(elsewhere)
    )


def test_spark_columns_are_proposed(spark: str, session: Any) -> None:
    """A proposal has names and types; instants have the type with a zone."""
    session.sql("CREATE OR REPLACE VIEW typed AS SELECT 1 AS age, current_timestamp() AS seen, array(1) AS list")
    found = reader(spark).columns(f"spark://{spark}/spark_catalog/default/typed")
    assert [(one.name, one.kind) for one in found] == [("age", "Int32"), ("seen", "Datetime"), ("list", "List")]


def test_spark_example_counts_version_of_delta_table(spark: str) -> None:
    """The report's number of visits is near the truth, also after other rows were added."""
    spark_delta.write_visits(spark)
    text = spark_delta.report(spark)
    found = re.search(r"count\(\*\) ([\d.]+)", text)
    assert found is not None
    assert abs(float(found[1]) - spark_delta.ROWS) < 100
