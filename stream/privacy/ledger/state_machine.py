"""The ledger as a pure state machine: it refuses each grant that a budget cannot pay.

A grant is taken from all its budgets (source, population, allotments) or from none of them. Each request
takes constant time, except the first request in a new period. All amounts are exact integers (module ``costs``).
``ledger_records`` restores the state from the last record of each source, population, allotment and grant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
from stream.formatting import suggest_public_name
from stream.privacy.composition.costs import NO_COST, PARTS_PER_CHARGE, RefusedError
from stream.privacy.composition.losses import may_have_uneven_prices
from stream.privacy.ledger.accounts import (
    Account,
    Budget,
    Change,
    Changes,
    CountedGrant,
    PopulationAccount,
    require_neighbors,
    require_open,
    update_claims,
)
from stream.privacy.ledger.grants import Allotment, Claim, Grant, GrantAmounts, check_report, require_paid
from stream.privacy.ledger.retirement import NAMES_KEY_PREFIX, Digests, EndedStreams, NameDigests
from stream.privacy.planning.inverse_plans import plan_extension

TRANSITIONS: Final[Mapping[StreamState, frozenset[StreamState]]] = {
    # An extension leaves the stream open. A request or the worker halts it.
    "open": frozenset({"open", "exhausted", "halted", "closed"}),
    # An extension opens the stream again, a request closes it, and a halt only prevents extensions.
    "exhausted": frozenset({"open", "closed"}),
    "halted": frozenset({"closed"}),
    "closed": frozenset(),
}
"""The states that may follow each state of a stream; a closed stream stays closed."""


def may_become(state: StreamState, following: StreamState) -> bool:
    """Return True if a stream in ``state`` may become ``following``."""
    return following in TRANSITIONS[state]


_NO_AMOUNTS = GrantAmounts()


class Ledger:
    """All accounts, with the operations of the budget service.

    ``clock`` is in milliseconds since 1970, never goes back, and decides the period of each budget.
    ``source_of_stream`` maps each stream to its source, except the streams in ``retired_names``.
    ``renewing_owners`` lists the sources and populations whose budgets renew. ``periods`` maps each
    source with periods to the accounts of its periods.
    """

    def __init__(self, retired_digests: Digests | None = None) -> None:
        """Create an empty ledger; ``retired_digests`` has the names of retired streams, by default in memory."""
        self.accounts: dict[str, Account] = {}
        self.populations: dict[str, PopulationAccount] = {}
        self.source_of_stream: dict[str, str] = {}
        self.clock = 0
        self.renewing_owners: list[Account | PopulationAccount] = []
        self.periods: dict[str, list[Account]] = {}
        self.retired_names = NameDigests(retired_digests)
        self.ended_streams = EndedStreams()
        self.changes = Changes()
        self._renewed_owners: list[Account | PopulationAccount] = []

    def drain_changes(self) -> Iterator[Change]:
        """Yield the ledger records that have changed since the last call."""
        yield from self.changes.drain_records()
        for record in self.retired_names.drain_records():
            yield "", b"%b%d" % (NAMES_KEY_PREFIX, record.number), record

    def advance_clock(self, clock: int) -> None:
        """Advance the clock; ignore times in the past."""
        self.clock = max(self.clock, clock)

    def begin_due_period(self, owner: Account | PopulationAccount) -> None:
        """Begin a new period if it is due; call this before each decision about the budget."""
        if owner.budget.period_is_over(self.clock):
            owner.budget.begin_period(self.clock, owner.claims())
            self.changes.mark_changed(owner)
            self._renewed_owners.append(owner)

    def drain_renewed_owners(self) -> list[Account | PopulationAccount]:
        """Return the owners whose budget began a new period since the last call."""
        renewed, self._renewed_owners = self._renewed_owners, []
        return renewed

    def account(self, source: str) -> Account:
        """Return a source's account; raise RefusedError if there is none."""
        if source not in self.accounts:
            if self.retired_names.has("source", source):
                raise RefusedError(
                    f"source '{source}' was a past period of a source, and is retired; name the source or its present period"
                )
            hint = suggest_public_name(source, self.accounts) or "; register it first"
            raise RefusedError(f"source '{source}' is not registered{hint}")
        return self.accounts[source]

    def population_account(self, population: str) -> PopulationAccount:
        """Return a population; raise RefusedError if there is none."""
        if population not in self.populations:
            hint = suggest_public_name(population, self.populations) or "; register it first"
            raise RefusedError(f"population '{population}' is not registered{hint}")
        return self.populations[population]

    def find_stream(self, source: str, stream: str) -> tuple[Account, Grant]:
        """Return a stream's account and grant; raise RefusedError if there is none."""
        account = self.account(source)
        if stream not in account.grants:
            if self.retired_names.has("stream", stream):
                raise RefusedError(f"stream '{stream}' has ended and is retired; its charge is final")
            hint = suggest_public_name(stream, account.grants)
            raise RefusedError(f"stream '{stream}' is not open on source '{source}'{hint}")
        return account, account.grants[stream]

    def register(self, source: Source, fingerprint: str | None) -> Account:
        """Register a source; repeating the definition changes nothing, and a different one is refused."""
        known = self.accounts.get(source.source)
        if known is None and self.retired_names.has("source", source.source):
            raise RefusedError(f"source name '{source.source}' was used before; choose another")
        if known is not None:
            if known.source != source:
                raise RefusedError(
                    f"source '{source.source}' is registered with another definition; choose another name"
                )
            self.changes.mark_changed(known, [])
            return known
        account = Account(source, fingerprint, Budget.create(f"source '{source.source}'", source, self.clock))
        if source.population is not None:
            population = self.population_account(source.population)
            require_neighbors(account, population)
            self._add_to_population(account, population)
        self.add_owner(account)
        self.changes.mark_changed(account)
        return account

    def register_population(self, population: Population) -> PopulationAccount:
        """Register a population; repeating the definition changes nothing, and a different one is refused."""
        known = self.populations.get(population.population)
        if known is None:
            name = population.population
            known = PopulationAccount(population, Budget.create(f"population '{name}'", population, self.clock))
            self.add_owner(known)
        elif known.population != population:
            raise RefusedError(
                f"population '{population.population}' is registered with another definition; choose another name"
            )
        self.changes.mark_changed(known, [])
        return known

    def add_owner(self, owner: Account | PopulationAccount) -> None:
        """Add a new source or population."""
        if isinstance(owner, Account):
            self.accounts[owner.name] = owner
            if isinstance(owner.source, EventsSource) and owner.source.period_of is not None:
                self.periods.setdefault(owner.source.period_of, []).append(owner)
        else:
            self.populations[owner.name] = owner
        if owner.budget.end_ms is not None:
            self.renewing_owners.append(owner)

    def join_population(self, source: str, population: str) -> Account:
        """Add a source permanently to a population, unless its budget cannot pay the source's grants."""
        account, owner = self.account(source), self.population_account(population)
        if account.population is owner:
            return account
        if account.population is not None:
            raise RefusedError(
                f"source '{source}' belongs to population '{account.population.name}' permanently and cannot join another"
            )
        require_neighbors(account, owner)
        self.begin_due_period(account)
        self.begin_due_period(owner)
        self._add_to_population(account, owner)
        return account

    def _add_to_population(self, account: Account, population: PopulationAccount) -> None:
        require_open(population)
        claims: list[tuple[CountedGrant, Claim]] = []
        for grant in account.counted_grants():
            claim = population.budget.new_claim()
            if isinstance(grant, Grant):
                grant.price_claim(claim)
            else:
                claim = grant.claim_on_population(claim)
            claims.append((grant, claim))
        charged = []
        for ceiling in (population.budget, *population.budget.allotments.values()):
            counted = [
                claim.counted for grant, claim in claims if ceiling in population.budget.ceilings(grant.analyst)
            ]
            if counted:
                charged.append((ceiling, sum(counted, NO_COST)))
        require_paid(charged)
        account.population = population
        population.members[account.name] = account
        self.changes.mark_changed(account, [])
        self.changes.mark_changed(population, [])
        for grant, claim in claims:
            grant.population_claim = claim
            population.budget.replace_amounts_of(grant.analyst, _NO_AMOUNTS, claim.amounts, grant.streams)
            if isinstance(grant, Grant):
                self.changes.mark_grant_changed(account, grant)
            else:
                grant.joining = {}
                self.changes.mark_retired(account, grant)

    def allot(
        self,
        owner: Account | PopulationAccount,
        name: str,
        analysts: tuple[str, ...],
        epsilon: float,
        delta: float | None,
    ) -> Allotment:
        """Create or change an allotment; refuse an amount below the grants that already count against it."""
        self.begin_due_period(owner)
        allotment = owner.budget.allot(name, analysts, (epsilon, delta), owner.claims())
        self.changes.mark_changed(owner, [allotment])
        return allotment

    def reserve(
        self, spec: StreamSpec, calibration: Calibration, identity: StreamIdentity, analyst: str | None = None
    ) -> Grant:
        """Grant a stream its cost from all its budgets; RefusedError if one of them cannot pay."""
        account = self.account(spec.source)
        require_open(account)
        if (owner := self.source_of_stream.get(spec.stream)) is not None:
            raise RefusedError(f"stream name '{spec.stream}' was used before, on source '{owner}'; choose another")
        if self.retired_names.has("stream", spec.stream):
            raise RefusedError(f"stream name '{spec.stream}' was used before; choose another")
        self._begin_due_periods(account)
        population_claim = None if account.population is None else account.population.budget.new_claim()
        has_uneven_prices = may_have_uneven_prices(account.source, spec.mechanism, calibration)
        grant = Grant.create(
            spec,
            identity,
            calibration,
            account.budget.new_claim(),
            population_claim=population_claim,
            has_uneven_prices=has_uneven_prices,
            analyst=analyst,
            decoded=(spec, identity),
        )
        charged = []
        for budget, claim in account.budgets(grant):
            grant.price_claim(claim)
            charged += budget.ceilings_to_charge(analyst, claim.counted)
        require_paid(charged)
        account.grants[grant.stream] = grant
        self.source_of_stream[grant.stream] = account.name
        self.add_to_budgets(account, grant)
        self.changes.mark_grant_changed(account, grant)
        return grant

    def extend(
        self, source: str, stream: str, request: str, epsilon: float, delta: float, analyst: str | None = None
    ) -> Extension:
        """Grant a stream the further charged answers that ε pays for, from all budgets or none.

        An exhausted stream becomes open again; an extension of a stream that is ending is refused.
        ``request`` is the digest of the request. The cost counts for the analyst who opened the stream.

        Raises:
            RefusedError, PlanError: the ledger is unchanged, except that due periods have begun.
        """
        account, grant = self.find_stream(source, stream)
        require_open(account)
        if analyst is not None and analyst != grant.analyst:
            owner = f"by analyst '{grant.analyst}'" if grant.analyst else "without an analyst"
            raise RefusedError(
                f"stream '{stream}' was opened {owner}, and other analysts cannot extend it; open another stream"
            )
        if grant.ending is not None or not may_become(grant.state, "open"):
            raise RefusedError(
                f"stream '{stream}' is {grant.ending or grant.state} and cannot be extended; open another stream"
            )
        extension = plan_extension(grant.spec, grant.calibration, grant.extensions, request, epsilon, delta)
        if grant.spec.standing is not None and grant.state == "exhausted":
            extension = extension.model_copy(update={"resumes": True})
        self._begin_due_periods(account)
        charged = []
        for budget, claim in account.budgets(grant):
            cost = grant.cost_of(extension, claim.accountant, grant.cutoff)
            charged += budget.ceilings_to_charge(grant.analyst, grant.counted_amount(claim, cost) - claim.counted)
        require_paid(charged)
        grant.extensions += (extension,)
        grant.state, grant.settled, grant.reason = "open", False, None
        update_claims(account, grant, grant.price_claim)
        self.changes.mark_grant_changed(account, grant)
        return extension

    def record_charge(
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
        """Record a stream's totals, as its worker reports them; return True if anything changed.

        In any state but ``open``, the spending is final; ``closed`` also refunds the unspent part. If a worker
        reports ``exhausted`` because it does not know an extension yet, the stream stays open.

        Raises:
            RefusedError: the totals are impossible; the ledger is unchanged.
        """
        account, grant = self.find_stream(source, stream)
        stale = answered < grant.answered or tops < grant.tops
        if stale or grant.incarnation != incarnation:
            return False
        check_report(grant, answered, tops, surplus, state)
        if state == "exhausted" and tops * PARTS_PER_CHARGE + surplus < grant.cutoff * PARTS_PER_CHARGE:
            state = "open"
        has_news = answered > grant.answered or tops > grant.tops or (state != "open" and not grant.settled)
        if not may_become(grant.state, "closed") or not (has_news or state == "closed"):
            return False
        self._begin_due_periods(account)
        grant.answered, grant.tops, grant.surplus = answered, tops, surplus
        if state != "open":
            grant.settled = True
            grant.state, grant.reason = state, reason or grant.reason
        update_claims(account, grant, grant.update_claim)
        self.changes.mark_grant_changed(account, grant)
        self.ended_streams.update(account.name, grant, self.clock)
        return True

    def end_stream(self, source: str, stream: str, ending: Literal["halted", "closed"], reason: str) -> bool:
        """Record that a stream must end; return True if its worker must be notified."""
        account, grant = self.find_stream(source, stream)
        if grant.ending in {"closed", ending}:
            return False
        grant.ending, grant.reason = ending, reason
        self.changes.mark_grant_changed(account, grant)
        self.ended_streams.update(account.name, grant, self.clock)
        return True

    def halt_lost_stream(self, source: str, stream: str, reason: str) -> bool:
        """Halt a stream with unknown totals, and count its grant as fully spent.

        If the stream is already closed, change nothing and return False.
        """
        account, grant = self.find_stream(source, stream)
        if not may_become(grant.state, "closed"):
            return False
        grant.lost, grant.settled, grant.ending, grant.reason = True, True, "halted", reason
        if may_become(grant.state, "halted"):
            grant.state = "halted"
        self.ended_streams.update(account.name, grant, self.clock)
        update_claims(account, grant, grant.update_claim)
        self.changes.mark_grant_changed(account, grant)
        return True

    def halt_source(self, source: str, reason: str) -> list[Grant]:
        """Refuse new streams of a source permanently; return the grants that must be halted."""
        account = self.account(source)
        account.state, account.reason = "halted", reason
        self.changes.mark_changed(account, [])
        return [grant for name, grant in account.grants.items() if self.end_stream(source, name, "halted", reason)]

    def halt_population(self, population: str, reason: str) -> None:
        """Refuse new sources and streams permanently; open streams continue."""
        account = self.population_account(population)
        account.state, account.reason = "halted", reason
        self.changes.mark_changed(account, [])

    def add_to_budgets(self, account: Account, grant: CountedGrant) -> None:
        """Add a new grant, or restored sums of retired grants, to all its budgets."""
        for budget, claim in account.budgets(grant):
            budget.replace_amounts_of(grant.analyst, _NO_AMOUNTS, claim.amounts, grant.streams)

    def _begin_due_periods(self, account: Account) -> None:
        self.begin_due_period(account)
        if account.population is not None:
            self.begin_due_period(account.population)
