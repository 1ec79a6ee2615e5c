"""Restores the ledger from its records, refreshes tables of sources, and retires ended streams."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Final

from schemas import (
    AllotmentRecord,
    Calibration,
    EventsSource,
    GrantRecord,
    LedgerRecord,
    Period,
    PopulationRecord,
    RetiredNames,
    RetiredTotals,
    SourceRecord,
    Standing,
    moment_ms,
    split_period_name,
)
from stream.privacy.composition.costs import BudgetTerms, RefusedError
from stream.privacy.ledger.accounts import Account, Budget, PopulationAccount
from stream.privacy.ledger.grants import Claim, Grant
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.planning.plans import are_uneven


def restore_ledger(
    ledger: Ledger, records: Iterable[LedgerRecord], further_grants: Iterable[GrantRecord] = ()
) -> None:
    """Fill an empty ledger from the last record of each key, and sum the budgets over the grants.

    ``further_grants`` have other keys than ``records``. They are restored one after the other, so that they
    need not be in memory together.
    """
    latest: dict[tuple[str | None, ...], LedgerRecord] = {}
    source_by_parent: dict[str, EventsSource] = {}
    for record in records:
        latest[_record_key(record)] = _share_attributes(record, source_by_parent)
    for record in latest.values():
        if isinstance(record, PopulationRecord):
            label = f"population '{record.population.population}'"
            budget = _restore_budget(label, record.population, record.period)
            ledger.add_owner(PopulationAccount(record.population, budget, record.state, record.reason))
    for record in latest.values():
        if isinstance(record, SourceRecord):
            _restore_source(ledger, record)
    for record in latest.values():
        if isinstance(record, AllotmentRecord):
            owner = (
                ledger.population_account(record.population)
                if record.population
                else ledger.account(record.source or "")
            )
            owner.budget.allot(record.allotment, record.analysts, (record.epsilon, record.delta), ())
    _restore_retired(ledger, latest.values())
    # Streams with equal calibrations share one object, because most calibrations are equal.
    plans: dict[Calibration, Calibration] = {}
    grants = (record for record in latest.values() if isinstance(record, GrantRecord))
    for record in chain(grants, further_grants):
        _restore_grant(ledger, record, plans.setdefault(record.calibration, record.calibration))


def _restore_retired(ledger: Ledger, records: Iterable[LedgerRecord]) -> None:
    """Restore the names of retired streams, and the sums of their amounts."""
    for one in records:
        if isinstance(one, RetiredNames):
            ledger.retired_names.restore(one)
        elif isinstance(one, RetiredTotals):
            account = ledger.accounts[one.source]
            retired = account.retired_grants(one.analyst)
            retired.restore(one)
            ledger.add_to_budgets(account, retired)


def _record_key(record: LedgerRecord) -> tuple[str | None, ...]:  # noqa: PLR0911  (one for each kind)
    match record:
        case SourceRecord():
            return "source", record.source.source
        case PopulationRecord():
            return "population", record.population.population
        case AllotmentRecord():
            return "allotment", record.source, record.population, record.allotment
        case GrantRecord():
            return "grant", record.spec.stream
        case RetiredTotals():
            return "retired", record.source, record.analyst
        case RetiredNames():
            return "retired_names", str(record.number)
    return (None,)


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
    account = Account(record.source, record.fingerprint, budget, record.state, record.reason)
    account.totals_recorded_ms, account.has_unrecorded_spending, account.version = (
        record.noted,
        record.unnoted,
        record.version,
    )
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
        has_uneven_prices=are_uneven(account.source, record.spec.mechanism, calibration),
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


def _restore_claim(grant: Grant, claim: Claim, standing: Standing | None) -> None:
    """Restore the stream's totals at the start of the current period, and the claim's amounts.

    If the record is from an earlier period, the stream has not changed since then.
    """
    if standing is not None:
        claim.start_totals = standing.totals if standing.period == claim.period else grant.totals
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
"""Subject and verb of a text about the results that a mechanism keeps from one version of the data.

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

    Streams whose mechanism keeps results of the old version are closed. This includes exhausted
    streams, because they could be extended. With ``close`` all streams are closed. A stream that is ending is skipped.
    """
    account.version, account.fingerprint = account.version + 1, fingerprint
    ledger.mark_changed(account)
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
            return _used_up(cutoff, "'above' answer", "of the cutoff", "out")
        case "hypothesis":
            return _used_up(cutoff, "update", "of the hypothesis", "used")
        case "estimate":
            return _used_up(cutoff, "measurement", "of the estimate", "made")
        case "running_count":
            if calibration.steps == 1:
                return "exhausted: the count of the horizon's only window is out"
            return f"exhausted: the counts of all {calibration.steps} windows of the horizon are out"
        case _:
            return _used_up(cutoff, "answer", "of the grant", "given")


def _used_up(number: int, one: str, owner: str, verb: str) -> str:
    if number == 1:
        return f"exhausted: the only {one} {owner} is {verb}"
    return f"exhausted: all {number} {one}s {owner} are {verb}"
