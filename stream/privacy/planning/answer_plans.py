"""Planner of the mechanisms that charge each answer: laplace, noisy_max and exponential.

Each of c answers is ε0-differentially private. Together they are (ε, δ)-private by basic composition
with ε0 = ε/c, or by optimal composition (Kairouz, Oh & Viswanath 2015). Numbers may have Gaussian noise
instead (docs/proofs/composition.md). Error bounds are exact for integer noise. Proofs:
docs/proofs/laplace.md and docs/proofs/noisy-max.md.

The error of a quantile is measured in rank. If an attribute has few values, the rows with each value are
counted. Otherwise the exponential mechanism draws a value with three quarters of ε, and the rest of ε pays
for noisy counts of ranges around this value. Proofs: docs/proofs/quantiles.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import Final, Literal

from schemas import AnswersCalibration, Exponential, Histogram, Laplace, NoisyMax, StreamSpec
from schemas.mechanisms import MAX_CATEGORIES
from schemas.queries import MAX_CANDIDATES
from stream.privacy.accuracy.noise_laws import (
    exponential_reach,
    noise_reach,
    noisy_max_reach,
    part_failure,
    scale_fits,
    two_sided_reach,
)
from stream.privacy.accuracy.release_accuracy import MOST_STEPS, draw_reach, largest_draw_distance, misfits_reach
from stream.privacy.accuracy.source_facts import QuantileFacts, SourceFacts
from stream.privacy.composition.costs import shortest_decimal
from stream.privacy.composition.gaussian_losses import GaussianNumbers, least_noise_factor
from stream.privacy.composition.losses import promised_answers
from stream.privacy.composition.pure_rounds import optimal_delta, optimal_round_epsilon
from stream.privacy.noise.samplers import NoiseScaleError, Symmetric, gaussian, sampler
from stream.privacy.planning.noise_layouts import PlanError, fitting_calibrations, require_fit

PartsMethod = Literal["textbook", "basic", "optimal"]
"""The theorem by which equal parts of ε are composed."""

_ROUNDING = 1.0 + 1e-10
"""Margin above the rounding errors of a few operations."""


def _plan_numbers(spec: StreamSpec, facts: SourceFacts) -> tuple[AnswersCalibration, ...]:
    """Return every calibration that applies.

    The calibrations are the textbook's, basic composition and, if δ > 0, optimal composition and Gaussian
    noise. ``alpha`` bounds the error of the largest answer: ``dimensions`` numbers, all groups of a window,
    or a choice among ``MAX_CANDIDATES``. The textbook's ``alpha`` is the bound of its theorem, or the exact
    error if a coarse grid makes the exact error larger.
    """
    mechanism = spec.mechanism
    if not isinstance(mechanism, Laplace | Histogram | NoisyMax | Exponential):
        raise TypeError(f"{mechanism.kind} does not charge each answer")
    parts = equal_parts(spec.epsilon, spec.delta, mechanism.answers)
    laplace = tuple(_make_calibration(spec, mechanism, facts, *one) for one in parts)
    if isinstance(mechanism, NoisyMax | Exponential):
        return laplace
    return (*laplace, *_plan_gaussian(spec, mechanism, facts, laplace[-1]))


def _plan_gaussian(
    spec: StreamSpec, mechanism: Laplace | Histogram, facts: SourceFacts, laplace_plan: AnswersCalibration
) -> tuple[AnswersCalibration, ...]:
    moved = _most_changed_numbers(mechanism, facts)
    shape = (
        GaussianNumbers(laplace_plan.cutoff, 1, Fraction(1)),
        GaussianNumbers(laplace_plan.cutoff * (moved - 1), 0, Fraction(1)),
    )
    deviation = least_noise_factor(shape, Fraction(laplace_plan.epsilon), Fraction(spec.delta))
    values = _count_values(mechanism, facts)
    width = vector_sensitivity(facts.sensitivity_steps, values, facts)
    if not scale_fits(deviation * width):
        return ()
    gaussian = {"method": "gaussian", "epsilon_answer": 0.0, "deviation": deviation, "moved": moved}
    draft = laplace_plan.model_copy(update={**gaussian, "delta": spec.delta})
    alpha = alpha_for(draft, width, values, moved=count_changed_numbers(values, facts))
    return (draft.model_copy(update={"alpha": alpha}),)


def equal_parts(epsilon: float, delta: float, parts: int) -> list[tuple[PartsMethod, float, float]]:
    """Return method, ε0 and δ of each way to compose equal parts: textbook, basic and optimal."""
    compositions: list[tuple[PartsMethod, float, float]] = [
        ("textbook", *textbook_epsilon(epsilon, delta, parts)),
        ("basic", optimal_round_epsilon(epsilon, 0.0, parts), 0.0),
    ]
    if delta > 0.0:
        compositions.append(("optimal", optimal_round_epsilon(epsilon, delta, parts), delta))
    return compositions


def textbook_epsilon(epsilon: float, delta: float, answers: int) -> tuple[float, float]:
    """Return the textbook's ε0 for each of ``answers`` equal parts, and the δ that it uses.

    ε0 is ε/c, which uses no δ, or ε/√(8c ln(1/δ)) if this is larger and sound. The textbooks (Dwork
    & Roth 2014, Corollary 3.21; Kamath, lecture 9, as σ = 2/ε0) state the second formula for any ε. It is
    wrong for large ε, so it is used only if optimal composition confirms (ε, δ).
    """
    added = optimal_round_epsilon(epsilon, 0.0, answers)
    if delta > 0.0:
        stated = epsilon / math.sqrt(8.0 * answers * math.log(1.0 / delta))
        if stated > added and optimal_delta(stated, answers, epsilon) <= delta:
            return stated, delta
    return added, 0.0


def vector_sensitivity(sensitivity_steps: int, values: int, facts: SourceFacts) -> int:
    """Return the ℓ₁ sensitivity of ``values`` numbers of one answer, in steps.

    One person may change all values that a producer sends. If the values are counts of disjoint groups, adding or
    removing a row changes one count, and replacing a row changes two. ``sensitivity_steps`` includes the contribution
    bound; for a standing stream it is the sensitivity of the whole answer.
    """
    if values == 1 or facts.window is not None:
        return sensitivity_steps
    if facts.disjoint:
        return sensitivity_steps * (2 if facts.neighbors == "replace" else 1)
    return sensitivity_steps * values


def count_changed_numbers(values: int, facts: SourceFacts) -> int:
    """Return how many values a person changes in the case with the largest ℓ₂ norm of the change.

    For disjoint groups, all rows of the person are then in one group, or in two groups if neighbors replace a row.
    """
    if facts.window is not None:
        return facts.window.spread
    if values > 1 and facts.disjoint:
        return 2 if facts.neighbors == "replace" else 1
    return values


def _count_values(mechanism: Laplace | Histogram, facts: SourceFacts) -> int:
    return mechanism.dimensions if isinstance(mechanism, Laplace) else facts.universe or 1


def _most_changed_numbers(mechanism: Laplace | Histogram, facts: SourceFacts) -> int:
    """Return the largest number of values of one answer that a person may change."""
    if facts.window is not None:
        return facts.window.numbers
    # A row changes both numbers of a quotient, or the numbers of two groups.
    return max(2, _count_values(mechanism, facts), min(facts.groups_steps, MAX_CATEGORIES))


def answer_law(calibration: AnswersCalibration, sensitivity_steps: int, moved: int) -> Symmetric:
    """Return the noise of each number of an answer with ℓ₁ sensitivity ``sensitivity_steps``.

    A person changes ``moved`` numbers by equal amounts, so that the ℓ₂ sensitivity is the ℓ₁
    sensitivity divided by √``moved``.
    """
    if calibration.method == "gaussian":
        return gaussian(Fraction(calibration.deviation) ** 2 * sensitivity_steps**2 / moved)
    return sampler("two_sided", Fraction(calibration.epsilon_answer) / sensitivity_steps)


def alpha_for(calibration: AnswersCalibration, sensitivity_steps: int, values: int, moved: int = 1) -> float:
    """Return the error bound, in the unit of the values, of all numbers of one laplace answer.

    ``sensitivity_steps`` is the answer's ℓ₁ sensitivity. With probability 1 − β no answer of the
    stream exceeds its error bound.
    """
    allowed = part_failure(calibration.beta, promised_answers(calibration))
    distance = noise_reach(answer_law(calibration, sensitivity_steps, moved), values, allowed)
    return distance * calibration.grid + calibration.rounding


@lru_cache(maxsize=4096)
def choice_alpha(
    calibration: AnswersCalibration, kind: Literal["noisy_max", "exponential"], options: int
) -> float:
    """Bound the distance of the chosen score from the best score, in the unit of the scores.

    With probability 1 − β no choice of the stream exceeds its bound.
    """
    allowed = part_failure(calibration.beta, promised_answers(calibration))
    rate = choice_rate(calibration)
    if kind == "exponential":
        distance = exponential_reach(rate, options, allowed)
    elif calibration.method == "textbook":
        # A choice is more than 2x below the best score only if the noise of some score exceeds ±x.
        distance = 2 * two_sided_reach(rate, options, allowed) if options > 1 else 0
    else:
        distance = noisy_max_reach(rate, options, allowed)
    # Both the best score and the chosen one are rounded.
    return distance * calibration.grid + 2.0 * calibration.rounding


def choice_rate(calibration: AnswersCalibration) -> float:
    """Return the rate of a choice's noise: ε0/(2Δ), or ε0/Δ for monotone scores, with Δ in steps."""
    width = calibration.sensitivity_steps * (1 if calibration.monotone else 2)
    return calibration.epsilon_answer / width


