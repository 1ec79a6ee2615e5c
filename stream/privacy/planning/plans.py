"""Plans of streams (the calibrations to choose from), and prices of questions.

Plans depend on public parameters alone: the stream's specification and the source's public facts.

The *price* of a question that requests an error is counted in parts of an ordinary charge
(``PARTS_PER_CHARGE``). The question's noise gets ``noise_parts`` parts of the charge's ε, and its error bound
the same number of parts of the charge's β: the fewest parts that keep to the requested error. With δ = 0 the losses of all answers add
up, so a grant pays for a fixed number of parts, however questions divide them. Prices depend on public values
alone. Proofs: docs/proofs/laplace.md, docs/proofs/pmw.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, Final, assert_never

from schemas import (
    AboveThreshold,
    AnswersCalibration,
    Calibration,
    EstimateCalibration,
    Exponential,
    Histogram,
    HypothesisCalibration,
    Laplace,
    LazyHistogram,
    Mechanism,
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
from stream.privacy.accuracy.noise_laws import HEADROOM, LARGEST_NOISE, least_passing, two_sided_reach
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.accuracy.sparse_vector_accuracy import LARGEST_STEPS, exact_alpha
from stream.privacy.composition.costs import (
    EPSILON_UNITS,
    PARTS_PER_CHARGE,
    affordable_delta,
    affordable_epsilon,
    exact_decimal,
)
from stream.privacy.composition.losses import has_gaussian_charges, is_pure, losses, promised_answers, takes_alpha
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
from stream.privacy.planning.estimate_plans import NUMBERS_PART
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
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

    ``parameters`` are the other fields of ``PlanInputs``. Two calibrations may use δ: the one of
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
"""Errors of at most 1.001 times the least error count as equal, because plans are not more exact."""


def plan_calibrations(spec: StreamSpec, facts: SourceFacts) -> tuple[Calibration, ...]:
    """Return every calibration that applies, the simplest first."""
    return _plan_with_warnings(_without_names(spec), facts)


def choose_calibration(spec: StreamSpec, facts: SourceFacts) -> Calibration:
    """Return the calibration with the least error, or the textbook's if the stream requests it.

    Streams that differ only in names and thresholds share one computation.
    """
    return _choose_calibration(_without_names(spec), facts)


def ranking_error(calibration: Calibration) -> float:
    """Return the exact error by which calibrations are ranked."""
    if isinstance(calibration, SparseVectorCalibration) and calibration.method == "textbook":
        return exact_alpha(calibration) + 2.0 * calibration.rounding
    return promised_alpha(calibration)


def promised_alpha(calibration: Calibration) -> float:
    """Return the larger one of the error bounds of a stream's decisions and numbers."""
    if isinstance(calibration, SparseVectorCalibration):
        return max(calibration.alpha, calibration.answer_alpha)
    return calibration.alpha


def name_of(calibration: Calibration) -> str:
    """Return a name for a calibration: its method and, to tell two calibrations apart, its noise or sparse vector."""
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
    acceptable = TIE_FACTOR * min(ranking_error(one) for one in found)
    near = [one for one in found if ranking_error(one) <= acceptable]
    # The simplest calibration is first, but another one with the same error is preferred to the textbook's.
    return next((one for one in near if one.method != "textbook"), near[0])


@lru_cache(maxsize=4096)
def _plan_with_warnings(spec: StreamSpec, facts: SourceFacts) -> tuple[Calibration, ...]:
    found = _plan_by_mechanism(spec, facts)
    return tuple(one.model_copy(update={"vacuous": is_vacuous(spec, one, facts.rows)}) for one in found)


