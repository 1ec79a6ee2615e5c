"""Planner of quantiles that are charged by answer: their noise, and the rank error that it leaves.

An attribute with few values is counted value by value. Otherwise the exponential mechanism draws a
value with three quarters of ε, and the rest pays for noisy counts of ranges around it. Proofs:
docs/proofs/quantiles.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Final

from schemas import AnswersCalibration, StreamSpec
from stream.privacy.accuracy.noise_laws import part_failure
from stream.privacy.accuracy.release_accuracy import MOST_STEPS, draw_reach, draw_steps, misfits_reach
from stream.privacy.accuracy.source_facts import QuantileFacts, SourceFacts
from stream.privacy.composition.costs import shortest_decimal
from stream.privacy.noise.samplers import NoiseScaleError, Symmetric, sampler
from stream.privacy.planning import answer_plans
from stream.privacy.planning.answer_plans import answer_law, promised_answers
from stream.privacy.planning.noise_layouts import PlanError, fitting_calibrations

DRAW_SHARE: Final = Fraction(3, 4)
"""Part of ε for drawing values; the rest pays for their intervals."""

VALUES_PER_SQUARE: Final = 12
"""With m quantiles, all values are counted if there are at most 12·m², otherwise m are drawn."""

MOST_WEIGHTS: Final = 1 << 21
"""Maximum number of weights of all draws of one answer."""

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
    epsilon: Fraction, quantiles: Sequence[Fraction], moved: int, *, replaced: bool, grouped: bool
) -> list[Fraction]:
    """Return the rate of each quantile's draw; together the draws cost ``epsilon``.

    The distance d of a value is the number of rows between it and the quantile; a draw publishes
    the value with probability proportional to exp(−rate·d). One person has ``moved`` rows. A row
    that is added or removed changes each distance by at most max(q, 1 − q), up or down, and a
    replaced one by at most 1. For q = 0 and q = 1 all distances change in the same direction. If ``grouped``, a replaced row may leave one group and join another, and counts twice.
    """
    found = []
    for quantile in quantiles:
        spread = Fraction(1) if quantile in (0, 1) else 2 * max(quantile, 1 - quantile)
        if replaced:
            spread = 2 * spread if grouped else Fraction(1 if quantile in (0, 1) else 2)
        found.append(epsilon / (len(quantiles) * moved * spread))
    return found


@dataclass(frozen=True, slots=True)
class QuantileNoise:
    """The noise of one answer about quantiles.

    ``rates`` are those of the drawn quantiles, empty if all values are counted. ``cells`` is the
    noise of counts.
    """

    rates: tuple[Fraction, ...]
    cells: Symmetric


def quantile_noise(calibration: AnswersCalibration, facts: QuantileFacts) -> QuantileNoise:
    """Return the noise of one answer, which costs the stream's ε of an answer.

    Raises:
        NoiseScaleError: the noise is too wide.
    """
    moved = facts.contribution * (2 if facts.replaced else 1)
    if calibration.method == "gaussian" or facts.value_count <= VALUES_PER_SQUARE * len(facts.quantiles) ** 2:
        return QuantileNoise((), answer_law(calibration, moved, 2 if facts.replaced else 1))
    epsilon = Fraction(calibration.epsilon_answer)
    rates = rates_for(
        epsilon * DRAW_SHARE, facts.quantiles, facts.contribution, replaced=facts.replaced, grouped=facts.grouped
    )
    return QuantileNoise(tuple(rates), sampler("two_sided", epsilon * (1 - DRAW_SHARE) / moved))


def rank_alpha(calibration: AnswersCalibration, facts: QuantileFacts, noise: QuantileNoise) -> float:
    """Return the rank error, in rows, that no quantile of one answer exceeds.

    With probability 1 − β it holds for all answers of the stream.
    """
    failure = part_failure(calibration.beta, promised_answers(calibration))
    numbers = facts.group_count * len(facts.quantiles)
    if noise.rates:
        return max(draw_reach(float(rate), facts.value_count, failure / numbers) for rate in noise.rates)
    sums = 2 * facts.value_count * numbers
    return max(
        misfits_reach(noise.cells, facts.value_count, sums, float(quantile), failure)
        for quantile in facts.quantiles
    )


def plan_calibrations(spec: StreamSpec, facts: SourceFacts) -> tuple[AnswersCalibration, ...]:
    """Return every calibration of a stream; ``alpha`` of quantiles is in rows of rank."""
    found = answer_plans.plan_calibrations(spec, facts)
    if (quantiles := facts.quantiles) is None:
        return found
    return fitting_calibrations([partial(_with_rank_alpha, one, quantiles) for one in found])


def _with_rank_alpha(calibration: AnswersCalibration, facts: QuantileFacts) -> AnswersCalibration:
    try:
        noise = quantile_noise(calibration, facts)
    except NoiseScaleError as error:
        raise PlanError(str(error)) from None
    steps = [draw_steps(rate) for rate in noise.rates]
    if any(one > MOST_STEPS for one in steps) or 2 * facts.group_count * sum(steps) > MOST_WEIGHTS:
        raise PlanError(
            f"one answer would draw from {2 * facts.group_count * sum(steps):,} weights, and the limit is {MOST_WEIGHTS:,}; raise "
            "epsilon, or lower answers, groups or quantiles"
        )
    return calibration.model_copy(update={"alpha": rank_alpha(calibration, facts, noise)})
