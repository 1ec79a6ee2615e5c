"""Restores the ledger from its compacted records, and refreshes sources with new tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from schemas import (
    AllotmentRecord,
    Calibration,
    EventsSource,
    GrantRecord,
    LedgerRecord,
    Period,
    PopulationRecord,
    SourceRecord,
    Standing,
)
from stream.privacy.composition.costs import BudgetTerms
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.ledger.accounts import Account, Budget, PopulationAccount
from stream.privacy.ledger.grants import Claim, Grant
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.planning.prices import are_uneven


def restore(ledger: Ledger, records: Iterable[LedgerRecord]) -> None:
    """Fill an empty ledger from the last record of each key; budgets are summed from the grants."""
    latest: dict[tuple[str | None, ...], LedgerRecord] = {}
    of_a_period: dict[str, EventsSource] = {}
    for record in records:
        latest[_key(record)] = _sharing(record, of_a_period)
    for one in latest.values():
        if isinstance(one, PopulationRecord):
            called = f"population '{one.population.population}'"
            budget = _budget(called, one.population, one.period)
            ledger.add(PopulationAccount(one.population, budget, one.state, one.reason))
    for one in latest.values():
        if isinstance(one, SourceRecord):
            _restore_source(ledger, one)
    for one in latest.values():
        if isinstance(one, AllotmentRecord):
            owner = ledger.people(one.population) if one.population else ledger.account(one.source or "")
            owner.budget.allot(one.allotment, one.analysts, (one.epsilon, one.delta), ())
    # Most streams have equal plans: share one object.
    plans: dict[Calibration, Calibration] = {}
    for one in latest.values():
        if isinstance(one, GrantRecord):
            _restore_grant(ledger, one, plans.setdefault(one.calibration, one.calibration))


def _key(record: LedgerRecord) -> tuple[str | None, ...]:
    match record:
        case SourceRecord():
            return "source", record.source.source
        case PopulationRecord():
            return "population", record.population.population
        case AllotmentRecord():
            return "allotment", record.source, record.population, record.allotment
        case GrantRecord():
            return "grant", record.spec.stream
    return (None,)


def _budget(called: str, terms: BudgetTerms, period: Period | None) -> Budget:
    budget = Budget.create(called, terms, 0)
    if period is not None:
        budget.number, budget.starts = period.number, period.starts
    return budget


def _sharing(record: LedgerRecord, of_a_period: dict[str, EventsSource]) -> LedgerRecord:
    """Let the accounts of a source's periods share one object of attributes, to save memory."""
    source = record.source if isinstance(record, SourceRecord) else None
    if not isinstance(source, EventsSource) or source.period_of is None:
        return record
    shared = source.sharing(of_a_period.setdefault(source.period_of, source))
    return record if shared is source else record.model_copy(update={"source": shared})


def _restore_source(ledger: Ledger, record: SourceRecord) -> None:
    budget = _budget(f"source '{record.source.source}'", record.source, record.period)
    account = Account(record.source, record.fingerprint, budget, record.state, record.reason)
    account.noted, account.unnoted, account.version = record.noted, record.unnoted, record.version
    ledger.add(account)
    if record.population is not None:
        account.people = ledger.people(record.population)
        account.people.members[account.name] = account


def _restore_grant(ledger: Ledger, record: GrantRecord, calibration: Calibration) -> None:
    account = ledger.accounts[record.spec.source]
    grant = Grant(
        spec=record.spec,
        calibration=calibration,
        identity=record.identity,
        claim=account.budget.claim(),
        shared=None if account.people is None else account.people.budget.claim(),
        uneven=are_uneven(account.source, record.spec.mechanism, calibration),
        analyst=record.analyst,
        state=record.state,
        ending=record.ending,
        settled=record.settled,
        reason=record.reason,
        answered=record.answered,
        tops=record.tops,
        surplus=record.surplus,
        extensions=record.extensions,
        lost=record.lost,
    )
    _restore_claim(grant, grant.claim, record.standing)
    if grant.shared is not None:
        _restore_claim(grant, grant.shared, record.population_standing)
    account.grants[record.spec.stream] = grant
    ledger.owner_of[record.spec.stream] = record.spec.source
    ledger.count(account, grant)


def _restore_claim(grant: Grant, claim: Claim, standing: Standing | None) -> None:
    """Restore the stream's totals at the start of the current period, and its amounts.

    If the record is older than the period, the stream has not changed since: its totals are those.
    """
    if standing is not None:
        claim.edge = standing.totals if standing.period == claim.period else grant.totals
    grant.price(claim)


_MEASURED: Final = "its measurements and its promise are"
_RELEASED: Final = "its release is"
KEPT_OF_A_VERSION: Final = {
    "pmw": _MEASURED,
    "sparse_pmw": _MEASURED,
    "histogram": _RELEASED,
    "lazy_histogram": _RELEASED,
    "sparse_project": _RELEASED,
}
"""The mechanisms that keep results of the data; their noise must never be added to other data.

All others draw new noise for each question and answer from the current version (docs/tables.md,
"New versions").
"""


def require_refreshable(account: Account) -> None:
    """Raise RefusedError if the source cannot get a new table."""
    if account.source.kind == "events":
        raise RefusedError(
            f"source: '{account.name}' is a live topic, which feeds read continuously; there is nothing to refresh"
        )
    if account.source.kind != "table":
        raise RefusedError(
            f"source: '{account.name}' has no table, its questions carry the values; there is nothing to refresh"
        )
    if account.state == "halted":
        raise RefusedError(f"source '{account.name}' is halted: {account.reason}")


def refresh(ledger: Ledger, account: Account, fingerprint: str, *, close: bool) -> list[Grant]:
    """Start the source's next version; return the grants whose workers must be notified.

    Streams whose mechanism keeps results of the old version are closed, even if exhausted, because
    they could be extended; with ``close`` all streams are. A stream that is ending is skipped.
    """
    account.version, account.fingerprint = account.version + 1, fingerprint
    ledger.note(account)
    notified = []
    for name, grant in account.grants.items():
        if grant.ending is not None:
            continue
        kept = KEPT_OF_A_VERSION.get(grant.spec.mechanism.kind)
        if kept is not None or close:
            why = ", as asked" if kept is None else f"; {kept} of version {account.version - 1}"
            ended = ledger.end(
                account.name, name, "closed", f"closed by the refresh to version {account.version}{why}"
            )
            notified += [grant] if ended else []
        elif grant.state == "open":
            notified.append(grant)
    return notified
