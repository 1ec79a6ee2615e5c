"""The ledger: a privacy filter per source, as a pure state machine.

Every request takes constant time. A reservation that does not fit is refused and changes nothing. All figures are
exact integers (see costs), and everything can be rebuilt from the last record of each source and grant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from schemas import (
    Amount,
    Calibration,
    Extension,
    Extensions,
    GrantRecord,
    Source,
    SourceRecord,
    StreamIdentity,
    StreamSpec,
    StreamState,
)
from stream.accounting.charged import charged_answers
from stream.accounting.costs import (
    NOTHING,
    PARTS,
    Cost,
    extension_cost,
    fits,
    grant_cost,
    realised_cost,
    stream_cost,
    to_amount,
    total_budget,
)
from stream.accounting.extensions import plan_extension
from stream.accounting.prices import takes_alpha
from stream.errors import Refused


class RefusedError(Refused):
    """A request that the ledger refuses; nothing has changed."""


@dataclass(slots=True)
class Grant:
    """One stream's reservation and what is known of its spending."""

    spec: StreamSpec
    calibration: Calibration
    identity: StreamIdentity
    cost: Cost
    state: StreamState = "open"
    ending: Literal["halted", "closed"] | None = None
    settled: bool = False
    reason: str | None = None
    spent: Cost = NOTHING
    refunded: Cost = NOTHING
    answered: int = 0
    tops: int = 0
    surplus: int = 0
    extensions: Extensions = ()

    @property
    def parts(self) -> int:
        """What the charged answers have cost."""
        return self.tops * PARTS + self.surplus

    @property
    def cutoff(self) -> int:
        """How many ordinary charged answers it pays for in all; 0 where one charge pays for all answers."""
        return charged_answers(self.calibration, self.extensions)

    def extended_by(self, request: str, accountant: str) -> tuple[Extension, Cost] | None:
        """What a request, by its digest, has added, and what that cost; None if it has not extended the stream."""
        for known, extension in enumerate(self.extensions):
            if extension.request == request:
                start = charged_answers(self.calibration, self.extensions[:known])
                return extension, extension_cost(self.calibration, accountant, extension, start)
        return None

    def realised(self, accountant: str) -> Cost:
        """What its answers have spent of it."""
        figures = (self.answered, self.tops, self.surplus, self.extensions)
        return realised_cost(self.calibration, accountant, *figures).least(self.cost)


@dataclass(slots=True)
class Account:
    """One source and its totals; ``granted`` less ``refunded`` never exceeds ``total``, under ``zcdp`` in ε or in ρ."""

    source: Source
    fingerprint: str | None
    total: Cost
    state: Literal["open", "halted"] = "open"
    reason: str | None = None
    granted: Cost = NOTHING
    spent: Cost = NOTHING
    refunded: Cost = NOTHING
    grants: dict[str, Grant] = field(default_factory=dict)
    noted: int | None = None
    """When the trail last had these totals, and whether something was spent since."""
    unnoted: bool = False

    @property
    def left(self) -> Cost:
        """What may still be granted; under ``zcdp`` one of ε and ρ may be overdrawn, for the other holds.

        Below 0 in ``unbounded`` while streams with Gaussian noise are counted: then ρ alone may be granted.
        """
        return self.total - self.granted + self.refunded

    def record(self) -> SourceRecord:
        """The account as the ledger topic shows it."""
        return SourceRecord(
            source=self.source,
            fingerprint=self.fingerprint,
            state=self.state,
            reason=self.reason,
            granted=to_amount(self.granted, self.source),
            spent=to_amount(self.spent, self.source),
            refunded=to_amount(self.refunded, self.source),
            left=to_amount(self.left.at_least_nothing(), self.source),
            streams=len(self.grants),
            noted=self.noted,
            unnoted=self.unnoted,
        )

    def grant_record(self, grant: Grant) -> GrantRecord:
        """A grant as the ledger topic shows it."""
        return GrantRecord(
            spec=grant.spec,
            calibration=grant.calibration,
            identity=grant.identity,
            state=grant.state,
            ending=grant.ending,
            settled=grant.settled,
            reason=grant.reason,
            cost=to_amount(grant.cost, self.source),
            spent=to_amount(grant.spent, self.source),
            refunded=to_amount(grant.refunded, self.source),
            answered=grant.answered,
            tops=grant.tops,
            surplus=grant.surplus,
            extensions=grant.extensions,
        )


