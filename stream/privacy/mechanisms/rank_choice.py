"""The exponential mechanism over the values of an ordered attribute, drawn exactly.

A value's *distance* from a quantile q is the number of rows by which its rank misses q·n: with
``below`` rows of smaller values and ``upto`` rows of values up to it, max(0, below − q·n,
q·n − upto). A value is drawn with probability ∝ e^{−rate·distance} (docs/proofs/quantiles.md).
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
        if self.steps > MOST_STEPS:
            raise NoiseScaleError(
                f"a draw at the rate {float(self.rate):.3g} per row has more than {MOST_STEPS:,} weights; raise epsilon"
            )

    @cached_property
    def steps(self) -> int:
        """Number of whole rows of distance beyond which a weight is below 2⁻¹⁹²."""
        return draw_steps(self.rate)

    def weights_from(self, offset: int) -> list[int]:
        """Return the weights at the distances j + offset/denominator for j = 0, 1, …, in fixed point.

        Their number depends on the rate alone.
        """
        law = weights_for(self.rate / self.quantile.denominator)
        weight, ratio = law.weight_at(offset), law.weight_at(self.quantile.denominator)
        weights = []
        for _ in range(self.steps):
            weights.append(weight)
            weight = weight * ratio >> WEIGHT_BITS
        return weights

    def weight_positions(self, counts: IntegerArray) -> tuple[IntegerArray, list[int]]:
        """Return each code's place in a list of weights, and the list; both are private.

        Place 0 are the quantiles, of distance 0. Places up to ``steps`` are codes above them, the
        next ``steps`` places codes below; the last place has weight 0.
        """
        rows = int(counts.sum())
        numerator, denominator = self.quantile.numerator, self.quantile.denominator
        upto = np.cumsum(counts, dtype=np.int64)
        # In units of a row divided by the denominator.
        above = denominator * (upto - counts) - numerator * rows
        below = numerator * rows - denominator * upto
        steps = self.steps
        beyond = 2 * steps + 1
        # Both sides are computed for every code, so that the time does not depend on the rows.
        up, down = above // denominator, below // denominator
        positions = np.where(above > 0, np.where(up < steps, 1 + up, beyond), 0)
        positions = np.where(below > 0, np.where(down < steps, 1 + steps + down, beyond), positions)
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
