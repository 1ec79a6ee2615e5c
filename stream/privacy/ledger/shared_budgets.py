"""Budgets of sources and populations, with the allotments of analysts.

A budget that renews has periods of equal length from its start. All sums are sums of the grants'
amounts, so that a restore can compute them from the grants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypedDict

from schemas import Amount, Period
from stream.privacy.composition.costs import NOTHING, BudgetTerms, Cost, fits, to_amount, total_budget
from stream.privacy.composition.refusals import RefusedError, cannot_pay, show
from stream.privacy.ledger.grants import Claim, Grant, length_ms, meaning


class Sums(TypedDict):
    """The amounts of a budget in ledger records."""

    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount


@dataclass(slots=True)
class Ceiling:
    """A limit (``total``) and the sums of the grants that count against it.

    ``called`` is its name in error texts, and ``remedy`` further advice in them.
    """

    called: str
    terms: BudgetTerms
    total: Cost
    granted: Cost = NOTHING
    spent: Cost = NOTHING
    refunded: Cost = NOTHING
    counted: Cost = NOTHING
    streams: int = 0
    remedy: str = ""

    @property
    def left(self) -> Cost:
        """The amount that may still be granted.

        Under ``zcdp`` either ε or ρ may be overdrawn, because the other one holds. ``unbounded``
        is negative while streams with Gaussian noise count: then only ρ decides.
        """
        return self.total - self.counted

    def pays(self, cost: Cost) -> bool:
        """Return True if what is left pays for a cost."""
        return fits(cost, self.left, self.terms.accountant)

    def change(self, before: tuple[Cost, ...], after: tuple[Cost, ...], streams: int = 0) -> None:
        """Replace a grant's amounts ``before`` by its amounts ``after``."""
        self.granted += after[0] - before[0]
        self.spent += after[1] - before[1]
        self.refunded += after[2] - before[2]
        self.counted += after[3] - before[3]
        self.streams += streams

    def amounts(self) -> Sums:
        """Convert the sums for ledger records."""
        return Sums(
            granted=to_amount(self.granted, self.terms),
            spent=to_amount(self.spent, self.terms),
            refunded=to_amount(self.refunded, self.terms),
            left=to_amount(self.left.at_least_nothing(), self.terms),
        )


@dataclass(frozen=True, slots=True)
class AllottedTerms:
    """The amount of an allotment, with the accountant and the period length of its budget."""

    epsilon: float
    delta: float
    accountant: str
    renews: str | None


@dataclass(slots=True)
class Allotment(Ceiling):
    """A part of a budget that some analysts share."""

    name: str = ""
    analysts: tuple[str, ...] = ()
    remedy: str = "have it raised, "


