"""The ledger grants requests that fit, refuses the others, and refunds unspent amounts."""

from __future__ import annotations

import copy
import math
from fractions import Fraction
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import StreamState
from stream.privacy.composition.costs import NO_COST, Cost, RefusedError, realised_cost
from stream.privacy.ledger.grants import Ceiling, require_paid
from stream.privacy.ledger.state_machine import Ledger
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

TENTH = 10**11


def close_and_settle(ledger: Ledger, stream: str, number: int, *, answered: int = 0, tops: int = 0) -> None:
    """Close a stream as an operator does, and have its worker report its last totals."""
    ledger.end_stream("feed", stream, "closed", "done")
    assert ledger.record_charge(
        "feed", stream, identity(number).incarnation, answered=answered, tops=tops, state="closed"
    )


def test_ledger_grants_ten_tenths_and_refuses_eleventh() -> None:
    ledger = ledger_with(source())
    for number in range(10):
        reserve(ledger, spec(f"stream-{number}"), number)
    assert ledger.account("feed").budget.left == NO_COST
    with pytest.raises(RefusedError, match=r"ε = 0\.1 asked, ε = 0 left") as refused:
        reserve(ledger, spec("stream-10"), 10)
    assert refused.value.asked is not None
    assert refused.value.left is not None
    assert (refused.value.asked.epsilon, refused.value.left.epsilon) == (0.1, 0.0)


def test_ledger_refusal_leaves_budget_unchanged() -> None:
    ledger = ledger_with(source())
    with pytest.raises(RefusedError):
        reserve(ledger, spec("greedy", epsilon=1.5))
    reserve(ledger, spec("greedy", epsilon=1.0))


def test_ledger_refuses_delta_that_is_not_left() -> None:
    ledger = ledger_with(source(epsilon=100.0, delta=1.5e-6))
    rounds = spec("rounds-0", epsilon=1.0, delta=1e-6, cutoff=200)
    assert reserve(ledger, rounds).claim.cost == Cost(10**12, math.ceil(Fraction(1e-6) * 10**30))
    with pytest.raises(RefusedError, match=r"δ = 1e-06 asked, ε = 99, δ = 5e-07 left"):
        reserve(ledger, rounds.model_copy(update={"stream": "rounds-1"}))


def test_refusal_shows_amounts_as_analysts_write_them() -> None:
    """The amount asked is rounded up and the rest down, so the rest never looks sufficient."""
    left, asked = Cost(10**12, 45 * 10**6), Cost(10**12, int(9.99999999999e-06 * 10**30))
    with pytest.raises(RefusedError, match=r"ε = 1, δ = 1e-05 asked, ε = 1, δ = 0 left"):
        require_paid([(Ceiling("source 's'", source(), left), asked)])


@pytest.mark.parametrize("parts", [3, 6, 7, 13, 49, 60])
def test_ledger_grants_even_split_of_budget_completely(parts: int) -> None:
    """n streams of ε/n are granted from a budget of ε, also from an allotment of it and from a budget of ε/n itself."""
    ledger = ledger_with(source(), source("small", epsilon=1 / parts))
    ledger.allot(ledger.account("feed"), "ada", ("ada",), 1.0, None)
    for number in range(parts):
        asked = spec(f"part-{number}", epsilon=1 / parts)
        ledger.reserve(asked, calibration(asked), identity(number), "ada")
    reserve(ledger, spec("whole", "small", epsilon=1 / parts))


def test_ledger_refusal_names_amount_that_can_be_asked() -> None:
    """A refusal has all digits of the requested amount and of the least amount left anywhere; a request for the latter is granted."""
    ledger = ledger_with(source())
    ledger.allot(ledger.account("feed"), "ada", ("ada",), 0.5, None)
    ledger.reserve(asked := spec("first", epsilon=1 / 7), calibration(asked), identity(1), "ada")
    reserve(ledger, spec("operator", epsilon=0.25), 2)
    with pytest.raises(
        RefusedError, match=r"ε = 0\.857142857142 asked, ε = 0\.357142857143 left; ask for no more than is left"
    ):
        ledger.reserve(asked := spec("more", epsilon=6 / 7), calibration(asked), identity(3), "ada")
    ledger.reserve(asked := spec("less", epsilon=0.357142857143), calibration(asked), identity(4), "ada")
    exhausted = "left; have the allotment raised, or close streams that have not used up their grants"
    with pytest.raises(RefusedError, match=exhausted):
        ledger.reserve(asked := spec("after", epsilon=0.1), calibration(asked), identity(5), "ada")


def test_ledger_refusal_under_zcdp_names_rho_and_added_epsilon() -> None:
    ledger = ledger_with(source(delta=1e-6, accountant="zcdp"))
    reserve(ledger, spec("modest"))
    with pytest.raises(
        RefusedError, match=r"ρ = 0\.5 \(ε = 1 added up\) asked, ρ = 0\.019\d+ \(ε = 0\.9 added up\) left"
    ):
        reserve(ledger, spec("greedy", epsilon=1.0))


