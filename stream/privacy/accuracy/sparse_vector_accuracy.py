"""Exact accuracy of AboveThreshold and NumericSparse on the integer grid.

The functions return rigorous upper bounds on the failure probability. A *run* is all answers of a stream
with the threshold T. A *low* query has a value of at most T − α, a *high* query at least T + α. The run fails
at α if a low query is answered ⊤, a high query is answered ⊥, or the error of a published number exceeds its bound. The bounds hold for
every adaptive analyst, even for one who sees the threshold noise. They refine the union bounds of Dwork &
Roth 2014, Theorems 3.24, 3.26 and 3.28. Derivations: ``docs/proofs/above-threshold.md``, "Accuracy", and
``docs/proofs/numeric-sparse.md``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar

from schemas import SparseVectorCalibration
from stream.optional_packages import np
from stream.privacy.composition.losses import top_number_rate, top_numbers_failure
from stream.privacy.noise.samplers import Floats, IntegerArray

Values = TypeVar("Values", "Floats", "IntegerArray")

LARGEST_STEPS = 2**60
"""Largest error, shift or noise, in steps, for which 64-bit arithmetic does not overflow."""

DEFAULT_BLOCKS = 1024
"""Number of blocks into which threshold noise is divided; more blocks give tighter bounds."""

_LOG_ZERO = -1e30
"""Stands for ln 0, because the difference of two minus infinities is NaN."""
_ROUNDING = 1.0 + 1e-7
"""Margin above all rounding errors; cancellation costs at most 4 of 16 digits."""
_LINEAR_BELOW = 1e-4
"""A block with a smaller failure probability is computed from its worse end, to avoid cancellation."""
_ALPHA_RESOLUTION = 2**20


class AccuracyError(ValueError):
    """No error that fits 64-bit integers has the requested failure probability."""


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The parameters that determine the accuracy of a run.

    The rates are λ in P(|noise| = x) ∝ e^{−λx}, per step. With ``fresh_threshold`` the threshold noise is
    drawn again after each of at most ``tops`` ⊤s. ``queries`` is the maximum number of queries, including
    those answered ⊤. If ``numbers`` is ``fresh``, the published numbers have noise of the rate
    ``top_number_rate`` and may be wrong by ``number_error_ratio``·α. If it is ``gap``, they may be wrong by α.
    """

    one_sided: bool
    threshold_rate: float
    query_rate: float
    fresh_threshold: bool
    tops: int
    queries: int
    numbers: Literal["none", "fresh", "gap"] = "none"
    top_number_rate: float = 0.0
    number_error_ratio: float = 1.0


def noise_rates(calibration: SparseVectorCalibration) -> tuple[float, float]:
    """Return the rates of threshold noise and query noise, per step."""
    per_round = 1 if calibration.fresh_threshold else calibration.cutoff
    width = (1 if calibration.monotone else 2) * per_round * calibration.sensitivity_steps
    return calibration.epsilon_threshold / calibration.sensitivity_steps, calibration.epsilon_query / width


def gap_bias(calibration: SparseVectorCalibration) -> float:
    """Return the mean error s + Eρ − Eν of ``gap`` numbers far above the threshold, which are too low.

    This error is a public constant (``docs/proofs/numeric-sparse.md``, Accuracy), and α includes it. With
    two-sided noise Eρ = Eν = 0, so only the shift s is left.
    """
    if calibration.noise != "one_sided":
        return calibration.shift * calibration.grid
    threshold, query = (1.0 / math.expm1(rate) for rate in noise_rates(calibration))
    return (calibration.shift + threshold - query) * calibration.grid


