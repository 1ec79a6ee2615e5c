"""Costs are exact integers: none is below the spent amount, and rounding puts no sum of them above a budget."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas import SparseVectorCalibration
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.composition.costs import (
    DELTA_UNITS,
    EPSILON_UNITS,
    NO_COST,
    Cost,
    affordable_delta,
    affordable_epsilon,
    realised_cost,
    stream_cost,
    to_amount,
    total_budget,
)
from stream.privacy.composition.losses import is_pure, losses
from stream.privacy.planning.plans import choose_calibration
from tests.builders import parse_spec
from tests.unit.privacy.ledger.ledger_parts import source

small = st.integers(-(10**20), 10**20)
costs = st.builds(Cost, loss=small, delta=st.integers(-(10**40), 10**40), rho=small)


@st.composite
def calibrations(draw: st.DrawFn) -> SparseVectorCalibration:
    """Draw calibrations with any budget over any number of rounds, pure or not."""
    epsilon = draw(st.floats(1e-6, 1000.0))
    fraction = draw(st.floats(0.01, 0.99))
    fresh = draw(st.booleans())
    cutoff = draw(st.integers(1, 1000))
    per_round = epsilon / cutoff * draw(st.sampled_from([0.999, 1.0, 3.0])) if fresh else epsilon
    return SparseVectorCalibration(
        method="one_sided_rounds" if fresh else "one_sided",
        noise="one_sided",
        fresh_threshold=fresh,
        epsilon_threshold=per_round * fraction,
        epsilon_query=per_round * (1.0 - fraction),
        shift=0,
        sensitivity_steps=1,
        grid=1.0,
        cutoff=cutoff,
        monotone=False,
        epsilon=epsilon,
        delta=draw(st.sampled_from([1e-300, 1e-30, 1e-9, 0.25])),
        expected_queries=100,
        beta=0.05,
        alpha=1.0,
    )


@given(first=costs, second=costs)
def test_cost_adds_and_compares_by_component(first: Cost, second: Cost) -> None:
    assert first + second - second == first
    parts = ((first.loss, second.loss), (first.delta, second.delta), (first.rho, second.rho))
    assert (first <= second) == all(one <= other for one, other in parts)
    assert first.minimum_with(second) <= first
    assert first.minimum_with(second) <= second
    assert first.clamp_at_zero() == Cost(*(max(one, 0) for one, _ in parts))


@given(units=st.integers(10**6, 10**15 - 1), grants=st.integers(1, 500))
@settings(deadline=None)
def test_total_budget_fits_equal_decimal_grants(units: int, grants: int) -> None:
    # A double holds so many decimals exactly, so nothing is rounded.
    one = float(Decimal(units) / EPSILON_UNITS)
    total = Decimal(units) * grants / EPSILON_UNITS
    calibration = CALIBRATION.model_copy(update={"epsilon": affordable_epsilon(one)})
    assert stream_cost(calibration, "pure").loss == units
    if total <= 1000 and len(total.normalize().as_tuple().digits) <= 15:
        assert total_budget(source(epsilon=float(total))).loss == units * grants


CALIBRATION = SparseVectorCalibration(
    method="one_sided",
    noise="one_sided",
    fresh_threshold=False,
    epsilon_threshold=0.25,
    epsilon_query=0.75,
    shift=0,
    sensitivity_steps=1,
    grid=1.0,
    cutoff=3,
    monotone=False,
    epsilon=1.0,
    delta=1e-9,
    expected_queries=100,
    beta=0.05,
    alpha=1.0,
)


@given(epsilon=st.floats(1e-6, 1000.0), delta=st.floats(0.0, 0.49))
@settings(deadline=None)
def test_total_budget_is_rounded_down_and_cost_rounded_up(epsilon: float, delta: float) -> None:
    """Budgets are decimals that are rounded down, costs are doubles that are rounded up."""
    budget = total_budget(source(epsilon=epsilon, delta=delta))
    assert budget == Cost(
        math.floor(Fraction(repr(epsilon)) * EPSILON_UNITS), math.floor(Fraction(repr(delta)) * DELTA_UNITS)
    )
    rounds_too_dear = {"fresh_threshold": True, "epsilon_threshold": epsilon, "epsilon": epsilon, "delta": delta}
    cost = stream_cost(CALIBRATION.model_copy(update=rounds_too_dear), "pure")
    assert cost == Cost(math.ceil(Fraction(epsilon) * EPSILON_UNITS), math.ceil(Fraction(delta) * DELTA_UNITS))


@given(value=st.floats(1e-6, 1000.0))
@example(0.1)
@settings(deadline=None)
def test_affordable_epsilon_is_largest_double_within_whole_units(value: float) -> None:
    """A plan's ε costs the units of the written decimal, rounded down; the next double costs more."""
    units = math.floor(Fraction(repr(value)) * EPSILON_UNITS)
    within = affordable_epsilon(value)
    assert Fraction(within) * EPSILON_UNITS <= units < Fraction(math.nextafter(within, math.inf)) * EPSILON_UNITS


