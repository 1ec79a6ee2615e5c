"""Planner of streams with an estimate and Gaussian measurements, for δ > 0.

The planner multiplies the Laplace plan's error bound and opening noise by one factor: the least for
which (ε, δ) suffices. Comparisons use no δ. Proofs: docs/proofs/pmw.md. Errors are in rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from schemas import EstimateCalibration, Pmw, StreamSpec
from stream.optional_packages import optimize
from stream.privacy.accuracy.noise_laws import normal_reach, one_sided_reach, part_failure, reach, variance_of
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.gaussian_losses import gaussian_delta, least_noise_factor, rough_epsilon
from stream.privacy.composition.losses import losses
from stream.privacy.composition.pure_rounds import rounded_down
from stream.privacy.planning.estimate_plans import (
    NOISES_OF_SLACK,
    NUMBERS_PART,
    THRESHOLD_PART,
    Comparisons,
    marginal_law,
    number_law,
    opening_law,
    wide_noises,
)
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.noise_layouts import fits
from stream.privacy.planning.workload_plans import chosen_law

_PAIRS_ORDER = 2
_LEAST_FACTOR = 1e-2
_HALVINGS = 16
_LARGEST_FACTOR = 64.0
"""A cell measured on a ⊤ has from 1/64 to 64 times the noise of the Laplace plan."""
_LAPLACE_SCALES = math.sqrt(0.5)
"""Laplace noise with the standard deviation σ has the scale σ·√½, in which slack is counted."""
_OVERDRAFT_ERROR = 1e12
_MARGIN = 1e-9


@dataclass(frozen=True, slots=True)
class _GaussianDivision:
    """A division: ``decisions`` is the ε of comparisons.

    ``start``, ``chosen``, ``marginal`` and ``number`` are standard deviations of noise; ``error`` is
    the error bound in rows.
    """

    decisions: float
    comparisons: Comparisons
    start: float
    chosen: float
    marginal: float
    number: float
    error: float


@dataclass(frozen=True, slots=True)
class _GaussianTask:
    """The Laplace plan to improve, the standard deviations of its noise, and the stream's (ε, δ).

    ``gap`` is the requested slack in rows. ``wide`` is as in ``Comparisons``, but in standard
    deviations of the opening's noise.
    """

    laplace_plan: EstimateCalibration
    epsilon: float
    delta: float
    start: float
    marginal: float
    gap: float | None
    wide: float | None = None
    chosen: float = 0.0

    def best_division(self, factor: float) -> _GaussianDivision:
        """Return the best division for ``factor`` times the opening's noise and the error bound."""
        laplace_plan = self.laplace_plan
        failure = part_failure(NUMBERS_PART * laplace_plan.beta, laplace_plan.cutoff)
        number = factor * laplace_plan.alpha * (1.0 - _MARGIN) / normal_reach(failure)
        start = factor * self.start
        fixed = laplace_plan.cutoff / number**2
        if laplace_plan.starts:
            fixed += laplace_plan.starts * laplace_plan.marginal_sensitivity / start**2
        chosen = factor * self.chosen
        if laplace_plan.rounds:
            fixed += laplace_plan.marginal_sensitivity / chosen**2
        pure = laplace_plan.epsilon_rows + laplace_plan.epsilon_choices + laplace_plan.epsilon_typical

        def at(log_wider: float) -> _GaussianDivision:
            marginal = self.marginal * math.exp(log_wider)
            precision = fixed + laplace_plan.cutoff * laplace_plan.marginal_sensitivity / marginal**2
            left = self.epsilon - pure - rough_epsilon(precision, self.delta)
            noise = marginal if self.wide is None else start
            comparisons = Comparisons(
                updates=laplace_plan.cutoff,
                queries=laplace_plan.expected_queries,
                beta=laplace_plan.beta,
                slack=NOISES_OF_SLACK * _LAPLACE_SCALES * noise if self.gap is None else self.gap,
                wide=None if self.wide is None else self.wide * start,
            )
            # If ε does not suffice, an error that grows with the missing ε guides the search.
            error = comparisons.best_division(left)[2] if left > 0.0 else _OVERDRAFT_ERROR * (1.0 - left)
            return _GaussianDivision(left, comparisons, start, chosen, marginal, number, error)

        if self.gap is not None or self.wide is not None:
            # With a gap or with pairs, the noise of cells measured on ⊤s does not affect the error bound.
            return at(math.log(factor))
        widest = math.log(_LARGEST_FACTOR)
        optimum = optimize.minimize_scalar(
            lambda log_wider: at(log_wider).error,
            bounds=(-widest, widest),
            method="bounded",
            options={"xatol": 1e-3},
        )
        return at(float(optimum.x))

    def affords(self, factor: float) -> bool:
        """Return True if (ε, δ) suffices for ``factor`` times the Laplace plan's error bound."""
        return self.best_division(factor).error <= factor * self.laplace_plan.alpha


