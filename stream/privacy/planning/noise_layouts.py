"""Noise layouts of the sparse vector, each with a planner that computes the exact error.

A layout says which noise is one-sided, and how often the threshold's noise is drawn. ε is split into ε1 for
the threshold, ε2 for queries and ε3 for numbers. In rational arithmetic, their sum is at most the ε of the stream,
or of a round if ⊤s redraw the threshold's noise. With monotone queries the sum may exceed ε (see ``tops_epsilon``).
Proofs: ``docs/proofs/above-threshold.md``, ``docs/proofs/numeric-sparse.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, TypeVar

from schemas import Method, SparseVectorCalibration
from stream.optional_packages import np, optimize
from stream.privacy.accuracy.noise_laws import HEADROOM, LARGEST_NOISE, scale_fits
from stream.privacy.accuracy.sparse_vector_accuracy import (
    AccuracyError,
    RunLayout,
    failure_bound,
    least_alpha,
    negligible_probability,
    noise_rates,
    run_layout,
)
from stream.privacy.composition.losses import top_number_rate, tops_epsilon
from stream.privacy.composition.pure_rounds import optimal_delta, optimal_round_epsilon, round_fraction_down
from stream.privacy.noise.samplers import Floats


@dataclass(frozen=True, slots=True)
class EpsilonSplit:
    """A division of ε between published numbers, the threshold's noise and the queries' noise.

    ``numbers_part`` is the numbers' part of ε, and ``threshold_part`` the threshold's part of the rest.
    """

    threshold_part: float
    numbers_part: float = 0.0


LayoutFor = Callable[[EpsilonSplit], RunLayout]
"""Returns the parameters of a run, such as its noise rates, for a division of ε."""

GRID_FREE_SCALE = 4096
"""Noise scale, in steps, above which the best split and shift do not depend on the grid."""

_NOISE_BLOCKS = 192
_ALPHA_RESOLUTION = 4096
_PASSES = 3
_EXTREME_LOGIT = 20.0


def literature_split(width: int) -> float:
    """Return the threshold's part of ε if threshold and queries divide it as 1 : width^(2/3).

    From Lyu, Su & Li 2017, Section 4.2; ``width`` is 2c in general and c for monotone queries.
    """
    return 1.0 / (1.0 + math.pow(width, 2.0 / 3.0))


def best_split_and_shift(layout_for: LayoutFor, start: EpsilonSplit, beta: float) -> tuple[EpsilonSplit, int]:
    """Return the split of ε (three significant digits) and the shift that minimize α.

    The search alternates between two steps: it finds the least α for a fixed split and shift, and then the
    split and shift with the least failure probability for this α. These are also the split and shift with
    the least α once α no longer changes. The noise scale of the layouts should be at least ``GRID_FREE_SCALE`` steps.
    """
    logits = [_logit(start.threshold_part)] + ([_logit(start.numbers_part)] if start.numbers_part > 0.0 else [])
    layout = layout_for(start)
    shift = _first_shift(layout, beta)
    for number in range(_PASSES):
        alpha = least_alpha(layout, round(shift), beta, blocks=_NOISE_BLOCKS, resolution=_ALPHA_RESOLUTION)
        shift, *logits = _least_failure(layout_for, alpha, [shift, *logits], beta, first=number == 0)
        layout = layout_for(_split_at(logits))
    split = _split_at(logits)
    return EpsilonSplit(_round_fraction(split.threshold_part), _round_fraction(split.numbers_part)), round(shift)


def start_split(layout_for: LayoutFor, threshold_part: float, beta: float) -> EpsilonSplit:
    """Return a split in which decisions and numbers have about the same error."""
    halves = layout_for(EpsilonSplit(threshold_part, 0.5))
    decisions = replace(halves, numbers="none")
    shift = round(_first_shift(decisions, beta))
    error = least_alpha(decisions, shift, beta, blocks=_NOISE_BLOCKS, resolution=_ALPHA_RESOLUTION)
    number_error = math.log(1.0 + halves.tops / beta) / (halves.top_number_rate * halves.number_error_ratio)
    return EpsilonSplit(threshold_part, number_error / (error + number_error))


def best_numbers_part(layout_for: LayoutFor, start: EpsilonSplit, beta: float) -> EpsilonSplit:
    """Return ``start`` with the numbers' part of ε (three digits) that minimizes α without a shift."""

    def error(logit: float) -> float:
        layout = layout_for(replace(start, numbers_part=_inverse_logit(logit)))
        return least_alpha(layout, 0, beta, blocks=_NOISE_BLOCKS, resolution=_ALPHA_RESOLUTION)

    center = _logit(start.numbers_part)
    optimum = optimize.minimize_scalar(
        error, bounds=(center - 2.0, center + 2.0), method="bounded", options={"xatol": 2e-3, "maxiter": 40}
    )
    return replace(start, numbers_part=_round_fraction(_inverse_logit(float(optimum.x))))


