"""Compares the ledger with a naive model: a list of grants with exact fractions, from which all sums are recomputed.

Requests, charges right and wrong, refunds, joining, allotments, retirement, time and restarts come in any order. The model
knows no retirement, except that requests to a retired stream are refused.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from schemas import AnswersCalibration, Calibration, Population, StreamSpec
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import (
    DELTA_UNITS,
    EPSILON_UNITS,
    Cost,
    RefusedError,
    charged_answers,
    grant_cost,
    realised_cost,
    total_budget,
)
from stream.privacy.composition.losses import is_pure, losses
from stream.privacy.ledger.accounts import Account, PopulationAccount
from stream.privacy.ledger.ledger_records import restore_ends, retire_stream
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.planning.inverse_plans import plan_extension
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration
from tests.builders import calibration
from tests.unit.privacy.ledger.ledger_parts import codec, identity, ledger_from_records, source, spec

HOUR = 3_600_000
POPULATIONS = (
    Population(population="forever", epsilon=1.5, delta=1e-5),
    Population(population="renewing", epsilon=1.2, renews="3h"),
    Population(population="concentrated", epsilon=1.5, delta=1e-6, accountant="zcdp", renews="2h"),
)
SOURCES = (
    source("plain"),
    source("hourly", renews="1h"),
    source("shared", epsilon=1.0, delta=1e-5, population="forever"),
    source("both", epsilon=1.0, renews="1h", population="renewing"),
    source("rho", epsilon=1.0, delta=1e-6, accountant="zcdp", renews="2h", population="concentrated"),
)
ANALYSTS = ("ada", "bob", "eve")
KINDS: tuple[dict[str, Any], ...] = (
    {"epsilon": 0.2},
    {"epsilon": 0.4, "cutoff": 4},
    {"epsilon": 0.4, "kind": "laplace", "answers": 4},
    {"epsilon": 0.5, "cutoff": 100, "delta": 4e-6},
)


def planned(one: StreamSpec) -> Calibration:
    return choose_calibration(one, SourceFacts()) if one.mechanism.kind == "laplace" else calibration(one)


@dataclass
class Known:
    """A grant in the model; ``seen`` has its totals at the beginning of the latest period of each budget, by the budget's name."""

    spec: StreamSpec
    calibration: Calibration
    analyst: str | None
    answered: int = 0
    tops: int = 0
    state: str = "open"
    ending: str | None = None
    settled: bool = False
    extensions: tuple[Any, ...] = ()
    retired: bool = False
    seen: dict[str, tuple[int, int, tuple[Any, ...], bool]] = field(default_factory=dict)

    def cost(self, accountant: str) -> Cost:
        return grant_cost(self.calibration, accountant, self.extensions)

    def spent(self, accountant: str) -> Cost:
        spent = realised_cost(self.calibration, accountant, self.answered, self.tops, 0, self.extensions)
        return spent.minimum_with(self.cost(accountant))

    def counts(self, budget: str, accountant: str) -> tuple[Fraction, ...]:
        """Return what a budget counts for the stream: its cost, or its charges once it is closed, less the charges of earlier periods."""
        held = self.spent(accountant) if self.state == "closed" else self.cost(accountant)
        figures = as_fractions(held)
        if (edge := self.seen.get(budget)) is None:
            return figures
        answered, tops, extensions, settled = edge
        if settled and extensions == self.extensions:
            return as_fractions(Cost())
        behind = Fraction(0)
        own = isinstance(self.calibration, AnswersCalibration) or getattr(
            self.calibration, "fresh_threshold", False
        )
        if own and accountant == "pure" and answered and is_pure(self.calibration):
            behind = Fraction(int(tops * losses(self.calibration).loss_per_answer * EPSILON_UNITS), EPSILON_UNITS)
            if any(one.delta for one in extensions):
                behind = Fraction(0)
        return (max(figures[0] - behind, Fraction(0)), *figures[1:])


def as_fractions(cost: Cost) -> tuple[Fraction, ...]:
    return (
        Fraction(cost.loss, EPSILON_UNITS),
        Fraction(cost.delta, DELTA_UNITS),
        Fraction(cost.rho, EPSILON_UNITS),
    )


