"""Populations: people in several sources, who share one budget."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from schemas.base import (
    Amount,
    Count,
    Delta,
    Epsilon,
    Event,
    Identifier,
    Milliseconds,
    Reason,
    Renewal,
    SparingEvent,
    Surplus,
    require_delta,
)


class Population(SparingEvent):
    """The same people in several sources, whose grants count against this budget as well.

    ``renews`` is the length of the budget's period. Without it, the budget never renews.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"renews"})

    population: Identifier
    epsilon: Epsilon
    delta: Delta = 0.0
    accountant: Literal["pure", "zcdp"] = "pure"
    renews: Renewal | None = None

    _accountant_has_delta = model_validator(mode="after")(require_delta)


class Period(Event):
    """The current period of a renewing budget, by the ledger's clock; the first is number 1.

    ``counted`` is the amount that counts against the budget in this period: its grants, and the
    unspent rest of streams that were open when it began. ``meaning`` explains the budget's promise.
    """

    number: Count
    starts: Milliseconds
    ends: Milliseconds
    counted: Amount
    meaning: Reason


class EdgeTotals(Event):
    """A stream's totals when a period began; ``settled`` is true if the stream had ended."""

    answered: Count
    tops: Count
    surplus: Surplus = 0
    extensions: Count = 0
    settled: bool = False


class Standing(Event):
    """Position of a grant in a renewing budget: the ``period`` of its last change.

    ``totals`` are the stream's totals when that period began; null if the grant was opened, or
    joined the budget with its source, in that period.
    """

    period: Count
    totals: EdgeTotals | None = None
