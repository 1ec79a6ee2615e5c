"""Errors of requests that the ledger refuses, and checks that raise them."""

from __future__ import annotations

from decimal import ROUND_DOWN, Context
from typing import Final

from schemas import Amount, Numeric
from schemas.sources import MAX_ROWS
from stream.errors import Refused
from stream.privacy.composition.costs import DELTA_DIGITS, BudgetTerms, Cost, to_amount


class RefusedError(Refused):
    """The ledger refuses a request; no grant or budget has changed."""


def cannot_pay(called: str, cost: Cost, left: Cost, terms: BudgetTerms, remedy: str = "") -> RefusedError:
    """Build the error for a budget that has less left than is requested."""
    asked, there = to_amount(cost, terms), to_amount(left.at_least_nothing(), terms)
    less = "ask for no more than is left, " if there.epsilon > 0.0 or there.rho else ""
    return RefusedError(
        f"{called} cannot pay: {show(asked)} asked, {show(there)} left; "
        f"{less}{remedy}or close streams that did not use theirs up",
        asked,
        there,
    )


def show(amount: Amount) -> str:
    """Format an amount with every digit that the ledger counts."""
    if amount.rho is not None:
        return f"ρ = {_digits(amount.rho)}" + (
            "" if amount.delta else f" (ε = {_digits(amount.epsilon)} added up)"
        )
    return f"ε = {_digits(amount.epsilon)}" + (f", δ = {_delta_digits(amount.delta)}" if amount.delta else "")


def _digits(value: float) -> str:
    return repr(value).removesuffix(".0")


def _delta_digits(value: float) -> str:
    """Format δ with the digits that plans keep."""
    return _digits(float(Context(prec=DELTA_DIGITS, rounding=ROUND_DOWN).create_decimal(repr(value))))


def require_monotone_counts(monotone: bool, neighbors: str, one: str = "row") -> None:
    """Refuse monotone counts if neighbors replace a row: then one count rises and another falls."""
    if monotone and neighbors == "replace":
        raise RefusedError(
            f"mechanism.monotone: counts are not monotone when neighbors replace a {one}; leave it false, or register the source with "
            "neighbors 'add-remove'"
        )


LARGEST_TOTAL: Final = 1 << 53
"""Largest count or total of a table: doubles hold integers exactly up to it."""

LARGEST_SUMMED: Final = LARGEST_TOTAL // MAX_ROWS
"""With values up to this, the total of MAX_ROWS rows is within LARGEST_TOTAL.

In a window of a live topic, MAX_ROWS/8 events stay within the limit of 2⁵⁰ steps.
"""


def require_total(domain: Numeric, name: str, field: str, finer: int = 1) -> None:
    """Raise RefusedError if the sums of an attribute might be clipped; they have ``finer`` steps in its own."""
    whole = domain.in_steps
    furthest = max(abs(whole.minimum), abs(whole.maximum)) * finer
    if furthest > LARGEST_SUMMED:
        steps = "" if domain.unit == finer == 1 else " steps"
        raise RefusedError(
            f"{field}: '{name}' has values up to {furthest:,}{steps} from 0, and sums are exact for values up to {LARGEST_SUMMED:,}{steps}; register it "
            "counted from nearer by, in larger units, or in a narrower range"
        )
