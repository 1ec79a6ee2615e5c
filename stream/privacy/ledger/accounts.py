"""Accounts of sources and populations: their budgets, allotments and ledger records.

A budget that renews has periods of equal length from its start. All sums are sums of the grants' amounts, so
a restore computes them again from the grants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from schemas import (
    FIRST_VERSION,
    AllotmentRecord,
    GrantRecord,
    LedgerRecord,
    Period,
    Population,
    PopulationRecord,
    Source,
    SourceRecord,
)
from stream.privacy.composition.costs import (
    NO_COST,
    BudgetTerms,
    Cost,
    RefusedError,
    can_pay,
    format_amount,
    spent_amount,
    to_amount,
    total_budget,
)
from stream.privacy.ledger.grants import Allotment, AllottedTerms, Ceiling, Claim, Grant, GrantAmounts
from stream.privacy.ledger.retirement import RetiredGrants
from stream.privacy.planning.promises import describe_promise, period_length_ms

CountedGrant = Grant | RetiredGrants
"""The holder of claims on budgets: one grant, or the sums of retired grants."""


@dataclass(slots=True)
class Budget(Ceiling):
    """The budget of a source or population.

    ``period_number`` counts periods from 1; it is 0 if the budget never renews. ``start_ms`` is the start of
    the current period, in milliseconds since 1970.
    """

    period_number: int = 0
    start_ms: int = 0
    allotments: dict[str, Allotment] = field(default_factory=dict)

    @classmethod
    def create(cls, label: str, terms: BudgetTerms, starts: int) -> Budget:
        """Create an unused budget; if it renews, its first period begins at ``starts`` (ms since 1970)."""
        budget = cls(label, terms, total_budget(terms))
        if terms.renews is not None:
            budget.period_number, budget.start_ms = 1, starts
        return budget

    @property
    def end_ms(self) -> int | None:
        """End of the current period, in milliseconds since 1970; None if the budget never renews."""
        return self.start_ms + period_length_ms(self.terms.renews) if self.period_number else None

    def period_record(self, ceiling: Ceiling) -> Period | None:
        """Build the record of the current period for the budget or one of its allotments."""
        ends = self.end_ms
        if ends is None:
            return None
        return Period(
            number=self.period_number,
            starts=self.start_ms,
            ends=ends,
            counted=to_amount(ceiling.counted, ceiling.terms),
            meaning=describe_promise(ceiling.terms, self.period_number),
        )

    def new_claim(self) -> Claim:
        """Create the claim of a new grant."""
        return Claim(self.terms.accountant, period=self.period_number)

    def allotments_of(self, analyst: str | None) -> list[Allotment]:
        """Return the allotments of an analyst and of the analyst's teams."""
        return [one for one in self.allotments.values() if analyst is not None and analyst in one.analysts]

    def ceilings(self, analyst: str | None) -> Iterator[Ceiling]:
        """Yield the budget and the allotments that an analyst's grants count against."""
        yield self
        yield from self.allotments_of(analyst)

    def ceilings_to_charge(self, analyst: str | None, cost: Cost) -> list[tuple[Ceiling, Cost]]:
        """Return the ceilings that an analyst's grant counts against, each with the grant's cost.

        RefusedError if the budget has allotments and the analyst has none.
        """
        if analyst is not None and self.allotments and not self.allotments_of(analyst):
            raise RefusedError(
                f"analyst '{analyst}' has no allotment on {self.label}, which is allotted to others; ask for an allotment"
            )
        return [(ceiling, cost) for ceiling in self.ceilings(analyst)]

    def replace_amounts_of(
        self, analyst: str | None, before: GrantAmounts, after: GrantAmounts, streams: int = 0
    ) -> None:
        """Replace the amounts of an analyst's grant in all its ceilings."""
        for ceiling in self.ceilings(analyst):
            ceiling.replace_amounts(before, after, streams)

    def period_is_over(self, now_ms: int) -> bool:
        """Return True if the period has ended at ``now_ms``."""
        return (ends := self.end_ms) is not None and now_ms >= ends

    def begin_period(self, now_ms: int, claims: Iterable[tuple[CountedGrant, Claim]]) -> None:
        """Begin the period that contains ``now_ms``, and record each stream's totals in its claim."""
        length = period_length_ms(self.terms.renews)
        periods = (now_ms - self.start_ms) // length
        self.period_number, self.start_ms = self.period_number + periods, self.start_ms + periods * length
        for ceiling in (self, *self.allotments.values()):
            ceiling.counted = NO_COST
        for grant, claim in claims:
            claim.period, claim.start_totals = self.period_number, grant.totals
            claim.counted = grant.counted_amount(claim)
            if claim.counted != NO_COST:
                for ceiling in self.ceilings(grant.analyst):
                    ceiling.counted += claim.counted

    def allot(
        self,
        name: str,
        analysts: Iterable[str],
        amount: tuple[float, float | None],
        claims: Iterable[tuple[CountedGrant, Claim]],
    ) -> Allotment:
        """Create or change an allotment; refuse an amount below the grants that already count against it.

        Without ``analysts``, a changed allotment keeps those that it has.
        """
        epsilon, delta = amount
        terms = AllottedTerms(
            epsilon, self.terms.delta if delta is None else delta, self.terms.accountant, self.terms.renews
        )
        if terms.accountant == "zcdp" and terms.delta <= 0.0:
            raise RefusedError(
                f"delta: must be above 0 on {self.label}, whose accountant is zcdp; give a larger delta, or leave it out"
            )
        label = f"allotment '{name}' on {self.label}"
        earlier = self.allotments.get(name)
        members = tuple(sorted(set(analysts))) or ((name,) if earlier is None else earlier.analysts)
        allotment = Allotment(label, terms, total_budget(terms), name=name, analysts=members)
        for grant, claim in claims:
            if grant.analyst in members:
                allotment.replace_amounts(GrantAmounts(), claim.amounts, grant.streams)
        if not can_pay(allotment.counted, allotment.total, terms.accountant):
            asked, counted = to_amount(allotment.total, terms), to_amount(allotment.counted, terms)
            raise RefusedError(
                f"{label} would be smaller than its analysts' present grants, {format_amount(counted)}; give at least that, or "
                "close streams that have not used up their grants",
                asked,
                counted,
            )
        self.allotments[name] = allotment
        return allotment


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

    def claims(self) -> Iterator[tuple[CountedGrant, Claim]]:
        """Yield the grants of the population's sources, each with its claim on the shared budget."""
        for account in self.members.values():
            for grant in account.counted_grants():
                if grant.population_claim is not None:
                    yield grant, grant.population_claim

    def to_record(self) -> PopulationRecord:
        """Build the population's ledger record."""
        return PopulationRecord(
            population=self.population,
            state=self.state,
            reason=self.reason,
            **self.budget.amounts(),
            sources=len(self.members),
            streams=self.budget.streams,
            period=self.budget.period_record(self.budget),
        )


