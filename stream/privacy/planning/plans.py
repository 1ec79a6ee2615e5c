"""Plans: the possible calibrations of a stream, and the choice among them.

They depend on public parameters alone: the stream's specification and the source's public facts.
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
    estimate_plans,
    gaussian_plans,
    hypothesis_plans,
    quantile_plans,
    release_plans,
    response_plans,
    unknown_groups_plans,
)
from stream.privacy.planning.noise_layouts import (
    PlanError,
    PlanInputs,
    fitting,
    one_sided,
    one_sided_rounds,
    textbook,
    two_sided,
    two_sided_shifted,
)
from stream.privacy.planning.promises import vacuous

_NUMBERS: Final = {"above_threshold", "numeric_sparse", "laplace", "noisy_max", "exponential"}
MECHANISMS_OF: Final[dict[str, set[str]]] = {
    "values": _NUMBERS,
    "table": _NUMBERS | {"histogram", "pmw", "sparse_pmw", "sparse_project", "lazy_histogram", "unknown_groups"},
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


def split_candidates(
    mechanism: AboveThreshold | NumericSparse, **parameters: Any
) -> tuple[SparseVectorCalibration, ...]:
    """Return every calibration that applies, the simplest first.

    ``parameters`` are the other fields of ``PlanInputs``. Calibrations have δ = 0 except
    ``one_sided_rounds``, and the textbook's if its formula for δ > 0 is better and sound. A
    calibration is omitted if its noise does not fit 52 binary digits of grid steps.
    """
    numbers = mechanism.numbers if isinstance(mechanism, NumericSparse) else "none"
    return _split_candidates(
        PlanInputs(cutoff=mechanism.cutoff, monotone=mechanism.monotone, numbers=numbers, **parameters)
    )


@lru_cache(maxsize=4096)
def _split_candidates(problem: PlanInputs) -> tuple[SparseVectorCalibration, ...]:
    makers = [textbook, two_sided, two_sided_shifted, one_sided]
    if problem.delta > 0.0:
        makers.append(one_sided_rounds)
    return fitting([partial(make, problem) for make in makers])


TIE = 1.001
"""An error up to 1.001 times the least is a tie, because splits are not optimised more exactly."""


def candidates(spec: StreamSpec, setting: SourceFacts) -> tuple[Calibration, ...]:
    """Return every calibration that applies, the simplest first."""
    return _candidates(_anonymous(spec), setting)


def choose(spec: StreamSpec, setting: SourceFacts) -> Calibration:
    """Return the candidate with the least error, or the textbook's if the stream requests it.

    Streams that differ only in names and thresholds share one computation.
    """
    return _choose(_anonymous(spec), setting)


def rank(calibration: Calibration) -> float:
    """Return the exact error by which candidates are ranked."""
    if isinstance(calibration, SparseVectorCalibration) and calibration.method == "textbook":
        return exact_alpha(calibration) + 2.0 * calibration.rounding
    if isinstance(calibration, SparseVectorCalibration):
        return max(calibration.alpha, calibration.answer_alpha)
    return calibration.alpha


def name_of(calibration: Calibration) -> str:
    """Return a calibration's method, and its noise or sparse vector if candidates differ in it."""
    if isinstance(calibration, EstimateCalibration) and calibration.noise != "laplace":
        return f"{calibration.method}, {calibration.noise}"
    if isinstance(calibration, HypothesisCalibration) and calibration.method != "textbook":
        return f"{calibration.method}, {calibration.sparse_vector.method}"
    return calibration.method


@lru_cache(maxsize=4096)
def _choose(spec: StreamSpec, setting: SourceFacts) -> Calibration:
    found = _candidates(spec, setting)
    if spec.calibration == "textbook":
        for one in found:
            if one.method == "textbook":
                return one
        raise PlanError("calibration: the textbook has none for this mechanism and these parameters; use 'best'")
    if isinstance(spec.mechanism, Pmw) and not spec.mechanism.worst_case:
        # The textbook has another algorithm, vacuous for few rows: use it only on request.
        found = tuple(one for one in found if one.method != "textbook")
    acceptable = TIE * min(rank(one) for one in found)
    near = [one for one in found if rank(one) <= acceptable]
    # The textbook comes first, as the simplest; prefer another method with an equal error.
    return next((one for one in near if one.method != "textbook"), near[0])


@lru_cache(maxsize=4096)
def _candidates(spec: StreamSpec, setting: SourceFacts) -> tuple[Calibration, ...]:
    found = _planned(spec, setting)
    return tuple(one.model_copy(update={"vacuous": vacuous(spec, one, setting.rows)}) for one in found)


def _planned(spec: StreamSpec, setting: SourceFacts) -> tuple[Calibration, ...]:  # noqa: PLR0911 - one for each planner
    match spec.mechanism:
        case AboveThreshold() | NumericSparse():
            found = split_candidates(
                spec.mechanism,
                epsilon=spec.epsilon,
                delta=spec.delta,
                expected_queries=spec.expected_queries,
                beta=spec.beta,
                sensitivity_steps=setting.sensitivity_steps,
                grid=setting.grid,
            )
            return tuple(_with_rounding(one, setting.rounding) for one in found)
        case Laplace() | NoisyMax() | Exponential():
            return quantile_plans.candidates(spec, setting)
        case Histogram() if setting.movement is not None:
            return quantile_plans.candidates(spec, setting)
        case RandomizedResponse():
            return response_plans.candidates(spec, setting)
        case Histogram() | LazyHistogram() | SparseProject():
            return release_plans.candidates(spec, setting)
        case RunningCount():
            return release_plans.running_count_candidates(spec, setting)
        case UnknownGroups():
            return unknown_groups_plans.candidates(spec, setting)
        case Pmw(worst_case=True) | SparsePmw():
            return hypothesis_plans.candidates(spec, setting)
        case Pmw():
            [known] = estimate_plans.candidates(spec, setting)
            better = gaussian_plans.candidates(spec, setting, known)
            return (*_textbooks(spec, setting), known, *better)
        case _:
            assert_never(spec.mechanism)


def _textbooks(spec: StreamSpec, setting: SourceFacts) -> tuple[HypothesisCalibration, ...]:
    try:
        return hypothesis_plans.candidates(spec, setting, textbook_alone=True)
    except PlanError:
        if spec.calibration == "textbook":
            raise
        return ()


def _with_rounding(calibration: SparseVectorCalibration, rounding: float) -> SparseVectorCalibration:
    errors = {"rounding": rounding, "alpha": calibration.alpha + 2.0 * rounding}
    if calibration.numbers != "none":
        errors["answer_alpha"] = calibration.answer_alpha + rounding
    return calibration.model_copy(update=errors)


def _anonymous(spec: StreamSpec) -> StreamSpec:
    """Drop names and thresholds, on which no plan depends; round ε and δ to affordable values."""
    mechanism = spec.mechanism
    if isinstance(mechanism, AboveThreshold | NumericSparse):
        mechanism = mechanism.model_copy(update={"threshold": 0.0})
    price = {"epsilon": affordable_epsilon(spec.epsilon), "delta": affordable_delta(spec.delta)}
    anybody = {"stream": "any", "source": "any", "standing": None}
    return spec.model_copy(update={**anybody, "mechanism": mechanism, **price})
