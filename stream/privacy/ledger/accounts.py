"""Accounts of sources and populations: their budgets, allotments and ledger records.

A budget that renews has periods of equal length from its start. All sums are sums of the grants'
amounts, so that a restore can compute them from the grants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypedDict

from schemas import (
    FIRST_VERSION,
    AllotmentRecord,
    Amount,
    GrantRecord,
    LedgerRecord,
    Period,
    Population,
    PopulationRecord,
    Source,
    SourceRecord,
)
from stream.privacy.composition.costs import (
    NOTHING,
    BudgetTerms,
    Cost,
    fits,
    spent_amount,
    to_amount,
    total_budget,
)
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


@dataclass(slots=True)
class PopulationAccount:
    """A population with its budget and its sources."""

    population: Population
    budget: Budget
    state: Literal["open", "halted"] = "open"
    reason: str | None = None
    members: dict[str, Account] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The registered name."""
        return self.population.population

    def claims(self) -> Iterator[tuple[Grant, Claim]]:
        """Yield the grants of all its sources, each with its claim on the population's budget."""
        for account in self.members.values():
            for grant in account.grants.values():
                if grant.shared is not None:
                    yield grant, grant.shared

    def record(self) -> PopulationRecord:
        """Build the population's ledger record."""
        return PopulationRecord(
            population=self.population,
            state=self.state,
            reason=self.reason,
            **self.budget.amounts(),
            sources=len(self.members),
            streams=self.budget.streams,
            period=self.budget.period(self.budget),
        )


@dataclass(slots=True)
class Account:
    """A source with its budget and its grants."""

    source: Source
    fingerprint: str | None
    budget: Budget
    state: Literal["open", "halted"] = "open"
    reason: str | None = None
    people: PopulationAccount | None = None
    grants: dict[str, Grant] = field(default_factory=dict)
    noted: int | None = None
    """Time at which the audit trail last recorded these totals."""
    unnoted: bool = False  # spent since ``noted``
    version: int = FIRST_VERSION

    @property
    def name(self) -> str:
        """The registered name."""
        return self.source.source

    def claims(self) -> Iterator[tuple[Grant, Claim]]:
        """Yield all grants of the source, each with its claim on the source's budget."""
        for grant in self.grants.values():
            yield grant, grant.claim

    def budgets(self, grant: Grant) -> Iterator[tuple[Budget, Claim]]:
        """Yield the budgets of a grant, each with the grant's claim on it."""
        yield self.budget, grant.claim
        if self.people is not None and grant.shared is not None:
            yield self.people.budget, grant.shared

    def record(self) -> SourceRecord:
        """Build the source's ledger record."""
        return SourceRecord(
            source=self.source,
            fingerprint=self.fingerprint,
            state=self.state,
            reason=self.reason,
            **self.budget.amounts(),
            streams=len(self.grants),
            noted=self.noted,
            unnoted=self.unnoted,
            population=None if self.people is None else self.people.name,
            period=self.budget.period(self.budget),
            version=self.version,
        )

    def grant_record(self, grant: Grant) -> GrantRecord:
        """Build a grant's ledger record."""
        return GrantRecord(
            spec=grant.spec,
            calibration=grant.calibration,
            identity=grant.identity,
            state=grant.state,
            ending=grant.ending,
            settled=grant.settled,
            reason=grant.reason,
            cost=to_amount(grant.cost, self.source),
            spent=spent_amount(grant.spent, grant.cost, self.source),
            refunded=to_amount(grant.refunded, self.source),
            answered=grant.answered,
            tops=grant.tops,
            surplus=grant.surplus,
            extensions=grant.extensions,
            lost=grant.lost,
            analyst=grant.analyst,
            standing=grant.claim.standing,
            population_standing=None if grant.shared is None else grant.shared.standing,
        )


def _allotment_record(owner: Account | PopulationAccount, allotment: Allotment) -> AllotmentRecord:
    is_source = isinstance(owner, Account)
    return AllotmentRecord(
        allotment=allotment.name,
        source=owner.name if is_source else None,
        population=None if is_source else owner.name,
        analysts=allotment.analysts,
        epsilon=allotment.terms.epsilon,
        delta=allotment.terms.delta,
        **allotment.amounts(),
        streams=allotment.streams,
        period=owner.budget.period(allotment),
    )


Change = tuple[str, bytes, LedgerRecord]
"""One ledger entry: name of the source or population, key, record. A key's last record counts."""


class Changes:
    """Collects changed sources, populations, allotments and grants, each once, in this order."""

    def __init__(self) -> None:
        self._noted: dict[str, tuple[int, str, Callable[[], LedgerRecord]]] = {}

    def note_grant(self, account: Account, grant: Grant) -> None:
        """Mark a grant, its account, its population and its allotments as changed."""
        record = partial(account.grant_record, grant)
        self._noted[f"grant|{account.name}|{grant.spec.stream}"] = (3, account.name, record)
        for owner in (account, account.people):
            if owner is not None:
                self.note(owner, owner.budget.allotted(grant.analyst))

    def note(self, owner: Account | PopulationAccount, allotments: list[Allotment] | None = None) -> None:
        """Mark a source or population as changed, with the given allotments (default: all)."""
        place, kind = (0, "source") if isinstance(owner, Account) else (1, "population")
        self._noted[f"{kind}|{owner.name}"] = (place, owner.name, owner.record)
        for allotment in owner.budget.allotments.values() if allotments is None else allotments:
            record = partial(_allotment_record, owner, allotment)
            self._noted[f"allotment|{kind}|{owner.name}|{allotment.name}"] = (2, owner.name, record)

    def drain(self) -> Iterator[Change]:
        """Yield the records of all changes and forget them."""
        noted, self._noted = self._noted, {}
        for key, (_, name, record) in sorted(noted.items(), key=lambda change: change[1][0]):
            yield name, key.encode(), record()
