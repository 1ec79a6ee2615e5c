"""Restores the ledger from its records, refreshes tables of sources, and retires ended streams."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

from schemas import (
    AllotmentRecord,
    Calibration,
    EventsSource,
    GrantPeriod,
    GrantRecord,
    LedgerRecord,
    Period,
    PopulationRecord,
    RetiredNames,
    RetiredTotals,
    SourceRecord,
    moment_ms,
    split_period_name,
)
from stream.privacy.composition.costs import BudgetTerms, RefusedError
from stream.privacy.composition.losses import may_have_uneven_prices
from stream.privacy.ledger.accounts import Account, Budget, PopulationAccount
from stream.privacy.ledger.grants import Claim, Grant
from stream.privacy.ledger.state_machine import Ledger

_RESTORE_RANKS: Final[dict[type[object], int]] = {PopulationRecord: 0, SourceRecord: 1, AllotmentRecord: 2}
"""The order in which records are restored, because records refer to records of lower ranks; all others are last."""


def restore_ledger(
    ledger: Ledger, records: Iterable[LedgerRecord], further_grants: Iterable[GrantRecord] = ()
) -> None:
    """Fill an empty ledger from the last record of each key; budgets are sums over the grants.

    ``further_grants`` have other keys than ``records``. They are read one by one, so that they need not be in
    memory together.
    """
    source_by_parent: dict[str, EventsSource] = {}
    # Streams with equal calibrations share one object, because most calibrations are equal.
    plans: dict[Calibration, Calibration] = {}
    listed = [_share_attributes(record, source_by_parent) for record in records]
    listed.sort(key=lambda one: _RESTORE_RANKS.get(type(one), len(_RESTORE_RANKS)))
    for record in chain(listed, further_grants):
        match record:
            case PopulationRecord(population=population):
                budget = _restore_budget(f"population '{population.population}'", population, record.period)
                ledger.add_owner(PopulationAccount(population, budget, record.state, record.reason))
            case SourceRecord():
                _restore_source(ledger, record)
            case AllotmentRecord():
                name, source = record.population, record.source or ""
                owner = ledger.population_account(name) if name else ledger.account(source)
                owner.budget.allot(record.allotment, record.analysts, (record.epsilon, record.delta), ())
            case RetiredNames():
                ledger.retired_names.restore(record)
            case RetiredTotals():
                account = ledger.accounts[record.source]
                retired = account.retired_grants(record.analyst)
                retired.restore(record)
                ledger.add_to_budgets(account, retired)
            case GrantRecord():
                _restore_grant(ledger, record, plans.setdefault(record.calibration, record.calibration))


def _restore_budget(label: str, terms: BudgetTerms, period: Period | None) -> Budget:
    budget = Budget.create(label, terms, 0)
    if period is not None:
        budget.period_number, budget.start_ms = period.number, period.starts
    return budget


def _share_attributes(record: LedgerRecord, source_by_parent: dict[str, EventsSource]) -> LedgerRecord:
    """Make the accounts of a source's periods share one object for the attributes, to save memory."""
    source = record.source if isinstance(record, SourceRecord) else None
    if not isinstance(source, EventsSource) or source.period_of is None:
        return record
    shared = source.with_shared_attributes(source_by_parent.setdefault(source.period_of, source))
    return record if shared is source else record.model_copy(update={"source": shared})


def _restore_source(ledger: Ledger, record: SourceRecord) -> None:
    budget = _restore_budget(f"source '{record.source.source}'", record.source, record.period)
    account = Account(
        record.source, record.fingerprint, budget, record.state, record.reason, version=record.version
    )
    account.totals_recorded_ms, account.has_unrecorded_spending = record.noted, record.unnoted
    ledger.add_owner(account)
    if record.population is not None:
        account.population = ledger.population_account(record.population)
        account.population.members[account.name] = account