def plan_calibrations(
    spec: StreamSpec, facts: SourceFacts, laplace_plan: EstimateCalibration
) -> tuple[EstimateCalibration, ...]:
    """Return the best calibration that improves a Laplace plan by Gaussian noise, if any.

    ``laplace_plan`` is the chosen Laplace plan. With Gaussian noise, n measurements cost less than n times
    one.
    """
    mechanism = spec.mechanism
    # With several rows per person the ℓ₂ norm may equal the ℓ₁ norm: Laplace noise is as good.
    if spec.delta <= 0.0 or facts.contribution > 1 or not isinstance(mechanism, Pmw):
        return ()
    tasks = _tasks(spec, facts, mechanism, laplace_plan)
    calibrations = [plan for task in tasks if task.affords(1.0) for plan in _improve_plan(spec, task)]
    return (min(calibrations, key=lambda plan: plan.alpha),) if calibrations else ()


def _tasks(
    spec: StreamSpec, facts: SourceFacts, mechanism: Pmw, laplace_plan: EstimateCalibration
) -> list[_GaussianTask]:
    gap = mechanism.gap
    task = _GaussianTask(
        laplace_plan,
        spec.epsilon,
        spec.delta,
        start=math.sqrt(variance_of(opening_law(laplace_plan))) if laplace_plan.starts else 0.0,
        marginal=math.sqrt(variance_of(marginal_law(laplace_plan, numbered=True))),
        gap=None if gap is None else gap * max(1, facts.rows or 1),
        chosen=math.sqrt(variance_of(chosen_law(laplace_plan, laplace_plan.rounds)) / laplace_plan.rounds)
        if laplace_plan.rounds
        else 0.0,
    )
    if laplace_plan.warm_start != _PAIRS_ORDER or gap is not None:
        return [task]
    return [task, replace(task, wide=_LAPLACE_SCALES * wide_noises(facts.sizes))]


def _improve_plan(spec: StreamSpec, task: _GaussianTask) -> tuple[EstimateCalibration, ...]:
    low, high = math.log(_LEAST_FACTOR), 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if task.affords(math.exp(middle)) else (middle, high)
    return _calibrations_for(spec, task.laplace_plan, task.best_division(math.exp(high)))


def _calibrations_for(
    spec: StreamSpec, laplace_plan: EstimateCalibration, division: _GaussianDivision
) -> tuple[EstimateCalibration, ...]:
    threshold, _, _ = division.comparisons.best_division(division.decisions)
    query = rounded_down(Fraction(division.decisions) - Fraction(threshold))
    vector = laplace_plan.sparse_vector.model_copy(
        update={"epsilon_threshold": threshold, "epsilon_query": query, "epsilon_answer": 0.0}
    )
    precision = division.marginal**-2.0 + division.number**-2.0 / laplace_plan.marginal_sensitivity
    draft = laplace_plan.model_copy(
        update={
            "sparse_vector": vector,
            "epsilon_start": 0.0,
            "epsilon_chosen": 0.0,
            "epsilon_number": 0.0,
            "noise": "gaussian",
            "deviation_start": division.start,
            "deviation_chosen": division.chosen,
            "deviation_answer": precision**-0.5,
            "deviation_number": division.number,
            "delta": spec.delta,
        }
    )
    calibration = _scale_noise(draft)
    if calibration is None or not fits(calibration.deviation_number * WEIGHT_STEPS):
        return ()
    return (_with_errors(calibration, division.comparisons),)


def _scale_noise(draft: EstimateCalibration) -> EstimateCalibration | None:
    """Multiply all Gaussian noise by the least factor with which (ε, δ) holds; None if there is none."""
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
    numbers = reach(number_law(calibration, WEIGHT_STEPS), calibration.cutoff, NUMBERS_PART * calibration.beta)
    errors = {"answer_alpha": numbers * vector.grid, "alpha": (threshold + barrier) * vector.grid}
    return calibration.model_copy(
        update={
            "sparse_vector": vector.model_copy(update=errors),
            "threshold": threshold,
            "alpha": max(errors.values()),
        }
    )
