"""Costs of streams, in exact integers.

A budget is the decimal that the operator wrote, rounded down to whole units. A cost is the exact
value of the double from which the noise scale is computed, rounded up to whole units. So rounding
never makes a sum of grants exceed a budget. Plans round a requested ε or δ down, so that n streams that
each request 1/n of a budget fit into it together (proof: docs/proofs/composition.md, "Equal parts").
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
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
    GrantRecord,
    Source,
    StreamState,
    UnknownGroupsCalibration,
)
from stream.errors import Refused
from stream.privacy.composition.gaussian_losses import largest_rho, least_epsilon
from stream.privacy.composition.losses import (
    has_independent_answers,
    is_pure,
    losses,
    promised_answers,
    summed_loss,
)
from stream.privacy.composition.pure_rounds import round_fraction_down, round_fraction_up


def charged_answers(calibration: Calibration, extensions: Extensions) -> int:
    """Count the charged answers that a grant pays for; 0 if one charge pays for all answers."""
    return calibration.cutoff + sum(extension.answers for extension in extensions)


def last_promised_answer(calibration: Calibration) -> int | None:
    """Return the number of the last answer that α covers; None with an estimate: α then covers all answers that have it."""
    return None if isinstance(calibration, EstimateCalibration) else promised_answers(calibration)


EPSILON_UNITS = 10**12
"""Number of units in an ε of 1, and in a ρ of 1."""
DELTA_UNITS = 10**30
"""Number of units in a δ of 1."""
DELTA_DIGITS = 12
"""Significant decimal digits of a plan's δ."""
PARTS_PER_CHARGE = 1 << 20
"""Parts into which an ordinary charge is divided; a price is a whole number of parts."""


