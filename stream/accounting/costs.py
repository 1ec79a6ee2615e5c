"""What streams cost, in exact integers.

A budget is the decimal that the operator wrote, rounded down to whole units; a cost is the exact value of the double that
noise is drawn by, rounded up. So no sum of grants exceeds a budget by rounding. Plans keep at or below the decimal that
was asked for (``affordable``), so that ten grants of ε = 0.1 do fit a budget of ε = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

from schemas import (
    Amount,
    AnswersCalibration,
    Calibration,
    EstimateCalibration,
    Extension,
    Extensions,
    HypothesisCalibration,
    ReleaseCalibration,
    RunningCountCalibration,
    SparseVectorCalibration,
)
from stream.accounting.composition import rounded_down, rounded_up
from stream.accounting.concentrated import largest_rho, least_epsilon
from stream.accounting.gaussian import Moved, gaussian_rho
from stream.accounting.numeric import tops_epsilon

EPSILON_UNITS = 10**12
"""Units per 1 of ε, and per 1 of ρ."""
DELTA_UNITS = 10**30
"""Units per 1 of δ."""
PARTS = 1 << 20
"""Parts of one ordinary charged answer: what an answer of another price is counted in."""


def whole_left(cutoff: int, tops: int, surplus: int) -> int:
    """How many ordinary charged answers a grant still pays for after ``tops`` that have cost ``surplus`` parts more."""
    return cutoff - tops + (-surplus // PARTS)


@dataclass(frozen=True, slots=True)
class Cost:
    """An exact amount of budget: ``loss`` is ε by adding up and ``rho`` is ρ, in units of 10⁻¹², ``delta`` is in units of 10⁻³⁰.

    ``rho`` is 0 on sources under ``pure``, ``delta`` on those under ``zcdp``. ``unbounded`` is how many streams' ε, by adding up,
    is infinite for their Gaussian noise: ``loss`` is that of their other parts.
    """

    loss: int = 0
    delta: int = 0
    rho: int = 0
    unbounded: int = 0

    def __add__(self, other: Cost) -> Cost:
        # A ledger that is restored adds nothing hundreds of thousands of times.
        if other is NOTHING:
            return self
        if self is NOTHING:
            return other
        return Cost(
            self.loss + other.loss,
            self.delta + other.delta,
            self.rho + other.rho,
            self.unbounded + other.unbounded,
        )

    def __sub__(self, other: Cost) -> Cost:
        if other is NOTHING:
            return self
        return Cost(
            self.loss - other.loss,
            self.delta - other.delta,
            self.rho - other.rho,
            self.unbounded - other.unbounded,
        )

    def __le__(self, other: Cost) -> bool:
        return (
            self.loss <= other.loss
            and self.delta <= other.delta
            and self.rho <= other.rho
            and self.unbounded <= other.unbounded
        )

    def least(self, other: Cost) -> Cost:
        """The smaller of each part."""
        return Cost(
            min(self.loss, other.loss),
            min(self.delta, other.delta),
            min(self.rho, other.rho),
            min(self.unbounded, other.unbounded),
        )

    def at_least_nothing(self) -> Cost:
        """What there is of each kind of budget, or 0 where it is overdrawn."""
        return Cost(max(self.loss, 0), max(self.delta, 0), max(self.rho, 0), self.unbounded)


NOTHING = Cost()


class Terms(Protocol):
    """What a budget is made of; sources and populations have it."""

    @property
    def epsilon(self) -> float: ...  # noqa: D102
    @property
    def delta(self) -> float: ...  # noqa: D102
    @property
    def accountant(self) -> str: ...  # noqa: D102
    @property
    def renews(self) -> str | None: ...  # noqa: D102


def fits(cost: Cost, left: Cost, accountant: str) -> bool:
    """Whether what is left pays for a cost.

    Under ``zcdp`` one of the two ways to add up need do: docs/composition.md, "Either way", proves that every transcript may
    end by its own, at the source's (ε, δ). A stream with Gaussian noise ends by ρ alone, and all others with it.
    """
    if accountant == "zcdp":
        added_up = cost.loss <= left.loss and cost.unbounded <= left.unbounded
        return added_up or cost.rho <= left.rho
    return cost <= left


def told(value: float) -> Fraction:
    """The decimal that a double is read from and written as: 1/10 for 0.1, whose double is a little more."""
    return Fraction(repr(value))


@lru_cache(maxsize=4096)
def affordable(value: float) -> float:
    """The largest double that is not above the decimal that the given one was written as."""
    return rounded_down(told(value))


def _units_up(value: Fraction, per_unit: int) -> int:
    return math.ceil(value * per_unit)


def _units_down(value: Fraction, per_unit: int) -> int:
    return math.floor(value * per_unit)


@dataclass(frozen=True, slots=True)
class Losses:
    """The pure privacy losses that a calibration composes.

    ``parts`` lists how many mechanisms of which ε make up the whole stream. A transcript with t charged answers has
    lost ``first`` + t·``each``, and ``under_way`` more while the stream is open; each one beyond those that it was planned for
    loses ``beyond``, or ``each`` where that is None. Gaussian noise has no ε and is none of them:
    the first answer rests on ``gaussian_first``, all charged ones together on ``gaussian_charged``.
    """

    parts: tuple[tuple[int, Fraction], ...]
    first: Fraction
    each: Fraction
    under_way: Fraction = Fraction(0)
    gaussian_first: tuple[Moved, ...] = ()
    gaussian_charged: tuple[Moved, ...] = ()
    beyond: Fraction | None = None

    @property
    def further(self) -> Fraction:
        """What each charged answer loses beyond those that the stream was planned for."""
        return self.each if self.beyond is None else self.beyond

    @property
    def gaussian(self) -> tuple[Moved, ...]:
        """All Gaussian noise of the whole stream."""
        return self.gaussian_first + self.gaussian_charged

    @property
    def total(self) -> Fraction:
        """The loss of the whole stream by adding up, but for its Gaussian noise."""
        return sum((count * epsilon for count, epsilon in self.parts), Fraction(0))

    @property
    def rho(self) -> Fraction:
        """ρ of the whole stream: Σ ε²/2 over its pure parts, and that of its Gaussian noise."""
        return sum((count * epsilon**2 for count, epsilon in self.parts), 2 * gaussian_rho(self.gaussian)) / 2


@lru_cache(maxsize=4096)
def losses(calibration: Calibration) -> Losses:  # noqa: C901, PLR0911 - one for each kind of calibration
    """What a calibration composes; the proof notes of the mechanisms say why."""
    match calibration:
        case SparseVectorCalibration():
            return _sparse_vector_losses(calibration)
        case AnswersCalibration(method="gaussian"):
            # An answer has one precision, whichever of its numbers it belongs to; their noise is no narrower.
            answers, variance = calibration.cutoff, Fraction(calibration.deviation) ** 2
            charged = (Moved(answers, 1, variance), Moved(answers * (calibration.moved - 1), 0, variance))
            return Losses((), Fraction(0), Fraction(0), gaussian_charged=charged)
        case AnswersCalibration():
            each = Fraction(calibration.epsilon_answer)
            return Losses(((calibration.cutoff, each),), Fraction(0), each)
        case ReleaseCalibration(method="gaussian"):
            # Of so many rows each moves a number: the ℓ₂ norm is largest where all of them move the same.
            several, variance = calibration.contribution, Fraction(calibration.deviation) ** 2
            squared = (several * (calibration.sensitivity_steps * calibration.parts // calibration.moved)) ** 2
            together = Moved(calibration.moved // several, squared, variance)
            apart = Moved(calibration.moved - together.count, 0, variance)
            return Losses(
                (), Fraction(0), Fraction(0), gaussian_first=(together, apart) if several > 1 else (together,)
            )
        case ReleaseCalibration():
            part = Fraction(calibration.epsilon_part)
            return Losses(((calibration.parts, part),), calibration.parts * part, Fraction(0))
        case RunningCountCalibration(method="gaussian"):
            # Each level's nodes hold the counts once: their squares are largest together where all lie in few of them.
            levels, variance = calibration.levels, Fraction(calibration.deviation) ** 2
            squared = calibration.sensitivity_steps**2 // calibration.spread
            together = Moved(levels, squared, variance)
            apart = Moved(levels * (calibration.moved - 1), 0, variance)
            return Losses((), Fraction(0), Fraction(0), gaussian_first=(together, apart))
        case RunningCountCalibration():
            whole = Fraction(calibration.epsilon)
            return Losses(((1, whole),), whole, Fraction(0))
        case HypothesisCalibration():
            inner = losses(calibration.sparse_vector)
            rows = Fraction(calibration.epsilon_rows)
            parts = inner.parts if rows == 0 else ((1, rows), *inner.parts)
            return Losses(parts, rows + inner.first, inner.each, inner.under_way, beyond=inner.beyond)
        case EstimateCalibration(contribution=several) if several > 1:
            # Each part is pure, for one row: so many rows lose as many times as much.
            return _times(losses(calibration.model_copy(update={"contribution": 1})), several)
        case EstimateCalibration():
            inner = losses(calibration.sparse_vector)
            rows, start = Fraction(calibration.epsilon_rows), Fraction(calibration.epsilon_start)
            opening = tuple(
                (count, part) for count, part in ((1, rows), (calibration.starts, start)) if count and part
            )
            first = rows + calibration.starts * start + inner.first
            return Losses(
                (*opening, *inner.parts),
                first,
                inner.each,
                inner.under_way,
                *_estimate_noise(calibration),
                beyond=inner.beyond,
            )


def _times(parts: Losses, rows: int) -> Losses:
    """What so many rows lose of pure parts that are planned for one."""
    return Losses(
        tuple((count, rows * epsilon) for count, epsilon in parts.parts),
        rows * parts.first,
        rows * parts.each,
        rows * parts.under_way,
        beyond=None if parts.beyond is None else rows * parts.beyond,
    )


def _estimate_noise(calibration: EstimateCalibration) -> tuple[tuple[Moved, ...], tuple[Moved, ...]]:
    """The Gaussian noise of the opening, and that of all ⊤s.

    One person moves ``marginal_sensitivity`` cells of a marginal by 1 each. A number told on a ⊤ has its precision from the
    marginal beside it, and is one measurement more; its variance is no less than that of the cells.
    """
    if calibration.noise == "laplace":
        return (), ()
    cells = calibration.marginal_sensitivity
    first = Moved(calibration.starts * cells, 1, Fraction(calibration.deviation_start) ** 2)
    on_tops = Fraction(calibration.deviation_answer) ** 2
    charged = (Moved(calibration.cutoff * cells, 1, on_tops), Moved(calibration.cutoff, 0, on_tops))
    return (first,) if calibration.starts else (), charged


def _sparse_vector_losses(calibration: SparseVectorCalibration) -> Losses:
    threshold, query = Fraction(calibration.epsilon_threshold), Fraction(calibration.epsilon_query)
    per_tops = tops_epsilon(threshold, query, Fraction(calibration.epsilon_answer), monotone=calibration.monotone)
    if calibration.fresh_threshold:
        whole = threshold + per_tops
        return Losses(((calibration.cutoff, whole),), Fraction(0), whole, under_way=threshold)
    # What a monotone query saves on its ⊤ or on the threshold is saved for as many ⊤s as were planned, and no more.
    beyond = (query + Fraction(calibration.epsilon_answer)) / calibration.cutoff
    return Losses(((1, threshold + per_tops),), threshold, per_tops / calibration.cutoff, beyond=beyond)


def is_pure(calibration: Calibration) -> bool:
    """Whether the stream's ε holds with δ = 0, by adding up its parts."""
    parts = losses(calibration)
    return not parts.gaussian and parts.total <= Fraction(calibration.epsilon)


