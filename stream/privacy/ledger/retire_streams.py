"""Retires ended streams and the accounts of periods that are over."""

from __future__ import annotations

from collections.abc import Iterable

from schemas import EventsSource, moment_ms, named_from
from stream.privacy.ledger.accounts import Account
from stream.privacy.ledger.state_machine import Ledger


def restore_ends(ledger: Ledger, ends: Iterable[tuple[str, str, int]]) -> None:
    """Load source, name and time in ms of the streams whose last record was written then."""
    for source, stream, ended in sorted(ends, key=lambda one: one[2]):
        ledger.ended_streams.update(source, ledger.accounts[source].grants[stream], ended)


def retire_stream(ledger: Ledger, source: str, stream: str) -> None:
    """Replace an ended stream by the digest of its name; its amounts stay in all sums.

    No budget's sums change, so later decisions do not change either. If the stream is halted, it can no
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
    if (named := named_from(stream)) is not None and not names.has("periods", named[0]):
        names.add("periods", named[0])
    ledger.changes.mark_retired(account, retired, stream)


def retire_periods(ledger: Ledger, over_by: int) -> None:
    """Retire the accounts of periods that ended at ``over_by`` ms or before and have no streams.

    The last period of each source stays: a new stream of the source starts after it.
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