def _plan_by_mechanism(spec: StreamSpec, facts: SourceFacts) -> tuple[Calibration, ...]:  # noqa: C901, PLR0911 - one for each planner
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
        case Histogram() if facts.window is not None:
            return answer_plans.plan_calibrations(spec, facts)
        case RandomizedResponse():
            return response_plans.plan_calibrations(spec, facts)
        case Histogram() | LazyHistogram() | SparseProject():
            return release_plans.plan_calibrations(spec, facts)
        case RunningCount():
            if facts.text_bytes is not None:
                return running_text_plans.plan_calibrations(spec, facts)
            return release_plans.plan_running_counts(spec, facts)
        case UnknownGroups():
            return unknown_groups_plans.plan_calibrations(spec, facts)
        case Pmw(worst_case=True) | SparsePmw():
            return hypothesis_plans.plan_calibrations(spec, facts)
        case Pmw():
            laplace_plan = estimate_plans.plan_laplace_estimate(spec, facts)
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
    """Remove names and thresholds, on which no plan depends; round ε and δ down to affordable doubles."""
    mechanism = spec.mechanism
    if isinstance(mechanism, AboveThreshold | NumericSparse):
        mechanism = mechanism.model_copy(update={"threshold": 0.0})
    price = {"epsilon": affordable_epsilon(spec.epsilon), "delta": affordable_delta(spec.delta)}
    anybody = {"stream": "any", "source": "any", "standing": None}
    return spec.model_copy(update={**anybody, "mechanism": mechanism, **price})


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a question: ``parts`` of an ordinary charge.

    The noise has ``noise_parts`` parts of the charge's ε; its bound is ``reach`` steps.
    """

    noise_parts: int
    parts: int
    reach: int


def epsilon_of(calibration: Calibration, parts: int, rounded: Callable[[Fraction], int] = math.ceil) -> float:
    """Return the ε of ``parts`` for display; ``rounded`` rounds it to whole units of ε, by default up."""
    loss = losses(calibration).loss_per_answer * Fraction(parts, PARTS_PER_CHARGE)
    return rounded(loss * EPSILON_UNITS) / EPSILON_UNITS


def shown_price(calibration: Calibration, parts: int) -> float | None:
    """Return the ε of ``parts`` for display; None for Gaussian noise, whose charges have no ε."""
    return None if parts and has_gaussian_charges(calibration) else epsilon_of(calibration, parts)


def parts_within(calibration: Calibration, max_price: float | str) -> int:
    """Return the most parts that an answer may cost if its price is at most ``max_price``.

    ``max_price`` is an ε or a percentage of the stream's ε by basic composition; with Gaussian noise, a
    percentage of its number of charges. 100 % is the stream's grant without its extensions.
    """
    each, total = losses(calibration).loss_per_answer, losses(calibration).total
    if has_gaussian_charges(calibration):
        each, total = Fraction(1), Fraction(calibration.cutoff)
    part = (
        Fraction(max_price.removesuffix("%")) / 100 * total if isinstance(max_price, str) else Fraction(max_price)
    )
    return math.floor(part / each * PARTS_PER_CHARGE)


def opening_parts(calibration: EstimateCalibration) -> int:
    """Return what the first answer costs in addition to its own charge, in parts of a charge; at most the grant.

    With δ > 0 the grant counts as spent in full from the first answer on.
    """
    whole = parts_within(calibration, "100%")
    if not is_pure(calibration):
        return whole
    return min(
        math.ceil(_opening_loss(calibration) / losses(calibration).loss_per_answer * PARTS_PER_CHARGE), whole
    )


def first_price(calibration: EstimateCalibration, parts: int) -> float | None:
    """Return the ε of a first answer with an own charge of ``parts``, for display; None for Gaussian noise."""
    if has_gaussian_charges(calibration):
        return None
    loss = _opening_loss(calibration) + losses(calibration).loss_per_answer * Fraction(parts, PARTS_PER_CHARGE)
    return math.ceil(loss * EPSILON_UNITS) / EPSILON_UNITS


def _opening_loss(calibration: EstimateCalibration) -> Fraction:
    return losses(calibration).first_loss + losses(calibration).loss_while_open


def noise_rate(calibration: Calibration, noise_parts: int, width: int) -> Fraction:
    """Return the noise rate for ``noise_parts`` parts of a charge, if one row changes the numbers by ``width``."""
    rows = calibration.contribution if isinstance(calibration, EstimateCalibration) else 1
    return losses(calibration).loss_per_answer / rows * Fraction(noise_parts, PARTS_PER_CHARGE) / width


@lru_cache(maxsize=1 << 14)
def answer_price(calibration: AnswersCalibration, accountant: str, width: int, values: int, steps: int) -> Price:
    """Return the price of ``values`` laplace numbers within ±``steps``.

    ``width`` is the ℓ₁ sensitivity. Under ``zcdp`` an answer with f times the ε of an ordinary charge has
    f² times its ρ. It is charged max(f, f²), so that neither ε nor ρ exceeds the grant.
    """
    promised, log_kept = promised_answers(calibration), math.log1p(-calibration.beta)

    def failure(charges: float) -> float:
        return -math.expm1(log_kept * min(1.0, charges / promised))

    noise_parts, reach = _least_parts(float(losses(calibration).loss_per_answer) / width, values, failure, steps)
    parts = (
        max(noise_parts, -(-noise_parts * noise_parts // PARTS_PER_CHARGE))
        if accountant == "zcdp"
        else noise_parts
    )
    return Price(noise_parts, parts, reach)


@lru_cache(maxsize=1 << 14)
def estimate_price(calibration: EstimateCalibration, width: int, values: int, steps: int) -> Price:
    """Return the price of ``values`` numbers of a stream with an estimate, within ±``steps``.

    Each charge has an equal part of the β for numbers. Because the stream counts as one mechanism with
    δ = 0, its ρ follows from its ε for any prices.
    """
    failure = partial(numbers_failure, calibration)
    noise_parts, reach = _least_parts(
        float(noise_rate(calibration, PARTS_PER_CHARGE, width)), values, failure, steps
    )
    return Price(noise_parts, noise_parts, reach)


def count_price(mechanism: Mechanism, calibration: Calibration, alpha: float) -> Price | None:
    """Return the price of one count within ``alpha``; None if questions cannot request an error."""
    if not takes_alpha(calibration):
        return None
    if isinstance(calibration, EstimateCalibration):
        return estimate_price(calibration, WEIGHT_STEPS, 1, math.floor(alpha * WEIGHT_STEPS))
    if isinstance(mechanism, Laplace) and isinstance(calibration, AnswersCalibration):
        rows = math.ceil(
            calibration.sensitivity_steps * calibration.grid
        )  # without a table the grid is that of values
        return answer_price(calibration, "pure", rows, 1, math.floor(alpha))
    return None


def numbers_failure(calibration: EstimateCalibration, charges: float) -> float:
    """Return the failure probability of one answer's numbers at a price of ``charges`` charges."""
    return NUMBERS_PART * calibration.beta * min(1.0, charges / calibration.cutoff)


def _least_parts(rate: float, values: int, failure: Callable[[float], float], steps: int) -> tuple[int, int]:
    """Return the fewest parts whose noise is within ``steps``, and the bound (reach) of this noise.

    ``rate`` is the noise rate for a whole charge. The bound falls as the parts grow in number.
    """

    def reach(noise_parts: int) -> int:
        charges = noise_parts / PARTS_PER_CHARGE
        return two_sided_reach(rate * charges, values, failure(charges))

    # Fewer parts would need noise that does not fit 52 binary digits.
    least = max(1, math.ceil(HEADROOM * PARTS_PER_CHARGE / (rate * LARGEST_NOISE)))
    noise_parts = least_passing(lambda noise_parts: reach(noise_parts) <= steps, least - 1, least)
    return noise_parts, reach(noise_parts)
