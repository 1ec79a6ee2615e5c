"""The numbers that NumericSparse publishes with its ⊤s: their noise and how far they may be off.

``fresh`` numbers are f + η, with η of their own and a third share of ε (Dwork & Roth 2014, Algorithm 3). ``gap``
numbers are T + (f + ν − T − ρ − s), made of the noise that decided the ⊤, at no cost (Ding, Wang, Zhang & Kifer 2019).
Privacy and accuracy of both are proved in ``docs/proofs/numeric-sparse.md``.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TypeVar

from schemas import SparseVectorCalibration

_Number = TypeVar("_Number", Fraction, float)


def answer_rate(calibration: SparseVectorCalibration) -> float:
    """The rate of η per step, ε3/(cΔ) with c = 1 where each ⊤ ends a round; 0 where numbers have no noise of their own."""
    tops = 1 if calibration.fresh_threshold else calibration.cutoff
    return calibration.epsilon_answer / (tops * calibration.sensitivity_steps)


def tops_epsilon(threshold: _Number, query: _Number, answer: _Number, *, monotone: bool) -> _Number:
    """What c ⊤s with their numbers lose beyond ε1 = ``threshold``: ε2 + ε3, or less for monotone queries.

    There a query that moves loses on its number what it does not lose on its ⊤, or nothing on ρ: t ⊤s lose at most
    t/c of max(ε2, ε3, ε2 + ε3 − ε1) beyond ε1 (``docs/proofs/numeric-sparse.md``, Theorem 2).
    """
    both = query + answer
    return max(query, answer, both - threshold) if monotone else both


def answers_failure(rate: float, tops: int, error: int) -> float:
    """The probability that one of ``tops`` independent two-sided draws is beyond ±``error`` steps.

    With q = e^{−rate} it is 1 − (1 − 2q^{error+1}/(1 + q))^tops, and exact.
    """
    beyond = 2.0 * math.exp(-rate * (error + 1)) / (1.0 + math.exp(-rate))
    return -math.expm1(tops * math.log1p(-min(beyond, 1.0 - 2.0**-53)))
