"""Drawing a plan: the error against ε or against the cutoff, one line per calibration."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import numpy as np

from schemas import StreamSpec
from stream.accounting.planner import PlanError
from stream.accounting.plans import candidates, name_of, rank
from stream.accounting.setting import Setting
from stream.cli.output import CommandError

POINTS = 25
"""Points per line."""


class Against(StrEnum):
    """What a plot varies."""

    EPSILON = "epsilon"
    CUTOFF = "cutoff"


def plot_error(spec: StreamSpec, setting: Setting, against: Against, path: Path) -> None:
    """Draw the exact α of every calibration around the given specification, on logarithmic axes."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional extra
    except ImportError:
        raise CommandError("--plot needs matplotlib; run pip install 'sotto[plot]'") from None
    lines: dict[str, list[tuple[float, float]]] = {}
    for value, varied in _variations(spec, against):
        try:
            listed = candidates(varied, setting)
        except PlanError:
            continue
        for one in listed:
            lines.setdefault(name_of(one), []).append((value, rank(one)))
    if not lines:
        raise CommandError("--plot: no calibration fits these parameters; raise --epsilon")
    figure = Figure(figsize=(7.0, 4.5), layout="constrained")
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
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise CommandError(f"--plot: cannot write {path}: {error}") from None


def _variations(spec: StreamSpec, against: Against) -> list[tuple[float, StreamSpec]]:
    """The specification at a tenth to ten times the given ε, or at cutoffs from 1 to ten times the given one."""
    if against is Against.EPSILON:
        values = np.geomspace(spec.epsilon / 10, spec.epsilon * 10, POINTS).tolist()
        return [(value, spec.model_copy(update={"epsilon": value})) for value in values]
    mechanism = spec.mechanism
    name = next((name for name in ("cutoff", "answers", "updates") if hasattr(mechanism, name)), None)
    if name is None:
        raise CommandError(f"--against cutoff: {mechanism.kind} is charged once; plot against epsilon")
    most = 10 * (getattr(mechanism, name) or 10)
    cutoffs = sorted({round(value) for value in np.geomspace(1, most, POINTS)})
    return [
        (float(one), spec.model_copy(update={"mechanism": mechanism.model_copy(update={name: one})}))
        for one in cutoffs
    ]
