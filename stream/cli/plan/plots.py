"""Plots a plan (error against ε or cutoff) or a simulation (error of each question)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.progress import track

from schemas import Calibration, StreamSpec
from stream.cli.output import CommandError
from stream.dev.simulation import ErrorMeasurement, SimulationReport
from stream.formatting import format_error_bound
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.inverse_plans import VariedParameter, error_curve, variations
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import name_of, rank
from stream.privacy.planning.promises import least_vacuous_alpha

# The color-blind safe palette of Okabe and Ito; markers distinguish lines in black and white.
_STYLES: Final = {
    "textbook": ("#7f7f7f", "s"),
    "two_sided": ("#56b4e9", "v"),
    "two_sided_shifted": ("#0072b2", "^"),
    "one_sided": ("#009e73", "o"),
    "one_sided_rounds": ("#e69f00", "D"),
    "basic": ("#0072b2", "o"),
    "laplace": ("#0072b2", "o"),
    "optimal": ("#e69f00", "D"),
    "gaussian": ("#cc79a7", "P"),
    "maximum_entropy": ("#009e73", "o"),
    "maximum_entropy, gaussian": ("#cc79a7", "P"),
}
"""A color and a marker for each calibration, the same in every plot."""


_ROW_KINDS: Final = {"counts", "groups"}
"""Kinds of answers whose errors are numbers of rows."""


def plot_error(
    spec: StreamSpec, facts: SourceFacts, calibration: Calibration, against: VariedParameter, path: Path
) -> None:
    """Plot every calibration's exact α for several ε or cutoffs, and mark the ``calibration`` one."""
    figure = new_figure(path, width=7.0, height=4.8)
    lines = _calibration_curves(spec, facts, against)
    axes = figure.add_subplot()
    for method, points in lines.items():
        color, mark = style_of(method)
        axes.plot(*zip(*points, strict=True), marker=mark, markersize=4, color=color, label=method)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:,g}")
    _mark_chosen(axes, spec, calibration, against)
    _hatch_vacuous(axes, least_vacuous_alpha(spec, facts.rows))
    axes.set_xlabel("ε" if against is VariedParameter.EPSILON else "cutoff")
    axes.set_ylabel("error α")
    axes.set_title(_title(spec, facts.rows, calibration), fontsize="medium")
    axes.grid(visible=True, which="both", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    _save(figure, path)


def style_of(calibration: str) -> tuple[str, str]:
    """Return a calibration's color and marker; "calibrated, NAME" has those of NAME."""
    return _STYLES[calibration.removeprefix("calibrated, ")]


def _calibration_curves(
    spec: StreamSpec, facts: SourceFacts, against: VariedParameter
) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    try:
        count = len(variations(spec, against))
        points = track(
            error_curve(spec, facts, against),
            "planning the curve",
            total=count,
            console=Console(stderr=True),
            transient=True,
        )
        for point in points:
            for one in point.calibrations:
                lines.setdefault(name_of(one), []).append((point.value, rank(one)))
    except PlanError as error:
        raise CommandError(f"--against {against}: {error}") from None
    if not lines:
        raise CommandError("--plot: no calibration fits these parameters; raise --epsilon")
    return lines


def _mark_chosen(axes: Any, spec: StreamSpec, calibration: Calibration, against: VariedParameter) -> None:
    at = spec.epsilon if against is VariedParameter.EPSILON else float(calibration.cutoff)
    what = f"ε {at:g}" if against is VariedParameter.EPSILON else f"cutoff {at:,.0f}"
    axes.axvline(at, color="black", linewidth=1, linestyle="--", zorder=1)
    axes.plot(
        [at],
        [rank(calibration)],
        "o",
        markersize=12,
        markerfacecolor="none",
        markeredgecolor="black",
        linestyle="none",
        label=f"chosen: {name_of(calibration)} at {what}, α {format_error_bound(rank(calibration), grouped=True)}",
    )


def _hatch_vacuous(axes: Any, least: float | None) -> None:
    """Hatch the visible errors from ``least`` on: a constant answer would keep to these too."""
    low, high = axes.get_ylim()
    if least is None or least >= high:
        return
    axes.axhspan(
        max(least, low),
        high,
        facecolor="none",
        edgecolor="0.6",
        hatch="///",
        linewidth=0,
        zorder=0,
        label="vacuous α",
    )
    axes.set_ylim(low, high)


def _title(spec: StreamSpec, rows: int | None, chosen: Calibration) -> str:
    parts = [f"ε {spec.epsilon:g}", f"δ {spec.delta:g}", f"β {spec.beta:g}"]
    parts += [f"cutoff {chosen.cutoff:,}"] if chosen.cutoff else []
    parts += [f"{spec.expected_queries:,} queries"]
    parts += [f"{rows:,} rows"] if rows is not None else []
    return f"{spec.mechanism.kind}: {', '.join(parts)}"


def plot_simulation(report: SimulationReport, path: Path) -> None:
    """Plot each question's largest error in every run, and its promised α; one panel for each kind."""
    kinds = [one.what for one in report.figures]
    if not kinds:
        raise CommandError(
            "--plot: no question was answered, so there is no error to plot; omit it to see the reasons"
        )
    figure = new_figure(path, width=7.0, height=1.7 + 2.3 * len(kinds))
    panels = figure.subplots(len(kinds), sharex=True, squeeze=False)[:, 0]
    for axes, kind in zip(panels, kinds, strict=True):
        measured = [one for run in report.runs for one in run.measurements if one.what == kind]
        _draw_panel(axes, kind, measured, report.grant.calibration)
        if kind in _ROW_KINDS:
            _hatch_vacuous(axes, least_vacuous_alpha(report.grant.spec, report.counted))
    spec = report.grant.spec
    runs = f"{len(report.runs):,} runs" if len(report.runs) > 1 else "1 run"
    title = _title(spec, report.counted, report.grant.calibration)
    figure.suptitle(f"{spec.stream}, {runs} of {title}", fontsize="medium")
    legend = {label: one for axes in panels for one, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend))
    panels[-1].set_xlabel("line of the question")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    _save(figure, path)


