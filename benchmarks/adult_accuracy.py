"""How accurate many answers about the Adult table are, for the same budget: pmw beside the alternatives.

Random marginal and range queries go through the real processors in memory: over five attributes (27,200 cells), over the same
with three to five named and both ordered ones in ranges, and over all fourteen (6·10¹⁷ cells). Errors are shares of the
rows; answers are clamped to what a count can be, for every contender alike.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table as RichTable

from benchmarks.contenders import PEERS, environment
from benchmarks.installation import FOLDER
from benchmarks.report import console, write_json
from schemas import Answer
from sotto import Driver
from stream.data import Predicate, TableStore, adult, cells

ATTRIBUTES = ("age", "sex", "education-num", "race", "income>50K")
ROWS_AT_MOST = 50_000
"""The public figure that pmw plans with."""

EPSILONS = (0.1, 1.0)
DELTAS = (0.0, 1e-6)
BETA = 0.05
DOCUMENT = Path("docs/accuracy.md")
FIGURE = Path("docs/accuracy-adult.svg")
_streams = count()
_BEGIN, _END = "<!-- measured -->", "<!-- end -->"
_RANGED = ("age", "education-num")
_ORDERED = ("age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week")

Errors = npt.NDArray[np.float64]
Contender = tuple[str, dict[str, Any], str]
"""A name, a mechanism and the calibration asked for."""

FEW, DEEP, WIDE = "five attributes", "five attributes, three to five named", "all fourteen attributes"
_WIDE_QUERIES = 3_000


@dataclass(frozen=True)
class Outcome:
    """What one contender did with one budget; medians over the rounds, errors as shares of the rows."""

    workload: str
    contender: str
    epsilon: float
    delta: float
    largest: float
    mean: float
    promised: float | None
    answered: float
    spent: float
    charged: float


@dataclass(frozen=True)
class Task:
    """The table, the questions and their true answers."""

    name: str
    attributes: tuple[str, ...]
    store: TableStore
    wheres: tuple[str, ...]
    predicates: tuple[Predicate, ...]
    truth: npt.NDArray[np.int64]
    rows: int

    def errors(self, estimates: npt.NDArray[np.float64]) -> Errors:
        """Errors of estimated counts, as shares of the rows."""
        result: Errors = np.abs(np.clip(estimates, 0.0, ROWS_AT_MOST) - self.truth) / self.rows
        return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Ask everybody the same questions, show a table, and write what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.adult_accuracy", description=__doc__)
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5, help="how many noise keys; medians are shown")
    parser.add_argument("--no-peer", action="store_true", help="leave private-pgm out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--write", action="store_true", help=f"write the table and figure of {DOCUMENT}")
    options = parser.parse_args(arguments)
    rounds = options.rounds
    few, deep, wide = (make_task(options.queries, name) for name in (FEW, DEEP, WIDE))
    outcomes = [
        outcome
        for epsilon in EPSILONS
        for outcome in [
            *outcomes_at(few, epsilon, 0.0, _contenders(few), rounds),
            *outcomes_at(few, epsilon, DELTAS[1], _contenders(few)[::5], rounds),
            *([] if options.no_peer else _offline(few, epsilon, rounds)),
        ]
    ]
    for task in (deep, wide):
        outcomes += outcomes_at(task, 1.0, 0.0, _contenders(task)[::5], rounds)
    show(outcomes, options.queries)
    if options.json:
        write_json(options.json, [asdict(outcome) for outcome in outcomes])
    if options.write:
        write_document(outcomes, options.queries, options.rounds)


def make_task(queries: int, name: str = FEW) -> Task:
    """Random questions; equal arguments give equal questions."""
    store = TableStore(bytes(32))
    source = adult.source(1.0)
    table = store.get(source)
    queries = min(queries, _WIDE_QUERIES) if name == WIDE else queries
    generator = random.Random(queries)
    attributes = tuple(source.attributes) if name == WIDE else ATTRIBUTES
    ask = {FEW: _question, DEEP: _deep_question, WIDE: _wide_question}[name]
    wheres = tuple(ask(generator) for _ in range(queries))
    predicates = tuple(store.predicate(source, where) for where in wheres)
    return Task(name, attributes, store, wheres, predicates, table.counts(predicates), table.private_row_count)


def _question(generator: random.Random) -> str:
    """One cell of a marginal of one to three attributes, or a range of one attribute within such a cell."""
    named = generator.sample(ATTRIBUTES, generator.randint(1, 3))
    ranged = generator.choice(_RANGED) if generator.random() < 0.5 else None
    parts = [_equal(generator, name) for name in named if name != ranged]
    if ranged is not None:
        parts.append(_between(generator, ranged))
    return " AND ".join(parts)


def _deep_question(generator: random.Random) -> str:
    """A range of age and one of years of education, within a cell of one to three of the other attributes."""
    others = [name for name in ATTRIBUTES if name not in _RANGED]
    cells_of = [_equal(generator, name) for name in generator.sample(others, generator.randint(1, 3))]
    return " AND ".join([*cells_of, *(_between(generator, name) for name in _RANGED)])


def _wide_question(generator: random.Random) -> str:
    """One to three of all attributes, in half of the questions a range of one that has an order."""
    named = generator.sample(list(adult.source(1.0).attributes), generator.randint(1, 3))
    ranged = generator.choice(_ORDERED) if generator.random() < 0.5 else None
    if ranged is not None and ranged not in named:
        named[generator.randrange(len(named))] = ranged
    return " AND ".join(_between(generator, name) if name == ranged else _equal(generator, name) for name in named)


def _between(generator: random.Random, name: str) -> str:
    low, high = sorted(generator.randint(*_values(name)) for _ in range(2))
    return f'"{name}" BETWEEN {low} AND {high}'


def _equal(generator: random.Random, name: str) -> str:
    if name == "sex":
        return f"sex = '{generator.choice('FM')}'"
    return f'"{name}" = {generator.randint(*_values(name))}'


def _values(name: str) -> tuple[int, int]:
    domain: Any = adult.source(1.0).attributes[name]
    return domain.minimum, domain.maximum


def outcomes_at(
    task: Task, epsilon: float, delta: float, contenders: Sequence[Contender], rounds: int
) -> list[Outcome]:
    """Some contenders at one budget."""
    found = []
    for contender, mechanism, choice in contenders:
        spec = {"mechanism": mechanism, "calibration": choice, "epsilon": epsilon, "delta": delta}
        runs = [_streamed(task, spec, number) for number in range(rounds)]
        found.append(_median_of(task, contender, epsilon, delta, runs))
    return found


def _offline(task: Task, epsilon: float, rounds: int) -> list[Outcome]:
    """private-pgm, if it can be had."""
    if (python := environment("mbi")) is None:
        return []
    runs = [_private_pgm(task, python, epsilon, number) for number in range(rounds)]
    return [_median_of(task, "private-pgm, offline", epsilon, 0.0, runs)]


def _contenders(task: Task) -> list[Contender]:
    """The first and the last take part everywhere."""
    pmw = {"kind": "pmw", "attributes": list(task.attributes)}
    weights = pmw | {"rows": ROWS_AT_MOST}
    return [
        ("pmw", pmw, "best"),
        ("pmw, single attributes first", pmw | {"warm_start": 1}, "best"),
        ("pmw, nothing first", pmw | {"warm_start": 0}, "best"),
        ("pmw, worst case", weights | {"worst_case": True}, "best"),
        ("pmw, textbook", weights, "textbook"),
        ("Laplace per query", {"kind": "laplace", "answers": len(task.wheres)}, "best"),
    ]


Run = tuple[Errors, float | None, float, float]
"""Errors, the promised one if any, ε spent, answers charged."""


@lru_cache(maxsize=16)
def _installation(number: int) -> Driver:
    """An installation with a noise key of its own, and budget for everybody."""
    driver = Driver(number.to_bytes(32, "big"), partitions=1)
    driver.register(adult.source(1000.0, 1e-2))
    return driver


def _streamed(task: Task, spec: dict[str, Any], number: int) -> Run:
    """One stream through the processors."""
    driver = _installation(number)
    stream = f"asked-{next(_streams)}"
    driver.open({"stream": stream, "source": "adult", "beta": BETA, "expected_queries": len(task.wheres), **spec})
    answers = driver.ask_many(
        {"id": str(place), "stream": stream, "where": where} for place, where in enumerate(task.wheres)
    )
    kept = [(place, answer) for place, answer in enumerate(answers) if answer.estimate is not None]
    estimates = np.full(len(answers), np.nan)
    for place, answer in kept:
        estimates[place] = answer.estimate
    errors = task.errors(estimates)
    last = kept[-1][1]
    return errors[~np.isnan(errors)], _promised(answers, task.rows), _spent(last), _charged(answers)


def _promised(answers: Sequence[Answer], rows: int) -> float:
    return max(answer.alpha for answer in answers if answer.alpha is not None) / rows


def _spent(answer: Answer) -> float:
    return answer.spent.epsilon if answer.spent is not None else 0.0


def _charged(answers: Sequence[Answer]) -> float:
    return float(sum(answer.basis == "noisy" for answer in answers))


def _private_pgm(task: Task, python: Path, epsilon: float, number: int) -> Run:
    """All two-way marginals measured at once, a graphical model fitted to them, and every question answered from it."""
    table = task.store.get(adult.source(1.0))
    sizes = {name: table.attributes[name].size for name in ATTRIBUTES}
    given, made = (FOLDER / "accuracy" / name for name in ("given.npz", "made.npy"))
    given.parent.mkdir(parents=True, exist_ok=True)
    codes = np.stack([table.private_codes[name] for name in ATTRIBUTES], axis=1)
    np.savez(given, codes=codes, sizes=list(sizes.values()), epsilon=epsilon, seed=number)
    subprocess.run([python, PEERS / "private_pgm.py", given, made], check=True)
    tensor = np.load(made)
    estimates = np.array([float(tensor[cells(predicate, sizes)].sum()) for predicate in task.predicates])
    return task.errors(estimates), None, epsilon, 0.0


def _median_of(task: Task, contender: str, epsilon: float, delta: float, runs: Sequence[Run]) -> Outcome:
    def median(figure: Callable[[Run], float]) -> float:
        return statistics.median(figure(run) for run in runs)

    return Outcome(
        workload=task.name,
        contender=contender,
        epsilon=epsilon,
        delta=delta,
        largest=median(lambda run: float(run[0].max())),
        mean=median(lambda run: float(run[0].mean())),
        promised=runs[0][1],
        answered=median(lambda run: float(len(run[0]))),
        spent=median(lambda run: run[2]),
        charged=median(lambda run: run[3]),
    )


HEADINGS = (
    "questions about",
    "ε",
    "δ",
    "",
    "largest error",
    "mean error",
    "promised",
    "answered",
    "charged",
    "ε spent",
)


def _cells_of(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.workload,
        f"{outcome.epsilon:g}",
        f"{outcome.delta:g}",
        outcome.contender,
        f"{outcome.largest:.4f}",
        f"{outcome.mean:.5f}",
        "–" if outcome.promised is None else f"{outcome.promised:.4f}",
        f"{outcome.answered:,.0f}",
        f"{outcome.charged:,.0f}",
        f"{outcome.spent:.3g}",
    )


def show(outcomes: Sequence[Outcome], queries: int) -> None:
    """Print the table."""
    table = RichTable(title=f"{queries:,} queries about the Adult table; errors as shares of its rows")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if not heading else "right")
    for outcome in outcomes:
        table.add_row(*_cells_of(outcome))
    console.print(table)


def write_document(outcomes: Sequence[Outcome], queries: int, rounds: int) -> None:
    """Put the table between the marks of the document, and draw the figure."""
    lines = [
        (
            f"{queries:,} queries ({min(queries, _WIDE_QUERIES):,} about all fourteen), medians over {rounds} noise keys. "
            "Errors are shares of the rows."
        ),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "| " + " | ".join("---" for _ in HEADINGS) + " |",
        *("| " + " | ".join(_cells_of(outcome)) + " |" for outcome in outcomes),
    ]
    before, _, rest = DOCUMENT.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    DOCUMENT.write_text(f"{before}{_BEGIN}\n" + "\n".join(lines) + f"\n{_END}{after}")
    draw(outcomes, FIGURE)
    console.print(f"Written to {DOCUMENT} and {FIGURE}")


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Largest and mean errors as bars, one panel for each budget."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415  (an optional extra, 'plot')
    from matplotlib.figure import Figure  # noqa: PLC0415

    budgets = list(dict.fromkeys((one.workload, one.epsilon, one.delta) for one in outcomes))
    figure = Figure(figsize=(9.0, 2.0 + 1.3 * len(budgets)), layout="constrained")
    FigureCanvasSVG(figure)
    panels = figure.subplots(len(budgets), 1, sharex=True, squeeze=False)[:, 0]
    for panel, budget in zip(panels, budgets, strict=True):
        own = [one for one in outcomes if (one.workload, one.epsilon, one.delta) == budget][::-1]
        places = np.arange(len(own))
        panel.barh(places + 0.2, [one.largest for one in own], height=0.38, label="largest", color="#b04a3a")
        panel.barh(places - 0.2, [one.mean for one in own], height=0.38, label="mean", color="#3a6ea5")
        panel.set_yticks(places, [one.contender for one in own])
        panel.set_xscale("log")
        panel.grid(axis="x", alpha=0.3)
        panel.set_title(f"{budget[0]}; ε = {budget[1]:g}, δ = {budget[2]:g}", loc="left", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
    panels[-1].set_xlabel("error, as a share of the rows")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
