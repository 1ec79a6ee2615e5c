"""What streams cost, in exact integers.

A budget is the decimal that the operator wrote, rounded down to whole units; a cost is the exact value of the double that
noise is drawn by, rounded up. So no sum of grants exceeds a budget by rounding. Plans keep at or below the decimal that
was asked for, rounded down to so many digits that n equal parts of a budget do fit it (``affordable_epsilon``,
``affordable_delta``; docs/proofs/composition.md, "Equal parts", has the proof).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

from schemas import (
    Amount,
    AnswersCalibration,
    Calibration,
    Extension,
    Extensions,
    GrantRecord,
    StreamState,
)
from stream.privacy.composition.gaussian_losses import largest_rho, least_epsilon
from stream.privacy.composition.losses import are_independent, is_pure, losses, lost
from stream.privacy.composition.pure_rounds import rounded_down, rounded_up


def charged_answers(calibration: Calibration, extensions: Extensions) -> int:
    """How many charged answers a stream's grant pays for in all; 0 where one charge pays for all answers."""
    return calibration.cutoff + sum(extension.answers for extension in extensions)


def extended_beta(calibration: Calibration, extensions: Extensions) -> float:
    """With which probability a promise may fail for all charged answers that were granted: β for each ``cutoff`` of them.

    At least 1 means that nothing is promised for all of them; for the first ``cutoff`` the promise is what it was.
    """
    if not extensions:
        return calibration.beta
    return calibration.beta * charged_answers(calibration, extensions) / calibration.cutoff


EPSILON_UNITS = 10**12
"""Units per 1 of ε, and per 1 of ρ."""
DELTA_UNITS = 10**30
"""Units per 1 of δ."""
DELTA_DIGITS = 12
"""Significant digits of a δ that a plan keeps to; δ may be far smaller than any fixed step."""
PARTS = 1 << 20
"""Parts of one ordinary charged answer: what an answer of another price is counted in."""


def whole_left(cutoff: int, tops: int, surplus: int) -> int:
    """How many ordinary charged answers a grant still pays for after ``tops`` that have cost ``surplus`` parts more."""
    return cutoff - tops + (-surplus // PARTS)


def shown_state(state: StreamState, left: int | None, beyond: str = "end") -> StreamState:
    """The state of a stream as it is shown; ``left`` is how many ordinary charged answers its grant pays for.

    One that pays for none is exhausted, although the rest of its grant may pay for a question with an ``alpha`` that costs less.
    One that answers ``beyond`` its charges stays open.
    """
    return "exhausted" if state == "open" and left is not None and left <= 0 and beyond == "end" else state


def shown_grant(record: GrantRecord) -> GrantRecord:
    """A grant with its stream's state as it is shown."""
    if record.state != "open" or record.ending is not None or not record.calibration.cutoff:
        return record
    left = whole_left(charged_answers(record.calibration, record.extensions), record.tops, record.surplus)
    state = shown_state(record.state, left, getattr(record.spec.mechanism, "beyond", "end"))
    return record if state == record.state else record.model_copy(update={"state": state})


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


class BudgetTerms(Protocol):
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

    Under ``zcdp`` one of the two ways to add up need do: docs/proofs/composition.md, "Either way", proves that every transcript may
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
def affordable_epsilon(value: float) -> float:
    """Return the largest double that costs no more than the ε that was written, rounded down to whole units."""
    return rounded_down(_whole_steps(told(value), Fraction(1, EPSILON_UNITS)))


@lru_cache(maxsize=4096)
def affordable_delta(value: float) -> float:
    """Return the largest double that costs no more than the δ that was written, rounded down to 12 digits and whole units."""
    last = Decimal(repr(value)).adjusted() - (DELTA_DIGITS - 1)
    return rounded_down(_whole_steps(told(value), max(Fraction(10) ** last, Fraction(1, DELTA_UNITS))))


def _whole_steps(value: Fraction, step: Fraction) -> Fraction:
    """Round down to a multiple of the step; a value below one step stays, and costs one."""
    return value // step * step or value


def _units_up(value: Fraction, per_unit: int) -> int:
    return math.ceil(value * per_unit)


def _units_down(value: Fraction, per_unit: int) -> int:
    return math.floor(value * per_unit)


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
    that are ``uneven``: given that, they are pure with what is lost by then twice, and what they add. docs/proofs/composition.md, "Extensions", has the proofs.
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


def total_budget(terms: BudgetTerms) -> Cost:
    """A whole budget.

    Under ``zcdp`` it is ε for what is added up, and the largest ρ that implies (ε, δ).
    """
    epsilon, delta = told(terms.epsilon), told(terms.delta)
    loss = _units_down(epsilon, EPSILON_UNITS)
    if terms.accountant == "zcdp":
        return Cost(loss, rho=_units_down(largest_rho(epsilon, delta), EPSILON_UNITS))
    return Cost(loss, _units_down(delta, DELTA_UNITS))


def to_amount(cost: Cost, terms: BudgetTerms) -> Amount:
    """A cost as the contract shows it; where Gaussian noise leaves ρ alone, with the ε that ρ implies at the budget's δ."""
    return _amount(cost, terms.delta, terms.accountant)


@lru_cache(maxsize=1024)
def _amount(cost: Cost, delta: float, accountant: str) -> Amount:
    """Alike for streams of the same plan that have answered as much: most of what is written down of many streams is."""
    if cost.unbounded:
        rho = Fraction(cost.rho, EPSILON_UNITS)
        epsilon = rounded_up(least_epsilon(rho, told(delta)))
        return Amount(epsilon=epsilon, delta=delta, rho=cost.rho / EPSILON_UNITS)
    return Amount(
        epsilon=cost.loss / EPSILON_UNITS,
        delta=cost.delta / DELTA_UNITS,
        rho=cost.rho / EPSILON_UNITS if accountant == "zcdp" else None,
    )


def spent_amount(spent: Cost, granted: Cost, terms: BudgetTerms) -> Amount:
    """What is spent of a grant as the contract shows it: no ε above that which is shown as granted.

    Before any Gaussian noise is drawn the losses by themselves may add up to more than the ε that the grant's ρ implies at the budget's
    δ. What holds of the whole grant then holds of what is spent of it.
    """
    shown, most = to_amount(spent, terms), to_amount(granted, terms)
    if shown.epsilon <= most.epsilon:
        return shown
    return shown.model_copy(update={"epsilon": most.epsilon, "delta": most.delta})
