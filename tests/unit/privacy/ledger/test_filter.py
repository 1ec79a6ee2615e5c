"""A zCDP source grants everything that one of two ways of adding up allows, and all grants together are within its (ε, δ)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import pytest
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import NeighborRel
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas import Calibration, EstimateCalibration, StreamSpec
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import NO_COST, Cost, RefusedError, can_pay, total_budget
from stream.privacy.composition.gaussian_losses import largest_rho, least_epsilon
from stream.privacy.composition.losses import losses
from stream.privacy.ledger.state_machine import Ledger
from stream.privacy.planning.plans import choose_calibration
from tests.builders import calibration
from tests.unit.privacy.ledger.ledger_parts import identity, ledger_with, reserve, source, spec

epsilons = st.floats(1e-4, 50.0)
deltas = st.floats(1e-40, 0.4)


def delta_by_order(rho: float, epsilon: float, order: float) -> float:
    """Return δ by Proposition 12 of Canonne, Kamath & Steinke, in doubles and for one α."""
    log = (order - 1) * (order * rho - epsilon) - math.log(order - 1) + order * math.log1p(-1 / order)
    return math.exp(min(log, 0.0))


@given(epsilon=epsilons, delta=deltas)
@example(epsilon=1.0, delta=1e-6)
@settings(deadline=None, max_examples=20)
def test_largest_rho_is_allowed_by_some_order_and_is_maximal(epsilon: float, delta: float) -> None:
    rho = float(largest_rho(Fraction(epsilon), Fraction(delta)))
    orders = [1.0 + 10 ** (exponent / 400) for exponent in range(-2400, 4000)]
    assert min(delta_by_order(rho * (1 - 1e-4), epsilon, order) for order in orders) <= delta
    assert min(delta_by_order(rho * (1 + 1e-9), epsilon, order) for order in orders) >= delta * (1 - 1e-6)


@given(epsilon=epsilons, delta=deltas)
@settings(deadline=None, max_examples=20)
def test_least_epsilon_inverts_largest_rho_on_safe_side(epsilon: float, delta: float) -> None:
    rho = largest_rho(Fraction(epsilon), Fraction(delta))
    back = least_epsilon(rho, Fraction(delta))
    assert abs(back - Fraction(epsilon)) <= Fraction(epsilon) / 10**12 + Fraction(1, 10**20)
    assert least_epsilon(rho + Fraction(1, 10**12), Fraction(delta)) > Fraction(epsilon)


@given(epsilon=st.floats(1e-6, 1000.0), delta=st.floats(1e-300, 0.49))
@settings(deadline=None, max_examples=30)
def test_largest_rho_is_above_closed_formula(epsilon: float, delta: float) -> None:
    log_inverse = -math.log(delta)
    # (√(ε + l) − √l)² without the difference of two near roots.
    closed = (epsilon / (math.sqrt(epsilon + log_inverse) + math.sqrt(log_inverse))) ** 2
    assert float(largest_rho(Fraction(epsilon), Fraction(delta))) >= closed * (1 - 1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 1e-6), (1.0, 1e-9), (4.0, 1e-5)])
def test_largest_rho_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    rho = float(largest_rho(Fraction(epsilon), Fraction(delta)))
    orders = [1 + step / 100 for step in range(5, 60_000)]
    accountant = RdpAccountant(orders, NeighborRel.ADD_OR_REMOVE_ONE)
    accountant._rdp = accountant._orders * rho
    assert accountant.get_epsilon(delta) == pytest.approx(epsilon, rel=1e-4)


def exact_delta(rounds: Mapping[Fraction, int], epsilon: float) -> float:
    """Return δ(ε) of several randomized responses, which no pure rounds with these ε exceed (Kairouz, Oh & Viswanath 2015)."""
    if sum(count * each for each, count in rounds.items()) <= Fraction(epsilon):
        return 0.0
    terms = []
    kinds = [(float(each), count) for each, count in rounds.items()]
    for unlikely in product(*(range(count + 1) for _, count in kinds)):
        log_mass, loss = 0.0, 0.0
        for (each, count), low in zip(kinds, unlikely, strict=True):
            log_mass += math.lgamma(count + 1) - math.lgamma(low + 1) - math.lgamma(count - low + 1)
            log_mass += (count - low) * each - count * math.log1p(math.exp(each))
            loss += (count - 2 * low) * each
        if loss > epsilon:
            terms.append(math.exp(log_mass) * -math.expm1(epsilon - loss))
    return math.fsum(terms)


def granted_rounds(ledger: Ledger, name: str) -> Counter[Fraction]:
    """Return the number of rounds of a source's streams by their ε; a closed stream without answers has none."""
    rounds: Counter[Fraction] = Counter()
    for grant in ledger.account(name).grants.values():
        if grant.state == "closed" and grant.answered == 0:
            continue
        for count, each in losses(grant.calibration).pure_parts:
            rounds[each] += count
    return rounds