@dataclass(slots=True)
class Account:
    """A source, or one period of a source, with its budget and its grants."""

    source: Source
    fingerprint: str | None
    budget: Budget
    state: Literal["open", "halted"] = "open"
    reason: str | None = None
    population: PopulationAccount | None = None
    grants: dict[str, Grant] = field(default_factory=dict)
    retired: dict[str | None, RetiredGrants] = field(default_factory=dict)
    """The sums of retired grants of each analyst."""
    totals_recorded_ms: int | None = None
    """Time at which the audit trail last recorded the budget's totals; None if it never did."""
    has_unrecorded_spending: bool = False
    """True if streams have spent since ``totals_recorded_ms``."""
    version: int = FIRST_VERSION

    @property
    def name(self) -> str:
        """The registered name."""
        return self.source.source

    def claims(self) -> Iterator[tuple[CountedGrant, Claim]]:
        """Yield all grants of the source, each with its claim on the source's budget."""
        for grant in self.counted_grants():
            yield grant, grant.claim

    def counted_grants(self) -> Iterator[CountedGrant]:
        """Yield all grants, then the sums of retired grants."""
        yield from self.grants.values()
        yield from self.retired.values()

    @property
    def streams(self) -> int:
        """The number of streams ever opened."""
        return sum(grant.streams for grant in self.retired.values()) + len(self.grants)

    def retired_grants(self, analyst: str | None) -> RetiredGrants:
        """Return the sums of an analyst's retired grants; create them if there are none."""
        if analyst not in self.retired:
            population_claim = None if self.population is None else self.population.budget.new_claim()
            self.retired[analyst] = RetiredGrants.create(analyst, self.budget.new_claim(), population_claim)
        return self.retired[analyst]

    def budgets(self, grant: CountedGrant) -> Iterator[tuple[Budget, Claim]]:
        """Yield the budgets that a grant counts against, each with the grant's claim on it."""
        yield self.budget, grant.claim
        if self.population is not None and grant.population_claim is not None:
            yield self.population.budget, grant.population_claim

    def to_record(self) -> SourceRecord:
        """Build the source's ledger record."""
        return SourceRecord(
            source=self.source,
            fingerprint=self.fingerprint,
            state=self.state,
            reason=self.reason,
            **self.budget.amounts(),
            streams=self.streams,
            noted=self.totals_recorded_ms,
            unnoted=self.has_unrecorded_spending,
            population=None if self.population is None else self.population.name,
            period=self.budget.period_record(self.budget),
            version=self.version,
        )

    def grant_record(self, grant: Grant) -> GrantRecord:
        """Build a grant's ledger record."""
        spec, identity = grant.decode_opening()
        grant.decoded = None
        return GrantRecord(
            spec=spec,
            calibration=grant.calibration,
            identity=identity,
            state=grant.state,
            ending=grant.ending,
            settled=grant.settled,
            reason=grant.reason,
            cost=to_amount(grant.claim.cost, self.source),
            spent=spent_amount(grant.claim.spent, grant.claim.cost, self.source),
            refunded=to_amount(grant.claim.refunded, self.source),
            answered=grant.answered,
            tops=grant.tops,
            surplus=grant.surplus,
            extensions=grant.extensions,
            lost=grant.lost,
            analyst=grant.analyst,
            standing=grant.claim.grant_period,
            population_standing=None if grant.population_claim is None else grant.population_claim.grant_period,
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
        period=owner.budget.period_record(allotment),
    )


