"""The figures of the document, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.parts import GAUSSIAN, LAPLACE, OURS, PAIRS
from benchmarks.accuracy.runs import Case, Measured, median
from benchmarks.accuracy.tasks import WORKLOADS

LARGEST, MEAN = "#b04a3a", "#3a6ea5"
_LINES = {OURS: ("#b04a3a", "o"), LAPLACE: ("#8a8a8a", "s"), GAUSSIAN: ("#3a6ea5", "^"), PAIRS: ("#4c8a4a", "D")}


@dataclass(frozen=True)
class Curve:
    """The axes and the cases of one figure."""

    cases: Sequence[Case]
    label: str
    against: str

    def place(self, case: Case) -> int:
        """Return the coordinate of a case on the horizontal axis."""
        rows = case.workload.rows
        return case.workload.queries if self.against == "queries" else rows or 0


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415  (an optional extra, 'plot')
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def _save(figure: Any, path: Path) -> None:
    from matplotlib import rc_context  # noqa: PLC0415  (an optional extra, 'plot')

    with rc_context({"svg.hashsalt": "sotto"}):
        figure.savefig(path, metadata={"Date": None})


def draw_bars(measured: Measured, cases: Sequence[Case], path: Path) -> None:
    """Largest and mean errors as bars, one panel for each budget and kind of question."""
    shown = [case for case in cases if measured.of(case)]
    budgets = sorted(
        {(case.workload, case.epsilon, case.delta) for case in shown},
        key=lambda budget: (WORKLOADS.index(budget[0].name), *budget[1:]),
    )
    parts = [[case for case in shown if (case.workload, case.epsilon, case.delta) == budget] for budget in budgets]
    figure = _figure(9.0, 1.0 + sum(0.55 + 0.27 * len(part) for part in parts))
    panels = figure.subplots(
        len(parts), 1, sharex=True, squeeze=False, height_ratios=[2 + len(part) for part in parts]
    )[:, 0]
    for panel, budget, part in zip(panels, budgets, parts, strict=True):
        own = part[::-1]
        places = np.arange(len(own))
        for figure_of, shift, color in (("largest", 0.2, LARGEST), ("mean", -0.2, MEAN)):
            values = [median(measured.of(case), figure_of) for case in own]
            panel.barh(places + shift, values, height=0.38, label=figure_of, color=color)
        panel.set_yticks(places, [case.contender for case in own])
        panel.set_xscale("log")
        panel.grid(axis="x", alpha=0.3)
        panel.set_title(f"{budget[0].name}; ε = {budget[1]:g}, δ = {budget[2]:g}", loc="left", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False)
    panels[-1].set_xlabel("error, as a share of the rows")
    _save(figure, path)


def draw_curves(measured: Measured, curves: Sequence[Curve], path: Path) -> None:
    """Largest errors as solid and mean errors as dashed lines, a panel for each curve."""
    figure = _figure(9.0, 4.2)
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    for panel, curve in zip(panels, curves, strict=True):
        for contender, (color, marker) in _LINES.items():
            own = [case for case in curve.cases if case.contender == contender and measured.of(case)]
            if not own:
                continue
            places = [curve.place(case) for case in own]
            said = f"{contender}, δ = {own[0].delta:g}"
            for figure_of, style in (("largest", "-"), ("mean", "--")):
                values = [median(measured.of(case), figure_of) for case in own]
                panel.plot(
                    places, values, style, color=color, marker=marker, markersize=4, label=f"{said}: {figure_of}"
                )
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.grid(alpha=0.3)
        panel.set_xlabel(curve.label)
    panels[0].set_ylabel("error, as a share of the rows")
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    _save(figure, path)
