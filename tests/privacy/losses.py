"""Privacy losses of released numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from stream.privacy.noise.samplers import DELTA_PER_DRAW
from tests.privacy.exact import UNIT, Law, exponential_below


def excess(law: Law, moved: int, epsilon: float) -> Fraction:
    """Return the least δ for which noise and noise moved by so many steps are (ε, δ)-indistinguishable, rounded up."""
    factor = exponential_below(Fraction(epsilon))
    numerator, denominator = factor.numerator, factor.denominator
    total = 0
    for value in range(law.first, law.last + 1):
        ours = law.weights[value - law.first]
        other = value - moved - law.first
        theirs = law.weights[other] if 0 <= other < len(law.weights) else 0
        total += max(0, ours * denominator - numerator * theirs)
    return Fraction(total, denominator << law.bits)


def worst_delta(laws: Sequence[Law], moves: Sequence[int], epsilon: float) -> Fraction:
    """Σ max(0, P(x) − e^ε P(x − moves)) over all outputs of independent noisy numbers; from above, tight to 2^-150."""
    ours, theirs = np.array(1, dtype=object), np.array(1, dtype=object)
    for law, move in zip(laws, moves, strict=True):
        support = range(min(law.first, law.first + move), max(law.last, law.last + move) + 1)
        # Rounding makes the loss larger.
        ours = np.multiply.outer(ours, [_weight(law, value) + 1 for value in support])
        theirs = np.multiply.outer(theirs, [_weight(law, value - move) for value in support])
    factor = int(exponential_below(Fraction(epsilon)) * UNIT)
    excess = np.maximum(ours * UNIT - theirs * factor, 0).sum()
    return Fraction(int(excess), UNIT ** (len(laws) + 1))


def _weight(law: Law, value: int) -> int:
    """Return the probability of a value, out of 2^192, rounded down."""
    inside = law.first <= value <= law.last
    return (law.weights[value - law.first] * UNIT) >> law.bits if inside else 0


def cut_tail(draws: int, epsilon: float) -> Fraction:
    """Return the largest amount that the sampler's cut tail adds to δ."""
    return draws * Fraction(DELTA_PER_DRAW) * math.ceil(1.0 + math.exp(epsilon))
