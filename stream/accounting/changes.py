"""What the ledger has changed since it was last written down, by the keys of the ledger topic."""

from __future__ import annotations

from collections.abc import Iterator

from schemas import LedgerRecord
from stream.accounting.accounts import Account, People
from stream.accounting.budgets import Allotment
from stream.accounting.grants import Grant

Change = tuple[str, bytes, LedgerRecord]
"""Source or population, key and record of one line of the ledger. Records are absolute: the last one of each key counts."""


class Changes:
    """Each account, population, allotment and grant that has changed, once."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._people: dict[str, People] = {}
        self._allotments: dict[bytes, tuple[Account | People, Allotment]] = {}
        self._grants: dict[str, tuple[Account, Grant]] = {}

    def note_grant(self, account: Account, grant: Grant) -> None:
        """A grant has changed, and so has whatever it counts against."""
        self._grants[grant.spec.stream] = (account, grant)
        for owner in (account, account.people):
            if owner is not None:
                self.note(owner, owner.budget.allotted(grant.analyst))

    def note(self, owner: Account | People, allotments: list[Allotment] | None = None) -> None:
        """A source or population has changed, and these of its allotments; all of them unless told."""
        if isinstance(owner, Account):
            kind = "source"
            self._accounts[owner.name] = owner
        else:
            kind = "population"
            self._people[owner.name] = owner
        for allotment in owner.budget.allotments.values() if allotments is None else allotments:
            self._allotments[f"allotment|{kind}|{owner.name}|{allotment.name}".encode()] = (owner, allotment)

    def drain(self) -> Iterator[Change]:
        """What is to be written; nothing is noted any more after that."""
        for account in self._accounts.values():
            yield account.name, f"source|{account.name}".encode(), account.record()
        for people in self._people.values():
            yield people.name, f"population|{people.name}".encode(), people.record()
        for key, (owner, allotment) in self._allotments.items():
            yield owner.name, key, owner.allotment_record(allotment)
        for stream, (account, grant) in self._grants.items():
            yield account.name, f"grant|{account.name}|{stream}".encode(), account.grant_record(grant)
        self.__init__()  # type: ignore[misc]
