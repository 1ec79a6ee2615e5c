"""A ledger that retires ended streams makes the same decisions and sums as a ledger that keeps them."""

from __future__ import annotations

import tracemalloc
from random import Random
from typing import Any

import pytest

from schemas import Population, RetiredNames
from stream.privacy.composition.costs import RefusedError
from stream.privacy.ledger.accounts import Account, PopulationAccount
from stream.privacy.ledger.ledger_records import restore_ends, retire_stream
from stream.privacy.ledger.retirement import MAX_NAMES_PER_BLOCK, NameDigests
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.planning.noise_layouts import PlanError
from stream.processing import digest_table
from stream.processing.digest_table import DigestTable
from tests.builders import calibration
from tests.unit.privacy.ledger.ledger_parts import codec, identity, ledger_from_records, source, spec

HOUR = 3_600_000
POPULATIONS = (
    Population(population="renewing", epsilon=3.0, delta=1e-5, renews="3h"),
    Population(population="concentrated", epsilon=2.5, delta=1e-6, accountant="zcdp"),
)
SOURCES = (
    source("plain", epsilon=2.0),
    source("hourly", epsilon=1.5, renews="1h"),
    source("rho", epsilon=2.0, delta=1e-6, accountant="zcdp", renews="2h"),
    source("member", epsilon=2.0, renews="2h", population="renewing"),
)
ANALYSTS = (None, "ada", "bob")
KINDS: tuple[dict[str, Any], ...] = ({"epsilon": 0.2}, {"epsilon": 0.4, "cutoff": 4})