def test_ledger_refusal_of_unregistered_source_names_remedy() -> None:
    ledger = ledger_with(source())
    with pytest.raises(RefusedError, match="source 'other' is not registered; register it first"):
        reserve(ledger, spec("alarms", "other"))
    with pytest.raises(RefusedError, match=r"source 'fed' is not registered; did you mean 'feed'\?"):
        reserve(ledger, spec("alarms", "fed"))
    reserve(ledger, spec("counts"))
    with pytest.raises(
        RefusedError, match=r"stream 'count' is not open on source 'feed'; did you mean 'counts'\?"
    ):
        ledger.end_stream("feed", "count", "closed", "done")
    with pytest.raises(RefusedError, match="stream 'alarms' is not open on source 'feed'"):
        ledger.end_stream("feed", "alarms", "closed", "done")


def test_ledger_registers_source_twice_only_if_unchanged() -> None:
    ledger = ledger_with(source())
    reserve(ledger, spec("alarms"))
    assert ledger.register(source(), None) is ledger.account("feed")
    with pytest.raises(RefusedError, match="registered with another definition; choose another name"):
        ledger.register(source(epsilon=2.0), None)
    assert ledger.account("feed").budget.granted == Cost(TENTH)


@pytest.mark.parametrize("ending", ["open", "closed"])
def test_ledger_refuses_used_stream_name_across_sources(ending: str) -> None:
    ledger = ledger_with(source(), source("other"))
    reserve(ledger, spec("alarms"), 1)
    if ending == "closed":
        close_and_settle(ledger, "alarms", 1)
    for name in ("feed", "other"):
        with pytest.raises(RefusedError, match="'alarms' was used before, on source 'feed'; choose another"):
            reserve(ledger, spec("alarms", name), 2)


def test_ledger_refuses_openings_on_halted_source_with_reason() -> None:
    ledger = ledger_with(source())
    reserve(ledger, spec("alarms"))
    assert [grant.spec.stream for grant in ledger.halt_source("feed", "audit")] == ["alarms"]
    with pytest.raises(RefusedError, match="source 'feed' is halted: audit"):
        reserve(ledger, spec("more"))
    assert ledger.halt_source("feed", "audit") == []


@pytest.mark.parametrize(
    ("answered", "tops", "spent"),
    [(0, 0, Fraction(0)), (1, 0, Fraction(1)), (7, 2, Fraction(1)), (9, 5, Fraction(1))],
)
def test_ledger_refunds_closed_stream_exactly(answered: int, tops: int, spent: Fraction) -> None:
    ledger = ledger_with(source())
    asked = spec("alarms", cutoff=5)
    grant = reserve(ledger, asked, 1)
    close_and_settle(ledger, "alarms", 1, answered=answered, tops=tops)
    plan = calibration(asked)
    lost = spent * Fraction(plan.epsilon_threshold) + Fraction(tops, 5) * Fraction(plan.epsilon_query)
    units = min(math.ceil(lost * 10**12), TENTH)
    assert grant.claim.spent == ledger.account("feed").budget.spent == Cost(units)
    assert grant.claim.refunded == ledger.account("feed").budget.refunded == Cost(TENTH - units)
    assert ledger.account("feed").budget.left == Cost(10**12 - units)


def test_ledger_under_zcdp_refunds_rho_only_without_answers() -> None:
    ledger = ledger_with(source(delta=1e-6, accountant="zcdp"))
    idle, busy = reserve(ledger, spec("idle"), 1), reserve(ledger, spec("busy"), 2)
    close_and_settle(ledger, "idle", 1)
    close_and_settle(ledger, "busy", 2, answered=1)
    assert idle.claim.refunded == idle.claim.cost
    assert (busy.claim.spent.rho, busy.claim.refunded.rho) == (busy.claim.cost.rho, 0)
    assert busy.claim.refunded.loss == busy.claim.cost.loss - busy.claim.spent.loss > 0


def test_ledger_refunds_halted_stream_only_when_closed() -> None:
    ledger = ledger_with(source())
    reserve(ledger, spec("alarms"), 1)
    ledger.record_charge(
        "feed", "alarms", identity(1).incarnation, answered=0, tops=0, state="halted", reason="audit"
    )
    assert ledger.account("feed").budget.refunded == NO_COST
    close_and_settle(ledger, "alarms", 1)
    assert ledger.account("feed").budget.refunded == Cost(TENTH)


def test_ledger_ignores_charge_of_other_incarnation() -> None:
    ledger = ledger_with(source())
    grant = reserve(ledger, spec("alarms"), 1)
    assert not ledger.record_charge("feed", "alarms", identity(2).incarnation, answered=9, tops=1, state="closed")
    assert (grant.answered, grant.state, grant.claim.spent) == (0, "open", NO_COST)


def test_record_charge_reports_first_of_equal_charges_only() -> None:
    ledger = ledger_with(source())
    reserve(ledger, spec("alarms"), 1)
    incarnation = identity(1).incarnation
    assert ledger.record_charge("feed", "alarms", incarnation, answered=4, tops=1, state="exhausted")
    assert not ledger.record_charge("feed", "alarms", incarnation, answered=4, tops=1, state="exhausted")
    assert not ledger.record_charge("feed", "alarms", incarnation, answered=3, tops=0, state="open")


