"""The ledger: a privacy filter per source and per population, as a pure state machine.

A grant is taken from all budgets that it falls under at once, or from none. Every request takes constant time, but for the first
one in a new period. All figures are exact integers (see costs), and everything can be rebuilt from the last record of
each source, population, allotment and grant (see restoring).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from schemas import (
    Calibration,
    EventsSource,
    Extension,
    Population,
    Source,
    StreamIdentity,
    StreamSpec,
    StreamState,
)
from stream.privacy.composition.costs import NOTHING, PARTS
from stream.privacy.composition.refusals import RefusedError
from stream.privacy.ledger.accounts import Account, Change, Changes, PopulationAccount
from stream.privacy.ledger.grants import Claim, Grant, check_report, plan_extension
from stream.privacy.ledger.shared_budgets import Allotment, Budget, require_paid
from stream.privacy.planning.prices import are_uneven

_NONE = (NOTHING,) * 4


class Ledger:
    """All accounts, with the operations of the budget service.

    ``clock`` is its time in milliseconds since 1970. It never goes back, whatever it is told, and decides which period a
    budget is in; ``renewing`` are those that have any. ``periods`` are the accounts of each live topic's periods.
    """

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        self.populations: dict[str, PopulationAccount] = {}
        self.owner_of: dict[str, str] = {}
        self.clock = 0
        self.renewing: list[Account | PopulationAccount] = []
        self.periods: dict[str, list[Account]] = {}
        self._changes = Changes()
        self._turned: list[Account | PopulationAccount] = []

    def note(self, account: Account) -> None:
        """Have an account written down that has changed in what is no figure."""
        self._changes.note(account, [])

    def changes(self) -> Iterator[Change]:
        """What has changed since the last call, to be written down."""
        return self._changes.drain()

    def tell_time(self, clock: int) -> None:
        """Move the clock on; a time that has passed moves nothing."""
        self.clock = max(self.clock, clock)

    def turn(self, owner: Account | PopulationAccount) -> None:
        """Begin a new period where one is due: before any decision on that budget, and once."""
        if owner.budget.is_over(self.clock):
            owner.budget.turn(self.clock, owner.claims())
            self._changes.note(owner)
            self._turned.append(owner)

    def turned(self) -> list[Account | PopulationAccount]:
        """Whatever has begun a new period since the last call."""
        turned, self._turned = self._turned, []
        return turned

    def account(self, source: str) -> Account:
        """A source's account; RefusedError if there is none."""
        if source not in self.accounts:
            raise RefusedError(f"source '{source}' is not registered; register it first")
        return self.accounts[source]

    def people(self, population: str) -> PopulationAccount:
        """A population; RefusedError if there is none."""
        if population not in self.populations:
            raise RefusedError(f"population '{population}' is not registered; register it first")
        return self.populations[population]

    def find(self, source: str, stream: str) -> tuple[Account, Grant]:
        """A stream's account and grant; RefusedError if there is none."""
        account = self.account(source)
        if stream not in account.grants:
            raise RefusedError(f"stream '{stream}' is not open on source '{source}'")
        return account, account.grants[stream]

    def register(self, source: Source, fingerprint: str | None) -> Account:
        """Make a source known. An equal definition again changes nothing, whatever its data; another one is refused."""
        known = self.accounts.get(source.source)
        if known is not None:
            if known.source != source:
                raise RefusedError(f"source '{source.source}' is registered otherwise; choose another name")
            self._changes.note(known, [])
            return known
        account = Account(source, fingerprint, Budget.of(f"source '{source.source}'", source, self.clock))
        if source.population is not None:
            people = self.people(source.population)
            _require_neighbors(account, people)
            self._enter(account, people)
        self.add(account)
        self._changes.note(account)
        return account

    def register_population(self, population: Population) -> PopulationAccount:
        """Make a population known. The same definition again changes nothing; another one is refused."""
        known = self.populations.get(population.population)
        if known is None:
            name = population.population
            known = PopulationAccount(population, Budget.of(f"population '{name}'", population, self.clock))
            self.add(known)
        elif known.population != population:
            raise RefusedError(
                f"population '{population.population}' is registered otherwise; choose another name"
            )
        self._changes.note(known, [])
        return known

    def add(self, owner: Account | PopulationAccount) -> None:
        """Take up a source or population that is new here."""
        if isinstance(owner, Account):
            self.accounts[owner.name] = owner
            if isinstance(owner.source, EventsSource) and owner.source.period_of is not None:
                self.periods.setdefault(owner.source.period_of, []).append(owner)
        else:
            self.populations[owner.name] = owner
        if owner.budget.ends is not None:
            self.renewing.append(owner)

    def join(self, source: str, population: str) -> Account:
        """Let a source belong to a population, for good; all that it has granted counts there, or it is refused."""
        account, people = self.account(source), self.people(population)
        if account.people is people:
            return account
        if account.people is not None:
            raise RefusedError(
                f"source '{source}' belongs to population '{account.people.name}', for good: what it has spent counts there"
            )
        _require_neighbors(account, people)
        self.turn(account)
        self.turn(people)
        self._enter(account, people)
        return account

    def _enter(self, account: Account, people: PopulationAccount) -> None:
        _require_open(people)
        claims = []
        for grant in account.grants.values():
            claim = people.budget.claim()
            grant.price(claim)
            claims.append((grant, claim))
        charged = []
        for ceiling in (people.budget, *people.budget.allotments.values()):
            mine = [claim.counted for grant, claim in claims if ceiling in people.budget.ceilings(grant.analyst)]
            if mine:
                charged.append((ceiling, sum(mine, NOTHING)))
        require_paid(charged)
        account.people = people
        people.members[account.name] = account
        self._changes.note(account, [])
        self._changes.note(people, [])
        for grant, claim in claims:
            grant.shared = claim
            people.budget.change_for(grant.analyst, _NONE, claim.figures, 1)
            self._changes.note_grant(account, grant)

    def allot(
        self,
        owner: Account | PopulationAccount,
        name: str,
        analysts: tuple[str, ...],
        epsilon: float,
        delta: float | None,
    ) -> Allotment:
        """Let analysts have a part of a budget, or change the part that they have; never to less than counts against it."""
        self.turn(owner)
        allotment = owner.budget.allot(name, analysts, (epsilon, delta), owner.claims())
        self._changes.note(owner, [allotment])
        return allotment

    def reserve(
        self, spec: StreamSpec, calibration: Calibration, identity: StreamIdentity, analyst: str | None = None
    ) -> Grant:
        """Take a stream's cost from all budgets that it falls under, all or nothing."""
        account = self.account(spec.source)
        _require_granting(account)
        if (owner := self.owner_of.get(spec.stream)) is not None:
            raise RefusedError(f"stream name '{spec.stream}' was used before, on source '{owner}'; choose another")
        self._turn_all(account)
        shared = None if account.people is None else account.people.budget.claim()
        uneven = are_uneven(account.source, spec.mechanism, calibration)
        grant = Grant(spec, calibration, identity, account.budget.claim(), shared, uneven, analyst)
        charged = []
        for budget, claim in account.budgets(grant):
            grant.price(claim)
            charged += budget.charged(analyst, claim.counted)
        require_paid(charged)
        account.grants[spec.stream] = grant
        self.owner_of[spec.stream] = spec.source
        self.count(account, grant)
        self._changes.note_grant(account, grant)
        return grant

    def extend(
        self, source: str, stream: str, request: str, epsilon: float, delta: float, analyst: str | None = None
    ) -> Extension:
        """Grant a stream as many further charged answers as an ε pays for, all or nothing.

        One that has used its grant up goes on; one that was asked to end does not. ``request`` is the digest of the request.
        Whoever asks, it is charged to the analyst who opened the stream.

        Raises:
            RefusedError, PlanError: nothing has changed, but for periods that were due where a budget has no room.
        """
        account, grant = self.find(source, stream)
        _require_granting(account)
        if analyst is not None and analyst != grant.analyst:
            owner = f"by '{grant.analyst}', who" if grant.analyst else "by no analyst: an operator"
            raise RefusedError(f"stream '{stream}' was opened {owner} may extend it; open another stream")
        if grant.ending is not None or grant.state not in {"open", "exhausted"}:
            raise RefusedError(
                f"stream '{stream}' is {grant.ending or grant.state} and cannot be extended; open another stream"
            )
        extension = plan_extension(grant.spec, grant.calibration, grant.extensions, request, epsilon, delta)
        if grant.spec.standing is not None and grant.state == "exhausted":
            extension = extension.model_copy(update={"resumes": True})
        self._turn_all(account)
        charged = []
        for budget, claim in account.budgets(grant):
            cost = grant.cost_of(extension, claim.accountant, grant.cutoff)
            charged += budget.charged(grant.analyst, grant.counts(claim, cost) - claim.counted)
        require_paid(charged)
        grant.extensions += (extension,)
        grant.state, grant.settled, grant.reason = "open", False, None
        _refigure(account, grant, grant.price)
        self._changes.note_grant(account, grant)
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
        check_report(grant, answered, tops, surplus, state)
        if state == "exhausted" and tops * PARTS + surplus < grant.cutoff * PARTS:
            state = "open"
        news = answered > grant.answered or tops > grant.tops or (state != "open" and not grant.settled)
        if grant.state == "closed" or not (news or state == "closed"):
            return False
        self._turn_all(account)
        grant.answered, grant.tops, grant.surplus = answered, tops, surplus
        if state != "open":
            grant.settled = True
            grant.state, grant.reason = state, reason or grant.reason
        _refigure(account, grant, grant.measure)
        self._changes.note_grant(account, grant)
        return True

    def end(self, source: str, stream: str, ending: Literal["halted", "closed"], reason: str) -> bool:
        """Stop a stream. A closed one is refunded once its worker has reported its last totals.

        Returns:
            Whether the stream's worker must be told: not if it has ended that way before.
        """
        account, grant = self.find(source, stream)
        if grant.ending in {"closed", ending}:
            return False
        grant.ending, grant.reason = ending, reason
        self._changes.note_grant(account, grant)
        return True

    def lose(self, source: str, stream: str, reason: str) -> bool:
        """Count a stream as wholly spent and halt it, for good: what it has answered is not known any more.

        Returns:
            Whether anything changed: not of a stream that is closed, which has got back what it did not spend.
        """
        account, grant = self.find(source, stream)
        if grant.state == "closed":
            return False
        grant.lost, grant.settled, grant.ending, grant.reason = True, True, "halted", reason
        if grant.state == "open":
            grant.state = "halted"
        _refigure(account, grant, grant.measure)
        self._changes.note_grant(account, grant)
        return True

    def halt_source(self, source: str, reason: str) -> list[Grant]:
        """Refuse new streams for good and give the streams that are still to be halted."""
        account = self.account(source)
        account.state, account.reason = "halted", reason
        self._changes.note(account, [])
        return [grant for name, grant in account.grants.items() if self.end(source, name, "halted", reason)]

    def halt_population(self, population: str, reason: str) -> None:
        """Refuse new sources, and new streams of its sources, for good; what is open goes on."""
        people = self.people(population)
        people.state, people.reason = "halted", reason
        self._changes.note(people, [])

    def count(self, account: Account, grant: Grant) -> None:
        """Add a grant that is new here to all budgets that it falls under."""
        for budget, claim in account.budgets(grant):
            budget.change_for(grant.analyst, _NONE, claim.figures, 1)

    def _turn_all(self, account: Account) -> None:
        self.turn(account)
        if account.people is not None:
            self.turn(account.people)


def _refigure(account: Account, grant: Grant, change: Callable[[Claim], None]) -> None:
    """Change what a grant claims of each budget that it falls under, and the budget's figures with it."""
    for budget, claim in account.budgets(grant):
        before = claim.figures
        change(claim)
        budget.change_for(grant.analyst, before, claim.figures)


def _require_granting(account: Account) -> None:
    if account.state == "halted":
        raise RefusedError(f"source '{account.name}' is halted: {account.reason}")
    if account.people is not None:
        _require_open(account.people)


def _require_open(people: PopulationAccount) -> None:
    if people.state == "halted":
        raise RefusedError(f"population '{people.name}' is halted: {people.reason}")


def _require_neighbors(account: Account, people: PopulationAccount) -> None:
    """One person is one step between neighbours in every source: what a step is must be the same in all of them."""
    other = next(
        (one for one in people.members.values() if one.source.neighbors != account.source.neighbors), None
    )
    if other is not None:
        raise RefusedError(
            f"neighbors: source '{other.name}' of population '{people.name}' has '{other.source.neighbors}' and source "
            f"'{account.name}' has '{account.source.neighbors}': what one person changes is not the same, and does not add "
            "up; put it into a population of its own"
        )
