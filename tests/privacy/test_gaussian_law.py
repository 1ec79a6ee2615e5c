"""The Gaussian sampler's law is known exactly, is near the ideal one, and is the law of ``draw``."""

from __future__ import annotations

import math
from bisect import bisect_right
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import lru_cache

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from stream.privacy.noise.samplers import (
    DELTA_PER_DRAW,
    LARGEST_TABLE_VARIANCE,
    LARGEST_VARIANCE,
    STRETCH,
    TABLE_BITS,
    Gaussian,
    LowWords,
    NoiseScaleError,
    Words,
    gaussian,
)
from stream.privacy.noise.samplers import cumulative_probabilities as shipped
from tests.privacy.exact import Law, law_of

cumulative_probabilities = lru_cache(shipped)

FALSE_ALARM = 1e-9
"""The probability that the comparison with another library's unseeded draws fails although nothing is wrong."""

SINGLE = [Fraction(1, 50), Fraction(1, 3), Fraction(1), Fraction(7, 3), Fraction(30.25), Fraction(512)]
JUST_ADDED = Fraction(LARGEST_TABLE_VARIANCE) + Fraction(1, 7)
"""Hardly more than the least variance for which two draws are added; the second draw then has its narrowest law."""
WIDE = [JUST_ADDED, Fraction(10**9) + Fraction(1, 3), Fraction(0.1 * 2**70), Fraction(LARGEST_VARIANCE)]


def ideal_weights(variance: Fraction, last: int) -> list[Decimal]:
    """exp(−k²/2σ²) for k = 0 … ``last``, in the context's precision."""
    exponent = Decimal(variance.denominator) / Decimal(2 * variance.numerator)
    return [(-exponent * k * k).exp() for k in range(last + 1)]


def distance_to_ideal(law: Law, variance: Fraction) -> Decimal:
    """Total variation from the untruncated law, accurate to 10^-40."""
    with localcontext(prec=50):
        reach = max(law.last, 2 + math.isqrt(math.ceil(220 * variance)))
        weights = ideal_weights(variance, reach)
        total = weights[0] + 2 * sum(weights[1:], Decimal(0))
        unit = Decimal(1 << law.bits)
        off = Decimal(0)
        for k, weight in enumerate(weights):
            ours = Decimal(law.weights[k - law.first]) / unit if k <= law.last else Decimal(0)
            off += abs(ours - weight / total) * (1 if k == 0 else 2)
        return off / 2


@pytest.mark.parametrize("variance", SINGLE)
def test_gaussian_law_is_symmetric_and_near_the_ideal_law(variance: Fraction) -> None:
    """Its probabilities sum to one."""
    law = law_of(gaussian(variance))
    assert sum(law.weights) == 1 << law.bits
    assert law.weights == law.weights[::-1]
    assert distance_to_ideal(law, variance) <= Decimal(2) ** -65


def test_sum_of_two_draws_is_near_one_wide_draw() -> None:
    law = law_of(gaussian(JUST_ADDED))
    assert len(gaussian(JUST_ADDED).levels) == 2
    assert sum(law.weights) == 1 << law.bits
    assert distance_to_ideal(law, JUST_ADDED) <= Decimal(2) ** -64


@given(
    variance=st.fractions(min_value=Fraction(1, 10**6), max_value=LARGEST_VARIANCE, max_denominator=10**15).filter(
        bool
    )
)
@settings(deadline=None, max_examples=150)
def test_levels_add_up_to_any_variance_with_a_bounded_tail(
    variance: Fraction,
) -> None:
    levels = Gaussian(variance).levels
    assert sum(STRETCH ** (2 * place) * level for place, level in enumerate(levels)) == variance
    assert all(0 < level <= LARGEST_TABLE_VARIANCE for level in levels)
    off = Fraction(len(levels)) * (Fraction(1, 2**66) + Fraction(2**15, 2**127))
    for place, level in enumerate(levels[:-1]):
        above = sum(STRETCH ** (2 * more) * one for more, one in enumerate(levels[place + 1 :]))
        # The possible error of a sum of draws: docs/noise.md, "Wide noise".
        kept = level * above / (level + STRETCH**2 * above)
        assert kept >= Fraction(8, 3)
        off += Fraction(4 * math.exp(-2.0 * math.pi**2 * float(kept)))
    assert 8 * off <= Fraction(DELTA_PER_DRAW)


@pytest.mark.parametrize("variance", [Fraction(1, 3), Fraction(900), Fraction(LARGEST_TABLE_VARIANCE)])
def test_gaussian_tail_beyond_the_table_is_below_its_bound(variance: Fraction) -> None:
    first = len(cumulative_probabilities(variance)) + 1
    with localcontext(prec=60):
        exponent = Decimal(variance.denominator) / Decimal(2 * variance.numerator)
        weight = (-exponent * first * first).exp()
        ratio = (-exponent * (2 * first + 1)).exp()
        # A geometric series from above, over a total from below.
        total = max(Decimal(1), (2 * Decimal(math.pi) * Decimal(float(variance))).sqrt() * Decimal("0.999"))
        assert 2 * weight / (1 - ratio) / total <= Decimal(2) ** -66


