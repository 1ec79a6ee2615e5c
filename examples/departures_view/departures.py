"""Ask twenty questions about departures joined to their airports: ``python departures.py FOLDER``."""

from __future__ import annotations

import secrets
import sys
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from sotto import Driver
from stream.tables.demo_tables import FLIGHTS_PATH

AIRPORTS = {"code": ["EWR", "JFK", "LGA"], "state": ["NJ", "NY", "NY"], "runways": [3, 4, 2]}
VIEW = """
SELECT d.tailnum AS aircraft, a.state, a.runways,
       FLOOR(d.minute / 60) - 24 * FLOOR(d.minute / 1440) AS hour,
       CASE WHEN d.delay IS NULL THEN 'cancelled' WHEN d.delay > 60 THEN 'very late'
            WHEN d.delay > 15 THEN 'late' ELSE 'on time' END AS departed
FROM departures AS d JOIN airports AS a ON a.code = d.origin
"""
DEPARTED = ("on time", "late", "very late", "cancelled")
TIMES = ("hour BETWEEN 10 AND 15", "hour BETWEEN 16 AND 20", "hour >= 21")
CONDITIONS = [
    *(f"state = '{state}' AND departed = '{departed}'" for state, departed in product(("NJ", "NY"), DEPARTED)),
    *(f"state = '{state}' AND {hours}" for state, hours in product(("NJ", "NY"), TIMES)),
    *(f"departed = 'very late' AND {hours}" for hours in TIMES),
    *(f"runways = {runways}" for runways in (2, 3, 4)),
]
"""Twenty conditions on the view's columns; hours are in UTC."""


def write_tables(folder: Path) -> None:
    """Write the departures of a year, and the airports: a public lookup table."""
    pl.read_parquet(FLIGHTS_PATH).write_parquet(folder / "departures.parquet")
    pl.DataFrame(AIRPORTS).write_csv(folder / "airports.csv")


def definition(folder: Path) -> dict[str, Any]:
    """Return the source: each aircraft with all its departures is protected, and at most fifty of them count."""
    departures = {"minute": "integer", "origin": "text", "delay": "integer"}
    return {
        "source": "departures",
        "kind": "table",
        "neighbors": "add-remove",
        "epsilon": 4,
        "view": {
            "select": VIEW,
            "tables": {
                "departures": {"path": f"{folder}/departures.parquet", "person": "tailnum", "columns": departures},
                "airports": {"path": f"{folder}/airports.csv", "key": ["code"], "columns": {"code": "text"}},
            },
        },
        "person": "aircraft",
        "contribution": 50,
        "attributes": {
            "state": ["NJ", "NY"],
            "runways": {"kind": "integers", "minimum": 1, "maximum": 6},
            "hour": {"kind": "integers", "minimum": 0, "maximum": 23},
            "departed": list(DEPARTED),
        },
    }


def report(folder: Path) -> pl.DataFrame:
    """Return the number of aircraft with a departure under each condition: the answer, its error bound, the truth."""
    driver = Driver(noise_key=secrets.token_bytes(32))
    driver.register(definition(folder))
    laplace = {"kind": "laplace", "answers": len(CONDITIONS)}
    driver.open({"stream": "aircraft", "source": "departures", "epsilon": 4, "mechanism": laplace})
    answers = driver.ask_many([{"stream": "aircraft", "people": True, "where": where} for where in CONDITIONS])
    truth = true_rows()
    counts = [truth.filter(pl.sql_expr(where))["aircraft"].n_unique() for where in CONDITIONS]
    return pl.DataFrame(
        {
            "where": CONDITIONS,
            "answer": [one.estimate for one in answers],
            "bound": [one.alpha for one in answers],
            "truth": counts,
        }
    )


def true_rows() -> pl.DataFrame:
    """Return the joined rows, computed without the view; the departures are public."""
    rows = pl.read_parquet(FLIGHTS_PATH).with_columns(
        pl.col("tailnum", "origin").cast(pl.String), pl.col("minute").cast(pl.Int64)
    )
    joined = rows.drop_nulls("tailnum").join(pl.DataFrame(AIRPORTS), left_on="origin", right_on="code")
    delay = pl.col("delay")
    late = pl.when(delay > 60).then(2).when(delay > 15).then(1).when(delay.is_null()).then(3).otherwise(0)
    departed = late.replace_strict(dict(enumerate(DEPARTED)), return_dtype=pl.String)
    return joined.select(
        "state", "runways", aircraft="tailnum", hour=pl.col("minute") // 60 % 24, departed=departed
    )


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]))
    with pl.Config(tbl_rows=-1, fmt_str_lengths=60):
        sys.stdout.write(f"{report(Path(sys.argv[1]))}\n")
