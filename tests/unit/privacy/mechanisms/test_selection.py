"""Choices among scores have the laws of the calibration, and draws do not overflow even if scores are far apart."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import AnswersCalibration
from stream.privacy.accuracy.source_facts import LARGEST_TOTAL
from stream.privacy.mechanisms.selection import (
    GAP_DIGITS,
    UNIFORM_BITS,
    WEIGHT_BITS,
    draw_exponential,
    noisy_max,
    score_noise,
    selection_rate,
    weights_for,
)
from stream.privacy.noise.samplers import Geometric, TwoSidedGeometric

uniforms = st.integers(0, (1 << UNIFORM_BITS) - 1)
score_lists = st.lists(st.integers(-LARGEST_TOTAL, LARGEST_TOTAL), min_size=1, max_size=12)


def calibration(method: Literal["basic", "textbook"] = "basic", *, monotone: bool = False) -> AnswersCalibration:
    return AnswersCalibration(
        method=method,
        epsilon_answer=0.1,
        monotone=monotone,
        sensitivity_steps=7,
        grid=1.0,
        cutoff=1,
        epsilon=0.1,
        delta=0.0,
        expected_queries=1,
        beta=0.05,
        alpha=0.0,
    )


def test_selection_rate_is_exact_and_doubled_for_monotone_scores() -> None:
    assert selection_rate(calibration()) == Fraction(0.1) / 14
    assert selection_rate(calibration(monotone=True)) == Fraction(0.1) / 7


def test_score_noise_is_one_sided_except_in_textbook() -> None:
    assert isinstance(score_noise(calibration()), Geometric)
    assert isinstance(score_noise(calibration("textbook")), TwoSidedGeometric)


@given(scores=score_lists, data=st.data())
def test_noisy_max_chooses_first_of_largest(scores: list[int], data: st.DataObject) -> None:
    noise = data.draw(st.lists(st.integers(0, 2**52), min_size=len(scores), max_size=len(scores)))
    noisy = [score + drawn for score, drawn in zip(scores, noise, strict=True)]
    assert noisy_max(np.array(scores), np.array(noise)) == noisy.index(max(noisy))


@given(gap=st.integers(0, 16**GAP_DIGITS - 1), rate=st.fractions(Fraction(1, 10**15), 50, max_denominator=10**15))
def test_weight_at_is_within_28_units_below_exponential(gap: int, rate: Fraction) -> None:
    if rate == 0:
        return
    with localcontext(prec=120):
        ideal = (-Decimal(rate.numerator) / Decimal(rate.denominator) * gap).exp() * 2**WEIGHT_BITS
        assert 0 <= ideal - weights_for(rate).weight_at(gap) < 28


def test_weight_at_of_best_candidate_is_exact() -> None:
    assert weights_for(Fraction(1, 3)).weight_at(0) == 1 << WEIGHT_BITS


@given(
    scores=score_lists, uniform=uniforms, rate=st.sampled_from([Fraction(1, 10**12), Fraction(1, 2), Fraction(40)])
)
def test_draw_exponential_does_not_overflow_for_distant_scores(
    scores: list[int], uniform: int, rate: Fraction
) -> None:
    chosen = draw_exponential(scores, weights_for(rate), uniform)
    assert 0 <= chosen < len(scores)
    # A candidate whose weight is below one unit is never drawn.
    assert float(rate) * (max(scores) - scores[chosen]) <= WEIGHT_BITS * math.log(2)


@given(scores=score_lists, uniform=uniforms, moved=st.integers(-1000, 1000))
def test_draw_exponential_depends_on_score_differences_only(scores: list[int], uniform: int, moved: int) -> None:
    law = weights_for(Fraction(1, 1000))
    assert draw_exponential([score + moved for score in scores], law, uniform) == draw_exponential(
        scores, law, uniform
    )


def test_weights_for_equal_rates_are_shared() -> None:
    assert weights_for(Fraction(1, 3)) is weights_for(Fraction(2, 6))


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(-1, 2)])
def test_weights_for_refuses_nonpositive_rate(rate: Fraction) -> None:
    with pytest.raises(ValueError, match="rate must be above 0"):
        weights_for(rate)