@given(value=st.floats(1e-300, 0.49))
@example(1e-6)
@settings(deadline=None)
def test_affordable_delta_loses_less_than_a_part_in_ten_billion(value: float) -> None:
    """A plan's δ is never above the written decimal, and hardly below it, even if it is very small."""
    within = Fraction(affordable_delta(value))
    written = Fraction(repr(value))
    assert within <= written
    if value >= 1e-18:
        assert within >= written * (1 - Fraction(1, 10**10))


@pytest.mark.parametrize("budget", [1.0, 0.3, 0.7, 2.0, 3.3, 12.345678, 999.999999999999])
@pytest.mark.parametrize("delta", [0.0, 1e-6, 3e-9, 0.012345678])
def test_affordable_parts_of_budget_fit(budget: float, delta: float) -> None:
    """n streams of ε/n and δ/n, as doubles divide them, cost no more than (ε, δ), for every n to 200 and some to 2,000."""
    total = total_budget(source(epsilon=budget, delta=delta))
    for parts in (*range(1, 200), 999, 1000, 1024, 1999, 2000):
        one = Cost(
            math.ceil(Fraction(affordable_epsilon(budget / parts)) * EPSILON_UNITS),
            math.ceil(Fraction(affordable_delta(delta / parts)) * DELTA_UNITS) if delta else 0,
        )
        assert Cost(one.loss * parts, one.delta * parts) <= total
        # Rounding loses less than one millionth of a budget.
        assert one.loss * parts * 1_000_000 > total.loss * 999_999


@pytest.mark.parametrize("epsilon", [0.1, 0.05, 0.7, 1.1, 0.3])
def test_stream_cost_of_plan_is_requested_decimal(epsilon: float) -> None:
    for spec in (
        parse_spec("above_threshold", cutoff=3, epsilon=epsilon),
        parse_spec("laplace", answers=1, epsilon=epsilon),
        parse_spec("laplace", answers=7, epsilon=epsilon),
    ):
        calibration = choose_calibration(spec, SourceFacts())
        assert losses(calibration).total <= Fraction(repr(epsilon))
        assert stream_cost(calibration, "pure").loss == Fraction(repr(epsilon)) * EPSILON_UNITS


@given(calibration=calibrations())
@settings(deadline=None)
def test_stream_cost_has_delta_only_if_rounds_exceed_epsilon(
    calibration: SparseVectorCalibration,
) -> None:
    lost = losses(calibration).total
    cost = stream_cost(calibration, "pure")
    assert is_pure(calibration) == (cost.delta == 0) == (lost <= Fraction(calibration.epsilon))


@given(calibration=calibrations())
@settings(deadline=None)
def test_stream_cost_under_zcdp_is_half_the_squared_rounds(calibration: SparseVectorCalibration) -> None:
    parts = losses(calibration)
    rho = sum(count * epsilon**2 for count, epsilon in parts.pure_parts) / 2
    assert stream_cost(calibration, "zcdp") == Cost(
        math.ceil(parts.total * EPSILON_UNITS), rho=math.ceil(rho * EPSILON_UNITS)
    )


@given(calibration=calibrations(), accountant=st.sampled_from(["pure", "zcdp"]), tops=st.integers(0, 1000))
@settings(deadline=None)
def test_realised_cost_is_nothing_before_first_answer(
    calibration: SparseVectorCalibration, accountant: str, tops: int
) -> None:
    assert realised_cost(calibration, accountant, 0, tops) == NO_COST