@lru_cache(maxsize=4096)
def stream_cost(calibration: Calibration, accountant: str, *, uneven: bool = False) -> Cost:
    """What a stream may spend at most.

    Under ``pure`` this is its (ε, δ), with δ = 0 where the parts add up to ε by themselves. Under ``zcdp`` it is what the
    parts add up to, and Σ ε²/2 over them (Bun & Steinke 2016, Proposition 1.4 and Lemma 1.7) with the ρ of Gaussian noise.
    Of charges that are ``uneven`` only the sum is known, and one answer may take it all: together they are one pure part.
    """
    parts = losses(calibration)
    if accountant == "zcdp":
        return Cost(
            _units_up(parts.total, EPSILON_UNITS),
            rho=_units_up(parts.total**2 / 2 if uneven else parts.rho, EPSILON_UNITS),
            unbounded=1 if parts.gaussian else 0,
        )
    delta = 0 if is_pure(calibration) else _units_up(Fraction(calibration.delta), DELTA_UNITS)
    return Cost(_units_up(Fraction(calibration.epsilon), EPSILON_UNITS), delta)


@lru_cache(maxsize=65536)
def realised_cost(
    calibration: Calibration,
    accountant: str,
    answered: int,
    tops: int,
    surplus: int = 0,
    extensions: Extensions = (),
    *,
    uneven: bool = False,
) -> Cost:
    """What a transcript with so many answers, ``tops`` of them charged, has provably spent.

    ``surplus`` is by how many parts the charged answers have cost more than one ordinary charge each, or less. Nothing before
    the first answer. By adding up, a transcript has lost what its losses say; its ρ, and an (ε, δ) that
    rests on optimal composition, count as spent in full, those of an extension as soon as it may have been used.
    """
    full = stream_cost(calibration, accountant, uneven=uneven)
    if answered == 0:
        return NOTHING
    charges = tops + Fraction(surplus, PARTS)
    if accountant == "pure" and not is_pure(calibration):
        spent = full
    else:
        parts = losses(calibration)
        loss = lost(calibration, min(charges, Fraction(calibration.cutoff)))
        if tops < calibration.cutoff:
            loss += parts.under_way
        drawn = parts.gaussian_first or (tops > 0 and parts.gaussian_charged)
        spent = Cost(_units_up(loss, EPSILON_UNITS), full.delta, full.rho, 1 if drawn else 0).least(full)
    start = calibration.cutoff
    for extension in extensions:
        spent += _realised_extension(calibration, accountant, extension, start, charges, uneven=uneven)
        start += extension.answers
    return spent


