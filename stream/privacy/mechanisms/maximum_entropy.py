"""The maximum-entropy distribution on a tensor that fits noisy marginals.

The result has the same bits on every machine.

Let y_S be the noisy counts on the axes S, σ_S their standard deviation, and p₀ the product of the measured
one-way marginals. The estimate is p ∝ p₀·exp(Σ_S θ_S) for the θ that maximizes the concave function

    Σ_S ⟨θ_S, y_S⟩ − rows·ln Σ_x p₀(x) e^{Σ_S θ_S(x)} − Σ_S τ_S‖θ_S‖²/2,        τ_S = σ_S/2.

Its gradient is y_S − rows·p_S − τ_S θ_S. So among all distributions whose marginals are as near to the
measured ones, p has the largest entropy (docs/proofs/pmw.md). The fit ascends in steps that are divided by
a bound of the curvature, rows·p_S + τ_S. It uses Nesterov momentum, which restarts when it points
downhill. If the gradient grows much, the fit returns to the point with the least gradient and takes smaller
steps. The number of steps depends on the number of cells alone.

Only operations that IEEE 754 defines to the last bit are used: +, −, ·, /, square roots, rounding, exponentials from a
table in decimal arithmetic, sums of integers below 2⁵³ (exact in any order) and sums in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Final, Literal

import numpy as np

from stream.privacy.noise.samplers import Floats, IntegerArray

TOTAL_BITS: Final = 42
"""A distribution consists of integers with a total near 2⁴²; sums with 10-bit weights stay below 2⁵³."""

_WEIGHT_BITS: Final = 32
"""During a fit the largest weight of a cell is 2³², so sums over at most 2²⁰ cells stay below 2⁵³."""
_RELAXATION: Final = 0.5
_LARGEST_STEP: Final = 2.0
_LEAST_DEVIATIONS: Final = 0.5
"""In p₀ each value of an axis has at least this many rows, in standard deviations of the noise in their number."""
_MOST_STEPS, _LEAST_STEPS = 80, 30
_CELL_STEPS: Final = 1 << 21
"""A fit takes about this number of steps divided by the number of cells, but 30 to 80 steps."""
_SQUARE_VARIANCES: Final = {"laplace": 5.0, "gaussian": 2.0}
"""The variance of the square of one cell's noise, in units of σ⁴, by kind of noise."""
_OVERLAP_FACTOR: Final = 1.5
"""Curvatures of marginals that share an axis add up; the factor covers moderately correlated axes."""
_DIVERGENCE_FACTOR: Final = 4.0
"""Steps are too long if the squared gradient is this many times its least value so far."""
_SHORTENING_FACTOR: Final = 1.5
"""Steps that were too long are divided by this factor."""

_RESOLUTION_BITS: Final = 16
_LOW_BITS: Final = 10
_NEGLIGIBLE: Final = 32
"""Cells with less than e⁻³² of the largest weight get weight 0, because 2⁴²·e⁻³² rounds to 0."""


@dataclass(frozen=True, slots=True)
class NoisyMarginal:
    """Noisy counts on some axes, in increasing order; ``variance`` is per cell."""

    axes: tuple[int, ...]
    counts: Floats
    variance: float


def fit_distribution(
    shape: Sequence[int], marginals: Sequence[NoisyMarginal], rows: int, most_steps: int | None = None
) -> IntegerArray:
    """Return the estimated share of each cell, as integers with total near 2⁴².

    ``marginals`` have distinct axes; without marginals the distribution is uniform. ``most_steps`` is a
    smaller number of steps, for a faster and less exact fit.
    """
    # The largest axis is the last one, because sums over long runs of memory are fast.
    order = sorted(range(len(shape)), key=lambda axis: (shape[axis], axis))
    position_of = {axis: number for number, axis in enumerate(order)}
    reordered = []
    for one in marginals:
        axes = sorted(one.axes, key=position_of.__getitem__)
        counts = np.ascontiguousarray(one.counts.transpose([one.axes.index(axis) for axis in axes]))
        reordered.append(NoisyMarginal(tuple(position_of[axis] for axis in axes), counts, one.variance))
    steps = count_fit_steps(math.prod(shape)) if most_steps is None else most_steps
    estimate = _fit_ordered([shape[axis] for axis in order], reordered, rows, steps)
    return np.ascontiguousarray(estimate.transpose([position_of[axis] for axis in range(len(shape))]))


def estimate_product(shape: Sequence[int], marginals: Sequence[NoisyMarginal]) -> IntegerArray:
    """Return the product of one-way marginals, as integers with total near 2⁴²."""
    return _to_integers(_product(shape, marginals))