def _round_fraction(fraction: float) -> float:
    return min(float(f"{fraction:.3g}"), 0.999)


def _logit(fraction: float) -> float:
    return math.log(fraction / (1.0 - fraction))


def _inverse_logit(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-max(-_EXTREME_LOGIT, min(_EXTREME_LOGIT, logit))))


def _first_shift(layout: RunLayout, beta: float) -> float:
    # β/2 is for false ⊤s, which the largest of k query noises causes, and β/2 for high queries that are missed.
    low_query_reach = math.log(1.0 + layout.queries / beta) / layout.query_rate
    if layout.one_sided:
        rounds = layout.tops if layout.fresh_threshold else 1
        high_query_reach = math.log(1.0 + rounds / beta) / layout.threshold_rate
    else:
        high_query_reach = math.log(1.0 + layout.tops / beta) / layout.query_rate
    return 0.5 * (low_query_reach - high_query_reach)


def _least_failure(
    layout_for: LayoutFor, alpha: int, start: Sequence[float], beta: float, *, first: bool
) -> list[float]:
    shift, *logits = start
    negligible = negligible_probability(layout_for(_split_at(logits)), beta)

    def log_failure(point: Floats) -> float:
        shift_share, layout = float(point[1]), layout_for(_split_at([point[0], *point[2:]]))
        failure = failure_bound(layout, alpha, round(shift_share * alpha), blocks=_NOISE_BLOCKS, tail=negligible)
        return math.log(max(failure, 1e-300))

    logit_step, shift_share_step = (0.4, 0.1) if first else (0.1, 0.03)
    start_point = np.array([logits[0], shift / alpha, *logits[1:]])
    steps = np.array([logit_step, shift_share_step, *[logit_step] * (len(logits) - 1)])
    simplex = np.vstack([start_point, start_point + np.diag(steps)])
    options = {"initial_simplex": simplex, "xatol": 2e-3, "fatol": 1e-4, "maxfev": 60 * len(start_point)}
    optimum = optimize.minimize(log_failure, simplex[0], method="Nelder-Mead", options=options)
    return [float(optimum.x[1]) * alpha, *np.delete(optimum.x, 1).tolist()]


def _split_at(logits: Sequence[float] | Floats) -> EpsilonSplit:
    fractions = [_inverse_logit(float(logit)) for logit in logits]
    return EpsilonSplit(*fractions)


_COARSE_GRID_SCALE = 64.0
"""Noise scale, in steps of the stream's grid, below which shifts beside the rounded one are compared too."""

_Planned = TypeVar("_Planned")


class PlanError(ValueError):
    """No calibration fits the parameters; the message names the parameter to change."""


def fitting_calibrations(makers: Iterable[Callable[[], _Planned]]) -> tuple[_Planned, ...]:
    """Return the calibrations of all makers that refuse none of the parameters; PlanError if there is none."""
    calibrations: list[_Planned] = []
    refusal: ValueError | None = None
    for make in makers:
        try:
            calibrations.append(make())
        except (PlanError, AccuracyError) as error:
            refusal = error
    if not calibrations:
        raise PlanError(str(refusal)) from refusal
    return tuple(calibrations)