@dataclass(slots=True)
class Budget(Ceiling):
    """The budget of a source or population; ``number`` is its period, 0 if it never renews."""

    number: int = 0
    starts: int = 0
    allotments: dict[str, Allotment] = field(default_factory=dict)

    @classmethod
    def create(cls, called: str, terms: BudgetTerms, starts: int) -> Budget:
        """Create an unused budget; its first period, if any, begins at ``starts``."""
        budget = cls(called, terms, total_budget(terms))
        if terms.renews is not None:
            budget.number, budget.starts = 1, starts
        return budget

    @property
    def ends(self) -> int | None:
        """End of the current period, or None."""
        return self.starts + length_ms(self.terms.renews) if self.number else None

    def period(self, of: Ceiling) -> Period | None:
        """Build the record of the period for ``of``, the budget or one of its allotments."""
        ends = self.ends
        if ends is None:
            return None
        return Period(
            number=self.number,
            starts=self.starts,
            ends=ends,
            counted=to_amount(of.counted, of.terms),
            meaning=meaning(of.terms, self.number),
        )

    def claim(self) -> Claim:
        """Create a new grant's claim."""
        return Claim(self.terms.accountant, period=self.number)

    def allotted(self, analyst: str | None) -> list[Allotment]:
        """Return the allotments of an analyst and of the analyst's teams."""
        return [one for one in self.allotments.values() if analyst is not None and analyst in one.analysts]

    def ceilings(self, analyst: str | None) -> Iterator[Ceiling]:
        """Yield the budget and the allotments that an analyst's grants count against."""
        yield self
        yield from self.allotted(analyst)

    def charged(self, analyst: str | None, cost: Cost) -> list[tuple[Ceiling, Cost]]:
        """Pair each ceiling of an analyst's grant with its cost.

        If a budget has allotments, an analyst without one is refused.
        """
        if analyst is not None and self.allotments and not self.allotted(analyst):
            raise RefusedError(
                f"analyst '{analyst}' has no allotment on {self.called}, where others have; have one allotted"
            )
        return [(ceiling, cost) for ceiling in self.ceilings(analyst)]

    def change_for(
        self, analyst: str | None, before: tuple[Cost, ...], after: tuple[Cost, ...], streams: int = 0
    ) -> None:
        """Replace the amounts of an analyst's grant in all its ceilings."""
        for ceiling in self.ceilings(analyst):
            ceiling.change(before, after, streams)

    def is_over(self, clock: int) -> bool:
        """Return True if the period has ended at ``clock``."""
        return (ends := self.ends) is not None and clock >= ends

    def turn(self, clock: int, claims: Iterable[tuple[Grant, Claim]]) -> None:
        """Begin the period that contains ``clock``; each claim records its stream's totals."""
        length = length_ms(self.terms.renews)
        periods = (clock - self.starts) // length
        self.number, self.starts = self.number + periods, self.starts + periods * length
        for ceiling in (self, *self.allotments.values()):
            ceiling.counted = NOTHING
        for grant, claim in claims:
            claim.period, claim.edge = self.number, grant.totals
            claim.counted = grant.counts(claim)
            if claim.counted != NOTHING:
                for ceiling in self.ceilings(grant.analyst):
                    ceiling.counted += claim.counted

    def allot(
        self,
        name: str,
        analysts: Iterable[str],
        amount: tuple[float, float | None],
        claims: Iterable[tuple[Grant, Claim]],
    ) -> Allotment:
        """Create or change an allotment; refuse less than already counts against it."""
        epsilon, delta = amount
        terms = AllottedTerms(
            epsilon, self.terms.delta if delta is None else delta, self.terms.accountant, self.terms.renews
        )
        if terms.accountant == "zcdp" and terms.delta <= 0.0:
            raise RefusedError(f"delta: must be above 0 on {self.called}, which counts by zcdp; give one, or none")
        called = f"allotment '{name}' on {self.called}"
        members = tuple(sorted(set(analysts))) or (name,)
        allotment = Allotment(called, terms, total_budget(terms), name=name, analysts=members)
        for grant, claim in claims:
            if grant.analyst in members:
                allotment.change((NOTHING,) * 4, claim.figures, 1)
        if not fits(allotment.counted, allotment.total, terms.accountant):
            raise _below(allotment)
        self.allotments[name] = allotment
        return allotment


def require_paid(charged: Iterable[tuple[Ceiling, Cost]]) -> None:
    """Raise RefusedError if a ceiling cannot pay its cost, naming the one with the least ε left."""
    unpaid = [(ceiling, cost) for ceiling, cost in charged if not ceiling.pays(cost)]
    if unpaid:
        ceiling, cost = min(unpaid, key=lambda one: one[0].left.loss)
        raise cannot_pay(ceiling.called, cost, ceiling.left, ceiling.terms, ceiling.remedy)


def _below(allotment: Allotment) -> RefusedError:
    asked, counted = to_amount(allotment.total, allotment.terms), to_amount(allotment.counted, allotment.terms)
    return RefusedError(
        f"{allotment.called} would be less than what its analysts were granted already, {show(counted)}; give at "
        "least that, or close streams that did not use theirs up",
        asked,
        counted,
    )
