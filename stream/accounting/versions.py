"""Versions of a source's data: which streams go on with the next one, and which end with the old."""

from __future__ import annotations

from typing import Final

from stream.accounting.accounts import Account
from stream.accounting.grants import Grant
from stream.accounting.ledger import Ledger
from stream.accounting.refusals import RefusedError

_MEASURED: Final = "what it measured, and its promise, are"
_RELEASED: Final = "what it released is"
KEPT_OF_A_VERSION: Final = {
    "pmw": _MEASURED,
    "sparse_pmw": _MEASURED,
    "histogram": _RELEASED,
    "lazy_histogram": _RELEASED,
    "sparse_project": _RELEASED,
}
"""The mechanisms that keep what they computed of the data: their noise belongs to it, and must never meet other data.

All others draw new noise for each question, and answer it from whatever version there is (docs/tables.md, "New versions").
"""


def require_refreshable(account: Account) -> None:
    """Refuse a source that takes no new data."""
    if account.source.kind == "events":
        raise RefusedError(
            f"source: '{account.name}' is a live topic, whose events come by themselves; there is nothing to refresh"
        )
    if account.source.kind != "table":
        raise RefusedError(
            f"source: '{account.name}' has no table, its questions carry the values; there is nothing to refresh"
        )
    if account.state == "halted":
        raise RefusedError(f"source '{account.name}' is halted: {account.reason}")


def refresh(ledger: Ledger, account: Account, fingerprint: str, *, close: bool) -> list[Grant]:
    """Take a fingerprint for that of the source's next version, and give the streams whose workers must be told.

    Who keeps what was computed of the old version ends, one that has run dry too, for it could be extended; with ``close`` all
    do. A stream that was asked to end before is told nothing.
    """
    account.version, account.fingerprint = account.version + 1, fingerprint
    ledger.note(account)
    told = []
    for name, grant in account.grants.items():
        if grant.ending is not None:
            continue
        kept = KEPT_OF_A_VERSION.get(grant.spec.mechanism.kind)
        if kept is not None or close:
            why = ", as asked" if kept is None else f"; {kept} of version {account.version - 1}"
            ended = ledger.end(
                account.name, name, "closed", f"closed by the refresh to version {account.version}{why}"
            )
            told += [grant] if ended else []
        elif grant.state == "open":
            told.append(grant)
    return told
