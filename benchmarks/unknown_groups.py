"""Compares counts of unknown groups with those of declared groups: ``python -m benchmarks.unknown_groups``.

Both are asked through the services' processors in memory, with several noise keys. Declared groups need a public list of the values.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from statistics import mean
from typing import Any, Final, NamedTuple

from benchmarks.report import console, markdown_line
from schemas import Laplace, StreamSpec, UnknownGroups
from sotto import Driver
from stream.tables.demo_tables import read_flights

DELTA: Final = 1e-6
EPSILONS: Final = (1.0, 0.1)
KEYS: Final = 10
_HEADINGS = ("ε", "", "groups", "share of the rows", "mean error", "largest error", "α")


class Measured(NamedTuple):
    """The figures of one answer: its groups, the rows in these groups, and errors of the counts, if any."""

    groups: int
    share: float
    mean: float = 0.0
    largest: float = 0.0
    alpha: float = 0.0


KINDS: Final = {
    "`unknown_groups`": "counts",
    "`unknown_groups`, names alone": "names",
    "declared, `laplace`": "declared",
}
"""The contenders."""


def aircraft() -> Sequence[str]:
    """Read the column that is grouped by."""
    return list(read_flights()["aircraft"].fill_null("?"))


def ask(cells: Sequence[str], epsilon: float, key: int, kind: str) -> Measured:
    """Ask for the counts of all values of a column, declared or not, or for their names."""
    declared = kind == "declared"
    truth = Counter(cells)
    domain: Any = {"kind": "text"} if not declared else sorted(truth)
    source = {
        "source": "table",
        "kind": "table",
        "neighbors": "add-remove",
        "epsilon": 1.0,
        "delta": 1e-3,
        "path": "-",
        "attributes": {"one": [""], "value": domain},
    }
    driver = Driver(key.to_bytes(32, "little"))
    driver.register(source, {"one": [""] * len(cells), "value": cells})
    mechanism: Any = UnknownGroups(kind="unknown_groups", counts=kind == "counts")
    if declared:
        mechanism = Laplace(kind="laplace", dimensions=len(truth))
    driver.open(
        StreamSpec(
            stream="s",
            source="table",
            mechanism=mechanism,
            epsilon=epsilon,
            delta=0.0 if declared else DELTA,
            expected_queries=1,
        )
    )
    result = driver.ask("s", group_by=["value"])
    if kind == "names":
        names = result.keys or ()
        return Measured(len(names), sum(truth[name] for name in names) / len(cells))
    counts = {str(row["value"]): row["estimate"] for row in result.rows()}
    errors = [abs(count - truth[value]) for value, count in counts.items()]
    share = sum(truth[value] for value in counts) / len(cells)
    return Measured(len(counts), share, mean(errors), max(errors), result.alpha or 0.0)


def row(cells: Sequence[str], epsilon: float, who: str) -> tuple[str, ...]:
    """Measure with every key, and format the means."""
    found = [ask(cells, epsilon, key, KINDS[who]) for key in range(KEYS)]
    groups, share, error, largest, alpha = (mean(values) for values in zip(*found, strict=True))
    values = len(set(cells))
    errors = ("–",) * 3 if KINDS[who] == "names" else (f"{error:.2f}", f"{largest:.1f}", f"{alpha:g}")
    return (
        f"{epsilon:g}",
        who,
        f"{groups:,.1f} of {values:,}".replace(".0 ", " "),
        f"{share:.2%}",
        *errors,
    )


def main(arguments: list[str] | None = None) -> None:
    """Measure, show a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.unknown_groups", description=__doc__)
    parser.parse_args(arguments)
    cells = aircraft()
    rows = [row(cells, epsilon, who) for epsilon in EPSILONS for who in KINDS]
    lines = [markdown_line(one) for one in (_HEADINGS, ("---",) * len(_HEADINGS), *rows)]
    told = f"One answer, δ = {DELTA:g} for unknown groups and 0 for declared ones; means over {KEYS} keys; errors in rows."
    text = "\n".join([told, "", *lines])
    console.print(text, highlight=False)


if __name__ == "__main__":
    main()
