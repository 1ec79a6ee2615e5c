"""Costs are exact integers: never below what is spent, and no sum of them is above a budget by rounding."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import AboveThreshold, SparseVectorCalibration, StreamSpec, ValuesSource
from stream.accounting.costs import (
    DELTA_UNITS,
    EPSILON_UNITS,
    NOTHING,
    Cost,
    is_pure,
    losses,
    realised_cost,
    stream_cost,
    to_amount,
    total_budget,
)
from stream.accounting.plans import choose
from stream.accounting.setting import Setting

costs = st.builds(Cost, loss=st.integers(-(10**20), 10**20), delta=st.integers(-(10**40), 10**40))


def source(**changes: Any) -> ValuesSource:
    fields = {"kind": "values", "source": "feed", "neighbors": "replace", "epsilon": 1.0, "sensitivity": 1.0}
    return ValuesSource.model_validate({**fields, **changes})


@st.composite
def calibrations(draw: st.DrawFn) -> SparseVectorCalibration:
    """Any budget split over any rounds, pure or not."""
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
def test_costs_add_and_compare_part_by_part(first: Cost, second: Cost) -> None:
    assert first + second - second == first
    assert (first <= second) == (first.loss <= second.loss and first.delta <= second.delta)
    assert first.least(second) <= first
    assert first.least(second) <= second


@given(units=st.integers(10**6, 10**15 - 1), grants=st.integers(1, 500))
@settings(deadline=None)
def test_equal_decimal_grants_fit_their_decimal_sum(units: int, grants: int) -> None:
    # As many decimals as a double surely holds, hence no rounding anywhere.
    one = float(Decimal(units) / EPSILON_UNITS)
    total = Decimal(units) * grants / EPSILON_UNITS
    calibration = CALIBRATION.model_copy(update={"epsilon": one})
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
def test_budgets_are_rounded_down_and_costs_up_by_less_than_a_unit(epsilon: float, delta: float) -> None:
    told = (Fraction(repr(epsilon)), Fraction(repr(delta)))
    budget = total_budget(source(epsilon=epsilon, delta=delta))
    assert budget == Cost(math.floor(told[0] * EPSILON_UNITS), math.floor(told[1] * DELTA_UNITS))
    rounds_too_dear = {"fresh_threshold": True, "epsilon_threshold": epsilon, "epsilon": epsilon, "delta": delta}
    cost = stream_cost(CALIBRATION.model_copy(update=rounds_too_dear), "pure")
    assert cost == Cost(math.ceil(told[0] * EPSILON_UNITS), math.ceil(told[1] * DELTA_UNITS))


@given(calibration=calibrations())
@settings(deadline=None)
def test_delta_is_paid_only_where_the_rounds_do_not_add_up_to_epsilon(
    calibration: SparseVectorCalibration,
) -> None:
    lost = losses(calibration).total
    cost = stream_cost(calibration, "pure")
    assert is_pure(calibration) == (cost.delta == 0) == (lost <= Fraction(calibration.epsilon))


@given(calibration=calibrations())
@settings(deadline=None)
def test_under_zcdp_a_stream_costs_half_the_square_of_each_round(calibration: SparseVectorCalibration) -> None:
    lost = sum(count * epsilon**2 for count, epsilon in losses(calibration).parts) / 2
    assert stream_cost(calibration, "zcdp") == Cost(math.ceil(lost * EPSILON_UNITS), 0)


@given(calibration=calibrations(), accountant=st.sampled_from(["pure", "zcdp"]), tops=st.integers(0, 1000))
@settings(deadline=None)
def test_before_the_first_answer_nothing_is_spent(
    calibration: SparseVectorCalibration, accountant: str, tops: int
) -> None:
    assert realised_cost(calibration, accountant, 0, tops) == NOTHING


def realised_exactly(calibration: SparseVectorCalibration, tops: int) -> Fraction:
    """ε1 + tops·ε2/c, or with a threshold per round what the ended rounds cost and ε1 of the one under way."""
    threshold, query = Fraction(calibration.epsilon_threshold), Fraction(calibration.epsilon_query)
    if not calibration.fresh_threshold:
        return threshold + query * Fraction(tops, calibration.cutoff)
    under_way = threshold if tops < calibration.cutoff else Fraction(0)
    return tops * (threshold + query) + under_way


@given(calibration=calibrations(), share=st.floats(0.0, 1.0), answered=st.integers(1, 10**9))
@settings(deadline=None)
def test_a_pure_stream_has_spent_what_its_tops_cost(
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
def test_spending_grows_with_each_top_and_stays_within_the_cost(
    calibration: SparseVectorCalibration, accountant: str, share: float
) -> None:
    tops = int(share * calibration.cutoff)
    before, after = (realised_cost(calibration, accountant, 1, out) for out in (tops, tops + 1))
    assert before >= NOTHING
    assert before <= after
    assert after <= stream_cost(calibration, accountant)


@given(calibration=calibrations(), answered=st.integers(1, 10**9), share=st.floats(0.0, 1.0))
@settings(deadline=None)
def test_under_zcdp_the_first_answer_spends_the_whole_cost(
    calibration: SparseVectorCalibration, answered: int, share: float
) -> None:
    spent = realised_cost(calibration, "zcdp", answered, round(share * calibration.cutoff))
    assert spent == stream_cost(calibration, "zcdp")


@given(epsilon=st.floats(1e-6, 1000.0), delta=st.floats(1e-300, 0.49))
@settings(deadline=None)
def test_under_zcdp_the_budget_is_the_largest_rho_that_converts_to_epsilon(epsilon: float, delta: float) -> None:
    loss = total_budget(source(epsilon=epsilon, delta=delta, accountant="zcdp")).loss
    with localcontext(prec=80):
        log_inverse = -Decimal(repr(delta)).ln()

        def converted(units: int) -> Decimal:
            rho = Decimal(units) / EPSILON_UNITS
            return rho + 2 * (rho * log_inverse).sqrt()

        assert converted(loss) <= Decimal(repr(epsilon)) < converted(loss + 1)


@given(epsilon=st.floats(0.1, 1000.0), delta=st.floats(1e-300, 0.49))
@settings(deadline=None)
def test_under_zcdp_an_amount_tells_the_epsilon_that_its_rho_implies(epsilon: float, delta: float) -> None:
    feed = source(epsilon=epsilon, delta=delta, accountant="zcdp")
    shown = to_amount(total_budget(feed), feed)
    assert shown.delta == delta
    assert shown.epsilon == pytest.approx(epsilon, rel=1e-4)
    assert to_amount(NOTHING, feed).model_dump() == {"epsilon": 0.0, "delta": 0.0, "rho": 0.0}


def test_under_zcdp_an_amount_is_told_for_the_smallest_delta() -> None:
    feed = source(delta=5e-324, accountant="zcdp")
    assert to_amount(total_budget(feed), feed).epsilon == pytest.approx(1.0, rel=1e-4)


@given(loss=st.integers(0, 10**15), delta=st.integers(0, 10**30))
def test_under_the_pure_accountant_an_amount_is_the_nearest_double(loss: int, delta: int) -> None:
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
def test_no_plan_costs_more_than_was_asked(epsilon: float, delta: float, cutoff: int, textbook: bool) -> None:
    mechanism = AboveThreshold(kind="above_threshold", threshold=0.0, cutoff=cutoff)
    asked = StreamSpec(
        stream="planned",
        source="feed",
        mechanism=mechanism,
        calibration="textbook" if textbook else "best",
        epsilon=epsilon,
        delta=delta,
        expected_queries=100,
    )
    calibration = choose(asked, Setting())
    assert stream_cost(calibration, "pure") <= total_budget(source(epsilon=epsilon, delta=delta))
