"""With any requests in any order, no source grants more than its budget, and no stream spends more than its grant."""

from __future__ import annotations

import copy
from random import Random
from typing import Any, Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from schemas import StreamSpec
from stream.privacy.composition.costs import (
    DELTA_UNITS,
    EPSILON_UNITS,
    NO_COST,
    RefusedError,
    can_pay,
    exact_decimal,
    stream_cost,
)
from stream.privacy.planning.noise_layouts import PlanError
from tests.builders import calibration
from tests.unit.privacy.ledger.ledger_parts import (
    identity,
    ledger_from_records,
    ledger_with,
    records_of,
    reserve,
    source,
    spec,
)

SOURCES = (
    source("pure"),
    source("approximate", epsilon=3.0, delta=1e-5),
    source("concentrated", epsilon=2.0, delta=1e-6, accountant="zcdp"),
)
KINDS: tuple[dict[str, Any], ...] = (
    {"epsilon": 0.1},
    {"epsilon": 0.25, "cutoff": 4},
    {"epsilon": 0.5, "cutoff": 3, "calibration": "textbook"},
    {"epsilon": 0.6, "cutoff": 200, "delta": 4e-6},
)


class LedgerMachine(RuleBasedStateMachine):
    """Requests and charges in any order; charges may be forged, old, of another source, repeated, or of an ended stream."""

    streams = Bundle("streams")
    sent = Bundle("sent")

    def __init__(self) -> None:
        super().__init__()
        self.ledger = ledger_with(*SOURCES)
        self.opened = 0
        self.extended = 0

    @rule(target=streams, where=st.sampled_from(SOURCES), kind=st.sampled_from(KINDS))
    def open(self, where: Any, kind: dict[str, Any]) -> tuple[str, str, int]:
        self.opened += 1
        asked = spec(f"stream-{self.opened}", where.source, **kind)
        account = self.ledger.account(where.source)
        cost = stream_cost(calibration(asked), where.accountant)
        if account.state == "open" and can_pay(cost, account.budget.left, where.accountant):
            assert reserve(self.ledger, asked, self.opened).claim.cost == cost
        else:
            self.refused(asked)
        return where.source, asked.stream, self.opened

    @rule(stream=streams, where=st.sampled_from(SOURCES))
    def open_used_name(self, stream: tuple[str, str, int], where: Any) -> None:
        if stream[1] in self.ledger.account(stream[0]).grants:
            self.refused(spec(stream[1], where.source, epsilon=1e-6))

    @rule(
        stream=streams,
        epsilon=st.sampled_from([1e-6, 0.05, 0.1, 0.6, 3.0]),
        delta=st.sampled_from([0.0, 0.0, 1e-6]),
    )
    def extend(self, stream: tuple[str, str, int], epsilon: float, delta: float) -> None:
        before = copy.deepcopy(self.ledger.accounts)
        try:
            extension = self.ledger.extend(*stream[:2], f"{self.extended:064x}", epsilon, delta)
        except (RefusedError, PlanError):
            assert self.ledger.accounts == before
            return
        old, account = before[stream[0]], self.ledger.accounts[stream[0]]
        grant, earlier = account.grants[stream[1]], old.grants[stream[1]]
        self.extended += 1
        cost = grant.claim.cost - earlier.claim.cost
        assert grant.extension_of_request(extension.request, account.source.accountant) == (extension, cost)
        assert (old.state, earlier.ending) == ("open", None)
        assert earlier.state in {"open", "exhausted"}
        assert can_pay(cost, old.budget.left, account.source.accountant)
        assert grant.extensions == (*earlier.extensions, extension)
        assert (grant.claim.cost, account.budget.granted) == (earlier.claim.cost + cost, old.budget.granted + cost)
        # Under zcdp, the answers that an optimal composition pays for count by their sum or by ρ.
        assert cost.loss <= exact_decimal(epsilon) * EPSILON_UNITS or (
            account.source.accountant == "zcdp" and delta > 0.0
        )
        assert cost.delta <= exact_decimal(delta) * DELTA_UNITS

    @rule(
        target=sent,
        stream=streams,
        answered=st.integers(0, 30),
        tops=st.integers(0, 30),
        state=st.sampled_from(["open"] * 4 + ["exhausted", "halted", "closed"]),
        mine=st.sampled_from([True] * 9 + [False]),
    )
    def charge(self, stream: tuple[str, str, int], answered: int, tops: int, state: Any, mine: bool) -> Any:
        charge = (*stream[:2], identity(stream[2] if mine else 0).incarnation, answered, tops, state)
        self.send(charge)
        return charge

    @rule(
        target=sent, stream=streams, fewer=st.integers(0, 3), state=st.sampled_from(["open", "halted", "closed"])
    )
    def forge_known_totals(self, stream: tuple[str, str, int], fewer: int, state: Any) -> Any:
        grant = self.ledger.account(stream[0]).grants.get(stream[1])
        known = (grant.answered, grant.tops) if grant else (0, 0)
        charge = (*stream[:2], identity(stream[2]).incarnation, *(max(0, one - fewer) for one in known), state)
        self.send(charge)
        return charge

    @rule(charge=sent)
    def charge_late(self, charge: Any) -> None:
        self.send(charge)

    @rule(charge=sent)
    def charge_twice(self, charge: Any) -> None:
        self.send(charge)
        before = copy.deepcopy(self.ledger.accounts)
        assert not self.send(charge)
        assert self.ledger.accounts == before

    @rule(stream=streams, ending=st.sampled_from(["halted", "closed"]))
    def end(self, stream: tuple[str, str, int], ending: Literal["halted", "closed"]) -> None:
        if stream[1] in self.ledger.account(stream[0]).grants:
            self.ledger.end_stream(stream[0], stream[1], ending, "asked for")
            assert not self.ledger.end_stream(stream[0], stream[1], ending, "asked for")

    @rule(stream=consumes(streams), odds=st.integers(0, 9))
    def halt_source_of_stream(self, stream: tuple[str, str, int], odds: int) -> None:
        if odds == 0:
            self.ledger.halt_source(stream[0], "audit")

    @rule(order=st.integers(0, 2**32))
    def restart(self, order: int) -> None:
        records = records_of(self.ledger)
        Random(order).shuffle(records)
        again = ledger_from_records(records)
        assert again.accounts == self.ledger.accounts
        self.ledger = again

    def send(self, charge: Any) -> bool:
        where, stream, incarnation, answered, tops, state = charge
        account = self.ledger.account(where)
        if stream not in account.grants:
            return False
        before = copy.deepcopy(account)
        try:
            return self.ledger.record_charge(where, stream, incarnation, answered=answered, tops=tops, state=state)
        except RefusedError:
            assert account == before
            return False

    def refused(self, asked: StreamSpec) -> None:
        before = copy.deepcopy(self.ledger.accounts)
        try:
            reserve(self.ledger, asked, self.opened)
        except RefusedError:
            assert self.ledger.accounts == before
        else:
            raise AssertionError("granted what should have been refused")

    @invariant()
    def sources_stay_within_budget(self) -> None:
        for account in self.ledger.accounts.values():
            assert can_pay(
                account.budget.granted - account.budget.refunded, account.budget.total, account.source.accountant
            )
            assert can_pay(NO_COST, account.budget.left, account.source.accountant)

    @invariant()
    def streams_stay_within_grant(self) -> None:
        for account in self.ledger.accounts.values():
            assert account.budget.spent <= account.budget.granted - account.budget.refunded
            for grant in account.grants.values():
                assert NO_COST <= grant.claim.spent <= grant.claim.cost - grant.claim.refunded
                assert grant.claim.refunded >= NO_COST

    @invariant()
    def source_totals_are_sums_over_streams(self) -> None:
        for account in self.ledger.accounts.values():
            grants = list(account.grants.values())
            assert account.budget.granted == sum((grant.claim.cost for grant in grants), NO_COST)
            assert account.budget.spent == sum((grant.claim.spent for grant in grants), NO_COST)
            assert account.budget.refunded == sum((grant.claim.refunded for grant in grants), NO_COST)
            assert all(grant.claim.refunded == NO_COST for grant in grants if grant.state != "closed")

    @invariant()
    def refunds_need_closed_streams(self) -> None:
        for account in self.ledger.accounts.values():
            for grant in account.grants.values():
                assert grant.ending == "closed" or (grant.state != "closed" and grant.claim.refunded == NO_COST)

    @invariant()
    def tops_stay_within_grants(self) -> None:
        for account in self.ledger.accounts.values():
            for grant in account.grants.values():
                assert grant.tops <= min(grant.cutoff, grant.answered)
                assert grant.state != "exhausted" or grant.tops == grant.cutoff

    @invariant()
    def names_are_unique_across_sources(self) -> None:
        names = [name for account in self.ledger.accounts.values() for name in account.grants]
        assert len(set(names)) == len(names)


LedgerMachine.TestCase.settings = settings(deadline=None, max_examples=30, stateful_step_count=40)
TestLedger = LedgerMachine.TestCase