Change = tuple[str, bytes, LedgerRecord | None]
"""One ledger write: name of the source or population, key, and record; None deletes the key."""


class Changes:
    """Collects the sources, populations, allotments and grants that have changed, each once."""

    def __init__(self) -> None:
        self._changed_records: dict[str, tuple[int, str, Callable[[], LedgerRecord | None]]] = {}

    def mark_grant_changed(self, account: Account, grant: Grant) -> None:
        """Mark a grant, its account, its population and its allotments as changed."""
        record = partial(account.grant_record, grant)
        self._changed_records[f"grant|{account.name}|{grant.stream}"] = (3, account.name, record)
        for owner in (account, account.population):
            if owner is not None:
                self.mark_changed(owner, owner.budget.allotments_of(grant.analyst))

    def mark_changed(self, owner: Account | PopulationAccount, allotments: list[Allotment] | None = None) -> None:
        """Mark a source or population as changed, with the given allotments or, by default, all of them."""
        rank, kind = (0, "source") if isinstance(owner, Account) else (1, "population")
        self._changed_records[f"{kind}|{owner.name}"] = (rank, owner.name, owner.to_record)
        for allotment in owner.budget.allotments.values() if allotments is None else allotments:
            record = partial(_allotment_record, owner, allotment)
            self._changed_records[f"allotment|{kind}|{owner.name}|{allotment.name}"] = (2, owner.name, record)

    def mark_retired(self, account: Account, retired: RetiredGrants, stream: str | None = None) -> None:
        """Mark sums of retired grants as changed, and the record of a retired stream as deleted."""
        key = f"retired|{account.name}|{retired.analyst or ''}"
        self._changed_records[key] = (2, account.name, partial(retired.to_record, account.name))
        if stream is not None:
            self._mark_deleted(account.name, f"grant|{account.name}|{stream}")

    def mark_account_deleted(self, account: Account) -> None:
        """Mark the records of an account and of its retired grants as deleted."""
        for key in (f"source|{account.name}", *(f"retired|{account.name}|{one or ''}" for one in account.retired)):
            self._mark_deleted(account.name, key)

    def _mark_deleted(self, name: str, key: str) -> None:
        self._changed_records[key] = (3, name, lambda: None)

    def drain_records(self) -> Iterator[Change]:
        """Yield the records of all changes, grants last, and forget the changes."""
        noted, self._changed_records = self._changed_records, {}
        for key, (_, name, record) in sorted(noted.items(), key=lambda change: change[1][0]):
            yield name, key.encode(), record()


def update_claims(account: Account, grant: Grant, change: Callable[[Claim], None]) -> None:
    """Apply ``change`` to each claim of a grant, and update the sums of the claim's budget."""
    for budget, claim in account.budgets(grant):
        before = claim.amounts
        change(claim)
        budget.replace_amounts_of(grant.analyst, before, claim.amounts)


def require_open(owner: Account | PopulationAccount) -> None:
    """Refuse a request to a halted source or population, or to a source whose population is halted."""
    if owner.state == "halted":
        kind = "source" if isinstance(owner, Account) else "population"
        raise RefusedError(f"{kind} '{owner.name}' is halted: {owner.reason}")
    if isinstance(owner, Account) and owner.population is not None:
        require_open(owner.population)


def require_neighbors(account: Account, population: PopulationAccount) -> None:
    """Refuse a source whose neighbor relation differs from the population's."""
    other = next(
        (one for one in population.members.values() if one.source.neighbors != account.source.neighbors), None
    )
    if other is not None:
        raise RefusedError(
            f"neighbors: source '{account.name}' has '{account.source.neighbors}', but source '{other.name}' of population "
            f"'{population.name}' has '{other.source.neighbors}', and losses of different neighbor relations do not add up; "
            "choose another population"
        )