MENU: tuple[dict[str, Any], ...] = (
    {"epsilon": 0.05},
    {"epsilon": 0.3},
    {"epsilon": 0.8},
    {"epsilon": 0.6, "cutoff": 40, "delta": 1e-4},
)


@given(
    asked=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["keep", "keep", "idle", "busy"])), max_size=30),
    epsilon=st.sampled_from([1.0, 1.5, 3.0]),
    delta=st.sampled_from([1e-6, 1e-3]),
)
@settings(deadline=None, max_examples=30)
def test_zcdp_ledger_stays_within_epsilon_and_delta_after_refunds(
    asked: list[tuple[int, str]], epsilon: float, delta: float
) -> None:
    ledger = ledger_with(source(epsilon=epsilon, delta=delta, accountant="zcdp"))
    for number, (kind, fate) in enumerate(asked):
        name = f"stream-{number}"
        try:
            grant = reserve(ledger, spec(name, **MENU[kind]), number)
        except RefusedError:
            continue
        if fate != "keep":
            # A sparse vector without a ⊤ has lost only its threshold's share, if losses are added up.
            ledger.end_stream("feed", name, "closed", "done")
            answered = int(fate == "busy")
            ledger.record_charge(
                "feed", name, identity(number).incarnation, answered=answered, tops=0, state="closed"
            )
            assert grant.claim.refunded.rho == (0 if answered else grant.claim.cost.rho)
    account = ledger.account("feed")
    net = account.budget.granted - account.budget.refunded
    assert can_pay(net, account.budget.total, "zcdp")
    if net.rho <= account.budget.total.rho:
        assert exact_delta(granted_rounds(ledger, "feed"), epsilon) <= delta * (1 + 1e-9)
    else:
        lost = sum(grant.claim.cost.loss - grant.claim.refunded.loss for grant in account.grants.values())
        assert lost <= Fraction(repr(epsilon)) * 10**12


@given(asked=st.lists(st.integers(0, 2), max_size=40), delta=st.sampled_from([1e-9, 1e-6, 1e-3]))
@settings(deadline=None, max_examples=20)
def test_zcdp_ledger_grants_everything_that_pure_ledger_grants(asked: list[int], delta: float) -> None:
    pure, concentrated = (
        ledger_with(source(epsilon=1.5)),
        ledger_with(source(epsilon=1.5, delta=delta, accountant="zcdp")),
    )
    for number, kind in enumerate(asked):
        one = spec(f"stream-{number}", **MENU[kind])
        try:
            reserve(pure, one, number)
        except RefusedError:
            break
        reserve(concentrated, one, number)
    assert len(concentrated.account("feed").grants) >= len(pure.account("feed").grants)


def before_grants(epsilon: float, delta: float) -> Callable[[Fraction], bool]:
    """Return a function that grants rounds as a filter does that uses only ρ + 2√(ρ ln(1/δ))."""
    left = (math.sqrt(epsilon - math.log(delta)) - math.sqrt(-math.log(delta))) ** 2

    def grants(rho: Fraction) -> bool:
        nonlocal left
        if float(rho) > left:
            return False
        left -= float(rho)
        return True

    return grants


@given(asked=st.lists(st.integers(0, 3), max_size=60), epsilon=st.sampled_from([1.0, 4.0]))
@settings(deadline=None, max_examples=20)
def test_zcdp_ledger_grants_everything_that_closed_formula_allows(asked: list[int], epsilon: float) -> None:
    before = before_grants(epsilon, 1e-6)
    ledger = ledger_with(source(epsilon=epsilon, delta=1e-6, accountant="zcdp"))
    for number, kind in enumerate(asked):
        one = spec(f"stream-{number}", **MENU[kind])
        rho = sum(count * each**2 for count, each in losses(calibration(one)).pure_parts) / 2
        if before(Fraction(rho)):
            reserve(ledger, one, number)


def test_zcdp_ledger_grants_twenty_streams_of_a_twentieth() -> None:
    ledger = ledger_with(source(epsilon=1.0, delta=1e-6, accountant="zcdp"))
    for number in range(20):
        reserve(ledger, spec(f"stream-{number}", epsilon=0.05), number)
    with pytest.raises(RefusedError, match="cannot pay"):
        reserve(ledger, spec("stream-20", epsilon=0.05), 20)