class Ledger:
    """All accounts, with the operations of the budget service."""

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self._source_of: dict[str, str] = {}

    def account(self, source: str) -> Account:
        """A source's account; RefusedError if there is none."""
        if source not in self.accounts:
            raise RefusedError(f"source '{source}' is not registered; register it first")
        return self.accounts[source]

    def find(self, source: str, stream: str) -> tuple[Account, Grant]:
        """A stream's account and grant; RefusedError if there is none."""
        account = self.account(source)
        if stream not in account.grants:
            raise RefusedError(f"stream '{stream}' is not open on source '{source}'")
        return account, account.grants[stream]

    def register(self, source: Source, fingerprint: str | None) -> Account:
        """Make a source known. The same definition again changes nothing; another one is refused."""
        known = self.accounts.get(source.source)
        if known is not None:
            if known.source != source or known.fingerprint != fingerprint:
                raise RefusedError(f"source '{source.source}' is registered otherwise; choose another name")
            return known
        account = Account(source=source, fingerprint=fingerprint, total=total_budget(source))
        self.accounts[source.source] = account
        return account

    def reserve(self, spec: StreamSpec, calibration: Calibration, identity: StreamIdentity) -> Grant:
        """Take a stream's cost from its source's budget, all or nothing."""
        account = self.account(spec.source)
        if account.state == "halted":
            raise RefusedError(f"source '{spec.source}' is halted: {account.reason}")
        if (owner := self._source_of.get(spec.stream)) is not None:
            raise RefusedError(f"stream name '{spec.stream}' was used before, on source '{owner}'; choose another")
        cost = stream_cost(calibration, account.source.accountant)
        _require_fit(account, cost)
        grant = Grant(spec=spec, calibration=calibration, identity=identity, cost=cost)
        account.grants[spec.stream] = grant
        account.granted += cost
        self._source_of[spec.stream] = spec.source
        return grant

    def extend(self, source: str, stream: str, request: str, epsilon: float, delta: float) -> Extension:
        """Grant a stream as many further charged answers as an ε pays for, all or nothing.

        One that has used its grant up goes on; one that was asked to end does not. ``request`` is the digest of the request.

        Raises:
            RefusedError, PlanError: nothing has changed.
        """
        account, grant = self.find(source, stream)
        accountant = account.source.accountant
        if account.state == "halted":
            raise RefusedError(f"source '{source}' is halted: {account.reason}")
        if grant.ending is not None or grant.state not in {"open", "exhausted"}:
            raise RefusedError(
                f"stream '{stream}' is {grant.ending or grant.state} and cannot be extended; open another stream"
            )
        extension = plan_extension(grant.spec, grant.calibration, grant.extensions, request, epsilon, delta)
        cost = extension_cost(grant.calibration, accountant, extension, grant.cutoff)
        _require_fit(account, cost)
        grant.extensions += (extension,)
        grant.cost += cost
        account.granted += cost
        grant.state, grant.settled, grant.reason = "open", False, None
        self._spend(account, grant)
        return extension

    def charge(
        self,
        source: str,
        stream: str,
        incarnation: str,
        *,
        answered: int,
        tops: int,
        state: StreamState,
        surplus: int = 0,
        reason: str | None = None,
    ) -> bool:
        """Take note of a stream's totals; totals that are not news change nothing.

        A final state settles the grant: if the ledger has closed the stream, what it did not spend goes back. A worker that
        has used up what it knew of, and was not told of an extension yet, has not ended.

        Returns:
            Whether anything changed.

        Raises:
            RefusedError: no worker reports such totals of this stream; nothing has changed.
        """
        account, grant = self.find(source, stream)
        stale = answered < grant.answered or tops < grant.tops
        if stale or grant.identity.incarnation != incarnation:
            return False
        _check_report(grant, answered, tops, surplus, state)
        if state == "exhausted" and tops * PARTS + surplus < grant.cutoff * PARTS:
            state = "open"
        news = answered > grant.answered or tops > grant.tops or (state != "open" and not grant.settled)
        if grant.state == "closed" or not (news or state == "closed"):
            return False
        grant.answered, grant.tops, grant.surplus = answered, tops, surplus
        self._spend(account, grant)
        if state != "open":
            grant.settled = True
            grant.state, grant.reason = state, reason or grant.reason
        if state == "closed":
            self._refund(account, grant)
        return True

    def end(self, source: str, stream: str, ending: Literal["halted", "closed"], reason: str) -> bool:
        """Stop a stream. A closed one is refunded once its worker has reported its last totals.

        Returns:
            Whether the stream's worker must be told: not if it has ended that way before.
        """
        _, grant = self.find(source, stream)
        if grant.ending in {"closed", ending}:
            return False
        grant.ending, grant.reason = ending, reason
        return True

    def halt_source(self, source: str, reason: str) -> list[Grant]:
        """Refuse new streams for good and give the streams that are still to be halted."""
        account = self.account(source)
        account.state, account.reason = "halted", reason
        return [grant for name, grant in account.grants.items() if self.end(source, name, "halted", reason)]

    def restore_source(self, record: SourceRecord) -> None:
        """Take a source from the changelog; its totals come from its grants."""
        name = record.source.source
        known = self.accounts.get(name)
        account = Account(
            record.source, record.fingerprint, total_budget(record.source), record.state, record.reason
        )
        account.noted, account.unnoted = record.noted, record.unnoted
        if known is not None:
            account.granted, account.spent, account.refunded = known.granted, known.spent, known.refunded
            account.grants = known.grants
        self.accounts[name] = account

    def restore_grant(self, record: GrantRecord) -> None:
        """Take a grant from the changelog, in place of an earlier record of the same stream."""
        account = self.accounts[record.spec.source]
        accountant = account.source.accountant
        grant = Grant(
            spec=record.spec,
            calibration=record.calibration,
            identity=record.identity,
            cost=grant_cost(record.calibration, accountant, record.extensions),
            state=record.state,
            ending=record.ending,
            settled=record.settled,
            reason=record.reason,
            answered=record.answered,
            tops=record.tops,
            surplus=record.surplus,
            extensions=record.extensions,
        )
        grant.spent = grant.realised(accountant)
        grant.refunded = grant.cost - grant.spent if record.state == "closed" else NOTHING
        if (old := account.grants.get(record.spec.stream)) is not None:
            account.granted -= old.cost
            account.spent -= old.spent
            account.refunded -= old.refunded
        account.grants[record.spec.stream] = grant
        account.granted += grant.cost
        account.spent += grant.spent
        account.refunded += grant.refunded
        self._source_of[record.spec.stream] = record.spec.source

    @staticmethod
    def _spend(account: Account, grant: Grant) -> None:
        spent = grant.realised(account.source.accountant)
        account.spent += spent - grant.spent
        grant.spent = spent

    @staticmethod
    def _refund(account: Account, grant: Grant) -> None:
        back = grant.cost - grant.spent
        account.refunded += back - grant.refunded
        grant.refunded = back


