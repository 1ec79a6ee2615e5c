"""What the ledger refuses, and in which words."""

from __future__ import annotations

from decimal import ROUND_DOWN, Context
from typing import Final

from schemas import Amount, Integers
from schemas.sources import MAX_ROWS
from stream.errors import Refused
from stream.privacy.composition.costs import DELTA_DIGITS, BudgetTerms, Cost, to_amount


class RefusedError(Refused):
    """A request that the ledger refuses; nothing has changed."""


def cannot_pay(called: str, cost: Cost, left: Cost, terms: BudgetTerms, remedy: str = "") -> RefusedError:
    """The refusal of a budget, as it is ``called``, that has less left than is asked."""
    asked, there = to_amount(cost, terms), to_amount(left.at_least_nothing(), terms)
    less = "ask for no more than is left, " if there.epsilon > 0.0 or there.rho else ""
    return RefusedError(
        f"{called} cannot pay: {show(asked)} asked, {show(there)} left; "
        f"{less}{remedy}or close streams that did not use theirs up",
        asked,
        there,
    )


def show(amount: Amount) -> str:
    """Show an amount in a sentence, with every digit that the ledger counts: asking for the amount left succeeds."""
    if amount.rho is not None:
        return f"ρ = {_digits(amount.rho)}" + (
            "" if amount.delta else f" (ε = {_digits(amount.epsilon)} added up)"
        )
    return f"ε = {_digits(amount.epsilon)}" + (f", δ = {_delta_digits(amount.delta)}" if amount.delta else "")


def _digits(value: float) -> str:
    return repr(value).removesuffix(".0")


def _delta_digits(value: float) -> str:
    """Return the digits that plans keep of a δ."""
    return _digits(float(Context(prec=DELTA_DIGITS, rounding=ROUND_DOWN).create_decimal(repr(value))))


def require_monotone_counts(monotone: bool, neighbors: str, one: str = "row") -> None:
    """Refuse counts that are called monotone where one stands in another's place, which raises one count and lowers another."""
    if monotone and neighbors == "replace":
        raise RefusedError(
            f"mechanism.monotone: counts are not monotone when neighbours replace a {one}; leave it false, or register the source with "
            "neighbors 'add-remove'"
        )


LARGEST_TOTAL: Final = 1 << 53
"""A table's counts and totals reach so far to either side: as far as doubles tell whole numbers apart."""

LARGEST_SUMMED: Final = LARGEST_TOTAL // MAX_ROWS
"""Values up to this add up to no more, however many rows a table has; in a window ⅛ as many events do to what a live topic's numbers reach."""


def require_total(domain: Integers, name: str, field: str) -> None:
    """RefusedError if sums of an attribute might be cut short."""
    furthest = max(abs(domain.minimum), abs(domain.maximum))
    if furthest > LARGEST_SUMMED:
        raise RefusedError(
            f"{field}: '{name}' has values up to {furthest:,} from 0, and sums are exact for values up to {LARGEST_SUMMED:,}; register it "
            "counted from nearer by, in larger units, or in a narrower range"
        )