@pytest.mark.parametrize(("answered", "tops"), [(3, 3), (9, 1), (3, 1), (0, 0)])
@pytest.mark.parametrize("state", ["open", "exhausted", "halted", "closed"])
def test_record_charge_ignores_totals_that_go_back(answered: int, tops: int, state: StreamState) -> None:
    ledger = ledger_with(source())
    reserve(ledger, spec("alarms", cutoff=5), 1)
    incarnation = identity(1).incarnation
    ledger.record_charge("feed", "alarms", incarnation, answered=5, tops=2, state="open")
    before = copy.deepcopy(ledger.accounts)
    assert not ledger.record_charge("feed", "alarms", incarnation, answered=answered, tops=tops, state=state)
    assert ledger.accounts == before


def test_end_stream_reports_each_ending_once_and_none_after_closing() -> None:
    ledger = ledger_with(source())
    reserve(ledger, spec("alarms"))
    changes = [
        ledger.end_stream("feed", "alarms", ending, "why")
        for ending in ("halted", "halted", "closed", "closed", "halted")
    ]
    assert changes == [True, False, True, False, False]


@pytest.mark.parametrize("state", ["open", "exhausted", "halted", "closed"])
def test_ledger_refuses_charge_after_final_charge(state: StreamState) -> None:
    ledger = ledger_with(source())
    reserve(ledger, spec("alarms", cutoff=5), 1)
    incarnation = identity(1).incarnation
    close_and_settle(ledger, "alarms", 1, answered=1)
    before = copy.deepcopy(ledger.accounts)
    with pytest.raises(RefusedError):
        ledger.record_charge("feed", "alarms", incarnation, answered=9, tops=3, state=state)
    assert ledger.accounts == before == ledger_from_records(records_of(ledger)).accounts


@pytest.mark.parametrize("ending", [None, "halted"])
@pytest.mark.parametrize(("answered", "tops"), [(0, 0), (1, 0), (9, 5)])
def test_ledger_refuses_final_charge_without_close_request(
    ending: Literal["halted"] | None, answered: int, tops: int
) -> None:
    ledger = ledger_with(source())
    reserve(ledger, spec("alarms", epsilon=1.0, cutoff=5), 1)
    if ending is not None:
        ledger.end_stream("feed", "alarms", ending, "audit")
    before = copy.deepcopy(ledger.accounts)
    with pytest.raises(RefusedError, match="the ledger has no request to close the stream"):
        ledger.record_charge(
            "feed", "alarms", identity(1).incarnation, answered=answered, tops=tops, state="closed"
        )
    assert ledger.accounts == before
    with pytest.raises(RefusedError, match="cannot pay"):
        reserve(ledger, spec("more", epsilon=1.0), 2)


@pytest.mark.parametrize(
    ("answered", "tops", "state"), [(9, 6, "open"), (9, 6, "exhausted"), (2, 3, "open"), (9, 4, "exhausted")]
)
def test_ledger_refuses_impossible_totals(answered: int, tops: int, state: StreamState) -> None:
    ledger = ledger_with(source())
    reserve(ledger, spec("alarms", cutoff=5), 1)
    before = copy.deepcopy(ledger.accounts)
    with pytest.raises(RefusedError):
        ledger.record_charge("feed", "alarms", identity(1).incarnation, answered=answered, tops=tops, state=state)
    assert ledger.accounts == before


@given(totals=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
@settings(deadline=None)
def test_record_charge_result_is_independent_of_order(totals: list[tuple[int, int]]) -> None:
    # A stream's totals only grow, so a late total is smaller than one that was counted already.
    in_order = [(answered + tops, tops) for answered, tops in totals]
    growing = [
        (max(a for a, _ in in_order[: n + 1]), max(t for _, t in in_order[: n + 1])) for n in range(len(in_order))
    ]
    asked = spec("alarms", cutoff=10)
    spent = []
    for order in (growing, [*growing[1::2], *growing[-1:], *growing[::2]]):
        ledger = ledger_with(source())
        grant = reserve(ledger, asked, 1)
        for answered, tops in order:
            ledger.record_charge(
                "feed", "alarms", identity(1).incarnation, answered=answered, tops=tops, state="open"
            )
        spent.append((grant.answered, grant.tops, grant.claim.spent))
    assert spent[0] == spent[1]
    last = growing[-1] if growing else (0, 0)
    assert spent[0] == (*last, realised_cost(calibration(asked), "pure", *last))


def test_restored_ledger_remembers_names_and_halts() -> None:
    ledger = ledger_with(source(), source("other"))
    reserve(ledger, spec("alarms"))
    ledger.halt_source("feed", "audit")
    again = ledger_from_records(records_of(ledger))
    with pytest.raises(RefusedError, match="used before, on source 'feed'"):
        reserve(again, spec("alarms", "other"))
    with pytest.raises(RefusedError, match="source 'feed' is halted: audit"):
        reserve(again, spec("more"))