def realised_exactly(calibration: SparseVectorCalibration, tops: int) -> Fraction:
    """Return ε1 + tops·ε2/c; with a threshold for each round, return the cost of the ended rounds plus ε1 of the current one."""
    threshold, query = Fraction(calibration.epsilon_threshold), Fraction(calibration.epsilon_query)
    if not calibration.fresh_threshold:
        return threshold + query * Fraction(tops, calibration.cutoff)
    open_loss = threshold if tops < calibration.cutoff else Fraction(0)
    return tops * (threshold + query) + open_loss


@given(calibration=calibrations(), share=st.floats(0.0, 1.0), answered=st.integers(1, 10**9))
@settings(deadline=None)
def test_realised_cost_of_pure_stream_is_cost_of_its_tops(
    calibration: SparseVectorCalibration, share: float, answered: int
) -> None:
    tops = round(share * calibration.cutoff)
    full = stream_cost(calibration, "pure")
    spent = realised_cost(calibration, "pure", answered, tops)
    if is_pure(calibration):
        exact = math.ceil(realised_exactly(calibration, tops) * EPSILON_UNITS)
        assert spent == Cost(min(exact, full.loss), 0)
    else:
        assert spent == full


@given(calibration=calibrations(), accountant=st.sampled_from(["pure", "zcdp"]), share=st.floats(0.0, 0.999))
@settings(deadline=None)
def test_realised_cost_grows_with_each_top_up_to_stream_cost(
    calibration: SparseVectorCalibration, accountant: str, share: float
) -> None:
    tops = int(share * calibration.cutoff)
    before, after = (realised_cost(calibration, accountant, 1, out) for out in (tops, tops + 1))
    assert before >= NO_COST
    assert before <= after
    assert after <= stream_cost(calibration, accountant)


@given(calibration=calibrations(), answered=st.integers(1, 10**9), share=st.floats(0.0, 1.0))
@settings(deadline=None)
def test_realised_cost_under_zcdp_has_all_rho_at_first_answer(
    calibration: SparseVectorCalibration, answered: int, share: float
) -> None:
    """ρ is spent with the first answer, ε answer by answer."""
    tops = round(share * calibration.cutoff)
    full, spent = stream_cost(calibration, "zcdp"), realised_cost(calibration, "zcdp", answered, tops)
    exact = math.ceil(realised_exactly(calibration, tops) * EPSILON_UNITS)
    assert spent == Cost(min(exact, full.loss), rho=full.rho)


def test_to_amount_under_zcdp_shows_additive_parts_only() -> None:
    feed = source(epsilon=2.0, delta=1e-6, accountant="zcdp")
    assert to_amount(NO_COST, feed).model_dump() == {"epsilon": 0.0, "delta": 0.0, "rho": 0.0}
    asked = choose_calibration(parse_spec("laplace", answers=1, epsilon=0.5), SourceFacts())
    one = stream_cost(asked, "zcdp")
    assert to_amount(one, feed).model_dump() == {"epsilon": 0.5, "delta": 0.0, "rho": 0.125}
    assert to_amount(one + one, feed).model_dump() == {"epsilon": 1.0, "delta": 0.0, "rho": 0.25}


@given(loss=st.integers(0, 10**15), delta=st.integers(0, 10**30))
def test_to_amount_under_pure_accountant_is_nearest_double(loss: int, delta: int) -> None:
    shown = to_amount(Cost(loss, delta), source())
    assert shown.rho is None
    assert shown.epsilon == float(Fraction(loss, EPSILON_UNITS))
    assert shown.delta == float(Fraction(delta, DELTA_UNITS))


@given(
    epsilon=st.sampled_from([0.1, 0.3, 1.0, 2.5]),
    delta=st.sampled_from([0.0, 1e-9]),
    cutoff=st.sampled_from([1, 3, 20]),
    textbook=st.booleans(),
)
@settings(deadline=None, max_examples=24)
def test_stream_cost_of_sparse_plan_is_within_budget(
    epsilon: float, delta: float, cutoff: int, textbook: bool
) -> None:
    method = "textbook" if textbook else "best"
    asked = parse_spec(cutoff=cutoff, calibration=method, epsilon=epsilon, delta=delta, expected_queries=100)
    calibration = choose_calibration(asked, SourceFacts())
    assert stream_cost(calibration, "pure") <= total_budget(source(epsilon=epsilon, delta=delta))
