"""Choosing a candidate by its private score: the noisy maximum and the exponential mechanism.

Scores are whole grid steps, of which one person moves each by at most Δ; the rate is ε0/2Δ per step, or ε0/Δ where all
scores of neighbours move in the same direction. Both then are ε0-differentially private for any number of candidates:
docs/proofs/noisy-max.md and docs/proofs/exponential.md. Nothing here draws noise or does any I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Literal

import numpy as np
import numpy.typing as npt

from schemas import AnswersCalibration
from stream.privacy.noise import Sampler, sampler

Integers = npt.NDArray[np.int64]

WEIGHT_BITS = 192
"""Weights of the exponential mechanism are out of 2^192; the best candidate's is that exactly."""

UNIFORM_BITS = 256
"""Uniform bits that one draw of the exponential mechanism reads."""

UNIFORM_WORDS = UNIFORM_BITS // 64

GAP_DIGITS = 14
"""Hexadecimal digits of a distance between two scores, which are both within ±2⁵³ steps."""


def selection_rate(calibration: AnswersCalibration) -> Fraction:
    """ε0/2Δ per step, ε0/Δ for monotone scores, exact for the calibration's doubles."""
    width = calibration.sensitivity_steps * (1 if calibration.monotone else 2)
    return Fraction(calibration.epsilon_answer) / width


def score_noise(calibration: AnswersCalibration) -> Sampler:
    """The law of the noise on each score: one-sided, or two-sided where the textbook's mechanism was asked for."""
    noise: Literal["one_sided", "two_sided"] = "two_sided" if calibration.method == "textbook" else "one_sided"
    return sampler(noise, selection_rate(calibration))


def noisy_max(scores: Integers, noise: Integers) -> int:
    """The index of the largest noisy score, the first of them if several are equal."""
    return int(np.argmax(scores + noise))


@dataclass(frozen=True)
class Weights:
    """The exponential mechanism's weights, e^{−rate·gap} in fixed point for a candidate ``gap`` steps below the best."""

    rate: Fraction

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise ValueError(f"rate must be above 0, got {float(self.rate)}")

    @cached_property
    def powers(self) -> tuple[tuple[int, ...], ...]:
        """e^{−rate·v·16^i} out of 2^192, rounded down, for each hexadecimal digit i of a gap and each of its values v."""
        with localcontext(prec=100):
            base = -Decimal(self.rate.numerator) / Decimal(self.rate.denominator)
            return tuple(
                tuple(int((base * value * 16**digit).exp() * 2**WEIGHT_BITS) for value in range(16))
                for digit in range(GAP_DIGITS)
            )

    def of(self, gap: int) -> int:
        """The weight out of 2^192, fewer than 2·14 units below e^{−rate·gap}.

        Every digit takes one multiplication, a zero too: how long it takes does not tell the gap.
        """
        weight = 1 << WEIGHT_BITS
        for digit, powers in enumerate(self.powers):
            weight = weight * powers[gap >> 4 * digit & 15] >> WEIGHT_BITS
        return weight


@lru_cache(maxsize=4096)
def weights(rate: Fraction) -> Weights:
    """The weights of a rate; the same object for the same rate."""
    return Weights(rate)


def exponential(scores: Sequence[int], law: Weights, uniform: int) -> int:
    """The index of a candidate drawn with probability ∝ e^{rate·score}.

    ``uniform`` is a whole number below 2^256. Candidate i is drawn for exactly those with C_{i−1} ≤ ⌊uniform·W / 2^256⌋
    < C_i, where C are the cumulated weights and W is their sum. Scores further apart than 2^56 − 1 steps count as that.
    """
    best = max(scores)
    furthest = 16**GAP_DIGITS - 1
    cumulated = list(accumulate(law.of(min(best - score, furthest)) for score in scores))
    point = uniform * cumulated[-1] >> UNIFORM_BITS
    return sum(bound <= point for bound in cumulated)
