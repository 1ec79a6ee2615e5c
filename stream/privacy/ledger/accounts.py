"""Accounts of sources and populations, and the ledger records that are built from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from schemas import (
    FIRST_VERSION,
    AllotmentRecord,
    GrantRecord,
    LedgerRecord,
    Population,
    PopulationRecord,
    Source,
    SourceRecord,
)
from stream.privacy.composition.costs import spent_amount, to_amount
from stream.privacy.ledger.grants import Claim, Grant
from stream.privacy.ledger.shared_budgets import Allotment, Budget


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
