"""Plans: the calibrations that a stream could have, and the one that it gets, whatever its mechanism.

Everything is chosen from public parameters: the stream's specification and the public facts of its source.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import NotRequired, TypedDict, Unpack

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
)
from stream.privacy.accuracy.source_facts import Setting
from stream.privacy.accuracy.sparse_vector_accuracy import LARGEST_STEPS, AccuracyError, exact_alpha
from stream.privacy.composition.costs import affordable_delta, affordable_epsilon
from stream.privacy.planning import (
    answer_plans,
    estimate_plans,
    gaussian_plans,
    hypothesis_plans,
    release_plans,
    response_plans,
    running_count_plans,
)
from stream.privacy.planning.noise_layouts import (
    PlanError,
    PlanInputs,
    one_sided,
    one_sided_rounds,
    textbook,
    two_sided,
    two_sided_shifted,
)
from stream.privacy.planning.promises import vacuous


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


def split_candidates(
    mechanism: AboveThreshold | NumericSparse, **parameters: Unpack[Parameters]
) -> tuple[SparseVectorCalibration, ...]:
    """Every calibration that applies, the simplest first.

    All but ``one_sided_rounds``, which needs δ > 0, are pure (and say δ = 0), except the textbook's where its own
    constant for δ > 0 is both better and sound. One whose noise is too wide for the grid's integers is left out.

    Raises:
        PlanError: none fits; the message names the parameter to change.
    """
    return _split_candidates(_problem(mechanism, parameters))


def _problem(mechanism: AboveThreshold | NumericSparse, parameters: Parameters) -> PlanInputs:
    numbers = mechanism.numbers if isinstance(mechanism, NumericSparse) else "none"
    return PlanInputs(cutoff=mechanism.cutoff, monotone=mechanism.monotone, numbers=numbers, **parameters)


@lru_cache(maxsize=4096)
def _split_candidates(problem: PlanInputs) -> tuple[SparseVectorCalibration, ...]:
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


TIE = 1.001
"""Errors within this ratio of the least count as equal, for splits are optimised no finer; the simplest is taken."""


def candidates(spec: StreamSpec, setting: Setting) -> tuple[Calibration, ...]:
    """Every calibration that applies, the simplest first.

    Raises:
        PlanError: none fits; the message names the parameter to change.
    """
    return _candidates(_anonymous(spec), setting)


def choose(spec: StreamSpec, setting: Setting) -> Calibration:
    """The candidate with the least error, or the textbook's own where the stream asks for it.

    Streams that differ only in names and thresholds share one computation.

    Raises:
        PlanError: none fits; the message names the parameter to change.
    """
    return _choose(_anonymous(spec), setting)


def rank(calibration: Calibration) -> float:
    """What a calibration is chosen by: its exact error, which for a textbook's is not the one that it promises."""
    if isinstance(calibration, SparseVectorCalibration) and calibration.method == "textbook":
        return exact_alpha(calibration) + 2.0 * calibration.rounding
    if isinstance(calibration, SparseVectorCalibration):
        return max(calibration.alpha, calibration.answer_alpha)
    return calibration.alpha


def name_of(calibration: Calibration) -> str:
    """A calibration's method, with what else tells it from the other candidates: its noise, or the sparse vector inside."""
    if isinstance(calibration, EstimateCalibration) and calibration.noise != "laplace":
        return f"{calibration.method}, {calibration.noise}"
    if isinstance(calibration, HypothesisCalibration) and calibration.method != "textbook":
        return f"{calibration.method}, {calibration.sparse_vector.method}"
    return calibration.method


@lru_cache(maxsize=4096)
def _choose(spec: StreamSpec, setting: Setting) -> Calibration:
    found = _candidates(spec, setting)
    if spec.calibration == "textbook":
        for one in found:
            if one.method == "textbook":
                return one
        raise PlanError("calibration: the textbook has none for this mechanism and these parameters; use 'best'")
    if isinstance(spec.mechanism, Pmw) and not spec.mechanism.worst_case:
        # Another rule altogether, whose promise is a constant's where rows are few; it is there for those who ask for it.
        found = tuple(one for one in found if one.method != "textbook")
    acceptable = TIE * min(rank(one) for one in found)
    near = [one for one in found if rank(one) <= acceptable]
    # The textbook's stands first as the simplest; where another does as well there is no reason to show the old name.
    return next((one for one in near if one.method != "textbook"), near[0])


@lru_cache(maxsize=4096)
def _candidates(spec: StreamSpec, setting: Setting) -> tuple[Calibration, ...]:
    found = _planned(spec, setting)
    return tuple(one.model_copy(update={"vacuous": vacuous(spec, one, setting.rows)}) for one in found)


def _planned(spec: StreamSpec, setting: Setting) -> tuple[Calibration, ...]:  # noqa: PLR0911 - one for each planner
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
            return answer_plans.candidates(spec, setting)
        case Histogram() if setting.movement is not None:
            return answer_plans.candidates(spec, setting)
        case RandomizedResponse():
            return response_plans.candidates(spec, setting)
        case Histogram() | LazyHistogram() | SparseProject():
            return release_plans.candidates(spec, setting)
        case RunningCount():
            return running_count_plans.candidates(spec, setting)
        case Pmw(worst_case=True) | SparsePmw():
            return hypothesis_plans.candidates(spec, setting)
        case Pmw():
            [known] = estimate_plans.candidates(spec, setting)
            better = gaussian_plans.candidates(spec, setting, known)
            return (*_textbooks(spec, setting), known, *better)


def _textbooks(spec: StreamSpec, setting: Setting) -> tuple[HypothesisCalibration, ...]:
    """The textbook's calibration of multiplicative weights, where it has one for so many cells."""
    try:
        return (hypothesis_plans.textbook_candidate(spec, setting),)
    except PlanError:
        if spec.calibration == "textbook":
            raise
        return ()


def _with_rounding(calibration: SparseVectorCalibration, rounding: float) -> SparseVectorCalibration:
    """Value and threshold are rounded each; a number is off by what its value was rounded by."""
    told = {"rounding": rounding, "alpha": calibration.alpha + 2.0 * rounding}
    if calibration.numbers != "none":
        told["answer_alpha"] = calibration.answer_alpha + rounding
    return calibration.model_copy(update=told)


def _anonymous(spec: StreamSpec) -> StreamSpec:
    """The specification without what no plan depends on (of a standing query its setting tells), and with ε and δ at or below the decimals that were asked for."""
    mechanism = spec.mechanism
    if isinstance(mechanism, AboveThreshold | NumericSparse):
        mechanism = mechanism.model_copy(update={"threshold": 0.0})
    price = {"epsilon": affordable_epsilon(spec.epsilon), "delta": affordable_delta(spec.delta)}
    anybody = {"stream": "any", "source": "any", "standing": None}
    return spec.model_copy(update={**anybody, "mechanism": mechanism, **price})


__all__ = ["Parameters", "PlanError", "sensitivity_steps", "split_candidates"]
