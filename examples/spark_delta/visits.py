"""Ask questions of a Delta table that Spark reads: ``python visits.py HOST:PORT``."""

from __future__ import annotations

import secrets
import sys

from pyspark.sql import SparkSession

from sotto import Driver

WARDS = ("surgery", "medicine", "maternity")
ROWS = 200_000


def write_visits(server: str) -> None:
    """Write made-up visits as version 0 of a Delta table, and add others as version 1."""
    session = SparkSession.builder.remote(f"sc://{server}").create()
    session.sql("DROP TABLE IF EXISTS visits")
    rows = session.range(ROWS).selectExpr(
        "id % 50000 AS patient",
        "element_at(array('surgery', 'medicine', 'maternity'), cast(id % 3 + 1 AS int)) AS ward",
        "date_add(date'2025-01-01', cast(id % 365 AS int)) AS visited",
        "cast(id % 100000 / 100 AS decimal(9, 2)) AS cost",
    )
    rows.write.format("delta").saveAsTable("visits")
    rows.limit(1000).write.format("delta").mode("append").saveAsTable("visits")
    session.stop()


def definition(server: str) -> dict[str, object]:
    """Return the source: version 0 of the table, whose codes are kept on disk."""
    return {
        "source": "visits",
        "kind": "table",
        "neighbors": "add-remove",
        "epsilon": 4,
        "path": f"spark://{server}/spark_catalog/default/visits@0",
        "engine": "duckdb",
        "person": "patient",
        "contribution": 4,
        "attributes": {
            "ward": list(WARDS),
            "visited": {"kind": "date", "minimum": "2025-01-01", "maximum": "2025-12-31"},
            "cost": {"kind": "decimal", "minimum": 0, "maximum": 1000, "step": 0.01},
        },
    }


def report(server: str) -> str:
    """Return the answers to three questions."""
    driver = Driver(noise_key=secrets.token_bytes(32))
    driver.register(definition(server))
    laplace = {"kind": "laplace", "answers": 3, "dimensions": 3}
    driver.open({"stream": "visits", "source": "visits", "epsilon": 2, "mechanism": laplace})
    lines = []
    for statement in (
        "SELECT COUNT(*) FROM visits",
        "SELECT SUM(cost) FROM visits WHERE visited >= '2025-07'",
        "SELECT ward, COUNT(*) FROM visits GROUP BY ward",
    ):
        rows = [", ".join(f"{name} {cell}" for name, cell in row.items()) for row in driver.sql(statement)]
        lines += [statement, *rows, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    write_visits(sys.argv[1])
    sys.stdout.write(report(sys.argv[1]))
