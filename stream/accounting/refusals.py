"""What the ledger refuses, and in which words."""

from __future__ import annotations

from schemas import Amount
from stream.accounting.costs import Cost, Terms, to_amount
from stream.errors import Refused


class RefusedError(Refused):
    """A request that the ledger refuses; nothing has changed."""


def cannot_pay(called: str, cost: Cost, left: Cost, terms: Terms, remedy: str = "") -> RefusedError:
    """A budget, as it is ``called``, has less left than is asked."""
    asked, there = to_amount(cost, terms), to_amount(left.at_least_nothing(), terms)
    return RefusedError(
        f"{called} cannot pay: {show(asked)} asked, {show(there)} left; "
        f"ask for less, {remedy}or close streams that did not use theirs up",
        asked,
        there,
    )


def show(amount: Amount) -> str:
    """An amount in a sentence."""
    if amount.rho is not None:
        return f"ρ = {amount.rho:.6g}" + ("" if amount.delta else f" (ε = {amount.epsilon:.6g} added up)")
    return f"ε = {amount.epsilon:.6g}" + (f", δ = {amount.delta:.3g}" if amount.delta else "")


def require_monotone_counts(monotone: bool, neighbors: str, one: str = "row") -> None:
    """Refuse counts that are called monotone where one stands in another's place, which raises one count and lowers another."""
    if monotone and neighbors == "replace":
        raise RefusedError(
            f"mechanism.monotone: counts are not monotone when neighbours replace a {one}; leave it false, or register the source with "
            "neighbors 'add-remove'"
        )