@lru_cache(maxsize=4096)
def extension_cost(
    calibration: Calibration, accountant: str, extension: Extension, start: int, *, uneven: bool = False
) -> Cost:
    """What further charged answers may spend at most, of a stream that ``start`` of them come before.

    Under ``pure`` they are added up, or composed optimally by themselves. Under ``zcdp`` charges that are independent of each
    other count like those of the opening. A threshold drawn once ties them to all that came before, as does one sum for charges
    that are ``uneven``: given that, they are pure with what is lost by then twice, and what they add. docs/composition.md, "Extensions", has the proofs.
    """
    parts = losses(calibration)
    loss = extension.answers * parts.further
    if accountant == "zcdp":
        if are_independent(calibration) and not uneven:
            rho = extension.answers * parts.further**2 / 2
        else:
            rho = (2 * lost(calibration, Fraction(start)) + loss) ** 2 / 2
        return Cost(_units_up(loss, EPSILON_UNITS), rho=_units_up(rho, EPSILON_UNITS))
    composed = Fraction(extension.epsilon)
    if loss <= composed:
        return Cost(_units_up(loss, EPSILON_UNITS))
    return Cost(_units_up(composed, EPSILON_UNITS), _units_up(Fraction(extension.delta), DELTA_UNITS))


@lru_cache(maxsize=4096)
def grant_cost(calibration: Calibration, accountant: str, extensions: Extensions, *, uneven: bool = False) -> Cost:
    """What a stream with all its extensions may spend at most."""
    cost, start = stream_cost(calibration, accountant, uneven=uneven), calibration.cutoff
    for extension in extensions:
        cost += extension_cost(calibration, accountant, extension, start, uneven=uneven)
        start += extension.answers
    return cost


