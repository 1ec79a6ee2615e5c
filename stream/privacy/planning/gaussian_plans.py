"""Planner of streams with an estimate and Gaussian measurements, for δ > 0.

The planner starts from the best plan with Laplace noise. It multiplies the error bound of this plan and the
noise of its warm start by the same factor: the least factor for which the cost stays within (ε, δ).
Comparisons with the threshold use no δ. Proofs: docs/proofs/pmw.md. Errors are in rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from schemas import EstimateCalibration, Pmw, StreamSpec
from stream.optional_packages import optimize
from stream.privacy.accuracy.noise_laws import (
    noise_reach,
    normal_reach,
    one_sided_reach,
    part_failure,
    scale_fits,
    variance_of,
)
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.gaussian_losses import gaussian_delta, least_noise_factor, rough_epsilon
from stream.privacy.composition.losses import losses
from stream.privacy.composition.pure_rounds import round_fraction_down
from stream.privacy.planning.estimate_plans import NUMBERS_PART, SLACK_NOISE_SCALES, THRESHOLD_PART, Comparisons
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.warm_starts import (
    chosen_set_law,
    marginal_law,
    number_law,
    pair_sum_noise_scales,
    warm_start_law,
)

_WARM_START_OF_PAIRS = 2
_LEAST_ERROR_FACTOR = 1e-2
_HALVINGS = 16
_LARGEST_MARGINAL_FACTOR = 64.0
"""The search tries noise of a ⊤'s marginal from 1/64 to 64 times the noise of the Laplace plan."""
_SCALE_PER_DEVIATION = math.sqrt(0.5)
"""Scale of Laplace noise with the standard deviation 1."""
_ERROR_WITHOUT_EPSILON = 1e12
_MARGIN = 1e-9


@dataclass(frozen=True, slots=True)
class _EpsilonDivision:
    """A division of the stream's ε between comparisons and Gaussian noise.

    The noise of a marginal of the warm start, a chosen marginal, a ⊤'s marginal and a ⊤'s number is given by
    its standard deviation. ``error`` is the error bound in rows.
    """

    comparisons_epsilon: float
    comparisons: Comparisons
    start_deviation: float
    chosen_deviation: float
    marginal_deviation: float
    number_deviation: float
    error: float


