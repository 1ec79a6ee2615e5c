"""Grants: what a stream was given, what it has spent, and what it takes of each budget that it falls under."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from schemas import (
    Calibration,
    EdgeTotals,
    Extension,
    Extensions,
    Standing,
    StreamIdentity,
    StreamSpec,
    StreamState,
)
from stream.accounting.charged import charged_answers
from stream.accounting.costs import NOTHING, PARTS, Cost, extension_cost, grant_cost, realised_cost
from stream.accounting.renewal import behind


@dataclass(slots=True)
class Claim:
    """What a grant takes of one budget, by that budget's accountant.

    ``counted`` is what counts against it in the present ``period``; ``edge`` has the stream's totals when that began, if it was
    there by then.
    """

    accountant: str
    period: int = 0
    edge: EdgeTotals | None = None
    cost: Cost = NOTHING
    spent: Cost = NOTHING
    refunded: Cost = NOTHING
    counted: Cost = NOTHING

    @property
    def figures(self) -> tuple[Cost, Cost, Cost, Cost]:
        """What budgets add up: cost, spent, refunded and counted."""
        return self.cost, self.spent, self.refunded, self.counted

    @property
    def standing(self) -> Standing | None:
        """As the ledger topic shows it; nothing where the budget does not renew."""
        return Standing(period=self.period, totals=self.edge) if self.period else None


@dataclass(slots=True)
class Grant:
    """One stream's reservation and what is known of its spending; ``shared`` is its part in its source's population.

    ``uneven`` says whether its answers may be priced by their ε alone (`stream.accounting.prices.are_uneven`).
    """

    spec: StreamSpec
    calibration: Calibration
    identity: StreamIdentity
    claim: Claim
    shared: Claim | None = None
    uneven: bool = False
    analyst: str | None = None
    state: StreamState = "open"
    ending: Literal["halted", "closed"] | None = None
    settled: bool = False
    reason: str | None = None
    answered: int = 0
    tops: int = 0
    surplus: int = 0
    extensions: Extensions = field(default=())
    lost: bool = False
    """What it has answered is not known: it counts as wholly spent, and nothing of it goes back."""

    @property
    def cost(self) -> Cost:
        """What it takes of its source with all extensions."""
        return self.claim.cost

    @property
    def spent(self) -> Cost:
        """What its answers have spent of that."""
        return self.claim.spent

    @property
    def refunded(self) -> Cost:
        """What went back to its source."""
        return self.claim.refunded

    @property
    def parts(self) -> int:
        """What the charged answers have cost."""
        return self.tops * PARTS + self.surplus

    @property
    def cutoff(self) -> int:
        """How many ordinary charged answers it pays for in all; 0 where one charge pays for all answers."""
        return charged_answers(self.calibration, self.extensions)

    @property
    def totals(self) -> EdgeTotals:
        """What it has come to, as a period that begins now finds it.

        One that is lost may have answered past an edge that nobody knows of: it has ended for good when it is closed.
        """
        settled = self.settled and (not self.lost or self.state == "closed")
        return _edge(self.answered, self.tops, self.surplus, len(self.extensions), settled)

    def extended_by(self, request: str, accountant: str) -> tuple[Extension, Cost] | None:
        """What a request, by its digest, has added, and what that cost; None if it has not extended the stream."""
        for known, extension in enumerate(self.extensions):
            if extension.request == request:
                start = charged_answers(self.calibration, self.extensions[:known])
                return extension, self.cost_of(extension, accountant, start)
        return None

    def cost_of(self, extension: Extension, accountant: str, start: int) -> Cost:
        """What an extension costs that ``start`` charged answers come before."""
        return extension_cost(self.calibration, accountant, extension, start, uneven=self.uneven)

    def price(self, claim: Claim) -> None:
        """Work out anew what it costs, after an opening or an extension."""
        claim.cost = grant_cost(self.calibration, claim.accountant, self.extensions, uneven=self.uneven)
        self.measure(claim)

    def measure(self, claim: Claim) -> None:
        """Work out anew what of the cost is spent, refunded and counted: from what it has come to, and nothing else."""
        figures = (self.answered, self.tops, self.surplus, self.extensions)
        realised = realised_cost(self.calibration, claim.accountant, *figures, uneven=self.uneven)
        if self.lost:
            claim.spent = claim.cost
        else:
            claim.spent = NOTHING if realised is NOTHING else realised.least(claim.cost)
        claim.refunded = claim.cost - claim.spent if self.state == "closed" else NOTHING
        claim.counted = self.counts(claim)

    def counts(self, claim: Claim, more: Cost = NOTHING) -> Cost:
        """What counts in the present period, and would with an extension that costs ``more``.

        All of a stream that may still answer, but for the charges that were over and done with when the period began;
        nothing of one that had ended by then and was not extended since.
        """
        edge, held = claim.edge, claim.cost + more - claim.refunded
        if edge is None:
            return held
        known = self.extensions[: edge.extensions]
        if edge.settled and known == self.extensions and more == NOTHING:
            return NOTHING
        return (held - behind(self.calibration, claim.accountant, edge, known)).at_least_nothing()


@lru_cache(maxsize=65536)
def _edge(answered: int, tops: int, surplus: int, extensions: int, settled: bool) -> EdgeTotals:
    """One object for all streams that have come to the same: at an edge there may be a hundred thousand."""
    return EdgeTotals(answered=answered, tops=tops, surplus=surplus, extensions=extensions, settled=settled)