def rates_reach(calibration: AnswersCalibration, sensitivity_steps: int, rates: int, moved: int) -> float:
    """Bound |(1 − p)·X − p·Y| for each of ``rates`` rates p.

    X is the noise of the hits and Y the noise of the misses. With probability 1 − β the bound holds for all
    rates of all answers. With Laplace noise, the tail of this difference is no heavier than the tail of one
    number's noise, up to rounding by one step.
    """
    allowed = part_failure(calibration.beta, promised_answers(calibration))
    law = answer_law(calibration, sensitivity_steps, moved)
    together = float(noise_reach(law, 2 * rates, allowed))
    if calibration.method == "gaussian":
        return together
    scale = sensitivity_steps / calibration.epsilon_answer
    return min(together, 1.0 - math.log(part_failure(allowed, rates)) * scale * _ROUNDING)


def _make_calibration(
    spec: StreamSpec,
    mechanism: Laplace | Histogram | NoisyMax | Exponential,
    facts: SourceFacts,
    method: PartsMethod,
    epsilon_answer: float,
    delta: float,
) -> AnswersCalibration:
    draft = AnswersCalibration(
        method=method,
        epsilon_answer=epsilon_answer,
        monotone=isinstance(mechanism, NoisyMax | Exponential) and mechanism.monotone,
        sensitivity_steps=facts.sensitivity_steps,
        grid=facts.grid,
        cutoff=mechanism.answers,
        epsilon=spec.epsilon,
        delta=delta,
        expected_queries=spec.expected_queries,
        beta=spec.beta,
        alpha=0.0,
        rounding=facts.rounding,
    )
    answers, beta = promised_answers(draft), draft.beta
    if isinstance(mechanism, Laplace | Histogram):
        values = _count_values(mechanism, facts)
        sensitivity = vector_sensitivity(facts.sensitivity_steps, values, facts)
        scale = sensitivity / epsilon_answer
        require_fit(scale, ", lower answers", facts.grid)
        alpha = alpha_for(draft, sensitivity, values)
        # Wang, lecture 3, Section 3.3.
        theorem = scale * math.log(answers * values / beta)
    else:
        scale = 1.0 / choice_rate(draft)
        require_fit(scale, ", lower answers", facts.grid)
        alpha = choice_alpha(draft, mechanism.kind, MAX_CANDIDATES)
        # Dwork & Roth 2014, Corollary 3.12; a union bound over all noises for the noisy maximum.
        theorem = scale * math.log(answers * MAX_CANDIDATES / beta)
        theorem *= 2.0 if isinstance(mechanism, NoisyMax) else 1.0
    if method == "textbook":
        rounding = facts.rounding * (2.0 if isinstance(mechanism, NoisyMax | Exponential) else 1.0)
        alpha = max(alpha, theorem * facts.grid + rounding)
    return draft.model_copy(update={"alpha": alpha})


