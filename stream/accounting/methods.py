"""The layouts of noise that the planner chooses from, each as a calibration with its exact error filled in.

Their privacy is proved in ``docs/above-threshold.md``. Budgets are split with ε1 + ε2 <= ε, or c rounds of ε1 + ε2
<= ε, in rational arithmetic on the doubles themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from schemas.streams import Calibration, Method
from stream.accounting.accuracy import Layout, alpha_of, layout_of, rates_of
from stream.accounting.composition import optimal_delta, optimal_round_epsilon, rounded_down
from stream.accounting.search import COARSEST_SCALE, best_split_and_shift, stated_split

HEADROOM = 64
"""How many noise scales must fit ``LARGEST_NOISE``: noise beyond them has probability e^−64, below 2^−92."""

LARGEST_NOISE = 2**52
"""Noise is drawn in at most 52 binary digits, so that f + ν and T + ρ + s stay well inside 64 bits."""

_COARSE_SCALE = 64.0


class PlanError(ValueError):
    """No calibration fits the parameters; the message says which one to change."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a plan depends on, and nothing else: no name and no threshold."""

    cutoff: int
    monotone: bool
    epsilon: float
    delta: float
    expected_queries: int
    beta: float
    sensitivity_steps: int
    grid: float


def textbook(problem: Problem) -> Calibration:
    """Two-sided noise of scales σ and 2σ, a new threshold after each ⊤ (Kamath lecture 9, Figure 2).

    σ = 2c/ε, or √(32 c ln(1/δ))/ε where that is smaller and where optimal composition confirms (ε, δ). ``alpha`` is
    that of Theorems 2 and 4, 4σ(ln k + ln(2c/β))Δ, or the exact one where a coarse grid makes that larger. A promise
    of monotone queries is not used.
    """
    cutoff = problem.cutoff
    per_round, delta = optimal_round_epsilon(problem.epsilon, 0.0, cutoff), 0.0
    if problem.delta > 0.0:
        stated = 2.0 * problem.epsilon / math.sqrt(32.0 * cutoff * math.log(1.0 / problem.delta))
        if stated > per_round and optimal_delta(stated, cutoff, problem.epsilon) <= problem.delta:
            per_round, delta = stated, problem.delta
    half = 0.5 * per_round
    result = _finished(replace(problem, monotone=False), "textbook", (half, half), 0, delta=delta)
    sigma = 2.0 / per_round
    logs = math.log(problem.expected_queries) + math.log(2.0 * cutoff / problem.beta)
    theorem = 4.0 * sigma * logs * problem.sensitivity_steps * problem.grid
    return result.model_copy(update={"alpha": max(theorem, result.alpha)})


def two_sided(problem: Problem) -> Calibration:
    """One threshold, two-sided noise, the split of Lyu, Su & Li 2017, no shift."""
    fraction = stated_split(_width(problem, fresh=False))
    return _finished(problem, "two_sided", _split(problem.epsilon, fraction), 0)


def two_sided_shifted(problem: Problem) -> Calibration:
    """One threshold, two-sided noise, the split of Lyu, Su & Li 2017, the best shift."""
    return _optimised(
        problem, "two_sided_shifted", problem.epsilon, split=stated_split(_width(problem, fresh=False))
    )


def one_sided(problem: Problem) -> Calibration:
    """One threshold, one-sided noise, the best split and shift."""
    return _optimised(problem, "one_sided", problem.epsilon)


def one_sided_rounds(problem: Problem) -> Calibration:
    """A new round of cutoff 1 for each ⊤, one-sided noise, the best split and shift.

    ε0 per round is the largest that optimal composition allows (Kairouz, Oh & Viswanath 2015).
    """
    per_round = optimal_round_epsilon(problem.epsilon, problem.delta, problem.cutoff)
    return _optimised(problem, "one_sided_rounds", per_round, delta=problem.delta)


def _optimised(
    problem: Problem,
    method: Method,
    epsilon: float,
    *,
    delta: float = 0.0,
    split: float | None = None,
) -> Calibration:
    """The best shift, and the best split as well unless one is given."""
    width = _width(problem, fresh=_is_fresh(method))
    # Split and shift are sought on a grid too fine to matter, so that a coarse one cannot mislead the search.
    refinement = max(1, math.ceil(COARSEST_SCALE * epsilon / problem.sensitivity_steps))
    fine_steps = problem.sensitivity_steps * refinement
    tops = min(problem.cutoff, problem.expected_queries)

    def layout_for(fraction: float) -> Layout:
        fraction = fraction if split is None else split
        return Layout(
            one_sided=_is_one_sided(method),
            threshold_rate=epsilon * fraction / fine_steps,
            query_rate=epsilon * (1.0 - fraction) / (width * fine_steps),
            fresh=_is_fresh(method) and tops > 1,
            tops=tops,
            queries=problem.expected_queries,
        )

    start = stated_split(width)
    _check_scale(problem, refinement * min(layout_for(start).threshold_rate, layout_for(start).query_rate))
    best, fine_shift = best_split_and_shift(layout_for, start, problem.beta)
    fraction = best if split is None else split
    parts = _split(epsilon, fraction)
    shift = round(fine_shift / refinement)
    scale = 1.0 / (layout_for(fraction).query_rate * refinement)
    nearby = (0, 1, -1, 2, -2) if scale < _COARSE_SCALE else (0,)
    options = [_finished(problem, method, parts, shift + offset, delta=delta) for offset in nearby]
    return min(options, key=lambda option: option.alpha)


def _finished(
    problem: Problem,
    method: Method,
    parts: tuple[float, float],
    shift: int,
    *,
    delta: float = 0.0,
) -> Calibration:
    """The calibration with budget parts (ε1, ε2), its exact error filled in."""
    draft = Calibration(
        method=method,
        noise="one_sided" if _is_one_sided(method) else "two_sided",
        fresh_threshold=_is_fresh(method),
        epsilon_threshold=parts[0],
        epsilon_query=parts[1],
        shift=shift,
        sensitivity_steps=problem.sensitivity_steps,
        grid=problem.grid,
        cutoff=problem.cutoff,
        monotone=problem.monotone,
        epsilon=problem.epsilon,
        delta=delta,
        expected_queries=problem.expected_queries,
        beta=problem.beta,
        alpha=0.0,
    )
    _check_scale(problem, min(rates_of(draft)))
    alpha = alpha_of(layout_of(draft), shift, problem.beta) * problem.grid
    return draft.model_copy(update={"alpha": alpha})


def _check_scale(problem: Problem, rate: float) -> None:
    needed = HEADROOM / rate
    if needed > LARGEST_NOISE:
        raise PlanError(
            f"noise of scale {1.0 / rate:.3g} grid steps does not fit 52 binary digits; raise epsilon, lower the cutoff, "
            f"or use a grid {needed / LARGEST_NOISE:.2g} times coarser than {problem.grid:g}"
        )


def _split(epsilon: float, fraction: float) -> tuple[float, float]:
    """(ε1, ε2) with ε1 + ε2 <= ε exactly."""
    threshold = epsilon * fraction
    return threshold, rounded_down(Fraction(epsilon) - Fraction(threshold))


def _width(problem: Problem, *, fresh: bool) -> int:
    """The query noise's scale in units of Δ/ε2: 2c, or c for monotone queries."""
    tops = 1 if fresh else problem.cutoff
    return tops if problem.monotone else 2 * tops


def _is_fresh(method: Method) -> bool:
    return method in ("textbook", "one_sided_rounds")


def _is_one_sided(method: Method) -> bool:
    return method in ("one_sided", "one_sided_rounds")