@dataclass(frozen=True, slots=True)
class _GaussianSearch:
    """The search for the best Gaussian plan: the Laplace plan to improve, and the stream's (ε, δ).

    - ``start_deviation``, ``marginal_deviation``, ``chosen_deviation``: the standard deviations of the
      Laplace plan's noise in a marginal of the warm start, a ⊤'s marginal and a chosen marginal.
    - ``requested_slack``: the requested ``gap``, in rows.
    - ``pair_sum_noise``: the ``pair_sum_noise`` of ``Comparisons``, divided by the deviation of the warm start's
      noise; None if the warm start measures no pairs, or the threshold does not depend on them.
    """

    laplace_plan: EstimateCalibration
    epsilon: float
    delta: float
    start_deviation: float
    marginal_deviation: float
    requested_slack: float | None
    pair_sum_noise: float | None = None
    chosen_deviation: float = 0.0

    def best_division(self, factor: float) -> _EpsilonDivision:
        """Return the best division of ε for ``factor`` times the Laplace plan's error bound and warm-start noise."""
        laplace_plan = self.laplace_plan
        failure = part_failure(NUMBERS_PART * laplace_plan.beta, laplace_plan.cutoff)
        number = factor * laplace_plan.alpha * (1.0 - _MARGIN) / normal_reach(failure)
        start = factor * self.start_deviation
        fixed_precision = laplace_plan.cutoff / number**2
        if laplace_plan.starts:
            fixed_precision += laplace_plan.starts * laplace_plan.marginal_sensitivity / start**2
        chosen = factor * self.chosen_deviation
        if laplace_plan.rounds:
            fixed_precision += laplace_plan.marginal_sensitivity / chosen**2
        pure_epsilon = laplace_plan.epsilon_rows + laplace_plan.epsilon_choices + laplace_plan.epsilon_typical
        # ``losses`` assumes that a number's variance is at least the variance of the cells on a ⊤ without a number.
        # This limit for the deviation of the cells on a ⊤ with a number ensures it.
        cells = laplace_plan.marginal_sensitivity
        widest_marginal = math.inf if cells == 1 else number * (1.0 - _MARGIN) * math.sqrt(cells / (cells - 1))

        def divide(log_marginal_factor: float) -> _EpsilonDivision:
            marginal = min(self.marginal_deviation * math.exp(log_marginal_factor), widest_marginal)
            precision = fixed_precision + laplace_plan.cutoff * laplace_plan.marginal_sensitivity / marginal**2
            left = self.epsilon - pure_epsilon - rough_epsilon(precision, self.delta)
            noise = marginal if self.pair_sum_noise is None else start
            slack = self.requested_slack
            comparisons = Comparisons(
                updates=laplace_plan.cutoff,
                queries=laplace_plan.expected_queries,
                beta=laplace_plan.beta,
                slack=SLACK_NOISE_SCALES * _SCALE_PER_DEVIATION * noise if slack is None else slack,
                pair_sum_noise=None if self.pair_sum_noise is None else self.pair_sum_noise * start,
            )
            # If ε is not enough, the search is guided by an error that grows with the missing ε.
            error = comparisons.best_division(left)[2] if left > 0.0 else _ERROR_WITHOUT_EPSILON * (1.0 - left)
            return _EpsilonDivision(left, comparisons, start, chosen, marginal, number, error)

        if self.requested_slack is not None or self.pair_sum_noise is not None:
            # The slack does not depend on the noise of a ⊤'s marginal, so no search is necessary.
            return divide(math.log(factor))
        widest = math.log(_LARGEST_MARGINAL_FACTOR)
        optimum = optimize.minimize_scalar(
            lambda log_marginal_factor: divide(log_marginal_factor).error,
            bounds=(-widest, widest),
            method="bounded",
            options={"xatol": 1e-3},
        )
        return divide(float(optimum.x))

    def affords(self, factor: float) -> bool:
        """Return True if (ε, δ) is enough for ``factor`` times the Laplace plan's error bound."""
        return self.best_division(factor).error <= factor * self.laplace_plan.alpha


def plan_calibrations(
    spec: StreamSpec, facts: SourceFacts, laplace_plan: EstimateCalibration
) -> tuple[EstimateCalibration, ...]:
    """Return the best calibration with Gaussian noise, if it improves on the Laplace plan.

    With Gaussian noise, n measurements cost less than n times the cost of one measurement.
    """
    mechanism = spec.mechanism
    # With several rows per person, the ℓ₂ norm may equal the ℓ₁ norm, and Gaussian noise is no better.
    if spec.delta <= 0.0 or facts.contribution > 1 or not isinstance(mechanism, Pmw):
        return ()
    searches = _list_searches(spec, facts, mechanism, laplace_plan)
    calibrations = [plan for search in searches if search.affords(1.0) for plan in _improve_plan(spec, search)]
    return (min(calibrations, key=lambda plan: plan.alpha),) if calibrations else ()


def _list_searches(
    spec: StreamSpec, facts: SourceFacts, mechanism: Pmw, laplace_plan: EstimateCalibration
) -> list[_GaussianSearch]:
    gap = mechanism.gap
    search = _GaussianSearch(
        laplace_plan,
        spec.epsilon,
        spec.delta,
        start_deviation=math.sqrt(variance_of(warm_start_law(laplace_plan))) if laplace_plan.starts else 0.0,
        marginal_deviation=math.sqrt(variance_of(marginal_law(laplace_plan, numbered=True))),
        requested_slack=None if gap is None else gap * max(1, facts.rows or 1),
        chosen_deviation=math.sqrt(
            variance_of(chosen_set_law(laplace_plan, laplace_plan.rounds)) / laplace_plan.rounds
        )
        if laplace_plan.rounds
        else 0.0,
    )
    if laplace_plan.warm_start != _WARM_START_OF_PAIRS or gap is not None:
        return [search]
    return [search, replace(search, pair_sum_noise=_SCALE_PER_DEVIATION * pair_sum_noise_scales(facts.sizes))]