def test_gaussian_noise_that_does_not_fit_is_refused_with_remedy() -> None:
    with pytest.raises(NoiseScaleError, match="raise epsilon or delta"):
        Gaussian(Fraction(LARGEST_VARIANCE + 1))
    with pytest.raises(ValueError, match="variance must be above 0"):
        Gaussian(Fraction(0))


def naive(variance: Fraction, words: list[int]) -> int:
    """Draw word by word with big integers."""
    total = 0
    for place, (level, word) in enumerate(zip(Gaussian(variance).levels, words, strict=True)):
        sign, rest = word >> TABLE_BITS, word & ((1 << TABLE_BITS) - 1)
        size = bisect_right(cumulative_probabilities(level), rest)
        total += STRETCH**place * (-size if sign else size)
    return total


@st.composite
def wide_words(draw: st.DrawFn, variance: Fraction) -> list[int]:
    """Draw a 128-bit word per level, often within a step of a probability or with an equal high half."""
    words = []
    for level in Gaussian(variance).levels:
        entry = draw(st.sampled_from(cumulative_probabilities(level)))
        near = entry + draw(st.integers(-2, 2))
        tied = (entry >> 64 << 64) + draw(st.integers(0, 2**64 - 1))
        anywhere = draw(st.integers(0, 2**TABLE_BITS - 1))
        rest = min(max(draw(st.sampled_from([near, tied, anywhere])), 0), 2**TABLE_BITS - 1)
        words.append((draw(st.integers(0, 1)) << TABLE_BITS) + rest)
    return words


def supply(rows: list[list[int]]) -> tuple[Words, LowWords]:
    high = np.array([[word >> 64 for word in row] for row in rows], dtype=np.uint64)
    low = np.array([[word % 2**64 for word in row] for row in rows], dtype=np.uint64)
    return high, lambda row: low[row]


@pytest.mark.parametrize("variance", [*SINGLE, *WIDE])
def test_gaussian_draw_compares_128_bit_words(variance: Fraction) -> None:
    @given(data=st.data())
    @settings(deadline=None, max_examples=25, database=None)
    def check(data: st.DataObject) -> None:
        rows = [data.draw(wide_words(variance)) for _ in range(4)]
        assert gaussian(variance).draw(*supply(rows)).tolist() == [naive(variance, row) for row in rows]

    check()


def test_entries_that_share_a_high_word_are_chosen_by_the_low_word() -> None:
    variance = Fraction(LARGEST_TABLE_VARIANCE)
    sums = cumulative_probabilities(variance)
    twice = next(place for place in range(len(sums) - 1) if sums[place] >> 64 == sums[place + 1] >> 64)
    rows = [[sums[place] + step] for place in (twice, twice + 1) for step in (-1, 0)]
    assert gaussian(variance).draw(*supply(rows)).tolist() == [twice, twice + 1, twice + 1, twice + 2]


def test_gaussian_draw_needs_low_words_only_on_a_tie() -> None:
    entry = cumulative_probabilities(Fraction(900))[7]

    def refuse(_: int) -> Words:
        raise AssertionError("no word ties")

    law = gaussian(Fraction(900))
    assert law.draw(np.array([[(entry >> 64) + 1]], dtype=np.uint64), refuse).tolist() == [8]
    assert law.draw(np.array([[(entry >> 64) - 1]], dtype=np.uint64), refuse).tolist() == [7]


def test_gaussian_laws_of_equal_variances_are_one_object() -> None:
    assert gaussian(Fraction(1, 3)) is gaussian(Fraction(2, 6))


@pytest.mark.parametrize("deviation", [0.6, 5.5])
def test_opendp_draws_noise_of_the_same_law(deviation: float) -> None:
    dp.enable_features("contrib")
    law = law_of(gaussian(Fraction(deviation) ** 2))
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    measurement = dp.m.make_gaussian(*space, deviation)
    # ρ = Δ²/2σ², as here.
    assert measurement.map(1.0) == pytest.approx(0.5 / deviation**2)  # type: ignore[no-untyped-call]
    draws = 50_000
    theirs = np.bincount(np.array(measurement([0] * draws)) - law.first, minlength=len(law.weights))
    expected = draws * np.array([weight / (1 << law.bits) for weight in law.weights])
    common = expected >= 10.0
    seen = np.append(theirs[common], theirs[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    statistic = float(((seen - wanted) ** 2 / np.maximum(wanted, 1e-9)).sum())
    assert statistic < chi2.isf(FALSE_ALARM, len(seen) - 1)
