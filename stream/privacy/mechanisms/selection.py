"""Random choices: noisy maximum, exponential mechanism, randomized response; choices of a warm start.

Noisy maximum and exponential mechanism choose a candidate by its private score, in whole grid steps with sensitivity Δ.
Their rate is ε0/(2Δ) per step. It is ε0/Δ if scores are *monotone*: between neighbors all scores change in the same
direction. Both mechanisms are ε0-differentially private for any number of candidates (docs/proofs/noisy-max.md).
Randomized response replaces a person's category at random (docs/proofs/randomized-response.md).

Quantiles of an ordered attribute are drawn by the exponential mechanism, exactly. Of n rows, let b rows
have smaller values than x, and u rows values up to x. The *distance* of x from the quantile q is
max(0, b − q·n, q·n − u): the number of rows by which the rank of x misses q·n. A value is drawn with
probability ∝ e^{−rate·distance} (docs/proofs/quantiles.md).

*Warm start* (docs/proofs/pmw.md): for a workload, sets of attributes are chosen one after the other, and the marginal
on each is measured. Each choice is a noisy maximum. The score of a set, in whole steps, is the ℓ₁ distance of its
marginal from the estimate, minus the noise that measuring it would add. The number of choices follows from the plan and
the public (or noisy) number of rows. Key, stream and table determine all results, with the same bits on every machine.

*Typical errors* of estimates (docs/proofs/pmw.md): the root distance of a set A of attributes is
‖D_A − F_A‖₁/√|A|, with the table's counts D_A, the estimated counts F_A and the number |A| of cells. Let R
be the mean root distance of sets with equal numbers of attributes. If a measured marginal contains the set, R
follows from the marginal's noise, which is the same in all cells: an estimate that sums the share f of all cells
typically errs by R·√(f·(1 − f)). Otherwise R is measured once, after the warm start: a noisy mean over all expected
sets with this number of attributes. One person changes each ‖D_A − F_A‖₁ by at most the sensitivity, and so also the
weighted mean of these distances. A cell's error then grows with about the root of its estimate, and an estimate with
the share p of all rows typically errs by uR·√(p·(1 − p)), with the *unevenness* u = √(|A|·ΣF_A)/Σ√F_A.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Any, Final, Literal

import numpy as np

from schemas import AnswersCalibration
from stream.privacy.accuracy.release_accuracy import DRAW_BITS, MOST_STEPS, largest_draw_distance
from stream.privacy.mechanisms.maximum_entropy import average_equal_axes, estimate_product, fit_distribution
from stream.privacy.mechanisms.measurements import Axes, MeasuredMarginal, Measurements
from stream.privacy.mechanisms.releases import TensorCells
from stream.privacy.noise.samplers import IntegerArray, NoiseScaleError, Sampler, Symmetric, sampler, to_decimal
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.response_plans import RESPONSE_BITS, ResponseLaw
from stream.privacy.planning.warm_starts import (
    TYPICAL_UNIT,
    ExpectedSets,
    chosen_set_law,
    compared_orders,
    count_rounds,
    mean_noise,
    set_choice_law,
    set_weights,
    typical_law,
    warm_start_order,
)

WEIGHT_BITS = DRAW_BITS
"""Weights of the exponential mechanism are integers; the weight of the best candidate is 2^192."""

UNIFORM_BITS = 256
"""Number of uniform bits for one draw of the exponential mechanism."""

UNIFORM_WORDS = UNIFORM_BITS // 64

GAP_DIGITS = 14
"""Number of hexadecimal digits of the difference of two scores; scores are within ±2⁵³ steps."""


def selection_rate(calibration: AnswersCalibration) -> Fraction:
    """Return the exact rate per step: ε0/(2Δ), or ε0/Δ for monotone scores."""
    width = calibration.sensitivity_steps * (1 if calibration.monotone else 2)
    return Fraction(calibration.epsilon_answer) / width


def score_noise(calibration: AnswersCalibration) -> Sampler:
    """Return the law of each score's noise: one-sided, or two-sided for the textbook's method."""
    noise: Literal["one_sided", "two_sided"] = "two_sided" if calibration.method == "textbook" else "one_sided"
    return sampler(noise, selection_rate(calibration))


def noisy_max(scores: IntegerArray, noise: IntegerArray) -> int:
    """Return the index of the largest noisy score; in a tie, the first index."""
    return int(np.argmax(scores + noise))


@dataclass(frozen=True)
class ExponentialWeights:
    """Weights e^{−rate·gap} in fixed point, for scores ``gap`` steps below the best."""

    rate: Fraction

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate must be above 0, got {float(self.rate)}")

    @cached_property
    def powers(self) -> tuple[tuple[int, ...], ...]:
        """e^{−rate·v·16^i}·2^192, rounded down, for each hexadecimal digit i and value v."""
        with localcontext(prec=100):
            base = -to_decimal(self.rate)
            return tuple(
                tuple(int((base * value * 16**digit).exp() * 2**WEIGHT_BITS) for value in range(16))
                for digit in range(GAP_DIGITS)
            )

    def weight_at(self, gap: int) -> int:
        """Return 2^192·e^{−rate·gap}; rounding makes it too low by less than 28.

        Each digit of ``gap`` takes one multiplication, even if it is 0, so that the time does not reveal the gap.
        """
        weight = 1 << WEIGHT_BITS
        for digit, powers in enumerate(self.powers):
            weight = weight * powers[gap >> 4 * digit & 15] >> WEIGHT_BITS
        return weight


weights_for = lru_cache(maxsize=4096)(ExponentialWeights)
"""Returns the weights for a rate; equal rates share one object."""


def draw_exponential(scores: Sequence[int], law: ExponentialWeights, uniform: int) -> int:
    """Draw the index of a candidate with probability ∝ e^{rate·score}.

    ``uniform`` is an integer below 2^256. Candidate i is drawn iff C_{i−1} ≤ ⌊uniform·W / 2^256⌋
    < C_i, with the cumulative weights C and their sum W. Gaps are capped at 2^56 − 1 steps.
    """
    best = max(scores)
    furthest = 16**GAP_DIGITS - 1
    cumulated = list(accumulate(law.weight_at(min(best - score, furthest)) for score in scores))
    point = uniform * cumulated[-1] >> UNIFORM_BITS
    return sum(bound <= point for bound in cumulated)


RESPONSE_WORDS = RESPONSE_BITS // 64
"""Number of 64-bit words in ``uniform``, an integer below 2^128."""


def choose_response(own: int | None, law: ResponseLaw, uniform: int) -> int:
    """Return the category to publish for a person's category ``own``; both are below k.

    ``uniform`` is an integer below 2^128. Exactly ``law.other_weight`` of its values lead to each category
    other than ``own``, and the rest to ``own``. If ``own`` is None (the person has none of the k
    categories), each category is equally probable, up to one value of ``uniform``.
    """
    if own is None:
        return uniform * law.categories >> RESPONSE_BITS
    other = uniform // law.other_weight
    if other >= law.categories - 1:
        return own
    return other + (other >= own)


@dataclass(frozen=True)
class RankLaw:
    """The weights of one draw: ``quantile`` is q, and ``rate`` the rate per row of distance."""

    rate: Fraction
    quantile: Fraction

    def __post_init__(self) -> None:
        if self.max_distance > MOST_STEPS:
            raise NoiseScaleError(
                f"a draw at the rate {float(self.rate):.3g} per row has more than {MOST_STEPS:,} weights; raise epsilon"
            )

    @cached_property
    def max_distance(self) -> int:
        """Number of whole rows of distance beyond which a weight is below 2⁻¹⁹²."""
        return largest_draw_distance(self.rate)

    def weights_from(self, offset: int) -> list[int]:
        """Return the fixed-point weights at the distances j + offset/denominator for j = 0, 1, ….

        The number of weights depends on the rate alone.
        """
        law = weights_for(self.rate / self.quantile.denominator)
        weight, ratio = law.weight_at(offset), law.weight_at(self.quantile.denominator)
        weights = []
        for _ in range(self.max_distance):
            weights.append(weight)
            weight = weight * ratio >> WEIGHT_BITS
        return weights

    def weight_positions(self, counts: IntegerArray) -> tuple[IntegerArray, list[int]]:
        """Return each code's place in a list of weights, and this list; both are private.

        A code is the number of a value. Let d be ``max_distance``. Place 0 is for codes of distance 0.
        Places 1 to d are for codes above the quantile, by their distance in whole rows, and places d + 1
        to 2d for codes below it. The last place, with weight 0, is for all codes that are farther away.
        """
        rows = int(counts.sum())
        numerator, denominator = self.quantile.numerator, self.quantile.denominator
        upto = np.cumsum(counts, dtype=np.int64)
        # The unit is a row divided by the denominator.
        above = denominator * (upto - counts) - numerator * rows
        below = numerator * rows - denominator * upto
        max_distance = self.max_distance
        beyond = 2 * max_distance + 1
        # Both sides are computed for every code, so that the running time does not depend on the rows.
        up, down = above // denominator, below // denominator
        positions = np.where(above > 0, np.where(up < max_distance, 1 + up, beyond), 0)
        positions = np.where(below > 0, np.where(down < max_distance, 1 + max_distance + down, beyond), positions)
        up_offset = -numerator * rows % denominator
        down_offset = numerator * rows % denominator
        weight_list = [1 << WEIGHT_BITS, *self.weights_from(up_offset), *self.weights_from(down_offset), 0]
        return positions, weight_list


rank_law = lru_cache(maxsize=4096)(RankLaw)
"""Returns the law for a rate and a quantile; equal laws share one object."""


def choose_code(counts: IntegerArray, law: RankLaw, uniform: int) -> int:
    """Draw a code with probability ∝ its weight; ``uniform`` is an integer below 2^256.

    Codes are ordered by place (see ``RankLaw.weight_positions``), then by value. The i-th code in this order
    is drawn iff C_{i−1} ≤ ⌊uniform·W / 2^256⌋ < C_i, with the cumulative weights C and their sum W.
    """
    places, weight_list = law.weight_positions(counts)
    sizes = np.bincount(places, minlength=len(weight_list)).tolist()
    ends = list(accumulate(size * weight for size, weight in zip(sizes, weight_list, strict=True)))
    point = uniform * ends[-1] >> UNIFORM_BITS
    place = bisect_right(ends, point)
    before = ends[place - 1] if place else 0
    return int(np.flatnonzero(places == place)[(point - before) // weight_list[place]])


_PAIR: Final = 2
_FITTED_CELLS: Final = 1 << 10
_FIT_STEPS: Final = 20
"""Maximum numbers of cells and steps of the fits from which scores are computed."""
_REFITS: Final = 12
"""Maximum number of times that scores are computed; several choices use the same scores."""


def measure_workload(measured: Measurements, workload: Sequence[Axes], rows: int) -> None:
    """Choose sets of the workload one after the other, and append them to the measurements."""
    calibration = measured.calibration
    rounds = count_rounds(calibration, rows, len(workload))
    every = rounds == len(workload)
    law = chosen_set_law(calibration, rounds, measures_all=every)
    cached_estimates: dict[Any, IntegerArray] = {}
    remaining, scores = list(workload), np.zeros(len(workload), dtype=np.int64)
    for number in range(rounds):
        place = 0
        if not every:
            if number % -(-rounds // _REFITS) == 0:
                scores = np.array(
                    [_score(measured, axes, rows, law, cached_estimates) for axes in remaining], dtype=np.int64
                )
            noise = measured.draws.choice_noise(number, len(remaining), set_choice_law(calibration, rounds))
            place = noisy_max(scores, noise)
        measured.append(MeasuredMarginal(remaining.pop(place), law, None, unselected=every))
        scores = np.delete(scores, place)


def _score(
    measured: Measurements, axes: Axes, rows: int, law: Symmetric, cached_estimates: dict[Any, IntegerArray]
) -> int:
    """Return the private score of a set, in steps."""
    shares = _estimate(measured, axes, rows, cached_estimates)
    added_noise = math.ceil(shares.size * mean_noise(law) * WEIGHT_STEPS)
    return marginal_distance(measured, axes, shares, rows) - added_noise


def marginal_distance(measured: Measurements, axes: Axes, shares: IntegerArray, rows: int) -> int:
    """Return the private ℓ₁ distance of a marginal from the estimated shares, in steps."""
    estimate = np.rint(shares * (float(rows) * WEIGHT_STEPS / float(shares.sum()))).astype(np.int64)
    return int(np.abs(measured.true_counts(axes).tensor * WEIGHT_STEPS - estimate).sum())


def _estimate(
    measured: Measurements, axes: Axes, rows: int, cached_estimates: dict[Any, IntegerArray]
) -> IntegerArray:
    """Return the public estimated shares on ``axes``."""
    fitted_axes = measured.connect_axes(axes, max(_FITTED_CELLS, math.prod(measured.sizes[axis] for axis in axes)))
    used = measured.indices_for_fit(fitted_axes)
    if (estimate := cached_estimates.get(key := (axes, fitted_axes, used))) is None:
        shape = [measured.sizes[axis] for axis in fitted_axes]
        marginals = average_equal_axes(measured.noisy_marginals(fitted_axes))
        if max((len(one.axes) for one in marginals), default=0) < _PAIR:
            estimate = estimate_product(shape, marginals)
        else:
            estimate = fit_distribution(shape, marginals, rows, _FIT_STEPS)
        others = tuple(place for place, axis in enumerate(fitted_axes) if axis not in axes)
        estimate = cached_estimates[key] = estimate.sum(axis=others)
    return estimate


_ROOT_STEPS: Final = 1024
"""The steps in which roots of estimated shares are rounded down."""

_LEAST_ESTIMATE: Final = 0.5
"""The least estimate, in rows, of a number that is shown as more than 0."""


def unevenness(estimate: TensorCells) -> float:
    """Return u of an estimate: 1 if all of its cells are equal, and larger the fewer cells have most of the rows.

    The sum of whole roots does not depend on the order of its terms, so it has the same bits on every machine.
    """
    roots = int((np.sqrt(estimate.flat.astype(np.float64)) * _ROOT_STEPS).astype(np.int64).sum())
    return math.sqrt(estimate.flat.size * estimate.total) * _ROOT_STEPS / max(roots, 1)


@dataclass(frozen=True, slots=True)
class ErrorScale:
    """The typical error of estimates on one set of attributes.

    ``scale`` is R, in rows, and ``unevenness`` is u; None if the warm start measured a marginal that contains the set.
    ``measured`` is R of such a marginal that was measured later.
    """

    scale: float
    unevenness: float | None
    measured: float = math.inf

    def error_of_sums(self, cells_share: float, estimates: Sequence[float], rows: int) -> float:
        """Return the mean typical error of estimates of rows that each add up the same share of all cells.

        If some estimates are at least half a row, the mean is over these.
        """
        if not 0.0 < cells_share < 1.0:
            return 0.0
        spread = math.sqrt(cells_share * (1.0 - cells_share))
        if self.unevenness is None:
            return self.scale * spread
        least = 1.0 / max(rows, 2)  # an estimate of no row errs like one of a single row
        known = [one for one in estimates if one >= _LEAST_ESTIMATE] or estimates
        shares = [min(max(one / max(rows, 1), least), 1.0 - least) for one in known]
        found = self.scale * self.unevenness * sum(math.sqrt(one * (1.0 - one)) for one in shares) / len(shares)
        return min(found, self.measured * spread)


@dataclass(eq=False)
class TypicalErrors:
    """The typical errors of one stream's estimates.

    ``warm_start`` has the measurements of the warm start, and ``estimate_on`` returns the estimated shares
    that follow from them. ``expected`` has the expected sets of attributes by their number of attributes.
    """

    warm_start: Measurements
    expected: ExpectedSets
    rows: int
    estimate_on: Callable[[Axes], TensorCells]

    def __post_init__(self) -> None:
        self._compared_counts = compared_orders(warm_start_order(self.warm_start.calibration), self.expected)
        self._known: dict[int, float | None] = {}

    def error_scale(
        self, axes: Axes, measured: Measurements, current_estimate: Callable[[Axes], TensorCells]
    ) -> ErrorScale | None:
        """Return the typical error of estimates on these axes; None if it is not known.

        ``measured`` has all measurements so far, and ``current_estimate`` follows from them.
        """
        cells = math.prod(measured.sizes[axis] for axis in axes)
        noises = [
            mean_noise(one.law) * math.sqrt(one.cells_per_cell * cells)
            for one in measured.covering_marginals(axes)
        ]
        noise = min(noises, default=math.inf)
        if self.warm_start.covering_marginals(axes):
            return ErrorScale(noise, None)
        attribute_count = len(axes)
        if attribute_count not in self._known:
            self._known[attribute_count] = self._noisy_mean(attribute_count)
        if (scale := self._known[attribute_count]) is None:
            return ErrorScale(noise, None) if noises else None
        return ErrorScale(scale, unevenness(current_estimate(axes)), noise)

    def _noisy_mean(self, attribute_count: int) -> float | None:
        """Return R of the expected sets that the warm start did not measure.

        R is at least the scale of its noise, because a smaller R cannot be distinguished from 0.
        """
        sets = [
            axes for axes in self.expected.get(attribute_count, ()) if not self.warm_start.covering_marginals(axes)
        ]
        if not sets or attribute_count not in self._compared_counts:
            return None
        law = typical_law(self.warm_start.calibration, self._compared_counts, attribute_count)
        noisy = self._mean_distance(sets) + self.warm_start.draws.typical_error_noise(attribute_count, law)
        weight = sum(set_weights(sets, self.warm_start.sizes)) / (TYPICAL_UNIT * len(sets))
        return max(float(noisy), float(1 / law.rate)) / WEIGHT_STEPS * weight

    def _mean_distance(self, sets: Sequence[Axes]) -> int:
        """Return the private weighted mean of the sets' distances, in steps, rounded down."""
        weights = set_weights(sets, self.warm_start.sizes)
        distances = [
            marginal_distance(self.warm_start, axes, self.estimate_on(axes).tensor, self.rows) for axes in sets
        ]
        return sum(weight * one for weight, one in zip(weights, distances, strict=True)) // sum(weights)
