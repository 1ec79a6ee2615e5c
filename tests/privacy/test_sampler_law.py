"""The sampler's law is known exactly, is near the ideal one, and is the law of ``draw``."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from stream.privacy.noise.samplers import (
    DELTA_PER_DRAW,
    MAX_DIGITS,
    Geometric,
    NoiseScaleError,
    TwoSidedGeometric,
    Words,
)
from tests.privacy.exact import Law, law_of

ENUMERABLE = [
    Fraction(1, 13),
    Fraction(0.2381),
    Fraction(1, 2),
    Fraction(1),
    Fraction(7, 3),
    Fraction(6),
    Fraction(50),
]
WIDE = [Fraction(1, 10**3), Fraction(1.7e-9), Fraction(1, 10**14)]

NEVER = 2**64 - 1
"""A high word that is above the probability of every digit; all these probabilities are below 1/2."""


def ideal_digit(rate: Fraction, digit: int) -> Decimal:
    """Return the probability 1 / (1 + e^(rate·2^digit)) of a digit, in the context's precision."""
    exponent = rate * 2**digit
    return 1 / (1 + (Decimal(exponent.numerator) / Decimal(exponent.denominator)).exp())


def distance_to_ideal(law: Law, rate: Fraction, *, two_sided: bool) -> Decimal:
    """Total variation from the untruncated law, accurate to 10^-40."""
    with localcontext(prec=50):
        q = (-Decimal(rate.numerator) / Decimal(rate.denominator)).exp()
        unit = (1 - q) / (1 + q) if two_sided else 1 - q
        ideal = [unit * q ** abs(x) for x in range(law.first, law.last + 1)]
        ours = [Decimal(weight) / Decimal(1 << law.bits) for weight in law.weights]
        inside = sum((abs(a - b) for a, b in zip(ours, ideal, strict=True)), Decimal(0))
        beyond = abs(1 - sum(ideal, Decimal(0)))
        return (inside + beyond) / 2


@pytest.mark.parametrize("rate", ENUMERABLE + WIDE)
def test_digit_has_its_ideal_probability_rounded_down_to_128_bits(rate: Fraction) -> None:
    geometric = Geometric(rate)
    with localcontext(prec=120):
        for digit, probability in enumerate(geometric.probabilities):
            assert 0 <= ideal_digit(rate, digit) * 2**128 - probability < 1


@pytest.mark.parametrize("rate", ENUMERABLE)
def test_probabilities_sum_to_one_and_are_near_the_ideal_law(rate: Fraction) -> None:
    for sampler, two_sided, allowed in (
        (Geometric(rate), False, 2.0**-61),
        (TwoSidedGeometric(rate), True, DELTA_PER_DRAW),
    ):
        law = law_of(sampler)
        assert sum(law.weights) == 1 << law.bits
        assert distance_to_ideal(law, rate, two_sided=two_sided) <= Decimal(allowed)


@pytest.mark.parametrize("rate", ENUMERABLE + WIDE)
def test_tail_and_rounding_of_any_rate_are_below_delta_per_draw(rate: Fraction) -> None:
    geometric = Geometric(rate)
    with localcontext(prec=80):
        tail = (-Decimal(rate.numerator) / Decimal(rate.denominator) * 2**geometric.digits).exp()
        # Without the tail, the ideal digits are independent, so the total distance is at most the sum of theirs.
        one_sided = tail + geometric.digits * Decimal(2) ** -128
    assert one_sided <= Decimal(2) ** -61
    assert 2 * one_sided <= Decimal(DELTA_PER_DRAW)
    assert geometric.digits <= MAX_DIGITS


def test_law_too_wide_for_52_digits_is_refused() -> None:
    with pytest.raises(NoiseScaleError, match="52 binary digits"):
        Geometric(Fraction(1, 10**15))


@pytest.mark.parametrize("rate", [Fraction(3), Fraction(6), Fraction(50)])
def test_two_sided_law_is_that_of_a_difference(rate: Fraction) -> None:
    half, both = law_of(Geometric(rate)), law_of(TwoSidedGeometric(rate))
    for value in range(both.first, both.last + 1):
        pairs = ((a, a - value) for a in range(half.last + 1))
        assert both.probability(value) == sum(half.probability(a) * half.probability(b) for a, b in pairs)


@pytest.mark.parametrize("rate", [Fraction(3), Fraction(6), Fraction(50)])
def test_one_sided_law_is_the_product_of_its_digits(rate: Fraction) -> None:
    geometric = Geometric(rate)
    law = law_of(geometric)
    for digits in product((0, 1), repeat=geometric.digits):
        ones = [Fraction(p, 2**128) for p in geometric.probabilities]
        expected = math.prod(p if digit else 1 - p for digit, p in zip(digits, ones, strict=True))
        assert law.probability(sum(d << i for i, d in enumerate(digits))) == expected


def boundaries(probability: int) -> list[tuple[int, int]]:
    """(high word, low word) at, just below and just above a digit's threshold, and at the ends."""
    whole = [probability + step for step in (-(2**64), -1, 0, 1, 2**64)] + [0, 2**128 - 1]
    return [divmod(value, 2**64) for value in whole if 0 <= value < 2**128]


def as_words(rows: list[list[int]]) -> Words:
    return np.array(rows, dtype=np.uint64)


class LowWordsOf:
    """Low words from a table, with a record of the requested rows."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows: Words = as_words(rows)
        self.asked: list[int] = []

    def __call__(self, row: int) -> Words:
        self.asked.append(row)
        words: Words = self.rows[row]
        return words


@pytest.mark.parametrize("rate", ENUMERABLE + WIDE)
def test_digit_is_one_if_its_128_bit_word_is_below_its_probability(rate: Fraction) -> None:
    geometric = Geometric(rate)
    high: list[list[int]] = []
    low: list[list[int]] = []
    expected, ties = [], []
    for digit, probability in enumerate(geometric.probabilities):
        for upper, lower in boundaries(probability):
            if upper == probability >> 64:
                ties.append(len(high))
            high.append([NEVER] * geometric.digits)
            low.append([NEVER] * geometric.digits)
            high[-1][digit], low[-1][digit] = upper, lower
            expected.append(int((upper << 64) + lower < probability) << digit)
    supply = LowWordsOf(low)
    assert geometric.draw(as_words(high), supply).tolist() == expected
    assert supply.asked == ties


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(1, 2), Fraction(1.7e-9)])
def test_digits_and_signs_are_drawn_independently(rate: Fraction) -> None:
    chooser = np.random.default_rng(20)
    two_sided = TwoSidedGeometric(rate)
    probabilities = two_sided.one_sided.probabilities * 2
    places = len(two_sided.one_sided.probabilities)
    high, low, expected = [], [], []
    for _ in range(500):
        words = [options[int(chooser.integers(len(options)))] for options in map(boundaries, probabilities)]
        ones = [(upper << 64) + lower < p for (upper, lower), p in zip(words, probabilities, strict=True)]
        high.append([upper for upper, _ in words])
        low.append([lower for _, lower in words])
        plus, minus = (sum(one << i for i, one in enumerate(part)) for part in (ones[:places], ones[places:]))
        expected.append(plus - minus)
    supply = LowWordsOf(low)
    assert two_sided.draw(as_words(high), supply).tolist() == expected
    plus_only = two_sided.one_sided.draw(as_words(high)[:, :places], lambda row: supply(row)[:places])
    minus_only = two_sided.one_sided.draw(as_words(high)[:, places:], lambda row: supply(row)[places:])
    assert (plus_only - minus_only).tolist() == expected
