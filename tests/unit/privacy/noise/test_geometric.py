"""A draw compares each 128-bit word with its digit's probability, and the digits' law is the geometric one."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream.privacy.noise.samplers import (
    DELTA_PER_DRAW,
    MAX_DIGITS,
    Geometric,
    NoiseScaleError,
    TwoSidedGeometric,
    sampler,
)

rates = st.fractions(min_value=Fraction(1, 10**13), max_value=1000, max_denominator=10**13).filter(
    lambda rate: rate > 0
)


def exact_probability(rate: Fraction, digit: int) -> Decimal:
    with localcontext(prec=120):
        exponent = -Decimal(rate.numerator) / Decimal(rate.denominator) * 2**digit
        probability: Decimal = 1 / (1 + (-exponent).exp())
        return probability


@given(rate=rates)
@settings(deadline=None)
def test_digit_probability_is_exact_to_2_to_the_minus_120(rate: Fraction) -> None:
    with localcontext(prec=120):
        for digit, probability in enumerate(Geometric(rate).probabilities):
            assert abs(Decimal(probability) / 2**128 - exact_probability(rate, digit)) < Decimal(2) ** -120


@given(rate=rates)
@settings(deadline=None)
def test_tail_beyond_the_digits_is_below_its_bound(rate: Fraction) -> None:
    reach = rate * 2 ** Geometric(rate).digits
    assert reach >= Fraction(62) * Fraction(math.log(2))
    assert DELTA_PER_DRAW >= 2 * (2.0**-62 + MAX_DIGITS * 2.0**-120)


def naive(rate: Fraction, words: list[int]) -> int:
    """Draw digit by digit with big integers."""
    return sum(2**digit for digit, p in enumerate(Geometric(rate).probabilities) if words[digit] < p)


@st.composite
def wide_words(draw: st.DrawFn, rate: Fraction) -> list[int]:
    """Draw a 128-bit word per digit, often within a step of the digit's probability or with an equal high half."""
    words = []
    for probability in Geometric(rate).probabilities:
        near = probability + draw(st.integers(-2, 2))
        tied = (probability >> 64 << 64) + draw(st.integers(0, 2**64 - 1))
        anywhere = draw(st.integers(0, 2**128 - 1))
        words.append(min(max(draw(st.sampled_from([near, tied, anywhere])), 0), 2**128 - 1))
    return words


def halves(words: list[int]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    high = np.array([word >> 64 for word in words], dtype=np.uint64)
    low = np.array([word % 2**64 for word in words], dtype=np.uint64)
    return high, low


@given(data=st.data(), rate=rates)
@settings(deadline=None, max_examples=30)
def test_geometric_draw_compares_128_bit_words(data: st.DataObject, rate: Fraction) -> None:
    rows = [data.draw(wide_words(rate)) for _ in range(3)]
    parts = [halves(row) for row in rows]
    drawn = Geometric(rate).draw(np.array([high for high, _ in parts]), lambda row: parts[row][1])
    assert drawn.tolist() == [naive(rate, row) for row in rows]


@given(data=st.data(), rate=rates)
@settings(deadline=None, max_examples=25)
def test_two_sided_draw_is_the_difference_of_two_draws(data: st.DataObject, rate: Fraction) -> None:
    plus, minus = data.draw(wide_words(rate)), data.draw(wide_words(rate))
    high, low = halves(plus + minus)
    law = TwoSidedGeometric(rate)
    assert law.words == len(high)
    assert law.draw(high.reshape(1, -1), lambda _: low).tolist() == [naive(rate, plus) - naive(rate, minus)]


def test_geometric_draw_needs_low_words_only_on_a_tie() -> None:
    law = Geometric(Fraction(1, 10))
    high, _ = halves(list(law.probabilities))

    def refuse(_: int) -> npt.NDArray[np.uint64]:
        raise AssertionError("no word ties")

    assert law.draw((high + np.uint64(1)).reshape(1, -1), refuse).tolist() == [0]
    assert law.draw((high - np.uint64(1)).reshape(1, -1), refuse).tolist() == [2**law.digits - 1]


@pytest.mark.parametrize("rate", [Fraction(0), Fraction(-1)])
def test_geometric_refuses_a_rate_that_is_not_positive(rate: Fraction) -> None:
    with pytest.raises(ValueError, match="rate must be above 0"):
        Geometric(rate)


def test_geometric_refuses_noise_with_too_many_digits() -> None:
    widest = Fraction(62 * 7, 10 * 2**MAX_DIGITS)
    assert Geometric(widest).digits == MAX_DIGITS
    with pytest.raises(NoiseScaleError, match="raise epsilon, lower the cutoff, or coarsen the grid"):
        TwoSidedGeometric(widest / 2)


def test_geometric_laws_of_equal_rates_are_one_object() -> None:
    assert sampler("one_sided", Fraction(1, 3)) is sampler("one_sided", Fraction(2, 6))
    assert isinstance(sampler("one_sided", Fraction(1, 3)), Geometric)
    assert isinstance(sampler("two_sided", Fraction(1, 3)), TwoSidedGeometric)
