"""Drawing a plan, the error against ε or against the cutoff, and a simulation, the error of each question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from schemas import StreamSpec
from stream.accounting.curves import Against, curve
from stream.accounting.planner import PlanError
from stream.accounting.plans import name_of, rank
from stream.accounting.setting import Setting
from stream.cli.output import CommandError
from stream.simulation import Measurement, Report


def plot_error(spec: StreamSpec, setting: Setting, against: Against, path: Path) -> None:
    """Draw the exact α of every calibration around the given specification, on logarithmic axes."""
    figure = new_figure(width=7.0, height=4.5)
    lines: dict[str, list[tuple[float, float]]] = {}
    try:
        for point in curve(spec, setting, against):
            for one in point.calibrations:
                lines.setdefault(name_of(one), []).append((point.value, rank(one)))
    except PlanError as error:
        raise CommandError(f"--against {against}: {error}") from None
    if not lines:
        raise CommandError("--plot: no calibration fits these parameters; raise --epsilon")
    axes = figure.add_subplot()
    for method, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker=".", label=method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ε" if against is Against.EPSILON else "cutoff")
    axes.set_ylabel(f"error α at β = {spec.beta:g}")
    axes.set_title(f"{spec.mechanism.kind}, {spec.expected_queries} queries")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend()
    _save(figure, path)


def plot_simulation(report: Report, path: Path) -> None:
    """Draw the largest error of each question's answer in every run, and what was promised; one panel a kind of answer."""
    kinds = [one.what for one in report.figures]
    if not kinds:
        raise CommandError(
            "--plot: no question was answered, so there is no error to draw; see the reasons without it"
        )
    figure = new_figure(width=7.0, height=1.7 + 2.3 * len(kinds))
    panels = figure.subplots(len(kinds), sharex=True, squeeze=False)[:, 0]
    for axes, kind in zip(panels, kinds, strict=True):
        _panel(axes, kind, [one for run in report.runs for one in run.measurements if one.what == kind])
    spec = report.grant.spec
    runs = f"{len(report.runs):,} runs" if len(report.runs) > 1 else "1 run"
    figure.suptitle(f"{spec.stream}: {spec.mechanism.kind} at ε {spec.epsilon:g}, {runs}")
    legend = {label: one for axes in panels for one, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend))
    panels[-1].set_xlabel("line of the question")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    _save(figure, path)


def _panel(axes: Any, kind: str, measured: Sequence[Measurement]) -> None:
    lines = np.array([one.line for one in measured])
    largest = np.array([one.largest for one in measured])
    broken = np.array([one.broken for one in measured])
    axes.plot(lines[~broken], largest[~broken], ".", alpha=0.5, color="tab:blue", label="realised, each run")
    if broken.any():
        axes.plot(lines[broken], largest[broken], "x", color="tab:red", label="further off than promised")
    promised: dict[int, float] = {}
    for one in measured:
        if one.alpha is not None:
            promised[one.line] = max(one.alpha, promised.get(one.line, 0.0))
    if promised:
        told = sorted(promised.items())
        axes.plot(
            *zip(*told, strict=True),
            "-",
            marker="_",
            color="tab:orange",
            drawstyle="steps-mid",
            label="promised α",
        )
    axes.set_ylabel(f"error of {kind}")
    axes.grid(visible=True, alpha=0.25)


def new_figure(*, width: float, height: float) -> Any:
    """An empty figure; CommandError where the extra that draws is not installed."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise CommandError("--plot needs matplotlib; run pip install 'sotto-dp[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"--plot: cannot write {path}: {error}") from None
