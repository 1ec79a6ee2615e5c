"""``sotto plan``: what accuracy a budget buys."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from schemas import AboveThreshold, Calibration
from stream.accounting.planner import Parameters, candidates, sensitivity_steps
from stream.accounting.planner import plan as choose
from stream.cli.output import AsJson, show_json, show_table

FINE_GRID = 1 / 1024
"""Fine enough that rounding to the grid does not show in α."""


class MechanismKind(StrEnum):
    """Mechanisms that can be planned."""

    ABOVE_THRESHOLD = "above_threshold"


def plan(
    epsilon: Annotated[float, typer.Option(help="Privacy budget ε.", min=1e-6)],
    mechanism: Annotated[MechanismKind, typer.Option(help="The mechanism.")] = MechanismKind.ABOVE_THRESHOLD,
    cutoff: Annotated[int, typer.Option(help="How many ⊤s.", min=1)] = 1,
    queries: Annotated[int, typer.Option(help="How many queries are expected.", min=1)] = 1000,
    beta: Annotated[float, typer.Option(help="Probability that any answer is off by more than α.")] = 0.05,
    delta: Annotated[float, typer.Option(help="Privacy parameter δ.", min=0.0)] = 0.0,
    monotone: Annotated[bool, typer.Option(help="All queries move in the same direction.")] = False,
    sensitivity: Annotated[float, typer.Option(help="How far one person moves a query.")] = 1.0,
    grid: Annotated[float, typer.Option(help="The step that values are rounded to.")] = FINE_GRID,
    calibration: Annotated[str, typer.Option(help="best or textbook.")] = "best",
    as_json: AsJson = False,
) -> None:
    """List each calibration's accuracy and the one that a stream would get."""
    spec = AboveThreshold(kind=mechanism.value, threshold=0.0, cutoff=cutoff, monotone=monotone)
    steps = sensitivity_steps(sensitivity, grid)
    parameters: Parameters = {
        "epsilon": epsilon,
        "delta": delta,
        "expected_queries": queries,
        "beta": beta,
        "sensitivity_steps": steps,
        "grid": grid,
    }
    if calibration not in {"best", "textbook"}:
        raise typer.BadParameter("give 'best' or 'textbook'", param_hint="--calibration")
    chosen = choose(spec, calibration="best" if calibration == "best" else "textbook", **parameters)
    listed = candidates(spec, **parameters)
    if as_json:
        show_json(
            {
                "mechanism": mechanism.value,
                "epsilon": epsilon,
                "delta": delta,
                "cutoff": cutoff,
                "queries": queries,
                "beta": beta,
                "monotone": monotone,
                "choice": chosen.method,
                "alpha": chosen.alpha,
                "calibrations": list(listed),
            },
        )
        return
    show_table(
        f"{mechanism.value}: ε {epsilon:g}, δ {delta:g}, cutoff {cutoff}, {queries} queries, β {beta:g}",
        ["", "calibration", "α", "ε₁ (ρ)", "ε₂ (ν)", "shift", "ρ drawn"],
        [_row(one, chosen) for one in listed],
    )


def _row(one: Calibration, chosen: Calibration) -> list[str]:
    return [
        "→" if one.method == chosen.method else "",
        one.method,
        f"{one.alpha:.4g}",
        f"{one.epsilon_threshold:.4g}",
        f"{one.epsilon_query:.4g}",
        f"{one.shift * one.grid:.4g}",
        "after each ⊤" if one.fresh_threshold else "once",
    ]