def _fit_ordered(shape: Sequence[int], marginals: Sequence[NoisyMarginal], rows: int, steps: int) -> IntegerArray:
    base = _product(shape, marginals)
    if not marginals:
        return _to_integers(base)
    tree = _MarginalSums(shape, [one.axes for one in marginals])
    overlap = max(sum(axis in one.axes for one in marginals) for axis in range(len(shape)))
    damping = min(float(len(marginals)), _OVERLAP_FACTOR * overlap)
    taus = [_RELAXATION * math.sqrt(one.variance) for one in marginals]
    theta = [np.zeros_like(one.counts) for one in marginals]
    lookahead = theta
    momentum = 0
    least, best = math.inf, (theta, theta, theta)
    for _ in range(steps):
        marginal_sums = tree.marginals_of(_weights(base, tree.add_broadcast(lookahead)))
        to_counts = rows / float(marginal_sums[()])
        slopes, scales = [], []
        for one, tau, point in zip(marginals, taus, lookahead, strict=True):
            counts = marginal_sums[one.axes] * to_counts
            slopes.append(one.counts - counts - tau * point)
            scales.append(counts + tau)
        length = sum(ordered_sum(slope * slope / scale) for slope, scale in zip(slopes, scales, strict=True))
        if length < least:
            least, best = length, (lookahead, slopes, scales)
        elif length > _DIVERGENCE_FACTOR * least and damping < len(marginals):
            damping, momentum = min(float(len(marginals)), _SHORTENING_FACTOR * damping), 0
            lookahead, slopes, scales = best
            theta = lookahead
        reached = []
        for gradient, scale, point in zip(slopes, scales, lookahead, strict=True):
            step = gradient / (damping * scale)
            np.minimum(step, _LARGEST_STEP / damping, out=step)
            np.maximum(step, -_LARGEST_STEP / damping, out=step)
            reached.append(point + step)
        uphill = 0.0
        for gradient, new, old in zip(slopes, reached, theta, strict=True):
            uphill += ordered_sum(gradient * (new - old))
        momentum = 0 if uphill < 0.0 else momentum
        share = momentum / (momentum + 3)
        momentum += 1
        lookahead = [new + share * (new - old) for new, old in zip(reached, theta, strict=True)]
        theta = reached
    return _to_integers(_weights(base, tree.add_broadcast(theta)))


class _MarginalSums:
    """Computes marginals of a tensor; most of them are sums of other, smaller marginals."""

    def __init__(self, shape: Sequence[int], wanted: Sequence[tuple[int, ...]]) -> None:
        self._all = tuple(range(len(shape)))
        self._wanted = list(wanted)
        self._parent: dict[tuple[int, ...], tuple[int, ...]] = {}
        for axes in [*wanted, ()]:
            above = self._all
            while above != axes:
                dropped = max((axis for axis in above if axis not in axes), key=lambda axis: (shape[axis], axis))
                below = tuple(axis for axis in above if axis != dropped)
                self._parent.setdefault(below, above)
                above = below
        self._downwards = sorted(self._parent, key=lambda axes: (-len(axes), axes))

    def marginals_of(self, tensor: Floats) -> dict[tuple[int, ...], Floats]:
        """Return all wanted marginals of a tensor; they are exact for integers."""
        marginals = {self._all: tensor}
        for axes in self._downwards:
            above = self._parent[axes]
            [dropped] = set(above) - set(axes)
            marginals[axes] = marginals[above].sum(axis=above.index(dropped))
        return marginals

    def add_broadcast(self, parts: Sequence[Floats]) -> Floats:
        """Broadcast tensors on the wanted axes to all axes and add them, in a fixed order."""
        sum_by_axes = dict(zip(self._wanted, parts, strict=True))
        for axes in reversed(self._downwards):
            if (part := sum_by_axes.get(axes)) is None:
                continue
            above = self._parent[axes]
            [dropped] = set(above) - set(axes)
            lifted = np.expand_dims(part, above.index(dropped))
            known = sum_by_axes.get(above)
            sum_by_axes[above] = lifted if known is None else known + lifted
        total: Floats = sum_by_axes[self._all]
        return total