def _check_report(grant: Grant, answered: int, tops: int, surplus: int, state: StreamState) -> None:
    """Refuse totals that do not follow from what the ledger itself has granted and ended."""
    paid, parts = grant.cutoff * PARTS, tops * PARTS + surplus
    if tops > answered:
        raise RefusedError("tops: more charged answers than answers")
    if surplus and not takes_alpha(grant.calibration):
        raise RefusedError("surplus: every charged answer of this stream costs the same")
    # A charged answer costs a part at least.
    if parts - grant.parts < tops - grant.tops or (tops == grant.tops and parts != grant.parts):
        raise RefusedError("surplus: not what so many more charged answers cost")
    if paid and parts > paid:
        raise RefusedError("tops: more charged answers than the grant pays for")
    if state == "exhausted" and (parts == 0 or parts not in _cutoffs(grant)):
        raise RefusedError("state: exhausted, with charged answers left")
    if state == "closed" and grant.ending != "closed":
        raise RefusedError("state: closed, and the ledger has not closed the stream")
    if grant.state == "closed" and (answered > grant.answered or tops > grant.tops):
        raise RefusedError("answered: more than the last totals of a stream that is closed")


def _cutoffs(grant: Grant) -> set[int]:
    """After how many parts a worker may have had none left, by what it had been told."""
    extensions = grant.extensions
    return {PARTS * charged_answers(grant.calibration, extensions[:known]) for known in range(len(extensions) + 1)}


def _require_fit(account: Account, cost: Cost) -> None:
    """Refuse what a source cannot pay."""
    if fits(cost, account.left, account.source.accountant):
        return
    asked = to_amount(cost, account.source)
    left = to_amount(account.left.at_least_nothing(), account.source)
    raise RefusedError(
        f"source '{account.source.source}' cannot pay: {_show(asked)} asked, {_show(left)} left; "
        "ask for less, or close streams that did not use theirs up",
        asked,
        left,
    )


def _show(amount: Amount) -> str:
    if amount.rho is not None:
        return f"ρ = {amount.rho:.6g}" + ("" if amount.delta else f" (ε = {amount.epsilon:.6g} added up)")
    return f"ε = {amount.epsilon:.6g}" + (f", δ = {amount.delta:.3g}" if amount.delta else "")
