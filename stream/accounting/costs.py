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

from schemas import (
    Amount,
    AnswersCalibration,
    Calibration,
    HypothesisCalibration,
    ReleaseCalibration,
    Source,
    SparseVectorCalibration,
)
from stream.accounting.numeric import tops_epsilon

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


@dataclass(frozen=True, slots=True)
class Losses:
    """The pure privacy losses that a calibration composes.

    ``parts`` lists how many mechanisms of which ε make up the whole stream. A transcript with t charged answers has
    lost ``first`` + t·``each``, and ``under_way`` more while the stream is open.
    """

    parts: tuple[tuple[int, Fraction], ...]
    first: Fraction
    each: Fraction
    under_way: Fraction = Fraction(0)

    @property
    def total(self) -> Fraction:
        """The loss of the whole stream by adding up."""
        return sum((count * epsilon for count, epsilon in self.parts), Fraction(0))


@lru_cache(maxsize=4096)
def losses(calibration: Calibration) -> Losses:
    """What a calibration composes; the proof notes of the mechanisms say why."""
    match calibration:
        case SparseVectorCalibration():
            return _sparse_vector_losses(calibration)
        case AnswersCalibration():
            each = Fraction(calibration.epsilon_answer)
            return Losses(((calibration.cutoff, each),), Fraction(0), each)
        case ReleaseCalibration():
            part = Fraction(calibration.epsilon_part)
            return Losses(((calibration.parts, part),), calibration.parts * part, Fraction(0))
        case HypothesisCalibration():
            inner = losses(calibration.sparse_vector)
            rows = Fraction(calibration.epsilon_rows)
            parts = inner.parts if rows == 0 else ((1, rows), *inner.parts)
            return Losses(parts, rows + inner.first, inner.each, inner.under_way)


def _sparse_vector_losses(calibration: SparseVectorCalibration) -> Losses:
    threshold, query = Fraction(calibration.epsilon_threshold), Fraction(calibration.epsilon_query)
    per_tops = tops_epsilon(threshold, query, Fraction(calibration.epsilon_answer), monotone=calibration.monotone)
    if calibration.fresh_threshold:
        whole = threshold + per_tops
        return Losses(((calibration.cutoff, whole),), Fraction(0), whole, under_way=threshold)
    return Losses(((1, threshold + per_tops),), threshold, per_tops / calibration.cutoff)


def is_pure(calibration: Calibration) -> bool:
    """Whether the stream's ε holds with δ = 0, by adding up its parts."""
    return losses(calibration).total <= Fraction(calibration.epsilon)


@lru_cache(maxsize=4096)
def stream_cost(calibration: Calibration, accountant: str) -> Cost:
    """What a stream may spend at most.

    Under ``pure`` this is its (ε, δ), with δ = 0 where the parts add up to ε by themselves; under ``zcdp`` it is
    Σ ε²/2 over its parts (Bun & Steinke 2016, Proposition 1.4 and Lemma 1.7).
    """
    if accountant == "zcdp":
        rho = sum((count * epsilon**2 for count, epsilon in losses(calibration).parts), Fraction(0)) / 2
        return Cost(_units(rho, EPSILON_UNITS, ROUND_CEILING))
    delta = 0 if is_pure(calibration) else _units(calibration.delta, DELTA_UNITS, ROUND_CEILING)
    return Cost(_units(calibration.epsilon, EPSILON_UNITS, ROUND_CEILING), delta)


@lru_cache(maxsize=65536)
def realised_cost(calibration: Calibration, accountant: str, answered: int, tops: int) -> Cost:
    """What a transcript with so many answers, ``tops`` of them charged, has provably spent.

    Nothing before the first answer. A pure stream has lost what its losses say; any other stream counts as spent in
    full.
    """
    full = stream_cost(calibration, accountant)
    if answered == 0:
        return NOTHING
    if accountant != "pure" or not is_pure(calibration):
        return full
    parts = losses(calibration)
    loss = parts.first + tops * parts.each
    if tops < calibration.cutoff:
        loss += parts.under_way
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