def run_layout(calibration: SparseVectorCalibration, number_error_ratio: float = 1.0) -> RunLayout:
    """Return the layout of a run with a calibration and its planned number of queries."""
    threshold_rate, query_rate = noise_rates(calibration)
    tops = min(calibration.cutoff, calibration.expected_queries)
    return RunLayout(
        one_sided=calibration.noise == "one_sided",
        threshold_rate=threshold_rate,
        query_rate=query_rate,
        fresh_threshold=calibration.fresh_threshold and tops > 1,
        tops=tops,
        queries=calibration.expected_queries,
        numbers=calibration.numbers,
        top_number_rate=top_number_rate(calibration),
        number_error_ratio=number_error_ratio,
    )


def exact_alpha(calibration: SparseVectorCalibration) -> float:
    """Return the least error bound, in the unit of the queries' values, that holds with probability 1 − β.

    For the textbook's calibration this bound is far below ``calibration.alpha``, the theorem's bound.
    """
    steps = least_alpha(run_layout(calibration), calibration.shift, calibration.beta)
    return steps * calibration.grid


def least_alpha(
    layout: RunLayout,
    shift: int,
    beta: float,
    *,
    blocks: int = DEFAULT_BLOCKS,
    resolution: int = _ALPHA_RESOLUTION,
) -> int:
    """Return the least α in steps with ``failure_bound`` at most ``beta``.

    The result is rounded up by at most one part in ``resolution``.

    Raises:
        AccuracyError: no α below 2^60 steps has a small enough failure bound.
    """
    tail = negligible_probability(layout, beta)

    def fails(alpha: int) -> bool:
        return failure_bound(layout, alpha, shift, blocks=blocks, tail=tail) > beta

    low, high = 0, max(1, abs(shift))
    while fails(high):
        low, high = high, 2 * high
        if high > LARGEST_STEPS:
            raise AccuracyError(
                f"no error below 2^60 grid steps keeps failures under β = {beta:g}; use a coarser grid"
            )
    while high - low > 1 + high // resolution:
        middle = (low + high) // 2
        low, high = (middle, high) if fails(middle) else (low, middle)
    return high


def negligible_probability(layout: RunLayout, beta: float) -> float:
    """Return the probability of the tails of threshold noise that are counted as failure."""
    return max(1e-6 * beta / (layout.tops if layout.fresh_threshold else 1), 1e-305)


def failure_bound(
    layout: RunLayout, alpha: int, shift: int, *, blocks: int = DEFAULT_BLOCKS, tail: float = 1e-18
) -> float:
    """Bound the probability that a run fails at ``alpha`` steps.

    Let ρ be the noise of the threshold, ν the noise of a query, s the shift, F(x) = P(ν < x), S(x) = P(ν >= x), k the
    number of queries, c the cutoff and h = min(c, k). The bound of decisions is at least

    * 1 − E[F(α+ρ+s)^{k−h} · min(F(α+ρ+s), S(−α+ρ+s))^h] if ρ is drawn once for the whole run,
    * 1 − E[F(α+ρ_min+s)^k · Π_r S(−α+ρ_r+s)] over h independent ρ_r if ρ is drawn again after each ⊤.

    It exceeds these values because ρ is divided into ``blocks``, and because its ``tail`` counts as failure. If gaps are published, P(−α+ρ+s <= ν < α+ρ+s) replaces S. Fresh numbers fail
    independently of the decisions.
    """
    nodes = _block_ends(layout, alpha, shift, blocks, tail)
    log_low = _log_below(layout, nodes + (alpha + shift))
    log_high = _log_above(layout, alpha, shift, nodes)
    if layout.fresh_threshold:
        total = _fresh_failure(layout, nodes, log_low, log_high)
    else:
        if len(crossing := _find_crossings(nodes, log_low, log_high)):
            at = nodes.searchsorted(crossing).tolist()
            nodes = _insert_values(nodes, at, crossing)
            log_low = _insert_values(log_low, at, _log_below(layout, crossing + (alpha + shift)))
            log_high = _insert_values(log_high, at, _log_above(layout, alpha, shift, crossing))
        worst = (layout.queries - layout.tops) * log_low + layout.tops * np.minimum(log_low, log_high)
        _, failures = _block_failures(layout, nodes, worst)
        total = sum(_tails(layout, nodes)) + float(np.sum(failures))
    if layout.numbers == "fresh":
        error = math.floor(layout.number_error_ratio * alpha)
        total += (1.0 - min(1.0, total)) * top_numbers_failure(layout.top_number_rate, layout.tops, error)
    return min(1.0, total * _ROUNDING)