def count_fit_steps(cells: int) -> int:
    """Return the number of steps of a fit; a further step improves a large tensor less than a small one."""
    return max(_LEAST_STEPS, min(_MOST_STEPS, _CELL_STEPS // cells))


def average_equal_axes(marginals: Sequence[NoisyMarginal]) -> list[NoisyMarginal]:
    """Average marginals on equal axes, weighted by precision; the result is sorted by axes."""
    average_of: dict[tuple[int, ...], NoisyMarginal] = {}
    for one in marginals:
        if (known := average_of.get(one.axes)) is None:
            average_of[one.axes] = one
            continue
        share = known.variance / (known.variance + one.variance)
        counts = known.counts + share * (one.counts - known.counts)
        average_of[one.axes] = NoisyMarginal(one.axes, counts, share * one.variance)
    return [average_of[axes] for axes in sorted(average_of)]


def sum_to_axes(one: NoisyMarginal, axes: tuple[int, ...]) -> NoisyMarginal:
    """Sum a marginal to fewer axes; m summed cells have m times the variance."""
    if axes == one.axes:
        return one
    kept = [place for place, axis in enumerate(one.axes) if axis in axes]
    shape = [one.counts.shape[place] for place in kept]
    reordered = one.counts.transpose([*sorted(set(range(one.counts.ndim)) - set(kept)), *kept])
    rows = reordered.reshape(-1, math.prod(shape))
    return NoisyMarginal(axes, _fold_rows(rows).reshape(shape), one.variance * len(rows))


def move_to_product(
    one: NoisyMarginal, singles: Sequence[NoisyMarginal], noise: Literal["laplace", "gaussian"]
) -> NoisyMarginal:
    """Move a marginal to the product of its single attributes if noise alone explains the difference.

    ``singles`` has the measured marginal of each of its axes, in order. The sum of squares of the noise of m
    cells has the mean m·σ² and the standard deviation s·σ², with s = √(5m) for Laplace noise and √(2m) for
    Gaussian noise. If the sum of squared differences is below (m + s)·σ², the product replaces the marginal.
    From (m + 2s)·σ² on, the marginal stays. Between these limits, it moves by a part of the difference.
    """
    placed = [NoisyMarginal((place,), single.counts, single.variance) for place, single in enumerate(singles)]
    totals = sum(ordered_sum(single.counts) for single in singles)
    product = _product(one.counts.shape, placed) * (totals / len(placed))
    beyond = one.counts - product
    spread = math.sqrt(_SQUARE_VARIANCES[noise] * beyond.size)
    share = (ordered_sum(beyond * beyond) / one.variance - beyond.size - spread) / spread
    return NoisyMarginal(one.axes, product + min(1.0, max(0.0, share)) * beyond, one.variance)


def ordered_sum(values: Floats) -> float:
    """Sum an array by adding its halves, in the same order on every machine."""
    return float(_fold_rows(values.reshape(-1, 1))[0]) if values.size else 0.0


def _fold_rows(rows: Floats) -> Floats:
    while len(rows) > 1:
        half = len(rows) >> 1
        folded = rows[:half] + rows[half : 2 * half]
        if len(rows) & 1:
            folded[0] += rows[-1]
        rows = folded
    folded_up: Floats = rows[0]
    return folded_up


def _product(shape: Sequence[int], marginals: Sequence[NoisyMarginal]) -> Floats:
    """Return p₀: the product of one-way marginals, each averaged over all measurements."""
    base = np.ones(tuple(shape))
    for axis in range(len(shape)):
        measured = [sum_to_axes(one, (axis,)) for one in marginals if axis in one.axes]
        if measured:
            [one] = average_equal_axes(measured)
            counts = np.maximum(one.counts, _LEAST_DEVIATIONS * math.sqrt(one.variance))
            base *= (counts / ordered_sum(counts)).reshape(spread_shape(shape, (axis,)))
    return base


def _weights(base: Floats, log: Floats) -> Floats:
    """Return p₀·exp(Σ θ) scaled to integers, of which the largest is 2³²."""
    # Exponents are rounded to multiples of 2⁻¹⁶.
    tables = exponentials(1.0, 1 << _RESOLUTION_BITS)
    down = np.minimum((log - log.max()) * -float(1 << _RESOLUTION_BITS), float(tables.most)).astype(np.int64)
    weights = base * tables.evaluate(down)
    weights *= float(1 << _WEIGHT_BITS) / float(weights.max())
    return np.rint(weights, out=weights)


def _to_integers(weights: Floats) -> IntegerArray:
    scaled = np.rint(weights * (float(1 << _WEIGHT_BITS) / float(weights.max())))
    return np.rint(scaled * (float(1 << TOTAL_BITS) / float(scaled.sum()))).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Exponentials:
    """Two tables from which exp(−unit·k) follows for whole k ≥ 0, with the same bits on every machine.

    A value is the product of two correctly rounded entries, with a relative error below 2⁻⁵¹. Values below
    exp(−32) are 0.
    """

    low: Floats
    high: Floats

    @property
    def most(self) -> int:
        """The largest k of the tables."""
        return (len(self.high) << _LOW_BITS) - 1

    def evaluate(self, steps: IntegerArray) -> Floats:
        """Return the exponentials of an array of whole k from 0 to ``most``, which it overwrites."""
        values: Floats = self.low[steps & ((1 << _LOW_BITS) - 1)]
        steps >>= _LOW_BITS
        values *= self.high[steps]
        return values


@lru_cache(maxsize=64)
def exponentials(rate: float, resolution: int) -> Exponentials:
    """Return the tables for the unit ``rate``/``resolution``."""
    with localcontext(prec=30):
        unit = Decimal(rate) / resolution
        reach = math.ceil(_NEGLIGIBLE / (rate / resolution * (1 << _LOW_BITS)))
        low = [float((-unit * step).exp()) for step in range(1 << _LOW_BITS)]
        high = [float((-unit * (step << _LOW_BITS)).exp()) for step in range(reach)]
    return Exponentials(np.array(low), np.array([*high, 0.0]))


def spread_shape(shape: Sequence[int], axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that broadcasts an array on some axes to a tensor."""
    return tuple(size if axis in axes else 1 for axis, size in enumerate(shape))
