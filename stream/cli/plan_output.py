"""Describes and plots plans of mechanisms, and plots simulations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.progress import track

from schemas import (
    Calibration,
    EstimateCalibration,
    HypothesisCalibration,
    LazyHistogram,
    RunningCountCalibration,
    SparsePmw,
    SparseProject,
    SparseVectorCalibration,
    StreamSpec,
    UnknownGroupsCalibration,
)
from stream.cli.output import CommandError, say, show_table
from stream.dev.simulation_run import ErrorMeasurement, SimulationReport
from stream.formatting import format_count, format_error_bound
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.planning.form_accuracy import FORMS
from stream.privacy.planning.inverse_plans import (
    ANSWER_CUTOFF_FIELDS,
    VariedParameter,
    cutoff_field,
    error_curve,
    largest_cutoff,
    needed_epsilon,
    needed_rows,
    varied_specs,
)
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration, name_of, ranking_error
from stream.privacy.planning.promises import describe_uninformative, least_vacuous_alpha, promises

FormName = StrEnum("FormName", {form.upper(): form for form in FORMS})  # type: ignore[misc]


def describe_noise(calibration: Calibration) -> str:  # noqa: PLR0911 - one for each kind of calibration
    """Describe the parts of ε that a calibration spends, or the σ of its Gaussian noise."""
    match calibration:
        case SparseVectorCalibration():
            return _describe_sparse_vector(calibration)
        case HypothesisCalibration():
            rows = f", ε {calibration.epsilon_rows:.4g} for the number of rows" if calibration.epsilon_rows else ""
            inner = _describe_sparse_vector(calibration.sparse_vector)
            return f"{calibration.cutoff} updates, learning rate {calibration.learning_rate:.3g}{rows}; {inner}"
        case EstimateCalibration():
            return _describe_estimate(calibration)
        case RunningCountCalibration():
            gaussian = f"Gaussian noise, σ {calibration.deviation:.4g} per sum"
            pure = f"ε {(calibration.epsilon - calibration.epsilon_size) / calibration.levels:.4g} per level"
            needed = (
                f"; a text is published once its noisy running count is at least {calibration.threshold:,}"
                if calibration.threshold
                else ""
            )
            return (
                f"{gaussian if calibration.method == 'gaussian' else pure}; a {calibration.tree} tree of "
                f"{format_count(calibration.levels, 'level')}, up to {calibration.nodes} sums an answer; charged once{needed}"
            )
        case UnknownGroupsCalibration(method="selection"):
            return (
                f"ε {calibration.epsilon_answer:.4g} and δ {calibration.delta_answer:.3g} per answer; a text of "
                f"{calibration.threshold:,} people is released for certain"
            )
        case UnknownGroupsCalibration():
            return (
                f"ε {calibration.epsilon_answer:.4g} and δ {calibration.delta_answer:.3g} per answer; "
                f"a text is published if its noisy count is at least {calibration.threshold:,}"
            )
        case _ if calibration.method == "gaussian":
            per = "answer" if calibration.kind == "answers" else "number"
            return f"Gaussian noise, σ {calibration.deviation:.4g} per {per}"
        case _ if calibration.kind == "answers":
            return f"ε {calibration.epsilon_answer:.4g} per answer"
        case _ if calibration.parts == 1:
            return f"ε {calibration.epsilon_part:.4g}, charged once"
        case _:
            return (
                f"ε {calibration.epsilon_part:.4g} for each of the {calibration.parts} parts of the release that one "
                "person affects, charged once"
            )


def _describe_estimate(calibration: EstimateCalibration) -> str:
    parts = [
        f"{calibration.cutoff} measurements",
        f"each made if the estimate's error exceeds about {calibration.threshold * calibration.grid:.4g}",
    ]
    gaussian = calibration.noise == "gaussian"
    if calibration.starts:
        each = f"σ {calibration.deviation_start:.4g}" if gaussian else f"ε {calibration.epsilon_start:.4g}"
        parts.append(f"first {calibration.starts} marginals, {each} for each")
    if calibration.rounds:
        chosen = (
            f"each of k measured with σ {calibration.deviation_chosen:.4g}·√k"
            if gaussian
            else f"measured with ε {calibration.epsilon_chosen:.4g} in all"
        )
        parts.append(
            f"then up to {calibration.rounds} sets of attributes (chosen with ε {calibration.epsilon_choices:.4g} in all, {chosen})"
        )
    if gaussian:
        parts.append(
            f"Gaussian noise, σ {calibration.deviation_answer:.4g} on the cells of a measured marginal and "
            f"{calibration.deviation_number:.4g} on a single published number"
        )
    if calibration.epsilon_rows:
        parts.append(f"ε {calibration.epsilon_rows:.4g} for the number of rows")
    if calibration.epsilon_typical:
        parts.append(f"ε {calibration.epsilon_typical:.4g} for the published mean error of the estimates")
    return f"{', '.join(parts)}; {_describe_sparse_vector(calibration.sparse_vector)}"


def _describe_sparse_vector(calibration: SparseVectorCalibration) -> str:
    drawn = "again after each above" if calibration.fresh_threshold else "once"
    parts = [
        f"ε₁ {calibration.epsilon_threshold:.4g} for the threshold's noise, drawn {drawn}",
        f"ε₂ {calibration.epsilon_query:.4g} for the questions' noise",
    ]
    if calibration.numbers == "fresh" and calibration.epsilon_answer:
        parts.append(f"ε₃ {calibration.epsilon_answer:.4g} for the numbers")
    if calibration.numbers != "none":
        parts.append(f"numbers within {format_error_bound(calibration.answer_alpha, grouped=True)}")
    if calibration.shift:
        change = "raised" if calibration.shift > 0 else "lowered"
        parts.append(f"the threshold is {change} by {abs(calibration.shift) * calibration.grid:.4g}")
    return "; ".join(parts)


def print_simplest_alternative(spec: StreamSpec, facts: SourceFacts) -> None:
    """For a sparse mechanism, print the error bound of lazy_histogram, the simplest alternative."""
    if isinstance(spec.mechanism, SparsePmw | SparseProject):
        sparse = spec.mechanism.model_dump(include={"attributes", "sparsity"})
        lazy = LazyHistogram(kind="lazy_histogram", **sparse)
        alpha = choose_calibration(spec.model_copy(update={"mechanism": lazy, "calibration": "best"}), facts).alpha
        say(
            f"a lazy_histogram with the same ε answers such questions within ±{format_error_bound(alpha, grouped=True)}"
        )


def error_in_rows(spec: StreamSpec, facts: SourceFacts, alpha: float) -> float:
    """Return a requested error in rows; for mechanisms with a field ``rows``, an α below 1 is a share of them."""
    return alpha * facts.rows if _is_share(spec, alpha) and facts.rows is not None else alpha


def _is_share(spec: StreamSpec, alpha: float) -> bool:
    return "rows" in type(spec.mechanism).model_fields and alpha < 1.0


def find_sufficient_parameters(spec: StreamSpec, facts: SourceFacts, alpha: float) -> dict[str, str | PlanError]:
    """Return the value of each parameter that suffices for ``alpha``, all else unchanged, or why none does."""
    wanted = error_in_rows(spec, facts, alpha)
    searches: list[tuple[str, Callable[[], float]]] = [("ε ≥", lambda: needed_epsilon(spec, facts, wanted))]
    if (
        cutoff_field(spec.mechanism.kind, type(spec.mechanism), standing=spec.standing is not None)
        in ANSWER_CUTOFF_FIELDS
    ):
        searches.append(("cutoff ≤", lambda: largest_cutoff(spec, facts, wanted)))
    if _is_share(spec, alpha):
        searches.append(("rows ≥", lambda: needed_rows(spec, facts, alpha)))
    needs: dict[str, str | PlanError] = {}
    for name, search in searches:
        try:
            needs[name] = format_error_bound(search())
        except PlanError as error:
            needs[name] = error
    return needs


def print_plan(
    spec: StreamSpec, listed: tuple[Calibration, ...], calibration: Calibration, facts: SourceFacts, counted: str
) -> None:
    """Print every calibration, the reason for the chosen one, its error bounds, and the rows that it ``counted``."""
    mechanism = spec.mechanism.kind
    once = not calibration.cutoff or isinstance(calibration, RunningCountCalibration)
    cutoff = "charged once" if once else f"cutoff {calibration.cutoff}"
    show_table(
        f"{mechanism}: ε {spec.epsilon:g}, δ {spec.delta:g}, {cutoff}, β {spec.beta:g}",
        ["", "calibration", "α", "exact α", "noise"],
        [
            [
                "→" if one == calibration else "",
                name_of(one),
                f"{format_error_bound(one.alpha, grouped=True)}{' (vacuous)' if one.vacuous else ''}",
                format_error_bound(ranking_error(one), grouped=True),
                describe_noise(one),
            ]
            for one in listed
        ],
    )
    if any(one.alpha != ranking_error(one) for one in listed):
        say(
            "α is the bound of each calibration's proof; the exact α, computed from the noise, decides which is chosen"
        )
    if spec.calibration == "textbook":
        say("→ requested")
    elif ranking_error(calibration) == min(ranking_error(one) for one in listed):
        say("→ the smallest exact error")
    else:
        say("→ the simplest within a thousandth of the smallest exact error")
    for line in filter(None, (*promises(spec, calibration), counted)):
        say(f"{line}.", soft_wrap=True)
    if (warning := describe_uninformative(spec, calibration, facts)) is not None:
        say(f"{warning}.", soft_wrap=True)


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
    """Plot every calibration's exact α for several ε or cutoffs, and mark the point of ``calibration``."""
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
    axes.set_title(_format_title(spec, facts.rows, calibration), fontsize="medium")
    axes.grid(visible=True, which="both", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    _save_figure(figure, path)


def style_of(calibration: str) -> tuple[str, str]:
    """Return a calibration's color and marker; "calibrated, NAME" is drawn like NAME."""
    return _STYLES[calibration.removeprefix("calibrated, ")]


def _calibration_curves(
    spec: StreamSpec, facts: SourceFacts, against: VariedParameter
) -> dict[str, list[tuple[float, float]]]:
    lines: dict[str, list[tuple[float, float]]] = {}
    try:
        count = len(varied_specs(spec, against))
        points = track(
            error_curve(spec, facts, against),
            "planning the curve",
            total=count,
            console=Console(stderr=True),
            transient=True,
        )
        for point in points:
            for one in point.calibrations:
                lines.setdefault(name_of(one), []).append((point.value, ranking_error(one)))
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
        [ranking_error(calibration)],
        "o",
        markersize=12,
        markerfacecolor="none",
        markeredgecolor="black",
        linestyle="none",
        label=f"chosen: {name_of(calibration)} at {what}, α {format_error_bound(ranking_error(calibration), grouped=True)}",
    )