def _log_above(layout: RunLayout, alpha: int, shift: int, nodes: IntegerArray) -> Floats:
    """Return ln P(a high query is ⊤, with its ``gap`` number within α) for each ρ in ``nodes``."""
    log_high = _log_at_least(layout, nodes + (shift - alpha))
    if layout.numbers == "gap":
        log_high += _log_complement(_log_at_least(layout, nodes + (alpha + shift)) - log_high)
    return log_high


def _find_crossings(nodes: IntegerArray, first: Floats, second: Floats) -> IntegerArray:
    """Return approximate points at which two functions cross inside a block.

    The minimum of both functions has a kink there, and a chord across a kink would be a loose bound.
    """
    apart = first - second
    places = np.flatnonzero((apart[:-1] < 0.0) != (apart[1:] < 0.0))
    left, width = nodes[places], nodes[places + 1] - nodes[places]
    share = apart[places] / (apart[places] - apart[places + 1])
    found = left + np.rint(share * width).astype(np.int64)
    return found[(found > left) & (found < left + width)]


def _fresh_failure(layout: RunLayout, nodes: IntegerArray, log_low: Floats, log_high: Floats) -> float:
    """Return the failure bound if ρ is drawn again after each ⊤, from the law of the least ρ."""
    mass_below, mass_above = _tails(layout, nodes)
    mass, failures = _block_failures(layout, nodes, log_high)
    # missing[i] = 1 − W(z_i), where W(z) = E[S(−α+ρ+s); ρ >= z] bounds "ρ >= z and the high query passes".
    missed_above = np.append(np.cumsum(failures[::-1])[::-1], 0.0) + mass_above
    before = np.append(0.0, np.cumsum(mass)) + mass_below
    missing = np.minimum(missed_above + before, 1.0)
    log_all_above = np.log1p(-np.minimum(missing[:-1], 1.0 - 2.0**-53))
    drop = np.minimum((mass - failures) / np.exp(log_all_above), 1.0)
    drop[-1] = 1.0
    with np.errstate(divide="ignore"):
        least_here = np.exp(layout.tops * log_all_above) * -np.expm1(layout.tops * np.log1p(-drop))
    false_alarm = -np.expm1(layout.queries * log_low[:-1])
    return float(-np.expm1(layout.tops * log_all_above[0]) + np.sum(least_here * false_alarm))


def _block_ends(layout: RunLayout, alpha: int, shift: int, blocks: int, tail: float) -> IntegerArray:
    """Return the ends of the blocks of threshold noise: equidistant points, and the kinks of ln F and ln S."""
    reach = math.ceil(-math.log(tail) / layout.threshold_rate) + 1
    if reach > LARGEST_STEPS:
        raise AccuracyError("the threshold noise needs more than 2^60 grid steps at this β; use a coarser grid")
    low = 0 if layout.one_sided else -reach
    if reach - low <= blocks:
        return np.arange(low, reach + 1, dtype=np.int64)
    even = _even_block_ends(low, reach, blocks)
    kinks = np.array(sorted({z for z in (0, 1 - alpha - shift, alpha - shift) if low < z < reach}), dtype=np.int64)
    places = even.searchsorted(kinks)
    new = even[places] != kinks
    return _insert_values(even, places[new].tolist(), kinks[new])


def _insert_values(values: Values, places: Sequence[int], new: Values) -> Values:
    """Insert values at a few sorted places, faster than ``numpy.insert``."""
    pieces: list[Values] = []
    begin = 0
    for number, place in enumerate(places):
        pieces += [values[begin:place], new[number : number + 1]]
        begin = place
    return np.concatenate([*pieces, values[begin:]])