DRAW_PART: Final = Fraction(3, 4)
"""Part of ε for drawing values; the rest is for their intervals."""

COUNTED_VALUES_FACTOR: Final = 12
"""For m quantiles, all values are counted if there are at most this factor times m²; else m values are drawn."""

MOST_WEIGHTS: Final = 1 << 21
"""Maximum number of weights in all draws of one answer together."""

LARGEST_DENOMINATOR: Final = 1_000_000
"""Largest denominator of q: q has at most six decimal digits."""


def parse_quantiles(q: float | Sequence[float]) -> tuple[Fraction, ...]:
    """Return one quantile, or several, as exact fractions.

    Raises:
        ValueError: a number has more than six decimal digits.
    """
    given = q if isinstance(q, Sequence) else (q,)
    quantiles = tuple(Fraction(shortest_decimal(float(one))) for one in given)
    if any(LARGEST_DENOMINATOR % quantile.denominator for quantile in quantiles):
        raise ValueError("a number has more than six decimal digits; round it to six")
    return quantiles


def rates_for(
    epsilon: Fraction, quantiles: Sequence[Fraction], contribution: int, *, replaced: bool, grouped: bool
) -> list[Fraction]:
    """Return the rate of each quantile's draw; together all draws cost ``epsilon``.

    The distance d of a value is the number of rows between the value and the quantile; a draw publishes the
    value with probability proportional to exp(−rate·d). One person has ``contribution`` rows. Adding or
    removing a row changes each distance by at most max(q, 1 − q), up or down; replacing a row changes it by at
    most 1. For q = 0 and q = 1 all distances change in the same direction. If ``grouped``, a replaced row may
    move from one group to another, and then changes the draws of both.
    """
    found = []
    for quantile in quantiles:
        spread = Fraction(1) if quantile in (0, 1) else 2 * max(quantile, 1 - quantile)
        if replaced:
            spread = 2 * spread if grouped else Fraction(1 if quantile in (0, 1) else 2)
        found.append(epsilon / (len(quantiles) * contribution * spread))
    return found


