"""The exponential mechanism over the values of an ordered attribute, drawn exactly.

Of n rows, let b have smaller values than x, and u values up to x. The *distance* of x from the
quantile q is max(0, b − q·n, q·n − u): the number of rows by which its rank misses q·n. A value is
drawn with probability ∝ e^{−rate·distance} (docs/proofs/quantiles.md).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from stream.privacy.accuracy.rank_accuracy import MOST_STEPS, draw_steps
from stream.privacy.mechanisms.selection import UNIFORM_BITS, WEIGHT_BITS, weights_for
from stream.privacy.noise import NoiseScaleError

IntegerArray = npt.NDArray[np.int64]


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
        return draw_steps(self.rate)

    def weights_from(self, offset: int) -> list[int]:
        """Return the weights at the distances j + offset/denominator for j = 0, 1, …, in fixed point.

        Their number depends on the rate alone.
        """
        law = weights_for(self.rate / self.quantile.denominator)
        weight, ratio = law.weight_at(offset), law.weight_at(self.quantile.denominator)
        weights = []
        for _ in range(self.max_distance):
            weights.append(weight)
            weight = weight * ratio >> WEIGHT_BITS
        return weights

    def weight_positions(self, counts: IntegerArray) -> tuple[IntegerArray, list[int]]:
        """Return each code's place in a list of weights, and the list; both are private.

        A code is the number of a value. Place 0 is for codes of distance 0; with d = ``max_distance``,
        places 1 to d are for codes above the quantile, by whole rows of distance, and places d + 1 to
        2d for codes below. The last place is for all codes that are farther, with weight 0.
        """
        rows = int(counts.sum())
        numerator, denominator = self.quantile.numerator, self.quantile.denominator
        upto = np.cumsum(counts, dtype=np.int64)
        # In units of a row divided by the denominator.
        above = denominator * (upto - counts) - numerator * rows
        below = numerator * rows - denominator * upto
        max_distance = self.max_distance
        beyond = 2 * max_distance + 1
        # Both sides are computed for every code, so that the time does not depend on the rows.
        up, down = above // denominator, below // denominator
        positions = np.where(above > 0, np.where(up < max_distance, 1 + up, beyond), 0)
        positions = np.where(below > 0, np.where(down < max_distance, 1 + max_distance + down, beyond), positions)
        up_offset = -numerator * rows % denominator
        down_offset = numerator * rows % denominator
        weight_list = [1 << WEIGHT_BITS, *self.weights_from(up_offset), *self.weights_from(down_offset), 0]
        return positions, weight_list


rank_law = lru_cache(maxsize=4096)(RankLaw)
"""Returns the law of a rate and a quantile; equal laws share one object."""


def code_weights(counts: IntegerArray, law: RankLaw) -> list[int]:
    """Return the weight of each code: private."""
    places, weight_list = law.weight_positions(counts)
    return [weight_list[place] for place in places.tolist()]


def choose_code(counts: IntegerArray, law: RankLaw, uniform: int) -> int:
    """Draw a code with probability ∝ its weight; ``uniform`` is an integer below 2^256.

    Codes are ordered by place, then by value; code number i in this order is drawn iff
    C_{i−1} ≤ ⌊uniform·W / 2^256⌋ < C_i, with the cumulative weights C and their sum W.
    """
    places, weight_list = law.weight_positions(counts)
    sizes = np.bincount(places, minlength=len(weight_list)).tolist()
    ends = list(accumulate(size * weight for size, weight in zip(sizes, weight_list, strict=True)))
    point = uniform * ends[-1] >> UNIFORM_BITS
    place = bisect_right(ends, point)
    before = ends[place - 1] if place else 0
    return int(np.flatnonzero(places == place)[(point - before) // weight_list[place]])
