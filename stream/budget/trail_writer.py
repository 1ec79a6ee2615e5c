"""Writes the audit trail: requests, decisions, automatic events and spending.

An entry is written in the same transaction as the ledger's change, and the ledger's progress record
has the trail's head: after a restart the trail continues where it was committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from blake3 import blake3

from schemas import (
    Allot,
    ExtendStream,
    OpenStream,
    Receipt,
    RegisterPopulation,
    RegisterSource,
    Request,
    Totals,
    TrailBeginning,
    TrailEvent,
    TrailHead,
    TrailPoint,
    TrailRecord,
    TrailRequest,
    TrailRestored,
    TrailStanding,
)
from schemas.trail import Since
from stream.budget.receipts import EMPTY, entry_digest, trail_codec
from stream.privacy.composition.costs import spent_amount, to_amount
from stream.privacy.ledger.accounts import Account, PopulationAccount
from stream.privacy.ledger.grants import Grant
from stream.privacy.ledger.state_machine import Ledger
from stream.processing.protocol import Outputs
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics, partition_of

POINT_MS: Final = 60_000
"""Least ms between two points (entries with totals) of an account, by the ledger's clock."""
QUIET_SECONDS: Final = 60.0
"""Seconds without input after which pending points are written."""


class TrailWriter:
    """Appends entries to the trail; knows which accounts have spent since their last entry."""

    def __init__(self, topics: Topics, ledger: Ledger) -> None:
        self.head: TrailHead | None = None
        self._topics = topics
        self._ledger = ledger
        self._unnoted: dict[str, Account] = {}
        self._due = 0
        self._quiet: float | None = None

    def restore(self, head: TrailHead | None) -> None:
        """Continue after a head, and set the ledger's clock to its time; None without a trail."""
        self.head = head
        self._ledger.tell_time(head.time if head is not None else 0)
        self._unnoted = {name: account for name, account in self._ledger.accounts.items() if account.unnoted}
        self._due = min(map(_due, self._unnoted.values()), default=0)

    def ensure_begun(self, outputs: Outputs) -> None:
        """Begin a trail, if there is none, with the current accounts."""
        if self.head is not None:
            return
        self.head = EMPTY
        accounts = self._ledger.accounts.values()
        streams = sum(len(account.grants) for account in accounts)
        self._write(outputs, TrailBeginning(**self._next(), sources=len(accounts), streams=streams))
        for account in accounts:
            standing = TrailStanding(
                **self._next(),
                source=account.source.source,
                streams=len(account.grants),
                digest=identities_digest((name, grant.identity.digest) for name, grant in account.grants.items()),
                totals=totals_of(account),
            )
            self._write(outputs, standing)

    def write_decision(self, request: Request, receipt: Receipt, outputs: Outputs) -> None:
        """Write a request and its decision, with the resulting totals and the stream's digest."""
        self.write_renewals(outputs)
        is_of_population = isinstance(request, RegisterPopulation) or (
            isinstance(request, Allot) and request.source is None
        )
        source = None if is_of_population else receipt.source
        account = self._ledger.accounts.get(source or "")
        grant = None if account is None else account.grants.get(receipt.stream or "")
        fields: dict[str, Any] = _asked_for(request)
        if receipt.outcome == "opened" and grant is not None and account is not None:
            fields["granted"] = receipt.granted or to_amount(grant.cost, account.source)
            fields["stream_digest"] = grant.identity.digest
        if account is not None and receipt.outcome in {"registered", "opened"}:
            fields["totals"] = self._note(account)
        entry = TrailRequest(
            **self._next(),
            request=receipt.request,
            digest=receipt.digest,
            action=request.kind,
            outcome=receipt.outcome,
            source=source,
            stream=receipt.stream,
            population=receipt.population,
            analyst=getattr(request, "analyst", None),
            by=request.by,
            reason=receipt.reason,
            asked=receipt.asked,
            left=receipt.left,
            answers=receipt.answers,
            **fields,
        )
        self._write(outputs, entry)

    def write_period(self, receipt: Receipt, account: Account, outputs: Outputs) -> None:
        """Write the account and the streams of a new period, with the request that began it."""
        asked: dict[str, Any] = {"request": receipt.request, "digest": receipt.digest, "source": account.name}
        terms: dict[str, Any] = {"epsilon": account.source.epsilon, "delta": account.source.delta}
        totals = self._note(account)
        registered = TrailRequest(
            **self._next(), **asked, **terms, action="register", outcome="registered", totals=totals
        )
        self._write(outputs, registered)
        for name, grant in account.grants.items():
            opened = TrailRequest(
                **self._next(),
                **asked,
                action="open",
                outcome="opened",
                stream=name,
                analyst=grant.analyst,
                epsilon=grant.spec.epsilon,
                delta=grant.spec.delta,
                mechanism=grant.spec.mechanism.kind,
                granted=to_amount(grant.cost, account.source),
                stream_digest=grant.identity.digest,
                totals=totals,
            )
            self._write(outputs, opened)

    def write_end(self, account: Account, grant: Grant, outputs: Outputs) -> None:
        """Write a stream's automatic end, or the last totals of a closed stream."""
        event = TrailEvent(
            **self._next(),
            event=grant.state,
            source=account.source.source,
            stream=grant.spec.stream,
            reason=grant.reason,
            spent=spent_amount(grant.spent, grant.cost, account.source),
            refunded=to_amount(grant.refunded, account.source),
            totals=self._note(account),
        )
        self._write(outputs, event)

    def write_renewals(self, outputs: Outputs) -> None:
        """Write the budgets that have begun a new period; no total changes."""
        for owner in self._ledger.turned():
            event = TrailEvent(
                **self._next(),
                event="renewed",
                source=None if isinstance(owner, PopulationAccount) else owner.name,
                population=owner.name if isinstance(owner, PopulationAccount) else None,
                reason=f"period {owner.budget.number}",
            )
            self._write(outputs, event)

    def write_restored(self, since: Since, lost: int, backup: str, outputs: Outputs) -> None:
        """Write that the ledger was restored from a backup, and the totals of all accounts."""
        self._write(outputs, TrailRestored(**self._next(), since=since, lost=lost, backup=backup))
        self._points(list(self._ledger.accounts.values()), outputs)

    def schedule_point(self, account: Account) -> None:
        """Schedule a point for an account, a minute after its last one."""
        account.unnoted = True
        self._due = min(self._due, _due(account)) if self._unnoted else _due(account)
        self._unnoted[account.source.source] = account

    def note_due(self, outputs: Outputs) -> None:
        """Write the points that are due by the ledger's clock."""
        self._quiet = None
        if self._unnoted and self._ledger.clock >= self._due:
            self._points([one for one in self._unnoted.values() if _due(one) <= self._ledger.clock], outputs)
            self._due = min(map(_due, self._unnoted.values()), default=0)

    def note_quiet(self, now: float, outputs: Outputs) -> None:
        """Write all pending points after a minute without input, by a monotonic clock."""
        if not self._unnoted:
            return
        self._quiet = now if self._quiet is None else self._quiet
        if now - self._quiet >= QUIET_SECONDS:
            self._points(list(self._unnoted.values()), outputs)

    def _points(self, accounts: Iterable[Account], outputs: Outputs) -> None:
        for account in accounts:
            point = TrailPoint(**self._next(), source=account.source.source, totals=self._note(account))
            self._write(outputs, point)

    def _note(self, account: Account) -> Totals:
        account.noted, account.unnoted = self._ledger.clock, False
        self._unnoted.pop(account.source.source, None)
        self._ledger.note(account)
        return totals_of(account)

    def _next(self) -> dict[str, Any]:
        head = self.head or EMPTY
        return {"number": head.entries, "previous": head.digest, "time": self._ledger.clock}

    def _write(self, outputs: Outputs, entry: TrailRecord) -> None:
        value = trail_codec.encode(entry)
        self.head = TrailHead(entries=entry.number + 1, digest=entry_digest(value), time=entry.time)
        source = (getattr(entry, "source", None) or "").encode()
        outputs.add(self._topics.trail, partition_of(source, LEDGER_PARTITIONS), (source, value, ()))


def _due(account: Account) -> int:
    return 0 if account.noted is None else account.noted + POINT_MS


def totals_of(account: Account) -> Totals:
    """Return an account's totals as in its ledger record."""
    return Totals(**account.budget.amounts())


def identities_digest(identities: Iterable[tuple[str, str]]) -> str:
    """Return one digest over stream names and definition digests."""
    listed = "".join(f"{name} {digest}\n" for name, digest in sorted(identities))
    return blake3(listed.encode()).hexdigest()


def _asked_for(request: Request) -> dict[str, Any]:
    match request:
        case RegisterSource():
            return {"epsilon": request.source.epsilon, "delta": request.source.delta}
        case OpenStream():
            spec = request.stream
            return {"epsilon": spec.epsilon, "delta": spec.delta, "mechanism": spec.mechanism.kind}
        case RegisterPopulation():
            return {"epsilon": request.population.epsilon, "delta": request.population.delta}
        case ExtendStream():
            return {"epsilon": request.epsilon, "delta": request.delta}
        case Allot():
            given = {"allotment": request.allotment, "analysts": request.analysts or (request.allotment,)}
            return {**given, "epsilon": request.epsilon, "delta": request.delta}
        case _:
            return {}
