"""The planner: which calibration of AboveThreshold or NumericSparse answers a stream with the least error at its privacy cost.

Everything is chosen from public parameters: ε, δ, the cutoff, the number of queries, β, the sensitivity and the grid.
Whatever it returns is (ε, δ)-differentially private by ``docs/proofs/above-threshold.md`` and ``docs/proofs/numeric-sparse.md``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import NotRequired, TypedDict, Unpack

from schemas import AboveThreshold, NumericSparse, SparseVectorCalibration
from stream.accounting.accuracy import LARGEST_STEPS, AccuracyError
from stream.accounting.methods import (
    PlanError,
    Problem,
    one_sided,
    one_sided_rounds,
    textbook,
    two_sided,
    two_sided_shifted,
)

__all__ = ["Parameters", "PlanError", "candidates", "sensitivity_steps"]


class Parameters(TypedDict):
    """The public parameters of a plan. The sensitivity is in steps of ``grid``, ``grid`` in the query's unit.

    Fresh numbers are planned to be off by at most ``answer_ratio`` (1 if not given) times the α of ⊤ and ⊥.
    """

    epsilon: float
    delta: float
    expected_queries: int
    beta: float
    sensitivity_steps: int
    grid: float
    answer_ratio: NotRequired[float]


@lru_cache(maxsize=4096)
def sensitivity_steps(sensitivity: float, grid: float) -> int:
    """⌈sensitivity / grid⌉, exact for the two as decimals: each double is the shortest that gives it.

    Raises:
        PlanError: one of them is not a positive finite number, or the quotient exceeds 2^60.
    """
    if not (0.0 < sensitivity < math.inf and 0.0 < grid < math.inf):
        raise PlanError(f"sensitivity ({sensitivity:g}) and grid ({grid:g}) must be positive and finite")
    steps = math.ceil(Fraction(repr(float(sensitivity))) / Fraction(repr(float(grid))))
    if steps > LARGEST_STEPS:
        raise PlanError(f"a sensitivity of {sensitivity:g} exceeds 2^60 steps of {grid:g}; use a coarser grid")
    return steps


def candidates(
    mechanism: AboveThreshold | NumericSparse, **parameters: Unpack[Parameters]
) -> tuple[SparseVectorCalibration, ...]:
    """Every calibration that applies, the simplest first.

    All but ``one_sided_rounds``, which needs δ > 0, are pure (and say δ = 0), except the textbook's where its own
    constant for δ > 0 is both better and sound. One whose noise is too wide for the grid's integers is left out.

    Raises:
        PlanError: none fits; the message names the parameter to change.
    """
    return _candidates(_problem(mechanism, parameters))


def _problem(mechanism: AboveThreshold | NumericSparse, parameters: Parameters) -> Problem:
    numbers = mechanism.numbers if isinstance(mechanism, NumericSparse) else "none"
    return Problem(cutoff=mechanism.cutoff, monotone=mechanism.monotone, numbers=numbers, **parameters)


@lru_cache(maxsize=4096)
def _candidates(problem: Problem) -> tuple[SparseVectorCalibration, ...]:
    makers = [textbook, two_sided, two_sided_shifted, one_sided]
    if problem.delta > 0.0:
        makers.append(one_sided_rounds)
    found: list[SparseVectorCalibration] = []
    refusal: ValueError | None = None
    for make in makers:
        try:
            found.append(make(problem))
        except (PlanError, AccuracyError) as error:
            refusal = error
    if not found:
        raise PlanError(str(refusal)) from refusal
    return tuple(found)