def _restore_grant(ledger: Ledger, record: GrantRecord, calibration: Calibration) -> None:
    account = ledger.accounts[record.spec.source]
    grant = Grant.create(
        record.spec,
        record.identity,
        calibration,
        account.budget.new_claim(),
        population_claim=None if account.population is None else account.population.budget.new_claim(),
        has_uneven_prices=may_have_uneven_prices(account.source, record.spec.mechanism, calibration),
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
    if grant.population_claim is not None:
        _restore_claim(grant, grant.population_claim, record.population_standing)
    account.grants[grant.stream] = grant
    ledger.source_of_stream[grant.stream] = account.name
    ledger.add_to_budgets(account, grant)


def _restore_claim(grant: Grant, claim: Claim, last_change: GrantPeriod | None) -> None:
    """Restore the amounts of a stream in a budget, and its totals at the start of the budget's period.

    If the stream last changed in an earlier period, it began the current period with its present totals.
    """
    if last_change is not None:
        claim.start_totals = last_change.totals if last_change.period == claim.period else grant.totals
    grant.price_claim(claim)


_KEPT_MEASUREMENTS: Final = "its measurements and its promise are"
_KEPT_RELEASE: Final = "its release is"
RESULTS_KEPT_BY_MECHANISM: Final = {
    "pmw": _KEPT_MEASUREMENTS,
    "sparse_pmw": _KEPT_MEASUREMENTS,
    "histogram": _KEPT_RELEASE,
    "lazy_histogram": _KEPT_RELEASE,
    "sparse_project": _KEPT_RELEASE,
}
"""The first words of a text about the results that a mechanism keeps from one version of the data.

The noise of these mechanisms must never be added to another version of the data. All other mechanisms draw
new noise for each question and answer from the current version (docs/tables.md, "New versions").
"""


def require_refreshable(account: Account) -> None:
    """Raise RefusedError if the source cannot get a new table."""
    if account.source.kind == "events":
        raise RefusedError(
            f"source: '{account.name}' is a live topic, which feeds read continuously; only tables can be refreshed"
        )
    if account.source.kind != "table":
        raise RefusedError(
            f"source: '{account.name}' has no table, because producers send its values; only tables can be refreshed"
        )
    if account.state == "halted":
        raise RefusedError(f"source '{account.name}' is halted: {account.reason}")


def refresh_source(ledger: Ledger, account: Account, fingerprint: str, *, close: bool) -> list[Grant]:
    """Begin a new version of the source's data; return the grants whose workers must be notified.

    Streams whose mechanism keeps results of the old version are closed, also if they are exhausted, because
    they could be extended. With ``close`` all streams are closed. A stream that is ending is skipped.
    """
    account.version, account.fingerprint = account.version + 1, fingerprint
    ledger.changes.mark_changed(account, [])
    notified = []
    for name, grant in account.grants.items():
        if grant.ending is not None:
            continue
        kept_results = RESULTS_KEPT_BY_MECHANISM.get(grant.spec.mechanism.kind)
        if kept_results is not None or close:
            why = ", as asked" if kept_results is None else f"; {kept_results} of version {account.version - 1}"
            ended = ledger.end_stream(
                account.name, name, "closed", f"closed by the refresh to version {account.version}{why}"
            )
            notified += [grant] if ended else []
        elif grant.state == "open":
            notified.append(grant)
    return notified


def restore_ends(ledger: Ledger, ends: Iterable[tuple[str, str, int]]) -> None:
    """Load the ends of streams: source, name, and the time of the last ledger record in ms."""
    for source, stream, ended in sorted(ends, key=lambda one: one[2]):
        ledger.ended_streams.update(source, ledger.accounts[source].grants[stream], ended)


def retire_stream(ledger: Ledger, source: str, stream: str) -> None:
    """Replace an ended stream by the digest of its name; its amounts stay in all sums.

    The sums of all budgets stay the same, and so do later decisions. If the stream is halted, it can no
    longer be closed and refunded.
    """
    account = ledger.accounts[source]
    grant = account.grants.pop(stream)
    retired = account.retired_grants(grant.analyst)
    retired.add(grant)
    del ledger.source_of_stream[stream]
    ledger.ended_streams.remove(stream)
    names = ledger.retired_names
    names.add("stream", stream)
    if (named := split_period_name(stream)) is not None and not names.has("periods", named[0]):
        names.add("periods", named[0])
    ledger.changes.mark_retired(account, retired, stream)


def retire_periods(ledger: Ledger, over_by: int) -> None:
    """Retire the accounts of periods that ended at ``over_by`` (ms) or before and have no streams.

    The last period of each source is kept, because a new stream of the source starts after it.
    """
    for accounts in ledger.periods.values():
        last = max(map(_period_end_ms, accounts), default=0)
        for account in list(accounts):
            ends = _period_end_ms(account)
            if not account.grants and ends < last and ends <= over_by and not account.has_unrecorded_spending:
                accounts.remove(account)
                del ledger.accounts[account.name]
                ledger.retired_names.add("source", account.name)
                ledger.changes.mark_account_deleted(account)


def _period_end_ms(account: Account) -> int:
    source = account.source
    if not isinstance(source, EventsSource) or source.starts is None:
        raise TypeError(f"source '{account.name}' is not the account of a period")
    return moment_ms(source.starts) + source.period_ms


def exhausted_reason(calibration: Calibration, cutoff: int) -> str:
    """Return the reason why a stream with ``cutoff`` charged answers is exhausted."""
    match calibration.kind:
        case "sparse_vector":
            return _describe_used_up(cutoff, "'above' answer", "of the cutoff", "out")
        case "hypothesis":
            return _describe_used_up(cutoff, "update", "of the hypothesis", "used")
        case "estimate":
            return _describe_used_up(cutoff, "measurement", "of the estimate", "made")
        case "running_count":
            if calibration.steps == 1:
                return "exhausted: the count of the horizon's only window is out"
            return f"exhausted: the counts of all {calibration.steps} windows of the horizon are out"
        case _:
            return _describe_used_up(cutoff, "answer", "of the grant", "given")


def _describe_used_up(number: int, one: str, owner: str, verb: str) -> str:
    if number == 1:
        return f"exhausted: the only {one} {owner} is {verb}"
    return f"exhausted: all {number} {one}s {owner} are {verb}"