def ordinary_charges_left(cutoff: int, tops: int, surplus: int) -> int:
    """Count the ordinary charged answers for which the rest of a grant pays.

    The ``tops`` charged answers so far have together cost ``surplus`` parts more than ``tops`` ordinary
    charges (see ``PARTS_PER_CHARGE``).
    """
    return cutoff - tops + (-surplus // PARTS_PER_CHARGE)


def displayed_state(state: StreamState, left: int | None, beyond: str = "end") -> StreamState:
    """Return the state to display; the rest of the grant pays for ``left`` ordinary answers.

    If ``left`` is 0, the stream is displayed as exhausted, although the rest of its grant may pay for a cheaper
    question (with a larger ``alpha``). A stream that continues with free answers (``beyond`` is not "end") stays open.
    """
    return "exhausted" if state == "open" and left is not None and left <= 0 and beyond == "end" else state


def displayed_grant(record: GrantRecord) -> GrantRecord:
    """Return a grant with the state to display."""
    if record.state != "open" or record.ending is not None or not record.calibration.cutoff:
        return record
    left = ordinary_charges_left(
        charged_answers(record.calibration, record.extensions), record.tops, record.surplus
    )
    state = displayed_state(record.state, left, getattr(record.spec.mechanism, "beyond", "end"))
    return record if state == record.state else record.model_copy(update={"state": state})


@dataclass(frozen=True, slots=True)
class Cost:
    """An exact cost or budget, in units: 10⁻¹² of ε (``loss``) and of ``rho``, 10⁻³⁰ of ``delta``.

    ``loss`` is added up by basic composition. With the accountant ``pure``, ``rho`` is 0; with ``zcdp``,
    ``delta`` is 0. ``unbounded`` counts the streams with Gaussian noise, whose ε by basic composition is
    infinite; ``loss`` has the ε of the other noise of these streams.
    """

    loss: int = 0
    delta: int = 0
    rho: int = 0
    unbounded: int = 0

    def __add__(self, other: Cost) -> Cost:
        # Restoring a ledger adds NO_COST hundreds of thousands of times.
        if other is NO_COST:
            return self
        if self is NO_COST:
            return other
        return self._combine(other, operator.add)

    def __sub__(self, other: Cost) -> Cost:
        return self if other is NO_COST else self._combine(other, operator.sub)

    def __le__(self, other: Cost) -> bool:
        return self._combine(other, max) == other

    def minimum_with(self, other: Cost) -> Cost:
        """Return the component-wise minimum of two costs."""
        return self._combine(other, min)

    def _combine(self, other: Cost, combine: Callable[[int, int], int]) -> Cost:
        return Cost(
            combine(self.loss, other.loss),
            combine(self.delta, other.delta),
            combine(self.rho, other.rho),
            combine(self.unbounded, other.unbounded),
        )

    def clamp_at_zero(self) -> Cost:
        """Return the cost with negative components raised to 0."""
        return Cost(max(self.loss, 0), max(self.delta, 0), max(self.rho, 0), self.unbounded)


NO_COST = Cost()


class BudgetTerms(Protocol):
    """The fields of a source or population that define its budget."""

    @property
    def epsilon(self) -> float: ...  # noqa: D102
    @property
    def delta(self) -> float: ...  # noqa: D102
    @property
    def accountant(self) -> str: ...  # noqa: D102
    @property
    def renews(self) -> str | None: ...  # noqa: D102


def can_pay(cost: Cost, left: Cost, accountant: str) -> bool:
    """Return True if the remaining budget pays for a cost.

    Under ``zcdp`` either the sum of ε or the sum of ρ must fit: docs/proofs/composition.md, "Either way", proves that
    the source's (ε, δ) then holds for all streams together. As soon as one stream has Gaussian noise, only ρ counts.
    """
    if accountant == "zcdp":
        added_up = cost.loss <= left.loss and cost.unbounded <= left.unbounded
        return added_up or cost.rho <= left.rho
    return cost <= left


def shortest_decimal(value: float) -> Decimal:
    """Return the shortest decimal whose nearest double is ``value``: 0.1 for the double 0.1."""
    return Decimal(repr(float(value)))


def exact_decimal(value: float) -> Fraction:
    """Return the shortest decimal of a double as a fraction: 1/10 for the double 0.1."""
    return Fraction(shortest_decimal(value))


@lru_cache(maxsize=4096)
def affordable_epsilon(value: float) -> float:
    """Return the largest double that costs at most ``value`` rounded down to whole units of ε."""
    return round_fraction_down(_whole_steps(exact_decimal(value), Fraction(1, EPSILON_UNITS)))


@lru_cache(maxsize=4096)
def affordable_delta(value: float) -> float:
    """Return the largest double that costs at most ``value`` rounded down to 12 digits and whole units."""
    last = shortest_decimal(value).adjusted() - (DELTA_DIGITS - 1)
    return round_fraction_down(
        _whole_steps(exact_decimal(value), max(Fraction(10) ** last, Fraction(1, DELTA_UNITS)))
    )


def _whole_steps(value: Fraction, step: Fraction) -> Fraction:
    """Round down to a multiple of ``step``; return a value below one step unchanged."""
    return value // step * step or value


@lru_cache(maxsize=4096)
def stream_cost(calibration: Calibration, accountant: str, *, uneven_prices: bool = False) -> Cost:
    """Return the most that a stream may spend.

    Under ``pure`` the cost is the stream's (ε, δ), or (ε, 0) if ε holds by basic composition. Under ``zcdp``
    ``loss`` is the sum of the ε of the stream's pure mechanisms (``Losses.pure_parts``). ``rho`` is Σ ε²/2 over
    them (Bun & Steinke 2016, Proposition 1.4, Lemma 1.7) plus the ρ of Gaussian noise. With ``uneven_prices``
    only the sum of the answers' ε is bounded, so ``rho`` is (Σ ε)²/2.
    """
    parts = losses(calibration)
    if accountant == "zcdp":
        return Cost(
            math.ceil(parts.total * EPSILON_UNITS),
            rho=math.ceil((parts.total**2 / 2 if uneven_prices else parts.rho) * EPSILON_UNITS),
            unbounded=1 if parts.gaussian else 0,
        )
    delta = 0 if is_pure(calibration) else math.ceil(Fraction(calibration.delta) * DELTA_UNITS)
    return Cost(math.ceil(Fraction(calibration.epsilon) * EPSILON_UNITS), delta)


@lru_cache(maxsize=65536)
def realised_cost(
    calibration: Calibration,
    accountant: str,
    answered: int,
    tops: int,
    surplus: int = 0,
    extensions: Extensions = (),
    *,
    uneven_prices: bool = False,
) -> Cost:
    """Return an upper bound of a stream's spent cost; NO_COST before the first answer.

    The ``tops`` charged answers have together cost ``surplus`` parts more than ``tops`` ordinary charges. ε adds up by
    basic composition, and so does the (ε, δ) of unknown groups. From the first answer on, ρ counts in full, and so does
    an (ε, δ) from optimal composition. An extension counts as soon as it may have been used.
    """
    full = stream_cost(calibration, accountant, uneven_prices=uneven_prices)
    if answered == 0:
        return NO_COST
    charges = tops + Fraction(surplus, PARTS_PER_CHARGE)
    if isinstance(calibration, UnknownGroupsCalibration):
        # The (ε, δ) of all answers add up, because no two answers use the same noise.
        loss, delta = charges * losses(calibration).loss_per_answer, charges * Fraction(calibration.delta_answer)
        spent = Cost(math.ceil(loss * EPSILON_UNITS), math.ceil(delta * DELTA_UNITS)).minimum_with(full)
    elif accountant == "pure" and not is_pure(calibration):
        spent = full
    else:
        parts = losses(calibration)
        loss = summed_loss(calibration, min(charges, Fraction(calibration.cutoff)))
        if tops < calibration.cutoff:
            loss += parts.loss_while_open
        drawn = parts.gaussian_first or (tops > 0 and parts.gaussian_charged)
        spent = Cost(math.ceil(loss * EPSILON_UNITS), full.delta, full.rho, 1 if drawn else 0).minimum_with(full)
    start = calibration.cutoff
    for extension in extensions:
        spent += _realised_extension(
            calibration, accountant, extension, start, charges, uneven_prices=uneven_prices
        )
        start += extension.answers
    return spent


@lru_cache(maxsize=4096)
def extension_cost(
    calibration: Calibration, accountant: str, extension: Extension, start: int, *, uneven_prices: bool = False
) -> Cost:
    """Return the most that an extension may spend after ``start`` charged answers.

    Under ``pure`` the losses of its charges add up, or are composed optimally without the rest of the stream. Under
    ``zcdp`` each independent charge adds ε²/2 to ρ. Charges are not independent if the noise of a threshold is drawn
    only once, or with ``uneven_prices``. Given all earlier answers, the extension is then pure, with twice the loss of
    the earlier charges plus its own loss. Proofs: docs/proofs/composition.md, "Extensions".
    """
    parts = losses(calibration)
    loss = extension.answers * parts.extension_loss
    if accountant == "zcdp":
        if has_independent_answers(calibration) and not uneven_prices:
            rho = extension.answers * parts.extension_loss**2 / 2
        else:
            rho = (2 * summed_loss(calibration, Fraction(start)) + loss) ** 2 / 2
        return Cost(math.ceil(loss * EPSILON_UNITS), rho=math.ceil(rho * EPSILON_UNITS))
    composed = Fraction(extension.epsilon)
    if loss <= composed:
        return Cost(math.ceil(loss * EPSILON_UNITS))
    return Cost(math.ceil(composed * EPSILON_UNITS), math.ceil(Fraction(extension.delta) * DELTA_UNITS))


@lru_cache(maxsize=4096)
def grant_cost(
    calibration: Calibration, accountant: str, extensions: Extensions, *, uneven_prices: bool = False
) -> Cost:
    """Return the most that a stream with all its extensions may spend."""
    cost, start = stream_cost(calibration, accountant, uneven_prices=uneven_prices), calibration.cutoff
    for extension in extensions:
        cost += extension_cost(calibration, accountant, extension, start, uneven_prices=uneven_prices)
        start += extension.answers
    return cost


def _realised_extension(
    calibration: Calibration,
    accountant: str,
    extension: Extension,
    start: int,
    charges: Fraction,
    *,
    uneven_prices: bool,
) -> Cost:
    """Return the part of an extension's cost that is spent after ``charges`` ordinary charges.

    The grant pays for ``start`` charges without this extension. Free answers may use the extension as soon as
    less than one of these charges is left.
    """
    has_free_answers = not isinstance(calibration, AnswersCalibration)
    if charges <= start - has_free_answers:
        return NO_COST
    full = extension_cost(calibration, accountant, extension, start, uneven_prices=uneven_prices)
    if full.delta:
        return full
    parts = losses(calibration)
    used = min(charges - start, Fraction(extension.answers))
    loss = max(used, Fraction(0)) * parts.extension_loss
    if used < extension.answers:
        loss += parts.loss_while_open
    return Cost(math.ceil(loss * EPSILON_UNITS), rho=full.rho).minimum_with(full)


def total_budget(terms: BudgetTerms) -> Cost:
    """Return a whole budget: ε and either δ or, under ``zcdp``, the largest ρ that implies (ε, δ)."""
    epsilon, delta = exact_decimal(terms.epsilon), exact_decimal(terms.delta)
    loss = math.floor(epsilon * EPSILON_UNITS)
    if terms.accountant == "zcdp":
        return Cost(loss, rho=math.floor(largest_rho(epsilon, delta) * EPSILON_UNITS))
    return Cost(loss, math.floor(delta * DELTA_UNITS))


def to_amount(cost: Cost, terms: BudgetTerms) -> Amount:
    """Convert a cost to an amount; with Gaussian noise, ε is what ρ implies at the budget's δ."""
    return _make_amount(cost, terms.delta, terms.accountant)


@lru_cache(maxsize=1024)
def _make_amount(cost: Cost, delta: float, accountant: str) -> Amount:
    if cost.unbounded:
        rho = Fraction(cost.rho, EPSILON_UNITS)
        epsilon = round_fraction_up(least_epsilon(rho, exact_decimal(delta)))
        return Amount(epsilon=epsilon, delta=delta, rho=cost.rho / EPSILON_UNITS)
    return Amount(
        epsilon=cost.loss / EPSILON_UNITS,
        delta=cost.delta / DELTA_UNITS,
        rho=cost.rho / EPSILON_UNITS if accountant == "zcdp" else None,
    )


def shown_spending(
    calibration: Calibration, source: Source, answered: int, tops: int, surplus: int, extensions: Extensions
) -> Amount:
    """Return the amount that a stream's answers show as spent."""
    spent = realised_cost(calibration, source.accountant, answered, tops, surplus, extensions)
    return spent_amount(spent, grant_cost(calibration, source.accountant, extensions), source)


def spent_amount(spent: Cost, granted: Cost, terms: BudgetTerms) -> Amount:
    """Convert a spent cost to an amount with at most the granted ε.

    Before Gaussian noise is drawn, the spent losses may add up to more than the ε that the grant's ρ implies.
    """
    shown, most = to_amount(spent, terms), to_amount(granted, terms)
    if shown.epsilon <= most.epsilon:
        return shown
    return shown.model_copy(update={"epsilon": most.epsilon, "delta": most.delta})


class RefusedError(Refused):
    """The ledger refuses a request; no grant or budget has changed."""


def format_amount(amount: Amount) -> str:
    """Format an amount: ε and ρ with all digits that the ledger distinguishes, δ rounded up to six digits."""
    if amount.rho is not None:
        return f"ρ = {_format_number(amount.rho)}" + (
            "" if amount.delta else f" (ε = {_format_number(amount.epsilon)} added up)"
        )
    if not amount.delta:
        return f"ε = {_format_number(amount.epsilon)}"
    delta = Context(prec=6, rounding=ROUND_CEILING).create_decimal(repr(amount.delta))
    return f"ε = {_format_number(amount.epsilon)}, δ = {_format_number(float(delta))}"


def _format_number(value: float) -> str:
    return repr(value).removesuffix(".0")
