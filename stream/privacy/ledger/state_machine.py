"""The ledger as a pure state machine: it refuses each grant that a budget cannot pay.

A grant is taken from all its budgets (source, population, allotments) or from none. Each request
takes constant time, except the first one in a new period. All amounts are exact integers
(``costs``), and the last record of each source, population, allotment and grant restores the state
(``ledger_records``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

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
from stream.privacy.ledger.accounts import (
    Account,
    Allotment,
    Budget,
    Change,
    Changes,
    PopulationAccount,
    require_paid,
)
from stream.privacy.ledger.grants import Claim, Grant, check_report, plan_extension
from stream.privacy.planning.prices import are_uneven

TRANSITIONS: Final[Mapping[StreamState, frozenset[StreamState]]] = {
    # Extended; grant used up; halted by a request or because offsets were repeated; closed.
    "open": frozenset({"open", "exhausted", "halted", "closed"}),
    # Open again by an extension, or closed by a request. A halt only prevents extensions.
    "exhausted": frozenset({"open", "closed"}),
    "halted": frozenset({"closed"}),
    "closed": frozenset(),
}
"""The states that may follow each state of a stream: closed is final."""


def may_become(state: StreamState, following: StreamState) -> bool:
    """Return True if a stream in ``state`` may become ``following``."""
    return following in TRANSITIONS[state]


_NONE = (NOTHING,) * 4


class Ledger:
    """All accounts, with the operations of the budget service.

    ``clock`` is in milliseconds since 1970, never goes back, and decides the period of each
    budget. ``renewing`` lists the owners of renewing budgets; ``periods`` maps each live topic to
    the accounts of its periods.
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
        """Mark an account as changed, without its allotments."""
        self._changes.note(account, [])

    def changes(self) -> Iterator[Change]:
        """Yield the changes since the last call, as ledger records."""
        return self._changes.drain()

    def tell_time(self, clock: int) -> None:
        """Advance the clock; ignore times in the past."""
        self.clock = max(self.clock, clock)

    def turn(self, owner: Account | PopulationAccount) -> None:
        """Begin a new period if one is due; call it before any decision on that budget."""
        if owner.budget.is_over(self.clock):
            owner.budget.turn(self.clock, owner.claims())
            self._changes.note(owner)
            self._turned.append(owner)

    def turned(self) -> list[Account | PopulationAccount]:
        """Return the owners whose budget began a new period since the last call."""
        turned, self._turned = self._turned, []
        return turned

    def account(self, source: str) -> Account:
        """Return a source's account; raise RefusedError if there is none."""
        if source not in self.accounts:
            raise RefusedError(f"source '{source}' is not registered; register it first")
        return self.accounts[source]

    def people(self, population: str) -> PopulationAccount:
        """Return a population; raise RefusedError if there is none."""
        if population not in self.populations:
            raise RefusedError(f"population '{population}' is not registered; register it first")
        return self.populations[population]

    def find(self, source: str, stream: str) -> tuple[Account, Grant]:
        """Return a stream's account and grant; raise RefusedError if there is none."""
        account = self.account(source)
        if stream not in account.grants:
            raise RefusedError(f"stream '{stream}' is not open on source '{source}'")
        return account, account.grants[stream]

    def register(self, source: Source, fingerprint: str | None) -> Account:
        """Register a source; an equal definition changes nothing, a different one is refused."""
        known = self.accounts.get(source.source)
        if known is not None:
            if known.source != source:
                raise RefusedError(f"source '{source.source}' is registered otherwise; choose another name")
            self._changes.note(known, [])
            return known
        account = Account(source, fingerprint, Budget.create(f"source '{source.source}'", source, self.clock))
        if source.population is not None:
            people = self.people(source.population)
            _require_neighbors(account, people)
            self._enter(account, people)
        self.add(account)
        self._changes.note(account)
        return account

    def register_population(self, population: Population) -> PopulationAccount:
        """Register a population; an equal definition changes nothing."""
        known = self.populations.get(population.population)
        if known is None:
            name = population.population
            known = PopulationAccount(population, Budget.create(f"population '{name}'", population, self.clock))
            self.add(known)
        elif known.population != population:
            raise RefusedError(
                f"population '{population.population}' is registered otherwise; choose another name"
            )
        self._changes.note(known, [])
        return known

    def add(self, owner: Account | PopulationAccount) -> None:
        """Add a new source or population."""
        if isinstance(owner, Account):
            self.accounts[owner.name] = owner
            if isinstance(owner.source, EventsSource) and owner.source.period_of is not None:
                self.periods.setdefault(owner.source.period_of, []).append(owner)
        else:
            self.populations[owner.name] = owner
        if owner.budget.ends is not None:
            self.renewing.append(owner)

    def join(self, source: str, population: str) -> Account:
        """Add a source permanently to a population whose budget can pay for the source's grants."""
        account, people = self.account(source), self.people(population)
        if account.people is people:
            return account
        if account.people is not None:
            raise RefusedError(
                f"source '{source}' belongs to population '{account.people.name}' permanently: its spending counts there"
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
        """Create or change an allotment; refuse less than already counts against it."""
        self.turn(owner)
        allotment = owner.budget.allot(name, analysts, (epsilon, delta), owner.claims())
        self._changes.note(owner, [allotment])
        return allotment

    def reserve(
        self, spec: StreamSpec, calibration: Calibration, identity: StreamIdentity, analyst: str | None = None
    ) -> Grant:
        """Take a stream's cost from all its budgets, or from none."""
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
        """Grant a stream the further charged answers that ε pays for, from all budgets or none.

        An exhausted stream resumes; an ending stream is refused. ``request`` is the digest of the
        request. The analyst who opened the stream is charged.

        Raises:
            RefusedError, PlanError: nothing has changed, except that periods that were due began.
        """
        account, grant = self.find(source, stream)
        _require_granting(account)
        if analyst is not None and analyst != grant.analyst:
            owner = f"by '{grant.analyst}', who" if grant.analyst else "by no analyst: an operator"
            raise RefusedError(f"stream '{stream}' was opened {owner} may extend it; open another stream")
        if grant.ending is not None or not may_become(grant.state, "open"):
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
        _update_claims(account, grant, grant.price)
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
        """Record a stream's totals; return True if anything changed.

        A state other than open settles the grant; if it is closed, the rest is refunded. If a
        worker reports exhausted without knowing an extension, the stream stays open.

        Raises:
            RefusedError: the totals are impossible; nothing has changed.
        """
        account, grant = self.find(source, stream)
        stale = answered < grant.answered or tops < grant.tops
        if stale or grant.identity.incarnation != incarnation:
            return False
        check_report(grant, answered, tops, surplus, state)
        if state == "exhausted" and tops * PARTS + surplus < grant.cutoff * PARTS:
            state = "open"
        news = answered > grant.answered or tops > grant.tops or (state != "open" and not grant.settled)
        if not may_become(grant.state, "closed") or not (news or state == "closed"):
            return False
        self._turn_all(account)
        grant.answered, grant.tops, grant.surplus = answered, tops, surplus
        if state != "open":
            grant.settled = True
            grant.state, grant.reason = state, reason or grant.reason
        _update_claims(account, grant, grant.measure)
        self._changes.note_grant(account, grant)
        return True

    def end(self, source: str, stream: str, ending: Literal["halted", "closed"], reason: str) -> bool:
        """Record that a stream must end; return True if its worker must be notified."""
        account, grant = self.find(source, stream)
        if grant.ending in {"closed", ending}:
            return False
        grant.ending, grant.reason = ending, reason
        self._changes.note_grant(account, grant)
        return True

    def lose(self, source: str, stream: str, reason: str) -> bool:
        """Halt a stream with unknown totals and count it as fully spent; False if it was closed."""
        account, grant = self.find(source, stream)
        if not may_become(grant.state, "closed"):
            return False
        grant.lost, grant.settled, grant.ending, grant.reason = True, True, "halted", reason
        if may_become(grant.state, "halted"):
            grant.state = "halted"
        _update_claims(account, grant, grant.measure)
        self._changes.note_grant(account, grant)
        return True

    def halt_source(self, source: str, reason: str) -> list[Grant]:
        """Refuse new streams permanently and return the grants that must be halted."""
        account = self.account(source)
        account.state, account.reason = "halted", reason
        self._changes.note(account, [])
        return [grant for name, grant in account.grants.items() if self.end(source, name, "halted", reason)]

    def halt_population(self, population: str, reason: str) -> None:
        """Refuse new sources and streams permanently; open streams continue."""
        people = self.people(population)
        people.state, people.reason = "halted", reason
        self._changes.note(people, [])

    def count(self, account: Account, grant: Grant) -> None:
        """Add a new grant to all its budgets."""
        for budget, claim in account.budgets(grant):
            budget.change_for(grant.analyst, _NONE, claim.figures, 1)

    def _turn_all(self, account: Account) -> None:
        self.turn(account)
        if account.people is not None:
            self.turn(account.people)


def _update_claims(account: Account, grant: Grant, change: Callable[[Claim], None]) -> None:
    """Apply ``change`` to a grant's claims and update the sums of their budgets."""
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
    """Refuse a source whose neighbor relation differs from the population's."""
    other = next(
        (one for one in people.members.values() if one.source.neighbors != account.source.neighbors), None
    )
    if other is not None:
        raise RefusedError(
            f"neighbors: source '{other.name}' of population '{people.name}' has '{other.source.neighbors}' and source "
            f"'{account.name}' has '{account.source.neighbors}': losses do not add up across different neighbor relations; "
            "put it into another population"
        )
