"""Plans: the possible calibrations of a stream, and the choice among them.

Plans depend on public parameters alone: the stream's specification and the source's public facts.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any, Final, assert_never

from schemas import (
    AboveThreshold,
    Calibration,
    EstimateCalibration,
    Exponential,
    Histogram,
    HypothesisCalibration,
    Laplace,
    LazyHistogram,
    NoisyMax,
    NumericSparse,
    Pmw,
    RandomizedResponse,
    RunningCount,
    SparsePmw,
    SparseProject,
    SparseVectorCalibration,
    StreamSpec,
    UnknownGroups,
)
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.accuracy.sparse_vector_accuracy import LARGEST_STEPS, exact_alpha
from stream.privacy.composition.costs import affordable_delta, affordable_epsilon, exact_decimal
from stream.privacy.planning import (
    answer_plans,
    estimate_plans,
    gaussian_plans,
    hypothesis_plans,
    release_plans,
    response_plans,
    running_text_plans,
    unknown_groups_plans,
)
from stream.privacy.planning.noise_layouts import (
    PlanError,
    PlanInputs,
    fitting_calibrations,
    plan_one_sided,
    plan_one_sided_rounds,
    plan_textbook,
    plan_two_sided,
    plan_two_sided_shifted,
)
from stream.privacy.planning.promises import is_vacuous

_NUMBER_MECHANISMS: Final = {"above_threshold", "numeric_sparse", "laplace", "noisy_max", "exponential"}
MECHANISMS_OF: Final[dict[str, set[str]]] = {
    "values": _NUMBER_MECHANISMS,
    "table": _NUMBER_MECHANISMS
    | {"histogram", "pmw", "sparse_pmw", "sparse_project", "lazy_histogram", "unknown_groups"},
    "records": {"randomized_response"},
    "events": {"above_threshold", "numeric_sparse", "laplace", "histogram", "running_count", "unknown_groups"},
}
"""Mechanisms that run on each kind of source."""


@lru_cache(maxsize=4096)
def sensitivity_steps(sensitivity: float, grid: float) -> int:
    """Return ⌈sensitivity / grid⌉, exact for the shortest decimals of both doubles.

    Raises:
        PlanError: one of them is not a positive finite number, or the quotient exceeds 2^60.
    """
    if not (0.0 < sensitivity < math.inf and 0.0 < grid < math.inf):
        raise PlanError(f"sensitivity ({sensitivity:g}) and grid ({grid:g}) must be positive and finite")
    steps = math.ceil(exact_decimal(sensitivity) / exact_decimal(grid))
    if steps > LARGEST_STEPS:
        raise PlanError(f"a sensitivity of {sensitivity:g} exceeds 2^60 steps of {grid:g}; use a coarser grid")
    return steps


def plan_sparse_vectors(
    mechanism: AboveThreshold | NumericSparse, **parameters: Any
) -> tuple[SparseVectorCalibration, ...]:
    """Return every calibration that applies, the simplest first.

    ``parameters`` are the other fields of ``PlanInputs``. All calibrations have δ = 0, except the one of
    ``plan_one_sided_rounds``, and the textbook's if its formula for δ > 0 is sound and has the smaller
    error. A calibration is omitted if its noise does not fit 52 binary digits of grid steps.
    """
    numbers = mechanism.numbers if isinstance(mechanism, NumericSparse) else "none"
    return _plan_sparse_vectors(
        PlanInputs(cutoff=mechanism.cutoff, monotone=mechanism.monotone, numbers=numbers, **parameters)
    )


@lru_cache(maxsize=4096)
def _plan_sparse_vectors(inputs: PlanInputs) -> tuple[SparseVectorCalibration, ...]:
    makers = [plan_textbook, plan_two_sided, plan_two_sided_shifted, plan_one_sided]
    if inputs.delta > 0.0:
        makers.append(plan_one_sided_rounds)
    return fitting_calibrations([partial(make, inputs) for make in makers])


TIE_FACTOR = 1.001
"""Errors up to 1.001 times the least count as equal, because plans are not optimised more exactly."""


def plan_calibrations(spec: StreamSpec, facts: SourceFacts) -> tuple[Calibration, ...]:
    """Return every calibration that applies, the simplest first."""
    return _plan_with_warnings(_without_names(spec), facts)


def choose_calibration(spec: StreamSpec, facts: SourceFacts) -> Calibration:
    """Return the candidate with the least error, or the textbook's if the stream requests it.

    Streams that differ only in names and thresholds share one computation.
    """
    return _choose_calibration(_without_names(spec), facts)


def rank(calibration: Calibration) -> float:
    """Return the exact error by which candidates are ranked."""
    if isinstance(calibration, SparseVectorCalibration) and calibration.method == "textbook":
        return exact_alpha(calibration) + 2.0 * calibration.rounding
    if isinstance(calibration, SparseVectorCalibration):
        return max(calibration.alpha, calibration.answer_alpha)
    return calibration.alpha


def name_of(calibration: Calibration) -> str:
    """Return a name for a calibration: its method and, if necessary, its noise or sparse vector."""
    if isinstance(calibration, EstimateCalibration) and calibration.noise != "laplace":
        return f"{calibration.method}, {calibration.noise}"
    if isinstance(calibration, HypothesisCalibration) and calibration.method != "textbook":
        return f"{calibration.method}, {calibration.sparse_vector.method}"
    return calibration.method


@lru_cache(maxsize=4096)
def _choose_calibration(spec: StreamSpec, facts: SourceFacts) -> Calibration:
    found = _plan_with_warnings(spec, facts)
    if spec.calibration == "textbook":
        for one in found:
            if one.method == "textbook":
                return one
        raise PlanError(
            "calibration: no textbook calibration exists for this mechanism and parameters; use 'best'"
        )
    if isinstance(spec.mechanism, Pmw) and not spec.mechanism.worst_case:
        # The textbook's algorithm has no useful bound for few rows, so it is used only on request.
        found = tuple(one for one in found if one.method != "textbook")
    acceptable = TIE_FACTOR * min(rank(one) for one in found)
    near = [one for one in found if rank(one) <= acceptable]
    # The textbook's calibration is first, as the simplest, but another one with the same error is preferred.
    return next((one for one in near if one.method != "textbook"), near[0])


@lru_cache(maxsize=4096)
def _plan_with_warnings(spec: StreamSpec, facts: SourceFacts) -> tuple[Calibration, ...]:
    found = _plan_by_mechanism(spec, facts)
    return tuple(one.model_copy(update={"vacuous": is_vacuous(spec, one, facts.rows)}) for one in found)


def _plan_by_mechanism(spec: StreamSpec, facts: SourceFacts) -> tuple[Calibration, ...]:  # noqa: PLR0911 - one for each planner
    match spec.mechanism:
        case AboveThreshold() | NumericSparse():
            found = plan_sparse_vectors(
                spec.mechanism,
                epsilon=spec.epsilon,
                delta=spec.delta,
                expected_queries=spec.expected_queries,
                beta=spec.beta,
                sensitivity_steps=facts.sensitivity_steps,
                grid=facts.grid,
            )
            return tuple(_with_rounding(one, facts.rounding) for one in found)
        case Laplace() | NoisyMax() | Exponential():
            return answer_plans.plan_calibrations(spec, facts)
        case Histogram() if facts.movement is not None:
            return answer_plans.plan_calibrations(spec, facts)
        case RandomizedResponse():
            return response_plans.plan_calibrations(spec, facts)
        case Histogram() | LazyHistogram() | SparseProject():
            return release_plans.plan_calibrations(spec, facts)
        case RunningCount():
            texts = facts.text_bytes is not None
            return (running_text_plans.plan_calibrations if texts else release_plans.plan_running_counts)(
                spec, facts
            )
        case UnknownGroups():
            return unknown_groups_plans.plan_calibrations(spec, facts)
        case Pmw(worst_case=True) | SparsePmw():
            return hypothesis_plans.plan_calibrations(spec, facts)
        case Pmw():
            [laplace_plan] = estimate_plans.plan_calibrations(spec, facts)
            gaussian = gaussian_plans.plan_calibrations(spec, facts, laplace_plan)
            return (*_textbook_hypotheses(spec, facts), laplace_plan, *gaussian)
        case _:
            assert_never(spec.mechanism)


def _textbook_hypotheses(spec: StreamSpec, facts: SourceFacts) -> tuple[HypothesisCalibration, ...]:
    try:
        return hypothesis_plans.plan_calibrations(spec, facts, textbook_alone=True)
    except PlanError:
        if spec.calibration == "textbook":
            raise
        return ()


def _with_rounding(calibration: SparseVectorCalibration, rounding: float) -> SparseVectorCalibration:
    errors = {"rounding": rounding, "alpha": calibration.alpha + 2.0 * rounding}
    if calibration.numbers != "none":
        errors["answer_alpha"] = calibration.answer_alpha + rounding
    return calibration.model_copy(update=errors)


def _without_names(spec: StreamSpec) -> StreamSpec:
    """Drop names and thresholds, on which no plan depends; round ε and δ down to exact decimals."""
    mechanism = spec.mechanism
    if isinstance(mechanism, AboveThreshold | NumericSparse):
        mechanism = mechanism.model_copy(update={"threshold": 0.0})
    price = {"epsilon": affordable_epsilon(spec.epsilon), "delta": affordable_delta(spec.delta)}
    anybody = {"stream": "any", "source": "any", "standing": None}
    return spec.model_copy(update={**anybody, "mechanism": mechanism, **price})
