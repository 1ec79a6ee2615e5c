"""The amounts that a period counts for streams that are open at its start."""

from __future__ import annotations

import pytest

from schemas import EdgeTotals
from stream.privacy.composition.costs import NO_COST, RefusedError
from stream.privacy.ledger.grants import completed_cost
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.planning.promises import describe_promise, period_length_ms
from tests.builders import calibration
from tests.unit.privacy.ledger.ledger_parts import identity, ledger_with, reserve, source, spec

HOUR = 3_600_000


def start_next_period(ledger: Ledger, hours: int = 1) -> Ledger:
    ledger.advance_clock(ledger.clock + hours * HOUR)
    for owner in ledger.renewing_owners:
        ledger.begin_due_period(owner)
    return ledger


@pytest.mark.parametrize(("renews", "hours"), [("1h", 1), ("36h", 36), ("1d", 24), ("30d", 720), (None, 0)])
def test_period_length_ms_matches_declaration(renews: str | None, hours: int) -> None:
    assert period_length_ms(renews) == hours * HOUR


@pytest.mark.parametrize(
    ("renews", "number", "words"),
    [
        ("1d", 1, "every day a person may lose ε = 1, δ = 1e-06 again"),
        ("30d", 1, "every 30 days a person may lose"),
        ("12h", 4, "this is period 4, so at its end they may have cost 4 times as much"),
        (None, 0, "privacy is for ever"),
    ],
)
def test_describe_promise_states_period_in_plain_words(renews: str | None, number: int, words: str) -> None:
    assert words in describe_promise(source(delta=1e-6, renews=renews), number)


def test_renewal_counts_lost_stream_until_it_is_closed() -> None:
    """A stream that a backup lost counts in each period until it is closed."""
    ledger = ledger_with(source(renews="1h"))
    reserve(ledger, spec("alarms"), 1)
    ledger.halt_lost_stream("feed", "alarms", "lost")
    account = start_next_period(ledger).account("feed")
    assert account.budget.counted == account.grants["alarms"].claim.cost
    ledger.end_stream("feed", "alarms", "closed", "done")
    ledger.record_charge("feed", "alarms", identity(1).incarnation, answered=0, tops=0, state="closed")
    assert start_next_period(ledger).account("feed").budget.counted == NO_COST


def test_completed_cost_counts_only_additive_rounds() -> None:
    """Only rounds that each have a threshold and add up stay in the ended period."""
    totals = EdgeTotals(answered=50, tops=2)
    rounds = calibration(spec("rounds", cutoff=4, delta=1e-6, epsilon=1.0))
    assert completed_cost(calibration(spec("one", cutoff=4)), "pure", totals, ()) == NO_COST
    assert completed_cost(rounds, "zcdp", totals, ()) == NO_COST
    assert completed_cost(rounds, "pure", EdgeTotals(answered=0, tops=0), ()) == NO_COST


def test_renewal_of_many_elapsed_periods_happens_once() -> None:
    ledger = ledger_with(source(renews="1h"))
    reserve(ledger, spec("alarms"), 1)
    account = start_next_period(ledger, 1000).account("feed")
    assert (account.budget.period_number, account.budget.start_ms) == (1001, 1000 * HOUR)
    assert account.budget.left.loss == 9 * 10**11


def test_refused_extension_starts_no_period() -> None:
    """An extension that is refused because of the stream's state starts no period."""
    ledger = ledger_with(source(renews="1h"))
    reserve(ledger, spec("alarms"), 1)
    ledger.end_stream("feed", "alarms", "halted", "asked")
    ledger.advance_clock(ledger.clock + HOUR)
    with pytest.raises(RefusedError, match="cannot be extended"):
        ledger.extend("feed", "alarms", "0" * 64, 0.1, 0.0)
    assert ledger.drain_renewed_owners() == []
    assert ledger.account("feed").budget.period_number == 1
