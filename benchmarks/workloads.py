"""Measures the errors of all questions about two attributes for one ε, compared with private-pgm, which knows the questions.

Each table is asked for the counts of all pairs of its attributes (those of at most 4,096 cells), one ``group_by`` after the
other, through the services' own processors in memory. Runs are kept in a file as soon as they are made.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks.accuracy.tables import FIVE
from benchmarks.accuracy.tables import table as accuracy_table
from benchmarks.contenders import PEERS, environment
from benchmarks.installation import FOLDER
from benchmarks.report import console, write_between
from schemas import MAX_CATEGORIES
from sotto import Driver
from stream.tables.demo_tables import AIRPORTS, read_flights

DOCUMENT, RUNS = Path("docs/accuracy.md"), Path("docs/workloads.json")
BEGIN, END = "<!-- workloads -->", "<!-- end of workloads -->"
DELTA, EPSILON, BETA = 1e-6, 1.0, 0.05
AUTO = "`auto`"
STREAMS: dict[str, dict[str, Any]] = {
    AUTO: {"kind": "auto"},
    "pmw, all pairs first": {"kind": "pmw", "warm_start": 2},
}
OFFLINE = {
    "private-pgm, a tree of pairs, offline": ("marginals_of_pairs.py", "tree"),
    "private-pgm, all pairs, offline": ("marginals_of_pairs.py", "pairs"),
}
"""Peers' programs, and the marginals that they measure."""
CONTENDERS = (*STREAMS, *OFFLINE)
WRITTEN = (
    "election, 10 attributes",
    "survey, 9 attributes",
    "Adult, 14 attributes",
    "independent, 8 attributes",
    "synthetic, 12 attributes",
)
"""Tables that the document shows."""
SLOW = {"AIM, offline": ("aim.py", "")}
"""Peers that run for a long time, and therefore only on request."""
WHOLE_CELLS = 1 << 18
"""Most cells of all attributes together with which private-pgm's model of all pairs is fitted."""
AIM_ROUNDS = 16
"""AIM's first division of its budget, in rounds for each attribute, as published."""
AIM_CELLS = 1 << 17
"""Most cells of the largest clique of AIM's model."""
_WHOLE = 100
Codes = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Rows as codes, and the number of values of each attribute."""

    codes: Codes
    sizes: tuple[int, ...]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Return the pairs that are asked."""
        everything = combinations(range(len(self.sizes)), 2)
        return [(x, y) for x, y in everything if self.sizes[x] * self.sizes[y] <= MAX_CATEGORIES]

    def exact(self, pair: tuple[int, int]) -> Floats:
        """Return the true counts of a pair, row by row."""
        shape = tuple(self.sizes[axis] for axis in pair)
        flat = np.ravel_multi_index(tuple(self.codes[:, axis] for axis in pair), shape)
        return np.bincount(flat, minlength=math.prod(shape)).astype(np.float64)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the missing runs, and show or write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workloads", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=tuple(TABLES), default=tuple(TABLES))
    parser.add_argument("--contender", nargs="+", choices=(*CONTENDERS, *SLOW), default=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=AIM_ROUNDS, help="AIM's rounds for each attribute")
    parser.add_argument("--cells", type=int, default=AIM_CELLS, help="most cells of AIM's largest clique")
    parser.add_argument("--delta", type=float, nargs="+", default=(0.0, DELTA))
    parser.add_argument("--keys", type=int, default=3, help="how many noise keys; means over them are shown")
    parser.add_argument("--again", action="store_true", help="measure anew what was measured before")
    parser.add_argument("--show", action="store_true", help="measure nothing; show what there is")
    parser.add_argument("--write", action="store_true", help=f"write the table of {DOCUMENT}")
    options = parser.parse_args(arguments)
    runs: dict[str, list[float]] = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    model = options.rounds, options.cells
    for name in options.only if not options.show else ():
        for contender in options.contender:
            label = contender
            if contender in SLOW and model != (AIM_ROUNDS, AIM_CELLS):
                label += f", {options.rounds} rounds, {options.cells} cells"
            for delta in options.delta:
                for key in range(options.keys):
                    place = f"{name} | {label} | {delta:g} | {key}"
                    if place in runs and not options.again:
                        continue
                    if (found := _run(TABLES[name](), contender, delta, key, model)) is None:
                        continue
                    runs[place] = [float(f"{one:.4g}") for one in found]
                    console.print(place, runs[place], highlight=False, soft_wrap=True)
                    RUNS.write_text(json.dumps(dict(sorted(runs.items())), indent=0) + "\n")
    texts = [_shown(runs, delta) for delta in (0.0, DELTA)]
    console.print("\n\n".join(texts), soft_wrap=True, highlight=False)
    if options.write:
        write_between(DOCUMENT, BEGIN, END, _shown(runs, 0.0, WRITTEN))


