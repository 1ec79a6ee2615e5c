"""Rules that select keys by the number of people who have them, without their counts.

The rule of Desfontaines, Voss, Gipson & Mandayam (2022): the probability of release rises with the number of
people as fast as (ε, δ) allows. All of it is in integers. Privacy: docs/proofs/unknown-groups.md.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

CERTAIN: Final = 1 << 63
"""The unit of a probability: one of this many equally probable words."""

MAX_RULE: Final = 1 << 17
"""Most entries of a rule, one for each number of people up to certain release."""

_BITS: Final = 128
_DIGITS: Final = 80
_SLACK: Final = Decimal(10) ** -60

Rule = npt.NDArray[np.uint64]
"""The number of words out of ``CERTAIN`` with which a key of 0, 1, 2, … people is released."""


class RuleTooLongError(ValueError):
    """ε or δ of a key is so small that release is certain only for very many people."""


@lru_cache(maxsize=64)
def selection_rule(epsilon: Fraction, delta: Fraction) -> Rule:
    """Return the largest probabilities of release such that neighboring counts are (ε, δ)-private.

    With w words for n people, at most e^ε·w + δ words for n + 1, and so do the words without release
    from n + 1 to n. e^ε and δ are rounded down, so both hold exactly. RuleTooLongError beyond ``MAX_RULE``.
    """
    factor, lost = _exponential_below(epsilon), math.floor(delta * CERTAIN)
    if lost < 1 or expected_entries(float(epsilon), float(delta)) > MAX_RULE:
        raise RuleTooLongError
    words = [0]
    while words[-1] < CERTAIN:
        if len(words) > 2 * MAX_RULE:
            raise RuleTooLongError
        last = words[-1]
        rising = (factor * last >> _BITS) + lost
        kept = max(0, CERTAIN - last - lost)
        words.append(min(rising, CERTAIN - -(-(kept << _BITS) // factor), CERTAIN))
    rule = np.array(words, dtype=np.uint64)
    rule.setflags(write=False)
    return rule


def expected_entries(epsilon: float, delta: float) -> float:
    """Estimate the number of entries of a rule: twice that up to probability ½."""
    if not (epsilon > 0.0 and delta > 0.0):
        return math.inf
    growth = math.expm1(min(epsilon, 50.0))
    half = math.log1p(growth / delta / (math.exp(min(epsilon, 50.0)) + 1.0)) / epsilon
    return min(2.0 * half + 2.0, 1.0 / delta)


def _exponential_below(epsilon: Fraction) -> int:
    """Return e^ε · 2¹²⁸, rounded down."""
    with localcontext(prec=_DIGITS):
        exponent = Decimal(epsilon.numerator) / Decimal(epsilon.denominator)
        return int((exponent.exp() * (1 - _SLACK)) * (1 << _BITS))