def _hatch_vacuous(axes: Any, least_vacuous: float | None) -> None:
    """Hatch the errors above ``least_vacuous``, which even a constant answer would not exceed."""
    low, high = axes.get_ylim()
    if least_vacuous is None or least_vacuous >= high:
        return
    axes.axhspan(
        max(least_vacuous, low),
        high,
        facecolor="none",
        edgecolor="0.6",
        hatch="///",
        linewidth=0,
        zorder=0,
        label="vacuous α",
    )
    axes.set_ylim(low, high)


def _format_title(spec: StreamSpec, rows: int | None, chosen: Calibration) -> str:
    parts = [f"ε {spec.epsilon:g}", f"δ {spec.delta:g}", f"β {spec.beta:g}"]
    parts += [f"cutoff {chosen.cutoff:,}"] if chosen.cutoff else []
    parts += [f"{spec.expected_queries:,} queries"]
    parts += [f"{rows:,} rows"] if rows is not None else []
    return f"{spec.mechanism.kind}: {', '.join(parts)}"


def plot_simulation(report: SimulationReport, path: Path) -> None:
    """Plot each question's largest error in every run, and its promised α; one panel for each kind."""
    kinds = [one.what for one in report.error_summaries]
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
    title = _format_title(spec, report.counted, report.grant.calibration)
    figure.suptitle(f"{spec.stream}, {runs} of {title}", fontsize="medium")
    legend = {label: one for axes in panels for one, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=len(legend))
    panels[-1].set_xlabel("line of the question")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    _save_figure(figure, path)


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
    """Create a figure for a file; raise CommandError without matplotlib or for an unknown suffix."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise CommandError("--plot needs matplotlib; run pip install 'sotto-dp[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    # Without a suffix, matplotlib would append one and write to another file.
    if path.suffix.removeprefix(".").lower() not in figure.canvas.get_supported_filetypes():
        raise CommandError(f"--plot: cannot plot to {path}; give a name that ends with .png, .svg or .pdf")
    return figure


def _save_figure(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except OSError as error:
        raise CommandError(f"--plot: cannot write {path}: {error}") from None
