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


def unpaid_error(label: str, cost: Cost, left: Cost, terms: BudgetTerms, remedy: str = "") -> RefusedError:
    """Build the error for a budget that has less left than is requested."""
    asked, available = to_amount(cost, terms), to_amount(left.clamp_at_zero(), terms)
    less = "ask for no more than is left, " if available.epsilon > 0.0 or available.rho else ""
    return RefusedError(
        f"{label} cannot pay: {format_amount(asked)} asked, {format_amount(available)} left; "
        f"{less}{remedy}or close streams that did not use theirs up",
        asked,
        available,
    )


def format_amount(amount: Amount) -> str:
    """Format an amount with every digit that the ledger counts."""
    if amount.rho is not None:
        return f"ρ = {_format_number(amount.rho)}" + (
            "" if amount.delta else f" (ε = {_format_number(amount.epsilon)} added up)"
        )
    return f"ε = {_format_number(amount.epsilon)}" + (
        f", δ = {_format_delta(amount.delta)}" if amount.delta else ""
    )


def _format_number(value: float) -> str:
    return repr(value).removesuffix(".0")


def _format_delta(value: float) -> str:
    """Format δ with the digits that plans keep."""
    return _format_number(float(Context(prec=DELTA_DIGITS, rounding=ROUND_DOWN).create_decimal(repr(value))))


def require_monotone_counts(monotone: bool, neighbors: str, unit: str = "row") -> None:
    """Refuse monotone counts if neighbors replace a row, because one count rises and another falls."""
    if monotone and neighbors == "replace":
        raise RefusedError(
            f"mechanism.monotone: counts are not monotone when neighbors replace a {unit}; leave it false, or register the source with "
            "neighbors 'add-remove'"
        )


LARGEST_TOTAL: Final = 1 << 53
"""Largest count or total of a table: doubles hold integers exactly up to it."""

LARGEST_SUMMED: Final = LARGEST_TOTAL // MAX_ROWS
"""With values up to this, the total of MAX_ROWS rows is within LARGEST_TOTAL.

In a window of a live topic, MAX_ROWS/8 events stay within the limit of 2⁵⁰ steps.
"""


def require_total(domain: Numeric, name: str, field: str, finer: int = 1) -> None:
    """Raise RefusedError if sums of an attribute might be clipped.

    ``finer`` is the number of steps of a sum per step of the attribute.
    """
    in_steps = domain.in_steps
    furthest = max(abs(in_steps.minimum), abs(in_steps.maximum)) * finer
    if furthest > LARGEST_SUMMED:
        steps = "" if domain.unit == finer == 1 else " steps"
        raise RefusedError(
            f"{field}: '{name}' has values up to {furthest:,}{steps} from 0, and sums are exact for values up to {LARGEST_SUMMED:,}{steps}; register it "
            "counted from a nearer origin, in larger units, or in a narrower range"
        )