def _shown(runs: dict[str, list[float]], delta: float, names: Iterable[str] = ()) -> str:
    heads = ("table", "rows", *STREAMS, "private-pgm, offline", "ratio")
    lines = [heads, ("---",) * len(heads)]
    for name in names or _NAMED:
        rows, _ = _NAMED[name]
        found: dict[str, tuple[float, float]] = {}
        for contender in CONTENDERS:
            start = f"{name} | {contender} | {delta:g} | "
            if kept := [run for place, run in runs.items() if place.startswith(start)]:
                found[contender] = (
                    statistics.mean(run[0] for run in kept),
                    statistics.mean(run[2] for run in kept),
                )
        if found:
            peer = min((found[one] for one in OFFLINE if one in found), default=None)
            ratio = f"{found[AUTO][0] / peer[0]:.2f}" if peer and AUTO in found else "–"
            errors = (*(found.get(one) for one in STREAMS), peer)
            lines.append((name, f"{rows:,}", *map(_cell, errors), ratio))
    head = f"**δ = {delta:g}**: mean and largest error of a cell, in rows"
    return "\n".join([head, "", *("| " + " | ".join(line) + " |" for line in lines)])


def _cell(errors: tuple[float, float] | None) -> str:
    if errors is None:
        return "–"
    return " / ".join(f"{one:,.0f}" if one >= _WHOLE else f"{one:.3g}" for one in errors)


def _run(
    table: Table | None, contender: str, delta: float, key: int, model: tuple[int, int]
) -> tuple[float, ...] | None:
    if table is None:
        return None
    if (mechanism := STREAMS.get(contender)) is not None:
        estimates: Floats | None = _streamed(table, mechanism, delta, key)
    else:
        program, measured = (OFFLINE | SLOW)[contender]
        if measured == "pairs" and math.prod(table.sizes) > WHOLE_CELLS:
            return None
        estimates = _private_pgm(table, program, measured, delta, key, model)
    if estimates is None:
        return None
    errors = np.abs(estimates - np.concatenate([table.exact(pair) for pair in table.pairs]))
    return float(errors.mean()), float(np.quantile(errors, 0.95)), float(errors.max())


def _streamed(table: Table, mechanism: dict[str, Any], delta: float, key: int) -> Floats:
    """Ask a stream for every pair, through the services' own processors."""
    names = [f"a{axis}" for axis in range(len(table.sizes))]
    driver = Driver(key.to_bytes(32, "big"), partitions=1)
    driver.register(
        {
            "source": "table",
            "kind": "table",
            "neighbors": "add-remove",
            "epsilon": 10.0,
            "delta": 0.01,
            "path": "table.csv",
            "attributes": {
                name: {"kind": "integers", "minimum": 0, "maximum": size - 1}
                for name, size in zip(names, table.sizes, strict=True)
            },
        },
        pl.DataFrame(dict(zip(names, table.codes.T, strict=True))),
    )
    driver.open(
        {
            "stream": "pairs",
            "source": "table",
            "epsilon": EPSILON,
            "delta": delta,
            "beta": BETA,
            "expected_queries": 1000,
            "mechanism": {"attributes": names, **mechanism},
        }
    )
    asked = [
        {"id": str(place), "stream": "pairs", "group_by": [names[x], names[y]]}
        for place, (x, y) in enumerate(table.pairs)
    ]
    answers = driver.ask_many(asked)
    return np.concatenate([np.array(one.estimates, dtype=np.float64) for one in answers])