def _draw_panel(axes: Any, kind: str, measured: Sequence[ErrorMeasurement], calibration: Calibration) -> None:
    lines = np.array([one.line for one in measured])
    largest = np.array([one.largest for one in measured])
    broken = np.array([one.broken for one in measured])
    axes.plot(lines[~broken], largest[~broken], ".", alpha=0.5, color="0.25", label="realized, each run")
    if broken.any():
        axes.plot(lines[broken], largest[broken], "x", color="tab:red", label="above the promise")
    promised: dict[int, float] = {}
    for one in measured:
        if one.alpha is not None:
            promised[one.line] = max(one.alpha, promised.get(one.line, 0.0))
    if promised:
        axes.plot(
            *zip(*sorted(promised.items()), strict=True),
            "-",
            marker="_",
            color=style_of(name_of(calibration))[0],
            drawstyle="steps-mid",
            label=f"promised α ({name_of(calibration)})",
        )
    axes.set_ylabel(f"error of {kind}")
    axes.grid(visible=True, alpha=0.25)


def new_figure(path: Path, *, width: float, height: float) -> Any:
    """Create a figure for a file; CommandError without matplotlib or for an unknown suffix."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise CommandError("--plot needs matplotlib; run pip install 'sotto-dp[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    # Without a suffix, matplotlib would append one and write to another file.
    if path.suffix.removeprefix(".").lower() not in figure.canvas.get_supported_filetypes():
        raise CommandError(f"--plot: cannot plot to {path}; give a name that ends with .png, .svg or .pdf")
    return figure


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise CommandError(f"--plot: cannot write {path}: {error}") from None
