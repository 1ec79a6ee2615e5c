"""Planner of streams with an estimate and Gaussian measurements, for δ > 0.

It multiplies the Laplace plan's error bound and opening noise by one factor, the least that (ε, δ)
pays for. Comparisons use no δ. Proofs: docs/proofs/pmw.md. Errors are in rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from schemas import EstimateCalibration, Pmw, StreamSpec
from stream.optional_packages import optimize
from stream.privacy.accuracy.noise_laws import each_failure, normal_reach, one_sided_reach, reach, variance_of
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.gaussian_losses import gaussian_delta, least_multiple, rough_epsilon
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

_PAIRS = 2
_LEAST_FACTOR = 1e-2
_HALVINGS = 16
_WIDEST = 64.0
"""A cell measured on a ⊤ has from 1/64 to 64 times the noise of the Laplace plan."""
_LAPLACE_SCALES = math.sqrt(0.5)
"""Laplace noise of deviation σ has the scale σ·√½; slack is in scales."""
_OVERDRAWN = 1e12
_NEARLY = 1e-9


@dataclass(frozen=True, slots=True)
class _GaussianDivision:
    """``decisions`` is the ε of comparisons; the next four fields are deviations."""

    decisions: float
    comparisons: Comparisons
    start: float
    chosen: float
    marginal: float
    number: float
    error: float


@dataclass(frozen=True, slots=True)
class _GaussianTask:
    """The Laplace plan to improve (``known``), its noise's deviations, and the stream's (ε, δ).

    ``gap`` is the requested slack in rows. ``wide`` is as in ``Comparisons``, but in deviations of
    the opening's noise.
    """

    known: EstimateCalibration
    epsilon: float
    delta: float
    start: float
    marginal: float
    gap: float | None
    wide: float | None = None
    chosen: float = 0.0

    def divided(self, factor: float) -> _GaussianDivision:
        """Return the best division for ``factor`` times the opening's noise and the error bound."""
        known = self.known
        failure = each_failure(NUMBERS_PART * known.beta, known.cutoff)
        number = factor * known.alpha * (1.0 - _NEARLY) / normal_reach(failure)
        start = factor * self.start
        fixed = known.cutoff / number**2
        if known.starts:
            fixed += known.starts * known.marginal_sensitivity / start**2
        chosen = factor * self.chosen
        if known.rounds:
            fixed += known.marginal_sensitivity / chosen**2
        pure = known.epsilon_rows + known.epsilon_choices + known.epsilon_typical

        def at(log_wider: float) -> _GaussianDivision:
            marginal = self.marginal * math.exp(log_wider)
            precision = fixed + known.cutoff * known.marginal_sensitivity / marginal**2
            left = self.epsilon - pure - rough_epsilon(precision, self.delta)
            noise = marginal if self.wide is None else start
            comparisons = Comparisons(
                updates=known.cutoff,
                queries=known.expected_queries,
                beta=known.beta,
                slack=NOISES_OF_SLACK * _LAPLACE_SCALES * noise if self.gap is None else self.gap,
                wide=None if self.wide is None else self.wide * start,
            )
            # If ε is overdrawn, the error grows with the overdraft, to guide the search.
            error = comparisons.divided(left)[2] if left > 0.0 else _OVERDRAWN * (1.0 - left)
            return _GaussianDivision(left, comparisons, start, chosen, marginal, number, error)

        if self.gap is not None or self.wide is not None:
            # The error bound does not depend on the noise of cells measured on ⊤s.
            return at(math.log(factor))
        widest = math.log(_WIDEST)
        found = optimize.minimize_scalar(
            lambda log_wider: at(log_wider).error,
            bounds=(-widest, widest),
            method="bounded",
            options={"xatol": 1e-3},
        )
        return at(float(found.x))

    def kept(self, factor: float) -> bool:
        """Return True if (ε, δ) pays for an error bound of ``factor`` times the Laplace plan's."""
        return self.divided(factor).error <= factor * self.known.alpha


def candidates(
    spec: StreamSpec, setting: SourceFacts, known: EstimateCalibration
) -> tuple[EstimateCalibration, ...]:
    """Return the best calibration that improves a Laplace plan by Gaussian noise, if any.

    ``known`` is the chosen Laplace plan. With Gaussian noise, n measurements cost less than n times
    one.
    """
    mechanism = spec.mechanism
    # With several rows per person the ℓ₂ norm may equal the ℓ₁ norm: Laplace noise is as good.
    if spec.delta <= 0.0 or setting.contribution > 1 or not isinstance(mechanism, Pmw):
        return ()
    tasks = _tasks(spec, setting, mechanism, known)
    found = [plan for one in tasks if one.kept(1.0) for plan in _improved(spec, one)]
    return (min(found, key=lambda plan: plan.alpha),) if found else ()


def _tasks(
    spec: StreamSpec, setting: SourceFacts, mechanism: Pmw, base: EstimateCalibration
) -> list[_GaussianTask]:
    gap = mechanism.gap
    task = _GaussianTask(
        base,
        spec.epsilon,
        spec.delta,
        start=math.sqrt(variance_of(opening_law(base))) if base.starts else 0.0,
        marginal=math.sqrt(variance_of(marginal_law(base, numbered=True))),
        gap=None if gap is None else gap * max(1, setting.rows or 1),
        chosen=math.sqrt(variance_of(chosen_law(base, base.rounds)) / base.rounds) if base.rounds else 0.0,
    )
    if base.warm_start != _PAIRS or gap is not None:
        return [task]
    return [task, replace(task, wide=_LAPLACE_SCALES * wide_noises(setting.sizes))]


def _improved(spec: StreamSpec, task: _GaussianTask) -> tuple[EstimateCalibration, ...]:
    low, high = math.log(_LEAST_FACTOR), 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if task.kept(math.exp(middle)) else (middle, high)
    return _finished(spec, task.known, task.divided(math.exp(high)))


def _finished(
    spec: StreamSpec, known: EstimateCalibration, division: _GaussianDivision
) -> tuple[EstimateCalibration, ...]:
    threshold, _, _ = division.comparisons.divided(division.decisions)
    query = rounded_down(Fraction(division.decisions) - Fraction(threshold))
    vector = known.sparse_vector.model_copy(
        update={"epsilon_threshold": threshold, "epsilon_query": query, "epsilon_answer": 0.0}
    )
    precision = division.marginal**-2.0 + division.number**-2.0 / known.marginal_sensitivity
    draft = known.model_copy(
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
    calibration = _private(draft)
    if calibration is None or not fits(calibration.deviation_number * WEIGHT_STEPS):
        return ()
    return (_with_errors(calibration, division.comparisons),)


def _private(draft: EstimateCalibration) -> EstimateCalibration | None:
    """Multiply all Gaussian noise so that (ε, δ) holds; None if comparisons use up all ε."""
    parts = losses(draft)
    left = Fraction(draft.epsilon) - parts.total
    factor = least_multiple(parts.gaussian, left, Fraction(draft.delta))
    while math.isfinite(factor):
        names = ("deviation_start", "deviation_chosen", "deviation_answer", "deviation_number")
        found = draft.model_copy(update={name: getattr(draft, name) * factor for name in names})
        if gaussian_delta(losses(found).gaussian, left) <= draft.delta:
            return found
        factor *= 1.0 + _NEARLY
    return None


def _with_errors(calibration: EstimateCalibration, comparisons: Comparisons) -> EstimateCalibration:
    vector = calibration.sparse_vector
    threshold = math.ceil(comparisons.raised(vector.epsilon_query) / vector.grid)
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