@dataclass(frozen=True, slots=True)
class QuantileNoise:
    """The noise of one answer about quantiles.

    ``rates`` has the rates of the drawn quantiles; it is empty if all values are counted.
    ``count_noise`` is the law of the noise of counts.
    """

    rates: tuple[Fraction, ...]
    count_noise: Symmetric


def quantile_noise(calibration: AnswersCalibration, facts: QuantileFacts) -> QuantileNoise:
    """Return the noise of one answer about quantiles, which costs one charge.

    Raises:
        NoiseScaleError: the noise is too wide.
    """
    sensitivity = facts.contribution * (2 if facts.replaced else 1)
    if calibration.method == "gaussian" or facts.value_count <= COUNTED_VALUES_FACTOR * len(facts.quantiles) ** 2:
        return QuantileNoise((), answer_law(calibration, sensitivity, 2 if facts.replaced else 1))
    epsilon = Fraction(calibration.epsilon_answer)
    rates = rates_for(
        epsilon * DRAW_PART, facts.quantiles, facts.contribution, replaced=facts.replaced, grouped=facts.grouped
    )
    return QuantileNoise(tuple(rates), sampler("two_sided", epsilon * (1 - DRAW_PART) / sensitivity))


def rank_alpha(calibration: AnswersCalibration, facts: QuantileFacts, noise: QuantileNoise) -> float:
    """Return the rank error, in rows, that no quantile of one answer exceeds.

    With probability 1 − β the bound holds for all answers of the stream.
    """
    failure = part_failure(calibration.beta, promised_answers(calibration))
    numbers = facts.group_count * len(facts.quantiles)
    if noise.rates:
        return max(draw_reach(float(rate), facts.value_count, failure / numbers) for rate in noise.rates)
    sums = 2 * facts.value_count * numbers
    return max(
        misfits_reach(noise.count_noise, facts.value_count, sums, float(quantile), failure)
        for quantile in facts.quantiles
    )


def plan_calibrations(spec: StreamSpec, facts: SourceFacts) -> tuple[AnswersCalibration, ...]:
    """Return every calibration that applies; ``alpha`` of quantiles is a number of rows in rank."""
    found = _plan_numbers(spec, facts)
    if (quantiles := facts.quantiles) is None:
        return found
    return fitting_calibrations([partial(_with_rank_alpha, one, quantiles) for one in found])


def _with_rank_alpha(calibration: AnswersCalibration, facts: QuantileFacts) -> AnswersCalibration:
    return calibration.model_copy(update={"alpha": planned_rank_alpha(calibration, facts)})


def planned_rank_alpha(calibration: AnswersCalibration, facts: QuantileFacts) -> float:
    """Return ``rank_alpha``; PlanError if workers would refuse the draws of an answer."""
    try:
        noise = quantile_noise(calibration, facts)
    except NoiseScaleError as error:
        raise PlanError(str(error)) from None
    steps = [largest_draw_distance(rate) for rate in noise.rates]
    sides = 2 * facts.group_count
    for needed, limit in ((2 * max(steps, default=0), 2 * MOST_STEPS), (sides * sum(steps), MOST_WEIGHTS)):
        if needed > limit:
            raise PlanError(
                f"one answer would draw from {needed:,} weights, and the limit is {limit:,}; raise epsilon, or lower answers, "
                "contribution, groups or quantiles"
            )
    return rank_alpha(calibration, facts, noise)