def _private_pgm(
    table: Table, program: str, measured: str, delta: float, key: int, model: tuple[int, int]
) -> Floats | None:
    """Run a program on private-pgm in the peers' environment; ``model`` limits AIM's rounds and cells."""
    if (python := environment("mbi")) is None:
        return None
    given, made = (FOLDER / "accuracy" / name for name in ("pairs.npz", "pairs.npy"))
    given.parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        given,
        codes=table.codes,
        sizes=table.sizes,
        epsilon=EPSILON,
        delta=delta,
        seed=key,
        measure=measured,
        rounds=model[0] * len(table.sizes),
        cells=model[1],
    )
    subprocess.run([python, PEERS / program, given, made], check=True)
    everything: Floats = np.load(made)
    places, kept = 0, []
    for x, y in combinations(range(len(table.sizes)), 2):
        cells = table.sizes[x] * table.sizes[y]
        if cells <= MAX_CATEGORIES:
            kept.append(everything[places : places + cells])
        places += cells
    return np.concatenate(kept)


def _from_package(name: str) -> Table | None:
    """A data set of statsmodels, with codes as its documentation lists the values."""
    if (python := environment("statsmodels")) is None:
        return None
    target = FOLDER / "accuracy" / f"{name}.npz"
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        subprocess.run([python, PEERS / "surveys.py", name, target], check=True)
    found = np.load(target)
    return Table(found["codes"].astype(np.int64), tuple(found["sizes"].tolist()))


def _adult(*names: str) -> Table | None:
    found = accuracy_table("adult")
    if found is None:
        return None
    kept = [place for place, name in enumerate(found.domains) if not names or name in names]
    sizes = [domain.size for domain in found.domains.values()]
    return Table(found.codes[:, kept], tuple(sizes[place] for place in kept))


def _departures() -> Table:
    """Month, weekday, hour, airport and ten minutes of delay of a year's departures from New York."""
    frame = read_flights().sort("scheduled")
    day = (frame["scheduled"].to_numpy() - int(frame["scheduled"][0])) // 60_000
    columns = [
        np.minimum(day // 1440 * 12 // 365, 11),
        day // 1440 % 7,
        day // 60 % 24,
        frame["origin"].replace_strict({name: code for code, name in enumerate(AIRPORTS)}).to_numpy(),
        np.clip((frame["delay"].to_numpy() + 30) // 10, 0, 21),
    ]
    return Table(np.stack(columns, axis=1).astype(np.int64), (12, 7, 24, 3, 22))


def _chain(rows: int, sizes: tuple[int, ...], strength: float) -> Callable[[], Table]:
    """Columns each of which depends on one of the three before it; independent ones for strength 0."""

    def make() -> Table:
        rng = np.random.default_rng(5)
        columns: list[Codes] = []
        for axis, size in enumerate(sizes):
            if axis == 0 or strength == 0.0:
                columns.append(rng.choice(size, rows, p=rng.dirichlet(np.ones(size))))
                continue
            before = int(rng.integers(max(0, axis - 3), axis))
            laws = rng.dirichlet(np.ones(size) * strength, sizes[before]).cumsum(axis=1)
            drawn = (rng.random(rows)[:, None] > laws[columns[before]]).sum(axis=1)
            columns.append(np.clip(drawn, 0, size - 1))
        return Table(np.stack(columns, axis=1).astype(np.int64), sizes)

    return make


_NAMED: dict[str, tuple[int, Callable[[], Table | None]]] = {
    "election, 10 attributes": (944, lambda: _from_package("anes96")),
    "survey, 9 attributes": (6_366, lambda: _from_package("fair")),
    "health, 10 attributes": (20_190, lambda: _from_package("randhie")),
    "Adult, 5 attributes": (48_842, lambda: _adult(*FIVE)),
    "Adult, 14 attributes": (48_842, _adult),
    "independent, 8 attributes": (60_000, _chain(60_000, (8, 5, 12, 2, 6, 10, 4, 3), 0.0)),
    "departures, 5 attributes": (336_776, _departures),
    "synthetic, 12 attributes": (1_000_000, _chain(1_000_000, (8, 5, 12, 2, 6, 10, 4, 3, 9, 7, 5, 2), 0.7)),
}
TABLES = {name: lru_cache(maxsize=1)(make) for name, (_, make) in _NAMED.items()}

if __name__ == "__main__":
    main()