def require_fit(scale: float, remedy: str, grid: float | None = None) -> None:
    """Raise PlanError if noise of this scale does not fit; with ``grid`` the error names a coarser grid."""
    if not scale_fits(scale):
        coarser = (
            f", or use a grid {HEADROOM * scale / LARGEST_NOISE:.2g} times coarser than {grid:g}" if grid else ""
        )
        raise PlanError(
            f"noise of scale {scale:.3g} grid steps does not fit 52 binary digits; raise epsilon{remedy}{coarser}"
        )


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The inputs of a sparse vector's plan.

    ``numbers`` says how the numbers of ⊤s are published: with ``fresh`` noise, or as the noisy ``gap`` above the threshold.
    Their error may be ``number_error_ratio`` times the error of decisions.
    """

    cutoff: int
    monotone: bool
    epsilon: float
    delta: float
    expected_queries: int
    beta: float
    sensitivity_steps: int
    grid: float
    numbers: Literal["none", "fresh", "gap"] = "none"
    number_error_ratio: float = 1.0


def plan_textbook(inputs: PlanInputs) -> SparseVectorCalibration:
    """Plan two-sided noise with new threshold noise after each ⊤ (Kamath, lecture 9, Figure 2).

    The noise scale is σ for the threshold and 2σ for queries. σ is 2c/ε, or √(32 c ln(1/δ))/ε if this is smaller and
    optimal composition confirms (ε, δ). ``alpha`` is 4σ(ln k + ln(2c/β))Δ for k queries (Theorems 2 and 4), or the
    exact error if a coarse grid makes the exact error larger. Monotonicity is not used. If numbers are published with
    separate noise, they get 1/9 of ε if δ = 0, else 1/(√512 + 1) of it; α is 4σ(ln k + ln(4c/β))Δ, and σ has ln(2/δ)
    (Dwork & Roth 2014, Algorithm 3, Theorem 3.28).
    """
    cutoff, fresh = inputs.cutoff, inputs.numbers == "fresh"
    per_round, delta, numbers_part = optimal_round_epsilon(inputs.epsilon, 0.0, cutoff), 0.0, 1.0 / 9.0
    if inputs.delta > 0.0:
        larger = 2.0 * inputs.epsilon / math.sqrt(32.0 * cutoff * math.log((2.0 if fresh else 1.0) / inputs.delta))
        if larger > per_round and optimal_delta(larger, cutoff, inputs.epsilon) <= inputs.delta:
            per_round, delta, numbers_part = larger, inputs.delta, 1.0 / (math.sqrt(512.0) + 1.0)
    inputs = replace(inputs, monotone=False, number_error_ratio=1.0)
    parts = _divide_epsilon(inputs, per_round, EpsilonSplit(0.5, numbers_part if fresh else 0.0))
    result = _make_calibration(inputs, "textbook", parts, 0, delta=delta)
    sigma = 1.0 / parts[0]
    logs = math.log(inputs.expected_queries) + math.log((4.0 if fresh else 2.0) * cutoff / inputs.beta)
    alpha = max(4.0 * sigma * logs * inputs.sensitivity_steps * inputs.grid, result.alpha)
    return result.model_copy(update={"alpha": alpha, "answer_alpha": 0.0 if inputs.numbers == "none" else alpha})


def plan_two_sided(inputs: PlanInputs) -> SparseVectorCalibration:
    """Plan threshold noise drawn once, two-sided noise, the split of Lyu, Su & Li 2017, and no shift.

    If numbers are published, their part of ε is the one with the least error.
    """
    split = EpsilonSplit(literature_split(_query_noise_width(inputs, fresh_threshold=False)))
    if inputs.numbers == "fresh":
        refinement = _refinement(inputs, inputs.epsilon)
        layout_for = _layout_function(inputs, "two_sided", inputs.epsilon, refinement)
        split = best_numbers_part(
            layout_for, _search_start(inputs, layout_for, split.threshold_part, refinement), inputs.beta
        )
    return _make_calibration(inputs, "two_sided", _divide_epsilon(inputs, inputs.epsilon, split), 0)


def plan_two_sided_shifted(inputs: PlanInputs) -> SparseVectorCalibration:
    """Plan threshold noise drawn once, two-sided noise, the split of Lyu, Su & Li 2017, and the best shift."""
    return _plan_best_split(
        inputs,
        "two_sided_shifted",
        inputs.epsilon,
        threshold_part=literature_split(_query_noise_width(inputs, fresh_threshold=False)),
    )


def plan_one_sided(inputs: PlanInputs) -> SparseVectorCalibration:
    """Plan threshold noise drawn once, one-sided noise, the best split and the best shift."""
    return _plan_best_split(inputs, "one_sided", inputs.epsilon)


def plan_one_sided_rounds(inputs: PlanInputs) -> SparseVectorCalibration:
    """Plan new threshold noise after each ⊤, one-sided noise, the best split and the best shift.

    Each round has the largest ε0 that optimal composition allows (Kairouz, Oh & Viswanath 2015).
    """
    per_round = optimal_round_epsilon(inputs.epsilon, inputs.delta, inputs.cutoff)
    return _plan_best_split(inputs, "one_sided_rounds", per_round, delta=inputs.delta)


def _plan_best_split(
    inputs: PlanInputs, method: Method, epsilon: float, *, delta: float = 0.0, threshold_part: float | None = None
) -> SparseVectorCalibration:
    width = _query_noise_width(inputs, fresh_threshold=_has_new_thresholds(method))
    refinement = _refinement(inputs, epsilon)
    layout_for = _layout_function(inputs, method, epsilon, refinement, threshold_part=threshold_part)
    start = _search_start(inputs, layout_for, literature_split(width), refinement)
    best, fine_shift = best_split_and_shift(layout_for, start, inputs.beta)
    split = best if threshold_part is None else replace(best, threshold_part=threshold_part)
    parts = _divide_epsilon(inputs, epsilon, split)
    shift = round(fine_shift / refinement)
    scale = 1.0 / (layout_for(split).query_rate * refinement)
    nearby = (0, 1, -1, 2, -2) if scale < _COARSE_GRID_SCALE else (0,)
    options = [_make_calibration(inputs, method, parts, shift + offset, delta=delta) for offset in nearby]
    return min(options, key=lambda option: option.alpha)


def _search_start(
    inputs: PlanInputs, layout_for: LayoutFor, threshold_part: float, refinement: int
) -> EpsilonSplit:
    """Return the split at which the search starts; raise PlanError if no noise could fit."""
    start = EpsilonSplit(threshold_part)
    decisions = layout_for(start)
    _require_noise_fit(inputs, refinement * min(decisions.threshold_rate, decisions.query_rate))
    return start_split(layout_for, threshold_part, inputs.beta) if inputs.numbers == "fresh" else start


def _refinement(inputs: PlanInputs, epsilon: float) -> int:
    # Split and shift are searched on a fine grid, because the steps of a coarse grid mislead the search.
    return max(1, math.ceil(GRID_FREE_SCALE * epsilon / inputs.sensitivity_steps))


def _layout_function(
    inputs: PlanInputs, method: Method, epsilon: float, refinement: int, *, threshold_part: float | None = None
) -> LayoutFor:
    fresh_threshold = _has_new_thresholds(method)
    width = _query_noise_width(inputs, fresh_threshold=fresh_threshold)
    fine_steps = inputs.sensitivity_steps * refinement
    tops = min(inputs.cutoff, inputs.expected_queries)

    def layout_for(split: EpsilonSplit) -> RunLayout:
        split = split if threshold_part is None else replace(split, threshold_part=threshold_part)
        fraction = split.threshold_part
        total = epsilon * _total_factor(inputs, split)
        decisions = total * (1.0 - split.numbers_part)
        return RunLayout(
            one_sided=_is_one_sided(method),
            threshold_rate=decisions * fraction / fine_steps,
            query_rate=decisions * (1.0 - fraction) / (width * fine_steps),
            fresh_threshold=fresh_threshold and tops > 1,
            tops=tops,
            queries=inputs.expected_queries,
            numbers=inputs.numbers,
            top_number_rate=total * split.numbers_part / ((1 if fresh_threshold else inputs.cutoff) * fine_steps),
            number_error_ratio=inputs.number_error_ratio,
        )

    return layout_for


def _make_calibration(
    inputs: PlanInputs, method: Method, parts: tuple[float, float, float], shift: int, *, delta: float = 0.0
) -> SparseVectorCalibration:
    draft = SparseVectorCalibration(
        method=method,
        noise="one_sided" if _is_one_sided(method) else "two_sided",
        fresh_threshold=_has_new_thresholds(method),
        epsilon_threshold=parts[0],
        epsilon_query=parts[1],
        shift=shift,
        sensitivity_steps=inputs.sensitivity_steps,
        grid=inputs.grid,
        cutoff=inputs.cutoff,
        monotone=inputs.monotone,
        epsilon=inputs.epsilon,
        delta=delta,
        expected_queries=inputs.expected_queries,
        beta=inputs.beta,
        alpha=0.0,
        numbers=inputs.numbers,
        epsilon_answer=parts[2],
    )
    rates = (*noise_rates(draft), top_number_rate(draft)) if inputs.numbers == "fresh" else noise_rates(draft)
    _require_noise_fit(inputs, min(rates))
    error = least_alpha(run_layout(draft, inputs.number_error_ratio), shift, inputs.beta)
    number_error = {"none": 0, "fresh": math.floor(inputs.number_error_ratio * error), "gap": error}[
        inputs.numbers
    ]
    return draft.model_copy(update={"alpha": error * inputs.grid, "answer_alpha": number_error * inputs.grid})


def _require_noise_fit(inputs: PlanInputs, rate: float) -> None:
    require_fit(1.0 / rate, ", lower the cutoff", inputs.grid)


def _total_factor(inputs: PlanInputs, split: EpsilonSplit) -> float:
    """Return (ε1 + ε2 + ε3) / ε, which exceeds 1 if no sequence of answers can spend all three parts."""
    if not (inputs.monotone and inputs.numbers == "fresh"):
        return 1.0
    threshold = (1.0 - split.numbers_part) * split.threshold_part
    query = 1.0 - split.numbers_part - threshold
    return 1.0 / (threshold + tops_epsilon(threshold, query, split.numbers_part, monotone=True))


def _divide_epsilon(inputs: PlanInputs, epsilon: float, split: EpsilonSplit) -> tuple[float, float, float]:
    """Return (ε1, ε2, ε3) such that ε1 + ``tops_epsilon`` is at most ε in exact arithmetic."""
    total = epsilon * _total_factor(inputs, split)
    numbers = total * split.numbers_part
    threshold = total * (1.0 - split.numbers_part) * split.threshold_part
    if total == epsilon:
        return threshold, round_fraction_down(Fraction(epsilon) - Fraction(threshold) - Fraction(numbers)), numbers
    threshold = min(threshold, round_fraction_down(Fraction(epsilon) - Fraction(numbers)))
    query = round_fraction_down(Fraction(epsilon) - Fraction(max(threshold, numbers)))
    return threshold, min(query, total * (1.0 - split.numbers_part) * (1.0 - split.threshold_part)), numbers


def _query_noise_width(inputs: PlanInputs, *, fresh_threshold: bool) -> int:
    """Return the scale of the query noise in units of Δ/ε2: 2c, or c for monotone queries; c is 1 with ``fresh_threshold``."""
    tops = 1 if fresh_threshold else inputs.cutoff
    return tops if inputs.monotone else 2 * tops


def _has_new_thresholds(method: Method) -> bool:
    return method in ("textbook", "one_sided_rounds")


def _is_one_sided(method: Method) -> bool:
    return method in ("one_sided", "one_sided_rounds")