class BudgetsMachine(RuleBasedStateMachine):
    """After all steps, the ledger has the model's sums, and it grants the same requests as the model."""

    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.ledger.advance_clock(7 * HOUR)
        self.grants: dict[str, Known] = {}
        self.members: dict[str, str | None] = {}
        self.allotted: dict[tuple[str, str], tuple[tuple[str, ...], Cost]] = {}
        self.starts: dict[str, int] = {}
        self.made = 0
        self.written: dict[bytes, bytes | None] = {}
        for population in POPULATIONS:
            self.ledger.register_population(population)
        for one in SOURCES:
            self.ledger.register(one, None)
            self.members[one.source] = one.population
        for owner in self.owners():
            self.starts[self.name(owner)] = self.ledger.clock

    def owners(self) -> list[Account | PopulationAccount]:
        return [*self.ledger.accounts.values(), *self.ledger.populations.values()]

    @staticmethod
    def name(owner: Account | PopulationAccount) -> str:
        return f"{type(owner).__name__} {owner.name}"

    def of(self, owner: Account | PopulationAccount) -> list[Known]:
        if isinstance(owner, Account):
            return [one for one in self.grants.values() if one.spec.source == owner.name]
        return [one for one in self.grants.values() if self.members[one.spec.source] == owner.name]

    def sums(
        self, owner: Account | PopulationAccount, analysts: tuple[str, ...] | None = None
    ) -> tuple[Fraction, ...]:
        mine = [one for one in self.of(owner) if analysts is None or one.analyst in analysts]
        counted = [one.counts(self.name(owner), owner.budget.terms.accountant) for one in mine]
        return tuple(sum((one[place] for one in counted), Fraction(0)) for place in range(3))

    def ceilings(
        self, owner: Account | PopulationAccount, analyst: str | None
    ) -> list[tuple[tuple[str, ...] | None, Cost]]:
        parts: list[tuple[tuple[str, ...] | None, Cost]] = [
            (members, total)
            for (name, _), (members, total) in self.allotted.items()
            if name == self.name(owner) and analyst in members
        ]
        return [(None, total_budget(owner.budget.terms)), *parts]

    def within(self, owner: Account | PopulationAccount, analyst: str | None) -> bool:
        """Return whether the grants are within every limit of the owner, and of the analyst's allotment if there is one."""
        for members, total in self.ceilings(owner, analyst):
            counted, most = self.sums(owner, members), as_fractions(total)
            if owner.budget.terms.accountant == "zcdp":
                holds = counted[0] <= most[0] or counted[2] <= most[2]
            else:
                holds = counted[0] <= most[0] and counted[1] <= most[1]
            if not holds:
                return False
        others = [name for name, _ in self.allotted if name == self.name(owner)]
        return analyst is None or not others or len(self.ceilings(owner, analyst)) > 1

    def budgets(self, where: str) -> list[Account | PopulationAccount]:
        found: list[Account | PopulationAccount] = [self.ledger.accounts[where]]
        if (people := self.members[where]) is not None:
            found.append(self.ledger.populations[people])
        return found

    def begin_periods(self, owners: list[Account | PopulationAccount]) -> None:
        """Begin the period of a budget before a decision about it, once even if several periods have passed."""
        for owner in owners:
            renews = owner.budget.terms.renews
            if renews is None:
                continue
            length, started = int(renews[:-1]) * HOUR, self.starts[self.name(owner)]
            if self.ledger.clock >= started + length:
                self.starts[self.name(owner)] += (self.ledger.clock - started) // length * length
                for one in self.of(owner):
                    one.seen[self.name(owner)] = (one.answered, one.tops, one.extensions, one.settled)

    @rule(
        target=streams,
        where=st.sampled_from(SOURCES),
        kind=st.sampled_from(KINDS),
        analyst=st.sampled_from([None, None, *ANALYSTS]),
    )
    def open(self, where: Any, kind: dict[str, Any], analyst: str | None) -> str:
        self.made += 1
        one = spec(f"stream-{self.made}", where.source, **kind)
        self.begin_periods(self.budgets(where.source))
        self.grants[one.stream] = Known(one, planned(one), analyst)
        fits = all(self.within(owner, analyst) for owner in self.budgets(where.source))
        try:
            self.ledger.reserve(one, planned(one), identity(self.made), analyst)
        except RefusedError:
            assert not fits
            del self.grants[one.stream]
        else:
            assert fits
        return one.stream

    @rule(stream=streams, epsilon=st.sampled_from([0.1, 0.3, 1.0]), delta=st.sampled_from([0.0, 0.0, 1e-6]))
    def extend(self, stream: str, epsilon: float, delta: float) -> None:
        if (one := self.grants.get(stream)) is None:
            return
        if one.retired:
            with pytest.raises(RefusedError, match="has ended and is retired"):
                self.ledger.extend(one.spec.source, stream, "0" * 64, epsilon, delta)
            return
        self.made += 1
        request, before = f"{self.made:064x}", copy.copy(one)
        if one.ending is None and one.state in {"open", "exhausted"}:
            try:
                extension = plan_extension(one.spec, one.calibration, one.extensions, request, epsilon, delta)
            except PlanError:
                return  # the ledger does not decide here, so it begins no period
            self.begin_periods(self.budgets(one.spec.source))
            before = copy.copy(one)
            one.extensions = (*one.extensions, extension)
            one.state, one.settled = "open", False
            fits = all(self.within(owner, one.analyst) for owner in self.budgets(one.spec.source))
        else:
            fits = False
        try:
            self.ledger.extend(one.spec.source, stream, request, epsilon, delta)
        except RefusedError:
            assert not fits
            self.grants[stream] = before
        else:
            assert fits

    @rule(
        stream=streams,
        more=st.integers(-1, 3),
        tops=st.integers(-1, 3),
        state=st.sampled_from(["open"] * 3 + ["exhausted", "halted", "closed", "closed"]),
        mine=st.sampled_from([True] * 9 + [False]),
    )
    def charge(self, stream: str, more: int, tops: int, state: Any, mine: bool) -> None:
        if (one := self.grants.get(stream)) is None or one.retired:
            return
        number = int(stream.removeprefix("stream-")) if mine else 0
        answered, charged = max(one.answered + more + max(tops, 0), 0), max(one.tops + tops, 0)
        try:
            changed = self.ledger.record_charge(
                one.spec.source,
                stream,
                identity(number).incarnation,
                answered=answered,
                tops=charged,
                state=state,
            )
        except RefusedError:
            return
        if not changed:
            return
        self.begin_periods(self.budgets(one.spec.source))
        one.answered, one.tops = answered, charged
        if state == "exhausted" and charged < charged_answers(one.calibration, one.extensions):
            state = "open"
        if state != "open":
            one.state, one.settled = state, True

    @rule(stream=streams, ending=st.sampled_from(["halted", "closed", "closed"]))
    def end(self, stream: str, ending: Any) -> None:
        if (one := self.grants.get(stream)) is None:
            return
        if one.retired:
            with pytest.raises(RefusedError, match="has ended and is retired"):
                self.ledger.end_stream(one.spec.source, stream, ending, "asked")
        elif self.ledger.end_stream(one.spec.source, stream, ending, "asked"):
            one.ending = ending

    @rule(
        stream=streams,
        ending=st.sampled_from(["halted", "closed", "closed"]),
        more=st.integers(0, 3),
        retire=st.booleans(),
    )
    def end_and_settle(self, stream: str, ending: Any, more: int, retire: bool) -> None:
        """End a stream as most streams end: its worker reports its last totals."""
        if (one := self.grants.get(stream)) is not None and not one.retired:
            self.end(stream, ending)
            self.charge(stream, more, min(more, 1), ending, mine=True)
            if retire:
                self.retire(0)

    @rule(minutes=st.sampled_from([0, 0, 30, 180]))
    def retire(self, minutes: int) -> None:
        """Retire the streams that ended some time ago; without a retention time, retire all ended streams."""
        due = self.ledger.ended_streams.list_ended_by(self.ledger.clock - minutes * 60_000)
        if minutes == 0:
            over = {
                (one.spec.source, name)
                for name, one in self.grants.items()
                if one.settled and (one.state == "closed" or one.ending == "halted")
            }
            assert set(due) == over - {(self.grants[name].spec.source, name) for name in self.retired()}
        for where, stream in due:
            retire_stream(self.ledger, where, stream)
            self.grants[stream].retired = True

    def retired(self) -> list[str]:
        return [name for name, one in self.grants.items() if one.retired]

    @precondition(lambda self: self.retired())
    @rule(where=st.sampled_from(SOURCES), place=st.integers(0, 100))
    def reopen_retired_name(self, where: Any, place: int) -> None:
        names = self.retired()
        one = spec(names[place % len(names)], where.source, epsilon=1e-6)
        with pytest.raises(RefusedError, match="was used before; choose another"):
            self.ledger.reserve(one, planned(one), identity(self.made), None)

    @rule(
        where=st.sampled_from(["plain", "hourly"]),
        population=st.sampled_from([one.population for one in POPULATIONS]),
    )
    def join(self, where: str, population: str) -> None:
        known = self.members[where]
        people, account = self.ledger.populations[population], self.ledger.accounts[where]
        if known is None:
            self.begin_periods([account, people])
        self.members[where] = population if known is None else known
        name = self.name(people)
        earlier = {one.spec.stream: one.seen.pop(name, None) for one in self.of(account)} if known is None else {}
        fits = known in {None, population} and (known is not None or self.holds(people))
        try:
            self.ledger.join_population(where, population)
        except RefusedError:
            assert not fits
            self.members[where] = known
            for stream, edge in earlier.items():
                if edge is not None:
                    self.grants[stream].seen[name] = edge
        else:
            assert fits

    def holds(self, owner: Account | PopulationAccount) -> bool:
        mine = [entry for (name, _), entry in self.allotted.items() if name == self.name(owner)]
        parts: list[tuple[tuple[str, ...] | None, Cost]] = [(None, total_budget(owner.budget.terms)), *mine]
        accountant = owner.budget.terms.accountant
        for members, total in parts:
            counted, most = self.sums(owner, members), as_fractions(total)
            sound = counted[0] <= most[0] and counted[1] <= most[1]
            if not (sound or (accountant == "zcdp" and (counted[0] <= most[0] or counted[2] <= most[2]))):
                return False
        return True

    @rule(
        where=st.sampled_from([*SOURCES, *POPULATIONS]),
        name=st.sampled_from([*ANALYSTS, "team"]),
        epsilon=st.sampled_from([0.1, 0.5, 2.0]),
    )
    def allot(self, where: Any, name: str, epsilon: float) -> None:
        owner: Account | PopulationAccount = (
            self.ledger.populations[where.population]
            if isinstance(where, Population)
            else self.ledger.accounts[where.source]
        )
        members = ("ada", "bob") if name == "team" else (name,)
        self.begin_periods([owner])
        terms = owner.budget.terms
        total = total_budget(
            Population(population="x", epsilon=epsilon, delta=terms.delta, accountant=terms.accountant)  # type: ignore[arg-type]
        )
        counted, most = self.sums(owner, members), as_fractions(total)
        fits = (
            counted[0] <= most[0] or counted[2] <= most[2]
            if terms.accountant == "zcdp"
            else counted[0] <= most[0] and counted[1] <= most[1]
        )
        try:
            self.ledger.allot(owner, name, () if name != "team" else ("bob", "ada"), epsilon, None)
        except RefusedError:
            assert not fits
        else:
            assert fits
            self.allotted[self.name(owner), name] = (members, total)

    @rule(minutes=st.integers(-90, 100))
    def pass_time(self, minutes: int) -> None:
        before = self.ledger.clock
        self.ledger.advance_clock(before + minutes * 60_000)
        assert self.ledger.clock == max(before, before + minutes * 60_000)

    @rule()
    def begin_due_periods(self) -> None:
        for owner in self.owners():
            self.begin_periods([owner])
            self.ledger.begin_due_period(owner)

    def store_records(self) -> None:
        """Write the changed records to the changelog, as the budget service does after each step."""
        for _, key, record in self.ledger.drain_changes():
            self.written[key] = None if record is None else codec.encode(record)

    @precondition(lambda self: self.grants)
    @rule(order=st.integers(0, 2**32))
    def restart(self, order: int) -> None:
        self.store_records()
        records = [value for value in self.written.values() if value is not None]
        Random(order).shuffle(records)
        again = ledger_from_records(records)
        again.advance_clock(self.ledger.clock)
        kept = [(one.spec.source, name, again.clock) for name, one in self.grants.items() if not one.retired]
        restore_ends(again, kept)
        assert again.accounts == self.ledger.accounts
        assert again.populations == self.ledger.populations
        self.ledger = again

    @invariant()
    def amounts_equal_model(self) -> None:
        self.store_records()
        for owner in self.owners():
            budget = owner.budget
            assert as_fractions(budget.counted) == self.sums(owner)
            assert budget.streams == len(self.of(owner))
            assert not isinstance(owner, Account) or owner.streams == len(self.of(owner))
            for allotment in budget.allotments.values():
                assert as_fractions(allotment.counted) == self.sums(owner, allotment.analysts)
            costs = [one.cost(budget.terms.accountant) for one in self.of(owner)]
            assert budget.granted == sum(costs, Cost())

    @invariant()
    def budgets_are_not_exceeded(self) -> None:
        assert all(self.holds(owner) for owner in self.owners())


TestBudgets = BudgetsMachine.TestCase
TestBudgets.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
