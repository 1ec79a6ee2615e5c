"""Populations: the people whom several sources are about, with a budget of their own."""

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
)


class Population(SparingEvent):
    """The same people in several sources: whatever is granted on any of these counts against this budget as well.

    ``renews`` says how long a period of the budget is. Without it the budget is one for ever.
    """

    wire_omits: ClassVar[frozenset[str]] = frozenset({"renews"})

    population: Identifier
    epsilon: Epsilon
    delta: Delta = 0.0
    accountant: Literal["pure", "zcdp"] = "pure"
    renews: Renewal | None = None

    @model_validator(mode="after")
    def _accountant_has_delta(self) -> Population:
        if self.accountant == "zcdp" and self.delta <= 0.0:
            raise ValueError("delta must be above 0 with accountant 'zcdp'; give one, or use accountant 'pure'")
        return self


class Period(Event):
    """The period that a budget which renews is in, by the ledger's clock; the first one has the number 1.

    ``counted`` is what counts against the budget in this period: what was granted in it, and what streams that were open at
    its beginning carry over. ``meaning`` says in plain words what such a budget promises.
    """

    number: Count
    starts: Milliseconds
    ends: Milliseconds
    counted: Amount
    meaning: Reason


class EdgeTotals(Event):
    """A stream's totals when a period began, and whether it had ended."""

    answered: Count
    tops: Count
    surplus: Surplus = 0
    extensions: Count = 0
    settled: bool = False


class Standing(Event):
    """How a grant stands in a budget that renews: in which ``period`` it last changed, and its totals when that began.

    Without ``totals`` it was opened in that period, or came into the budget with its source.
    """

    period: Count
    totals: EdgeTotals | None = None
