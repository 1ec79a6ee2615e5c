"""Tables for people and JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

BASELINES = ("Kafka Streams", "Pass-through in C")
"""Baselines of ratios; the first one that takes part is used."""

Figure = tuple[str, float, str]
"""A name, a number and its unit."""

console = Console(width=None if sys.stdout.isatty() else 120)


class RunLike(Protocol):
    """The parts of a run that the table shows."""

    @property
    def contender(self) -> str: ...  # noqa: D102
    @property
    def streams(self) -> int: ...  # noqa: D102
    @property
    def round(self) -> int: ...  # noqa: D102
    @property
    def queries(self) -> int: ...  # noqa: D102
    @property
    def answers(self) -> int: ...  # noqa: D102
    @property
    def different_ids(self) -> int: ...  # noqa: D102
    @property
    def rate(self) -> float: ...  # noqa: D102
    @property
    def late_rate(self) -> float: ...  # noqa: D102
    @property
    def startup_seconds(self) -> float: ...  # noqa: D102
    @property
    def total_seconds(self) -> float: ...  # noqa: D102
    @property
    def cpu_microseconds(self) -> float: ...  # noqa: D102
    @property
    def steady_microseconds(self) -> float: ...  # noqa: D102
    @property
    def broker_microseconds(self) -> float: ...  # noqa: D102


def show_throughput(runs: Sequence[RunLike]) -> None:
    """Medians over the rounds, and the medians of each round's ratio to the baseline."""
    rounds = max(run.round for run in runs) + 1
    table = Table(title=f"{runs[0].streams} streams, {runs[0].queries:,} queries, medians of {rounds} rounds")
    table.add_column("")
    for heading in (
        "answers/s",
        "ratio",
        "2nd half/s",
        "ratio",
        "first",
        "all",
        "CPU/answer",
        "after start",
        "broker's",
    ):
        table.add_column(heading, justify="right")
    table.add_column("exactly once")
    for name in dict.fromkeys(run.contender for run in runs):
        own = [run for run in runs if run.contender == name]
        table.add_row(
            name,
            f"{_median(run.rate for run in own):,.0f}",
            _ratio(runs, own, "rate"),
            f"{_median(run.late_rate for run in own):,.0f}",
            _ratio(runs, own, "late_rate"),
            f"{_median(run.startup_seconds for run in own):.1f} s",
            f"{_median(run.total_seconds for run in own):.1f} s",
            f"{_median(run.cpu_microseconds for run in own):.1f} µs",
            f"{_median(run.steady_microseconds for run in own):.2f} µs",
            f"{_median(run.broker_microseconds for run in own):.1f} µs",
            _verdict(own),
        )
    console.print(table)


class LatencyLike(Protocol):
    """The parts of a latency measurement that the table shows."""

    @property
    def contender(self) -> str: ...  # noqa: D102
    @property
    def partitions(self) -> int: ...  # noqa: D102
    @property
    def streams(self) -> int: ...  # noqa: D102
    @property
    def rate(self) -> float: ...  # noqa: D102
    @property
    def missing(self) -> int: ...  # noqa: D102
    @property
    def median(self) -> float: ...  # noqa: D102
    @property
    def p99(self) -> float: ...  # noqa: D102
    @property
    def worst(self) -> float: ...  # noqa: D102


def show_latency(latencies: Sequence[LatencyLike]) -> None:
    """Quantiles in milliseconds."""
    first = latencies[0]
    table = Table(title=f"From asking to committed answer, {first.rate:,.0f} queries/s, {first.streams} streams")
    table.add_column("")
    for heading in ("partitions", "median", "99 %", "worst", "missing"):
        table.add_column(heading, justify="right")
    for latency in latencies:
        times = (latency.median, latency.p99, latency.worst)
        table.add_row(
            latency.contender,
            str(latency.partitions),
            *(f"{time:,.0f} ms" for time in times),
            str(latency.missing),
        )
    console.print(table)


def show_figures(title: str, figures: Sequence[Figure]) -> None:
    """Names, figures and units."""
    table = Table(title=title)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("")
    for name, figure, unit in figures:
        table.add_row(name, f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}", unit)
    console.print(table)


def write_json(path: Path, figures: Any) -> None:
    """Figures with the machine that they were measured on."""
    machine = {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1) + "\n")
    console.print(f"Written to {path}")


def markdown_line(cells: Iterable[str]) -> str:
    """A line of a document's table."""
    return f"| {' | '.join(cells)} |"


def write_between(document: Path, begin: str, end: str, text: str) -> None:
    """Put a text between two marks of a document; ValueError if a mark is missing."""
    before, found, rest = document.read_text(encoding="utf-8").partition(begin)
    _, also, after = rest.partition(end)
    if not found or not also:
        raise ValueError(f"{document}: the marks {begin} and {end} are missing; put them where the table belongs")
    document.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def _median(values: Iterable[float]) -> float:
    return statistics.median(list(values))


def _ratio(runs: Sequence[RunLike], own: Sequence[RunLike], figure: str) -> str:
    name = next((name for name in BASELINES if any(run.contender == name for run in runs)), "")
    baseline = {run.round: getattr(run, figure) for run in runs if run.contender == name}
    ratios = [getattr(run, figure) / baseline[run.round] for run in own if run.round in baseline]
    return f"{statistics.median(ratios):.2f}" if ratios else "–"


def _verdict(own: Sequence[RunLike]) -> str:
    repeated = sum(run.answers - run.different_ids for run in own)
    missing = sum(max(0, run.queries - run.different_ids) for run in own)
    if not repeated and not missing:
        return "yes"
    return f"{repeated} repeated, {missing} missing"