@lru_cache(maxsize=16)
def _even_block_ends(low: int, reach: int, blocks: int) -> IntegerArray:
    return np.rint(np.linspace(low, reach, blocks + 1)).astype(np.int64)


def _log_at_least(layout: RunLayout, x: IntegerArray) -> Floats:
    """Return ln P(ν >= x), which is concave in x."""
    scaled = layout.query_rate * x.astype(np.float64)
    if layout.one_sided:
        return -np.maximum(scaled, 0.0)
    q = math.exp(-layout.query_rate)
    upper = -np.maximum(scaled, 0.0) - math.log1p(q)
    lower = np.log1p(-np.exp(np.minimum(scaled, 0.0)) * (q / (1.0 + q)))
    return np.where(x >= 1, upper, lower)


def _log_below(layout: RunLayout, x: IntegerArray) -> Floats:
    """Return ln P(ν < x), which is concave in x; −10^30 if the probability is 0."""
    if not layout.one_sided:
        return _log_at_least(layout, 1 - x)
    scaled = layout.query_rate * np.maximum(x, 1).astype(np.float64)
    # The first form is accurate for small x, the second for large x.
    near = np.log(-np.expm1(-np.minimum(scaled, 1.0)))
    far = np.log1p(-np.exp(-scaled))
    return np.where(x >= 1, np.where(scaled < 1.0, near, far), _LOG_ZERO)


def _log_complement(log_part: Floats) -> Floats:
    """Return ln(1 − e^x) for x <= 0; −10^30 at x = 0."""
    inside = np.minimum(log_part, -1e-300)
    near = np.log(-np.expm1(inside))
    far = np.log1p(-np.exp(np.minimum(inside, -0.5)))
    return np.where(log_part < 0.0, np.where(inside > -0.5, near, far), _LOG_ZERO)


def _tails(layout: RunLayout, nodes: IntegerArray) -> tuple[float, float]:
    """Return P(ρ < first node) and P(ρ >= last node)."""
    rate = layout.threshold_rate
    above = math.exp(-rate * float(nodes[-1]))
    if layout.one_sided:
        return 0.0, above
    norm = 1.0 + math.exp(-rate)
    return math.exp(-rate * (1.0 - float(nodes[0]))) / norm, above / norm


def _block_failures(layout: RunLayout, nodes: IntegerArray, log_success: Floats) -> tuple[Floats, Floats]:
    """Return for each block P(ρ in the block) and a bound on E[1 − e^{ψ(ρ)}; ρ in the block].

    ψ (``log_success`` at the nodes) is concave, so it lies above its chord in each block. Because ρ is
    geometric there, the expectation with the chord is a finite geometric sum.
    """
    rate = layout.threshold_rate
    left, right = nodes[:-1], nodes[1:]
    count = (right - left).astype(np.float64)
    rising = left < 0
    nearest = np.where(rising, 1 - right, left).astype(np.float64)
    log_norm = 0.0 if layout.one_sided else -math.log1p(math.exp(-rate))
    mass = np.exp(log_norm - rate * nearest) * -np.expm1(-rate * count)

    slope = (log_success[1:] - log_success[:-1]) / count
    growth = slope + np.where(rising, rate, -rate)
    log_unit = log_norm + math.log(-math.expm1(-rate))
    first = log_unit - rate * np.abs(left).astype(np.float64) + log_success[:-1]
    at_last = log_success[1:] - slope
    final = log_unit - rate * np.abs(right - 1).astype(np.float64) + at_last
    decay = np.maximum(np.abs(growth), 1e-290)
    success = np.exp(np.maximum(first, final)) * np.expm1(-decay * count) / np.expm1(-decay)

    worst = mass * -np.expm1(np.minimum(log_success[:-1], at_last))
    # For rare failures the difference would lose its digits, so the worse end of the block is used.
    failures = np.where(worst < _LINEAR_BELOW * mass, worst, np.clip(mass - success, 0.0, worst))
    return mass, failures
