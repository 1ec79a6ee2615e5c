"""Write a folder of Parquet files, and ask questions of it that DuckDB counts: ``python visits.py FOLDER``."""

from __future__ import annotations

import secrets
import sys
from datetime import date, timedelta
from pathlib import Path
from random import Random

import polars as pl

from sotto import Driver

WARDS = ("surgery", "medicine", "maternity")
ROWS_A_MONTH = 20_000


def write_visits(folder: Path) -> None:
    """Write a year of visits, a file a month, in folders ``month=1`` to ``month=12``."""
    chance = Random(1)  # noqa: S311  (made-up data)
    for month in range(1, 13):
        rows = range(ROWS_A_MONTH)
        days = [date(2025, month, 1) + timedelta(days=chance.randrange(28)) for _ in rows]
        part = pl.DataFrame(
            {
                "patient": [chance.randrange(50_000) for _ in rows],
                "ward": chance.choices(WARDS, weights=[5, 4, 1], k=len(rows)),
                "visited": days,
                "cost": [round(chance.paretovariate(2) * 100, 2) for _ in rows],
            }
        )
        path = folder / f"month={month}" / "visits.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_parquet(path)


def definition(folder: Path) -> dict[str, object]:
    """Return the source: at most four visits of a patient count, in a database on disk."""
    return {
        "source": "visits",
        "kind": "table",
        "neighbors": "add-remove",
        "epsilon": 4,
        "path": f"{folder}/",
        "engine": "duckdb",
        "person": "patient",
        "contribution": 4,
        "attributes": {
            "ward": list(WARDS),
            "month": {"kind": "integers", "minimum": 1, "maximum": 12},
            "visited": {"kind": "date", "minimum": "2025-01-01", "maximum": "2025-12-31"},
            "cost": {"kind": "decimal", "minimum": 0, "maximum": 1000, "step": 0.01},
        },
    }


def report(folder: Path) -> str:
    """Return the answers to four questions, each number with its error bound."""
    driver = Driver(noise_key=secrets.token_bytes(32))
    driver.register(definition(folder))
    laplace = {"kind": "laplace", "answers": 4, "dimensions": 3}
    driver.open({"stream": "visits", "source": "visits", "epsilon": 2, "mechanism": laplace})
    lines = []
    for statement in (
        "SELECT COUNT(*) FROM visits WHERE ward = 'maternity'",
        "SELECT SUM(cost) FROM visits WHERE visited >= '2025-07'",
        "SELECT COUNT(DISTINCT patient) FROM visits WHERE month = 1",
        "SELECT ward, COUNT(*) FROM visits GROUP BY ward",
    ):
        rows = [", ".join(f"{name} {cell}" for name, cell in row.items()) for row in driver.sql(statement)]
        lines += [statement, *rows, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    write_visits(Path(sys.argv[1]))
    sys.stdout.write(report(Path(sys.argv[1])))