def worst_case(total: Cost, menu: tuple[float, ...], epsilon: float) -> float:
    """Return the exact δ(ε) against the best adaptive asker, who opens streams depending on earlier answers.

    Each stream is randomized response, the worst that its ε allows; the state is how many of each kind were granted and
    the privacy loss so far. Its value is E[(1 − e^{ε − L})⁺] under the best continuation.
    """
    prices = [
        Cost(math.ceil(Fraction(repr(one)) * 10**12), rho=math.ceil(Fraction(repr(one)) ** 2 / 2 * 10**12))
        for one in menu
    ]

    @cache
    def value(counts: tuple[int, ...], net: tuple[int, ...]) -> float:
        loss = sum(number * one for number, one in zip(net, menu, strict=True))
        best = max(0.0, -math.expm1(min(epsilon - loss, 0.0)))
        paid = NO_COST
        for number, price in zip(counts, prices, strict=True):
            for _ in range(number):
                paid += price
        for kind, (one, price) in enumerate(zip(menu, prices, strict=True)):
            if not can_pay(price, total - paid, "zcdp"):
                continue
            more = tuple(number + (place == kind) for place, number in enumerate(counts))
            likely = 1.0 / (1.0 + math.exp(-one))
            up, down = (
                tuple(number + step * (place == kind) for place, number in enumerate(net)) for step in (1, -1)
            )
            best = max(best, likely * value(more, up) + (1.0 - likely) * value(more, down))
        return best

    start = (0,) * len(menu)
    return value(start, start)


@pytest.mark.parametrize(
    ("epsilon", "delta", "menu"),
    [(1.0, 1e-2, (0.1, 0.45)), (0.5, 1e-3, (0.05, 0.2)), (1.5, 0.05, (0.2, 0.7)), (1.0, 0.1, (0.25, 1.0))],
)
def test_zcdp_budget_bounds_adaptive_asker_who_chooses_accounting(
    epsilon: float, delta: float, menu: tuple[float, ...]
) -> None:
    """No asker exceeds δ by a choice of streams that depends on earlier answers."""
    total = total_budget(source(epsilon=epsilon, delta=delta, accountant="zcdp"))
    assert worst_case(total, menu, epsilon) <= delta * (1 + 1e-9)
    # The same computation reveals a filter that adds up to twice as much.
    assert worst_case(Cost(2 * total.loss, rho=total.rho), menu, epsilon) > delta


def with_gaussian_noise(name: str, epsilon: float) -> tuple[StreamSpec, Calibration]:
    asked = spec(name, kind="pmw", epsilon=epsilon, delta=1e-6)
    return asked, choose_calibration(asked, SourceFacts(sizes=(85, 2, 16, 5, 2)))


def test_zcdp_ledger_counts_only_rho_while_gaussian_noise_is_granted() -> None:
    ledger = ledger_with(source(epsilon=1.0, delta=1e-6, accountant="zcdp"))
    asked, calibration = with_gaussian_noise("gaussian", 0.3)
    assert isinstance(calibration, EstimateCalibration)
    assert calibration.noise == "gaussian"
    grant = ledger.reserve(asked, calibration, identity(0))
    account = ledger.account("feed")
    assert account.budget.left.unbounded == -1
    record = account.to_record()
    # Its ε and δ follow from ρ; losses are not added up.
    assert record.left.delta == record.granted.delta == 1e-6
    assert record.granted.epsilon == pytest.approx(
        float(least_epsilon(Fraction(grant.claim.cost.rho, 10**12), Fraction(1e-6)))
    )
    # This fits if losses are added up, but not in ρ.
    with pytest.raises(RefusedError, match=r"ρ = 0\.0"):
        reserve(ledger, spec("pure", epsilon=0.6), 1)
    reserve(ledger, spec("small", epsilon=0.1), 1)
    ledger.end_stream("feed", "gaussian", "closed", "")
    ledger.record_charge("feed", "gaussian", grant.identity.incarnation, answered=0, tops=0, state="closed")
    assert account.budget.left.unbounded == 0
    assert account.to_record().left.delta == 0.0
    reserve(ledger, spec("pure", epsilon=0.6), 2)


def test_zcdp_ledger_counts_rho_of_closed_gaussian_stream_for_ever() -> None:
    ledger = ledger_with(source(epsilon=1.0, delta=1e-6, accountant="zcdp"))
    asked, calibration = with_gaussian_noise("gaussian", 0.3)
    grant = ledger.reserve(asked, calibration, identity(0))
    ledger.end_stream("feed", "gaussian", "closed", "")
    ledger.record_charge("feed", "gaussian", grant.identity.incarnation, answered=1, tops=0, state="closed")
    account = ledger.account("feed")
    assert (account.budget.left.unbounded, account.budget.spent.rho, account.budget.refunded.rho) == (
        -1,
        grant.claim.cost.rho,
        0,
    )
    with pytest.raises(RefusedError):
        reserve(ledger, spec("pure", epsilon=0.6), 1)
