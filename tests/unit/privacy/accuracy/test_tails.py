"""Reaches and tails are those of the exact laws on the integers: sufficient, and not one step larger than needed."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.privacy.accuracy.noise_laws import (
    exponential_reach,
    noisy_max_reach,
    one_sided_reach,
    part_failure,
    sum_reach,
    sum_tail,
    two_sided_reach,
)

rates = st.floats(min_value=1e-9, max_value=50.0)
betas = st.floats(min_value=1e-12, max_value=0.9)
counts = st.integers(min_value=1, max_value=10**9)

Floats = npt.NDArray[np.float64]


def any_beyond(rate: float, draws: int, reach: int, *, two_sided: bool) -> Decimal:
    """Return the probability that a draw is beyond the reach, to 60 digits."""
    with localcontext(prec=60):
        power = (-Decimal(rate) * (reach + 1)).exp()
        tail = 2 * power / (1 + (-Decimal(rate)).exp()) if two_sided else power
        return 1 - (1 - tail) ** draws


@pytest.mark.parametrize("two_sided", [False, True])
@given(rate=rates, draws=counts, beta=betas)
def test_reach_is_least_that_all_draws_keep(two_sided: bool, rate: float, draws: int, beta: float) -> None:
    reach = (two_sided_reach if two_sided else one_sided_reach)(rate, draws, beta)
    assert any_beyond(rate, draws, reach, two_sided=two_sided) <= Decimal(beta)
    # For rounding, the reach is raised by 1e-10 of itself, and therefore sometimes by one step.
    shorter = math.floor(reach * (1.0 - 4e-10)) - 2
    if shorter >= 0:
        assert any_beyond(rate, draws, shorter, two_sided=two_sided) > Decimal(beta)


@given(beta=betas, parts=counts)
def test_part_failure_of_parts_adds_up_to_beta(beta: float, parts: int) -> None:
    with localcontext(prec=60):
        together = (1 - Decimal(part_failure(beta, parts))) ** parts
        assert abs(1 - together - Decimal(beta)) <= Decimal(beta) * Decimal("1e-12")


def two_sided_law(rate: float, reach: int) -> Floats:
    support = np.arange(-reach, reach + 1)
    law: Floats = np.exp(-rate * np.abs(support)) * math.tanh(rate / 2)
    return law


@pytest.mark.parametrize("rate", [2.0, 0.7, 0.2])
@pytest.mark.parametrize("terms", [1, 2, 3, 8])
def test_sum_tail_is_that_of_convolved_laws(rate: float, terms: int) -> None:
    one = two_sided_law(rate, math.ceil(40 / rate))
    law = one
    for _ in range(terms - 1):
        law = np.convolve(law, one)
    center = len(law) // 2
    for least in (1, 2, 5, 17, math.ceil(3 * math.sqrt(terms) / rate), math.ceil(15 / rate)):
        tail = sum_tail(rate, terms, least)
        assert tail == pytest.approx(float(law[center + least :].sum()), rel=3e-6)


@pytest.mark.parametrize("rate", [1.0, 0.01, 1e-6])
@pytest.mark.parametrize("terms", [2, 10, 256])
def test_sum_reach_is_least_that_its_tail_allows(rate: float, terms: int) -> None:
    reach = sum_reach(rate, terms, 100, 0.05)
    assert sum_tail(rate, terms, reach + 1) <= 0.05 / 200 < sum_tail(rate, terms, reach)


def test_sum_reach_is_below_chernoff_bound_on_fine_grids() -> None:
    # min over t of (ln(2k/β) − m ln(1 − t²)) / t in units of the scale; the bound of continuous noise.
    bounds = np.linspace(0.01, 0.99, 9999)
    for terms in (10, 100):
        chernoff = float(np.min((math.log(2e4 / 0.05) - terms * np.log1p(-(bounds**2))) / bounds))
        reach = 1e-6 * sum_reach(1e-6, terms, 10**4, 0.05)
        assert 0.8 * chernoff < reach < chernoff


def selection_failure(rate: float, scores: tuple[int, ...], error: int) -> float:
    """Return the probability that the chosen score is more than ``error`` below the best, with one-sided noise; the earlier wins ties."""
    support = np.arange(math.ceil(45 / rate))
    mass = np.exp(-rate * support) * -math.expm1(-rate)
    total = 0.0
    for chosen, own in enumerate(scores):
        if own < max(scores) - error:
            chance = mass.copy()
            for other, score in enumerate(scores):
                if other != chosen:
                    bound = np.maximum(support + own - score + (other > chosen), 0)
                    chance *= -np.expm1(-rate * bound)
            total += float(chance.sum())
    return total


@pytest.mark.parametrize("rate", [1.5, 0.5, 0.25])
@pytest.mark.parametrize("candidates", [2, 3])
@pytest.mark.parametrize("beta", [0.3, 0.05])
def test_noisy_max_reach_holds_for_all_scores(rate: float, candidates: int, beta: float) -> None:
    reach = noisy_max_reach(rate, candidates, beta)
    top = reach + 3
    for scores in product((0, 1, 2, top - 1, top), repeat=candidates):
        assert selection_failure(rate, scores, reach) <= beta
    if reach > 0:
        worst = (0,) * (candidates - 1) + (reach,)
        assert selection_failure(rate, worst, reach - 1) > beta


@given(rate=st.floats(min_value=1e-9, max_value=10.0), candidates=st.integers(2, 4096), beta=betas)
@settings(max_examples=25)
def test_noisy_max_reach_is_below_exponential_reach(rate: float, candidates: int, beta: float) -> None:
    assert noisy_max_reach(rate, candidates, beta) <= exponential_reach(rate, candidates, beta) * (1 + 1e-9) + 1


@given(rate=rates, candidates=st.integers(2, 4096), beta=betas)
def test_exponential_reach_is_least_for_worst_scores(rate: float, candidates: int, beta: float) -> None:
    def failure(error: int) -> Decimal:
        with localcontext(prec=60):
            odds = (candidates - 1) * (-Decimal(rate) * (error + 1)).exp()
            return odds / (1 + odds)

    reach = exponential_reach(rate, candidates, beta)
    assert failure(reach) <= Decimal(beta)
    shorter = math.floor(reach * (1.0 - 4e-10)) - 2
    if shorter >= 0:
        assert failure(shorter) > Decimal(beta)


@pytest.mark.parametrize("reach", [noisy_max_reach, exponential_reach])
def test_reach_of_single_candidate_is_zero(reach: object) -> None:
    assert callable(reach)
    assert reach(0.01, 1, 0.05) == 0