def _improve_plan(spec: StreamSpec, search: _GaussianSearch) -> tuple[EstimateCalibration, ...]:
    low, high = math.log(_LEAST_ERROR_FACTOR), 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if search.affords(math.exp(middle)) else (middle, high)
    return _calibrations_for(spec, search.laplace_plan, search.best_division(math.exp(high)))


def _calibrations_for(
    spec: StreamSpec, laplace_plan: EstimateCalibration, division: _EpsilonDivision
) -> tuple[EstimateCalibration, ...]:
    threshold, _, _ = division.comparisons.best_division(division.comparisons_epsilon)
    query = round_fraction_down(Fraction(division.comparisons_epsilon) - Fraction(threshold))
    vector = laplace_plan.sparse_vector.model_copy(
        update={"epsilon_threshold": threshold, "epsilon_query": query, "epsilon_answer": 0.0}
    )
    precision = (
        division.marginal_deviation**-2.0 + division.number_deviation**-2.0 / laplace_plan.marginal_sensitivity
    )
    draft = laplace_plan.model_copy(
        update={
            "sparse_vector": vector,
            "epsilon_start": 0.0,
            "epsilon_chosen": 0.0,
            "epsilon_number": 0.0,
            "noise": "gaussian",
            "deviation_start": division.start_deviation,
            "deviation_chosen": division.chosen_deviation,
            "deviation_answer": precision**-0.5,
            "deviation_number": division.number_deviation,
            "delta": spec.delta,
        }
    )
    calibration = _scale_noise(draft)
    if calibration is None or not scale_fits(calibration.deviation_number * WEIGHT_STEPS):
        return ()
    return (_with_errors(calibration, division.comparisons),)


def _scale_noise(draft: EstimateCalibration) -> EstimateCalibration | None:
    """Multiply all Gaussian noise by the least factor for which (ε, δ) holds; None if no factor is enough."""
    parts = losses(draft)
    gaussian_epsilon = Fraction(draft.epsilon) - parts.total
    factor = least_noise_factor(parts.gaussian, gaussian_epsilon, Fraction(draft.delta))
    while math.isfinite(factor):
        names = ("deviation_start", "deviation_chosen", "deviation_answer", "deviation_number")
        scaled = draft.model_copy(update={name: getattr(draft, name) * factor for name in names})
        if gaussian_delta(losses(scaled).gaussian, gaussian_epsilon) <= draft.delta:
            return scaled
        factor *= 1.0 + _MARGIN
    return None


def _with_errors(calibration: EstimateCalibration, comparisons: Comparisons) -> EstimateCalibration:
    vector = calibration.sparse_vector
    threshold = math.ceil(comparisons.threshold_rows(vector.epsilon_query) / vector.grid)
    barrier = one_sided_reach(vector.epsilon_threshold / WEIGHT_STEPS, 1, THRESHOLD_PART * calibration.beta)
    numbers = noise_reach(
        number_law(calibration, WEIGHT_STEPS), calibration.cutoff, NUMBERS_PART * calibration.beta
    )
    errors = {"answer_alpha": numbers * vector.grid, "alpha": (threshold + barrier) * vector.grid}
    return calibration.model_copy(
        update={
            "sparse_vector": vector.model_copy(update=errors),
            "threshold": threshold,
            "alpha": max(errors.values()),
        }
    )
