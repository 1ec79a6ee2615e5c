"""The planner: which calibration of AboveThreshold answers a stream with the least error at its privacy cost.

Everything is chosen from public parameters: ε, δ, the cutoff, the number of queries, β, the sensitivity and the grid.
Whatever it returns is (ε, δ)-differentially private by ``docs/above-threshold.md``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Literal, TypedDict, Unpack

from schemas.streams import AboveThreshold, Calibration, StreamSpec
from stream.accounting.accuracy import LARGEST_STEPS, AccuracyError, exact_alpha
from stream.accounting.methods import (
    PlanError,
    Problem,
    one_sided,
    one_sided_rounds,
    textbook,
    two_sided,
    two_sided_shifted,
)

__all__ = ["TIE", "Parameters", "PlanError", "candidates", "plan", "plan_stream", "sensitivity_steps"]

TIE = 1.001
"""Errors within this ratio of the least count as equal, for the split is optimised no finer; the simplest is taken."""


class Parameters(TypedDict):
    """The public parameters of a plan. The sensitivity is in steps of ``grid``, ``grid`` in the query's unit."""

    epsilon: float
    delta: float
    expected_queries: int
    beta: float
    sensitivity_steps: int
    grid: float


def sensitivity_steps(sensitivity: float, grid: float) -> int:
    """⌈sensitivity / grid⌉, exact for the two doubles.

    Raises:
        PlanError: one of them is not a positive finite number, or the quotient exceeds 2^60.
    """
    if not (0.0 < sensitivity < math.inf and 0.0 < grid < math.inf):
        raise PlanError(f"sensitivity ({sensitivity:g}) and grid ({grid:g}) must be positive and finite")
    steps = math.ceil(Fraction(sensitivity) / Fraction(grid))
    if steps > LARGEST_STEPS:
        raise PlanError(f"a sensitivity of {sensitivity:g} exceeds 2^60 steps of {grid:g}; use a coarser grid")
    return steps


def candidates(mechanism: AboveThreshold, **parameters: Unpack[Parameters]) -> tuple[Calibration, ...]:
    """Every calibration that applies, the simplest first.

    All but ``one_sided_rounds``, which needs δ > 0, are pure (and say δ = 0), except the textbook's where its own
    constant for δ > 0 is both better and sound. One whose noise is too wide for the grid's integers is left out.

    Raises:
        PlanError: none fits; the message names the parameter to change.
    """
    return _candidates(Problem(cutoff=mechanism.cutoff, monotone=mechanism.monotone, **parameters))


def plan(
    mechanism: AboveThreshold,
    *,
    calibration: Literal["best", "textbook"] = "best",
    **parameters: Unpack[Parameters],
) -> Calibration:
    """The candidate with the least exact error, or the textbook's own.

    Raises:
        PlanError: no calibration fits; the message names the parameter to change.
    """
    problem = Problem(cutoff=mechanism.cutoff, monotone=mechanism.monotone, **parameters)
    return _best(problem) if calibration == "best" else _textbook(problem)


def plan_stream(spec: StreamSpec, *, sensitivity_steps: int, grid: float) -> Calibration:
    """The calibration of a stream; streams that differ only in names and thresholds share one computation.

    Raises:
        PlanError: no calibration fits; the message names the parameter to change.
    """
    return plan(
        spec.mechanism,
        calibration=spec.calibration,
        epsilon=spec.epsilon,
        delta=spec.delta,
        expected_queries=spec.expected_queries,
        beta=spec.beta,
        sensitivity_steps=sensitivity_steps,
        grid=grid,
    )


@lru_cache(maxsize=4096)
def _textbook(problem: Problem) -> Calibration:
    try:
        return textbook(problem)
    except AccuracyError as error:
        raise PlanError(str(error)) from error


@lru_cache(maxsize=4096)
def _best(problem: Problem) -> Calibration:
    found = _candidates(problem)
    # The textbook's `alpha` is its theorem's; its rank goes by what its noise really does.
    errors = [exact_alpha(one) if one.method == "textbook" else one.alpha for one in found]
    acceptable = TIE * min(errors)
    return next(one for one, error in zip(found, errors, strict=True) if error <= acceptable)


@lru_cache(maxsize=4096)
def _candidates(problem: Problem) -> tuple[Calibration, ...]:
    makers = [textbook, two_sided, two_sided_shifted, one_sided]
    if problem.delta > 0.0:
        makers.append(one_sided_rounds)
    found: list[Calibration] = []
    refusal: ValueError | None = None
    for make in makers:
        try:
            found.append(make(problem))
        except (PlanError, AccuracyError) as error:
            refusal = error
    if not found:
        raise PlanError(str(refusal)) from refusal
    return tuple(found)
