"""Errors of quantiles: in rank, for a draw and for noisy cells, and in value, as an interval.

The *misfit* of an edge between codes is P − q·N: P is the number of rows below the edge, N the
number of all rows, q the quantile, from 0 to 1 (``quantile`` in code). A misfit is negative below the
quantile and positive above it. Proofs: docs/proofs/quantiles.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from stream.optional_packages import np
from stream.privacy.accuracy.noise_laws import laplace_sum_alpha, normal_reach, weighted_reach
from stream.privacy.noise.samplers import Gaussian, Symmetric

if TYPE_CHECKING:
    import numpy.typing as npt

    IntegerArray = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]

_GRID_POINTS: Final = 1 << 14
_POINTS_PER_DEVIATION: Final = 128.0
_MAX_KNOTS: Final = 32
_ROUNDING: Final = 1.0 + 1e-9

DRAW_BITS: Final = 192
"""Weights of draws are integers; the best value's weight is 2^192."""

MOST_STEPS: Final = 1 << 18
"""Maximum number of weights on each side of a quantile; a smaller rate would need more."""


def draw_steps(rate: Fraction) -> int:
    """Return the number of whole rows of distance beyond which a weight is below 2⁻¹⁹²."""
    return math.floor(DRAW_BITS * math.log(2.0) / float(rate) * _ROUNDING) + 2


def draw_reach(rate: float, values: int, failure: float) -> float:
    """Return a bound in rows on the distance of a drawn value.

    It holds with probability 1 − ``failure``. The worst table has a single quantile, and all other values are just beyond the bound.
    """
    if values == 1:
        return 0.0
    needed = math.log(values - 1) + math.log1p(-failure) - math.log(failure)
    return max(0.0, needed / rate) * _ROUNDING


def misfits_reach(law: Symmetric, cells: int, sums: int, quantile: float, failure: float) -> float:
    """Bound the misfits of ``sums`` edges between ``cells`` noisy cells.

    The bound holds with probability 1 − ``failure``.
    """
    weight = max(quantile, 1.0 - quantile)
    if isinstance(law, Gaussian):
        spread = math.sqrt(float(law.variance) * cells)
        return weight * spread * math.sqrt(2.0 * math.log(2.0 * sums / failure)) * _ROUNDING
    return weight * weighted_reach(float(law.rate), cells, sums, failure)


def sums_reach(law: Symmetric, cells: int, failure: float) -> float:
    """Bound a sum of ``cells`` noisy cells with weights of at most 1.

    The bound holds with probability 1 − ``failure``.
    """
    if isinstance(law, Gaussian):
        return math.sqrt(float(law.variance) * cells) * math.sqrt(2.0 * math.log(2.0 / failure)) * _ROUNDING
    return laplace_sum_alpha(float(law.rate), cells, 1, failure, full_weights=False)


def edge_reaches(law: Symmetric, left: IntegerArray, quantile: float, failure: float) -> Floats:
    """Return x for each edge: the noise of its misfit exceeds x with probability ``failure``.

    The bound is for one tail of one edge. ``left`` has the number of draws below each edge; its last
    entry counts all draws. The noise of a misfit is (1 − q) times the noise of the draws below, minus q
    times the noise of the others.
    """
    total = int(left[-1])
    if isinstance(law, Gaussian):
        squares = left * (1.0 - quantile) ** 2 + (total - left) * quantile**2
        return np.asarray(np.sqrt(float(law.variance) * squares) * normal_reach(2.0 * failure))
    knots = np.unique(np.linspace(0, total, min(total, _MAX_KNOTS) + 1).astype(np.int64))
    reaches = np.array([_laplace_reach(int(knot), total - int(knot), quantile, failure) for knot in knots])
    # The spread is monotone in the draws below, so the larger of two knots bounds all between them.
    next_knot = np.searchsorted(knots, left)
    previous_knot = np.maximum(next_knot - (knots[next_knot] != left), 0)
    # A discrete draw is beyond a number at most as often as a continuous one half a step nearer.
    return np.asarray(np.maximum(reaches[next_knot], reaches[previous_knot]) / float(law.rate) + 0.5)


@lru_cache(maxsize=1 << 14)
def _laplace_reach(left: int, right: int, quantile: float, failure: float) -> float:
    """Return x with P((1 − q)·A − q·B > x) = ``failure``, A and B sums of unit Laplace draws.

    The masses of a grid follow from the characteristic function by a fast Fourier transform.
    """
    deviation = math.sqrt(2.0 * (left * (1.0 - quantile) ** 2 + right * quantile**2))
    if deviation == 0.0:
        return 0.0
    step = deviation / _POINTS_PER_DEVIATION
    angles = (2.0 * math.pi / (_GRID_POINTS * step)) * np.arange(_GRID_POINTS // 2 + 1)
    logs = -left * np.log1p(np.square((1.0 - quantile) * angles)) - right * np.log1p(np.square(quantile * angles))
    masses = np.fft.irfft(np.exp(logs), _GRID_POINTS)[: _GRID_POINTS // 2]
    tails = np.cumsum(masses[::-1])[::-1]
    return step * float(np.argmax(tails <= failure))


@dataclass(frozen=True, slots=True)
class LocatedQuantile:
    """A quantile's code, and the least and the largest code that it may have."""

    code: int
    low: int
    high: int


def locate_quantile(edges: IntegerArray, misfits: Floats, reaches: Floats) -> LocatedQuantile:
    """Find a quantile by the noisy misfits of the edges between ranges of codes.

    ``edges`` has the first code of each range, and the number of codes at its end. If a misfit is
    wrong by its reach with probability p at most, ``low`` and ``high`` are wrong with p each: edges
    are tested from the ends inwards until a test fails, so that only one wrong test counts. The
    ``code`` is the first of the range in the middle of those in which misfits change their sign.
    """
    last = len(edges) - 1
    open_below = np.flatnonzero(misfits[1:] + reaches[1:] >= 0.0)
    lowest = int(open_below[0]) if len(open_below) else last - 1
    open_above = np.flatnonzero(misfits[1:last] - reaches[1:last] <= 0.0)
    highest = int(open_above[-1]) + 2 if len(open_above) else 1
    above = np.flatnonzero(misfits[1:] >= 0.0)
    first = int(above[0]) if len(above) else last - 1
    below = np.flatnonzero(misfits[1:last] < 0.0)
    final = int(below[-1]) + 1 if len(below) else 0
    middle = (first + max(first, final)) // 2
    return LocatedQuantile(
        int(edges[middle]), int(edges[lowest]), max(int(edges[lowest]), int(edges[highest]) - 1)
    )


def ranges_around(size: int, codes: tuple[int, ...]) -> IntegerArray:
    """Divide ``size`` codes into ranges whose lengths double with the distance from some codes.

    Returns the first code of each range, and ``size`` at the end.
    """
    found = {0, size}
    for code in codes:
        length = 0
        while length < size:
            found |= {max(0, code - length), min(size, code + 1 + length)}
            length = 2 * length + 1
    return np.array(sorted(found), dtype=np.int64)


def most_ranges(size: int, codes: int) -> int:
    """Return the most ranges that `ranges_around` makes for a number of codes."""
    return min(size, codes * (2 * size.bit_length() + 1) + 1)