def lost(calibration: Calibration, charges: Fraction) -> Fraction:
    """What so many charges have lost by adding up."""
    parts, planned = losses(calibration), min(charges, Fraction(calibration.cutoff))
    return parts.first + planned * parts.each + (charges - planned) * parts.further


def are_independent(calibration: Calibration) -> bool:
    """Whether each charge pays for noise of its own, and leaves nothing to those that follow."""
    match calibration:
        case SparseVectorCalibration():
            return calibration.fresh_threshold
        case HypothesisCalibration() | EstimateCalibration():
            return calibration.sparse_vector.fresh_threshold
        case RunningCountCalibration():
            return False
        case _:
            return True


def _realised_extension(
    calibration: Calibration,
    accountant: str,
    extension: Extension,
    start: int,
    charges: Fraction,
    *,
    uneven: bool,
) -> Cost:
    """What of an extension is spent after so many charges: some of it as soon as an answer may have come that the ``start``
    charges before it do not pay for. Where answers may be free, that is when less than one of these is left.
    """
    free = not isinstance(calibration, AnswersCalibration)
    if charges <= start - free:
        return NOTHING
    full = extension_cost(calibration, accountant, extension, start, uneven=uneven)
    if full.delta:
        return full
    parts = losses(calibration)
    used = min(charges - start, Fraction(extension.answers))
    loss = max(used, Fraction(0)) * parts.further
    if used < extension.answers:
        loss += parts.under_way
    return Cost(_units_up(loss, EPSILON_UNITS), rho=full.rho).least(full)


def total_budget(terms: Terms) -> Cost:
    """A whole budget.

    Under ``zcdp`` it is ε for what is added up, and the largest ρ that implies (ε, δ).
    """
    epsilon, delta = told(terms.epsilon), told(terms.delta)
    loss = _units_down(epsilon, EPSILON_UNITS)
    if terms.accountant == "zcdp":
        return Cost(loss, rho=_units_down(largest_rho(epsilon, delta), EPSILON_UNITS))
    return Cost(loss, _units_down(delta, DELTA_UNITS))


def to_amount(cost: Cost, terms: Terms) -> Amount:
    """A cost as the contract shows it; where Gaussian noise leaves ρ alone, with the ε that ρ implies at the budget's δ."""
    if cost.unbounded:
        rho = Fraction(cost.rho, EPSILON_UNITS)
        epsilon = rounded_up(least_epsilon(rho, told(terms.delta)))
        return Amount(epsilon=epsilon, delta=terms.delta, rho=cost.rho / EPSILON_UNITS)
    return Amount(
        epsilon=cost.loss / EPSILON_UNITS,
        delta=cost.delta / DELTA_UNITS,
        rho=cost.rho / EPSILON_UNITS if terms.accountant == "zcdp" else None,
    )
