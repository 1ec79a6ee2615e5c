"""Budgets: a total and what counts against it, with the parts of it that are allotted to analysts.

A budget that renews counts by periods, whose edges lie at whole lengths after its beginning. Nothing is added up but figures of
grants, so that all sums can be had again from these.
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
    """What records of the ledger show of a budget."""

    granted: Amount
    spent: Amount
    refunded: Amount
    left: Amount


@dataclass(slots=True)
class Ceiling:
    """A total, and the sums of the grants that count against it; ``called`` is its name in a sentence."""

    called: str
    terms: BudgetTerms
    total: Cost
    granted: Cost = NOTHING
    spent: Cost = NOTHING
    refunded: Cost = NOTHING
    counted: Cost = NOTHING
    streams: int = 0

    @property
    def left(self) -> Cost:
        """What may still be granted; under ``zcdp`` one of ε and ρ may be overdrawn, for the other holds.

        Below 0 in ``unbounded`` while streams with Gaussian noise are counted: then ρ alone may be granted.
        """
        return self.total - self.counted

    def pays(self, cost: Cost) -> bool:
        """Whether what is left pays for a cost."""
        return fits(cost, self.left, self.terms.accountant)

    @property
    def remedy(self) -> str:
        """What else a refusal can advise."""
        return ""

    def change(self, before: tuple[Cost, ...], after: tuple[Cost, ...], streams: int = 0) -> None:
        """Take a grant's new figures in place of its old ones."""
        self.granted += after[0] - before[0]
        self.spent += after[1] - before[1]
        self.refunded += after[2] - before[2]
        self.counted += after[3] - before[3]
        self.streams += streams

    def amounts(self) -> Sums:
        """The sums as records of the ledger show them."""
        return Sums(
            granted=to_amount(self.granted, self.terms),
            spent=to_amount(self.spent, self.terms),
            refunded=to_amount(self.refunded, self.terms),
            left=to_amount(self.left.at_least_nothing(), self.terms),
        )


@dataclass(frozen=True, slots=True)
class AllottedTerms:
    """What an allotment is made of; its accountant and its periods are the budget's."""

    epsilon: float
    delta: float
    accountant: str
    renews: str | None


@dataclass(slots=True)
class Allotment(Ceiling):
    """The part of a budget that some analysts share."""

    name: str = ""
    analysts: tuple[str, ...] = ()

    @property
    def remedy(self) -> str:
        """What else a refusal can advise."""
        return "have it raised, "


@dataclass(slots=True)
class Budget(Ceiling):
    """The budget of a source or a population. ``number`` is that of its period, 0 where it does not renew."""

    number: int = 0
    starts: int = 0
    allotments: dict[str, Allotment] = field(default_factory=dict)

    @classmethod
    def of(cls, called: str, terms: BudgetTerms, starts: int) -> Budget:
        """A budget that nothing counts against yet; its first period, if it has any, starts then."""
        budget = cls(called, terms, total_budget(terms))
        if terms.renews is not None:
            budget.number, budget.starts = 1, starts
        return budget

    @property
    def ends(self) -> int | None:
        """When its period ends, if it does."""
        return self.starts + length_ms(self.terms.renews) if self.number else None

    def period(self, of: Ceiling) -> Period | None:
        """The period as records show it: of the budget itself, or of an allotment of it."""
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
        """A new grant's part in it."""
        return Claim(self.terms.accountant, period=self.number)

    def allotted(self, analyst: str | None) -> list[Allotment]:
        """The allotments that an analyst's grants count against, their own and those of their teams."""
        return [one for one in self.allotments.values() if analyst is not None and analyst in one.analysts]

    def ceilings(self, analyst: str | None) -> Iterator[Ceiling]:
        """Whatever an analyst's grants count against here."""
        yield self
        yield from self.allotted(analyst)

    def charged(self, analyst: str | None, cost: Cost) -> list[tuple[Ceiling, Cost]]:
        """List what would pay a cost; RefusedError for analysts without an allotment where there are any."""
        if analyst is not None and self.allotments and not self.allotted(analyst):
            raise RefusedError(
                f"analyst '{analyst}' has no allotment on {self.called}, where others have; have one allotted"
            )
        return [(ceiling, cost) for ceiling in self.ceilings(analyst)]

    def change_for(
        self, analyst: str | None, before: tuple[Cost, ...], after: tuple[Cost, ...], streams: int = 0
    ) -> None:
        """Take an analyst's grant's new figures in place of its old ones, wherever it counts."""
        for ceiling in self.ceilings(analyst):
            ceiling.change(before, after, streams)

    def is_over(self, clock: int) -> bool:
        """Whether its period has ended by then."""
        return (ends := self.ends) is not None and clock >= ends

    def turn(self, clock: int, claims: Iterable[tuple[Grant, Claim]]) -> None:
        """Begin the period that it is in by then. All grants are told their totals at the edge, and count anew."""
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
        """Let analysts have a part, or change it; RefusedError below what counts against it already."""
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
    """Refuse costs that one of the ceilings cannot pay: in the name of the one with the least left, which all can pay."""
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
