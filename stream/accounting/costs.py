"""What streams cost, in exact integers.

Budgets are rounded down and costs up to whole units, so that no sum of grants can exceed a budget by rounding, and
ten grants of ε = 0.1 do fit a budget of ε = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

from schemas import Amount, Calibration, Source

EPSILON_UNITS = 10**12
"""Units per ε; also per 1 of ρ."""
DELTA_UNITS = 10**30
"""Units per 1 of δ."""


@dataclass(frozen=True, slots=True)
class Cost:
    """An exact amount of budget: ``loss`` in units of 10⁻¹² (of ε, or of ρ under zCDP), ``delta`` in units of 10⁻³⁰."""

    loss: int = 0
    delta: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.loss + other.loss, self.delta + other.delta)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.loss - other.loss, self.delta - other.delta)

    def __le__(self, other: Cost) -> bool:
        return self.loss <= other.loss and self.delta <= other.delta

    def least(self, other: Cost) -> Cost:
        """The smaller of each part."""
        return Cost(min(self.loss, other.loss), min(self.delta, other.delta))


NOTHING = Cost()


def _units(value: float | Fraction, per_unit: int, rounding: str) -> int:
    with localcontext(prec=100):
        if isinstance(value, Fraction):
            exact = Decimal(value.numerator) / Decimal(value.denominator)
        else:
            exact = Decimal(repr(value))
        return int((exact * per_unit).to_integral_value(rounding=rounding))


def rounds(calibration: Calibration) -> int:
    """How many mechanisms are composed: one for the whole stream, or one per ⊤ where the threshold is drawn anew."""
    return calibration.cutoff if calibration.fresh_threshold else 1


def round_epsilon(calibration: Calibration) -> Fraction:
    """The pure privacy loss of each of those mechanisms."""
    return Fraction(calibration.epsilon_threshold) + Fraction(calibration.epsilon_query)


def is_pure(calibration: Calibration) -> bool:
    """Whether the stream's ε holds with δ = 0, by adding up its rounds."""
    return rounds(calibration) * round_epsilon(calibration) <= Fraction(calibration.epsilon)


@lru_cache(maxsize=4096)
def stream_cost(calibration: Calibration, accountant: str) -> Cost:
    """What a stream may spend at most.

    Under ``pure`` this is its (ε, δ), with δ = 0 where the rounds add up to ε by themselves; under ``zcdp`` it is
    Σ ε²/2 over its rounds (Bun & Steinke 2016, Proposition 1.4 and Lemma 1.7).
    """
    if accountant == "zcdp":
        rho = rounds(calibration) * round_epsilon(calibration) ** 2 / 2
        return Cost(_units(rho, EPSILON_UNITS, ROUND_CEILING))
    delta = 0 if is_pure(calibration) else _units(calibration.delta, DELTA_UNITS, ROUND_CEILING)
    return Cost(_units(calibration.epsilon, EPSILON_UNITS, ROUND_CEILING), delta)


@lru_cache(maxsize=65536)
def realised_cost(calibration: Calibration, accountant: str, answered: int, tops: int) -> Cost:
    """What a transcript with so many answers and ⊤s has provably spent.

    Nothing before the first answer. A pure stream has lost ε₁ + tops·ε₂/c, or with fresh thresholds a whole round
    per ⊤ and ε₁ of the round under way; any other stream counts as spent in full.
    """
    full = stream_cost(calibration, accountant)
    if answered == 0:
        return NOTHING
    if accountant != "pure" or not is_pure(calibration):
        return full
    threshold, query = Fraction(calibration.epsilon_threshold), Fraction(calibration.epsilon_query)
    if calibration.fresh_threshold:
        loss = tops * (threshold + query) + (threshold if tops < calibration.cutoff else 0)
    else:
        loss = threshold + tops * query / calibration.cutoff
    return Cost(_units(loss, EPSILON_UNITS, ROUND_CEILING)).least(full)


def total_budget(source: Source) -> Cost:
    """A source's whole budget.

    Under ``zcdp`` it is the largest ρ whose conversion ρ + 2√(ρ ln(1/δ)) stays within the source's (ε, δ)
    (Bun & Steinke 2016, Proposition 1.3).
    """
    if source.accountant == "zcdp":
        with localcontext(prec=50):
            log_inverse = -Decimal(repr(source.delta)).ln()
            root = (log_inverse + Decimal(repr(source.epsilon))).sqrt() - log_inverse.sqrt()
            return Cost(int((root * root * EPSILON_UNITS).to_integral_value(rounding=ROUND_FLOOR)))
    return Cost(
        _units(source.epsilon, EPSILON_UNITS, ROUND_FLOOR),
        _units(source.delta, DELTA_UNITS, ROUND_FLOOR),
    )


def to_amount(cost: Cost, source: Source) -> Amount:
    """A cost as the contract shows it."""
    if source.accountant == "zcdp":
        rho = cost.loss / EPSILON_UNITS
        epsilon = rho + 2 * math.sqrt(rho * -math.log(source.delta))
        return Amount(epsilon=epsilon, delta=source.delta if cost.loss else 0.0, rho=rho)
    return Amount(epsilon=cost.loss / EPSILON_UNITS, delta=float(Fraction(cost.delta, DELTA_UNITS)))