class Pair:
    """A ledger that retires streams and one that does not; both get the same requests."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.ledger, self.naive = Ledger(DigestTable()), Ledger()
        self.names: list[tuple[str, str]] = []
        self.retired: set[str] = set()
        self.written: dict[bytes, bytes] = {}
        for ledger in (self.ledger, self.naive):
            ledger.advance_clock(7 * HOUR)
            for population in POPULATIONS:
                ledger.register_population(population)
            for one in SOURCES:
                ledger.register(one, None)

    def both(self, step: Any) -> None:
        """Let both ledgers take a step; both must grant, or refuse with the same reason.

        The name that a refusal suggests may differ, because a retired name is not suggested.
        """
        outcomes = []
        for ledger in (self.ledger, self.naive):
            try:
                step(ledger)
                outcomes.append("done")
            except (RefusedError, PlanError) as refused:
                outcomes.append(str(refused).partition("; did you mean")[0])
        assert outcomes[0] == outcomes[1]

    def open(self) -> None:
        where, analyst = self.chance.choice(SOURCES).source, self.chance.choice(ANALYSTS)
        asked = spec(f"stream-{len(self.names)}", where, **self.chance.choice(KINDS))
        number = len(self.names)
        self.names.append((where, asked.stream))
        self.both(lambda ledger: ledger.reserve(asked, calibration(asked), identity(number), analyst))

    def end(self) -> None:
        where, stream = self.chance.choice(self.names)
        ending: Any = self.chance.choice(("closed", "closed", "halted"))
        self.request(stream, lambda ledger: ledger.end_stream(where, stream, ending, "asked"))
        if stream not in self.retired:
            self.charge(where, stream, ending)

    def answer(self) -> None:
        self.charge(*self.chance.choice(self.names), "open")

    def charge(self, where: str, stream: str, state: Any) -> None:
        grant = self.naive.accounts[where].grants.get(stream)
        if grant is None or stream in self.retired:
            return
        tops = min(grant.tops + self.chance.randint(0, 1), grant.cutoff)
        figures = {"answered": grant.answered + 1, "tops": tops, "state": state}
        incarnation = grant.identity.incarnation
        self.both(lambda ledger: ledger.record_charge(where, stream, incarnation, **figures))

    def request(self, stream: str, step: Any) -> None:
        """Make a request about a stream; about a retired one it is refused."""
        if stream not in self.retired:
            self.both(step)
            return
        with pytest.raises(RefusedError, match="has ended and is retired; its charge is final"):
            step(self.ledger)

    def extend(self) -> None:
        where, stream = self.chance.choice(self.names)
        digest = f"{self.chance.getrandbits(64):064x}"
        self.request(stream, lambda ledger: ledger.extend(where, stream, digest, 0.3, 0.0))

    def open_again(self) -> None:
        where, stream = self.chance.choice(self.names)
        if stream in self.retired:
            asked = spec(stream, where, epsilon=1e-6)
            with pytest.raises(RefusedError, match="was used before; choose another"):
                self.ledger.reserve(asked, calibration(asked), identity(0), None)

    def join(self) -> None:
        where, people = self.chance.choice(SOURCES).source, self.chance.choice(POPULATIONS).population
        self.both(lambda ledger: ledger.join_population(where, people))

    def allot(self) -> None:
        name, members = self.chance.choice((("ada", ()), ("team", ("ada", "bob"))))
        place, epsilon = self.chance.randrange(len(SOURCES) + len(POPULATIONS)), self.chance.choice((0.5, 2.0))
        self.both(lambda ledger: ledger.allot(owners(ledger)[place], name, members, epsilon, None))

    def pass_time(self) -> None:
        minutes = self.chance.choice((10, 40, 130))
        self.both(lambda ledger: ledger.advance_clock(self.naive.clock + minutes * 60_000))

    def retire(self) -> None:
        for where, stream in self.ledger.ended_streams.list_ended_by(
            self.ledger.clock - self.chance.choice((0, HOUR))
        ):
            retire_stream(self.ledger, where, stream)
            self.retired.add(stream)

    def restart(self) -> None:
        for _, key, record in self.ledger.drain_changes():
            if record is None:
                self.written.pop(key, None)
            else:
                self.written[key] = codec.encode(record)
        again = ledger_from_records(self.written.values())
        again.advance_clock(self.ledger.clock)
        grants = [(name, one) for name, account in again.accounts.items() for one in account.grants]
        restore_ends(again, [(name, one, again.clock) for name, one in grants])
        assert again.accounts == self.ledger.accounts
        self.ledger = again

    def compare(self) -> None:
        for one, other in zip(owners(self.ledger), owners(self.naive), strict=True):
            assert list_totals(one) == list_totals(other)


def owners(ledger: Ledger) -> list[Account | PopulationAccount]:
    found: list[Account | PopulationAccount] = [*ledger.accounts.values(), *ledger.populations.values()]
    return sorted(found, key=lambda one: one.name)


def list_totals(owner: Account | PopulationAccount) -> list[Any]:
    """Return the totals on which later decisions depend, and the shown totals."""
    budget = owner.budget
    ceilings = [budget, *(budget.allotments[name] for name in sorted(budget.allotments))]
    sums = [(one.granted, one.spent, one.refunded, one.counted, one.streams) for one in ceilings]
    return [owner.name, owner.to_record(), budget.period_number, budget.start_ms, *sums]


@pytest.mark.parametrize("seed", range(12))
def test_retirement_changes_no_decision_and_no_sum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", 2)
    pair = Pair(seed)
    steps = [pair.open, pair.open, pair.answer, pair.end, pair.end, pair.retire, pair.pass_time, pair.restart]
    steps += [pair.open, pair.end, pair.retire, pair.extend, pair.open_again, pair.join, pair.allot]
    pair.open()
    for _ in range(150):
        pair.chance.choice(steps)()
        pair.compare()
    assert len(pair.retired) > 3


def test_name_digests_find_names_after_many_blocks_and_restart() -> None:
    names, records = NameDigests(DigestTable()), dict[int, RetiredNames]()
    count = 2 * MAX_NAMES_PER_BLOCK + 100
    for number in range(count):
        names.add("stream", f"stream-{number}")
        if number % 1000 == 0:
            records |= {one.number: one for one in names.drain_records()}
    records |= {one.number: one for one in names.drain_records()}
    again = NameDigests(DigestTable())
    for record in records.values():
        again.restore(record)
    for one in (names, again):
        assert len(one) == count
        assert all(one.has("stream", f"stream-{number}") for number in range(count))
        assert not any(one.has("stream", f"other-{number}") for number in range(1000))
        assert not one.has("source", "stream-1")
    again.add("stream", "last")
    assert [one.number for one in again.drain_records()] == [2]


def test_name_digests_take_at_most_64_bytes_a_name() -> None:
    count = 100_000
    tracemalloc.start()
    names = NameDigests(DigestTable())
    for number in range(count):
        names.add("stream", f"stream-{number}")
        if number % 1000 == 0:
            list(names.drain_records())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 * count
