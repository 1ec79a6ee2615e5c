"""The exact privacy loss of quantiles: of the drawn value, and of the noisy counts around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

from stream.privacy.accuracy.rate_intervals import compute_moments, person_sensitivities
from stream.privacy.accuracy.release_accuracy import edge_reaches, ranges_around
from stream.privacy.mechanisms.selection import UNIFORM_BITS, RankLaw, choose_code, rank_law
from stream.privacy.noise.samplers import Gaussian, Symmetric, TwoSidedGeometric
from stream.privacy.planning.answer_plans import rates_for
from tests.privacy.exact import code_weights

EPSILON = Fraction(3, 4)
DELTA_PER_DRAW = 2.0**-147
"""Distance of a draw from the ideal law; see docs/proofs/quantiles.md."""
CODES = 4
PARTS = (Fraction(1, 2), Fraction(9, 10), Fraction(0))

Counts = tuple[int, ...]
Rates = Callable[..., list[Fraction]]


def tables(*counts: int) -> Iterator[Counts]:
    return product(counts or (0, 1, 20), repeat=CODES)


def with_one_more(counts: Counts) -> Iterator[Counts]:
    for code in range(CODES):
        yield tuple(count + (place == code) for place, count in enumerate(counts))


def with_one_changed(counts: Counts) -> Iterator[Counts]:
    for code in range(CODES):
        if counts[code]:
            fewer = tuple(count - (place == code) for place, count in enumerate(counts))
            yield from with_one_more(fewer)


@cache
def logarithms(counts: Counts, law: RankLaw) -> tuple[float, ...]:
    """The logarithm of each code's probability, from the sampler's integers."""
    found = code_weights(np.array(counts, dtype=np.int64), law)
    total = math.log(sum(found))
    return tuple(math.log(weight) - total for weight in found)


def loss(one: Counts, other: Counts, law: RankLaw) -> float:
    """The largest loss over all drawn codes, in either direction."""
    pairs = zip(logarithms(one, law), logarithms(other, law), strict=True)
    return max(abs(up - down) for up, down in pairs)


def free_normalization_rates(
    epsilon: Fraction, parts: list[Fraction], moved: int, *, replaced: bool, grouped: bool
) -> list[Fraction]:
    """A broken variant: the normalization of a draw is taken to cost nothing."""
    return [2 * rate for rate in rates_for(epsilon, parts, moved, replaced=replaced, grouped=grouped)]


def largest_loss(rates: Rates, part: Fraction, *, replaced: bool) -> float:
    law = rank_law(rates(EPSILON, [part], 1, replaced=replaced, grouped=False)[0], part)
    neighbors = with_one_changed if replaced else with_one_more
    return max(loss(one, other, law) for one in tables() for other in neighbors(one))


@pytest.mark.parametrize("replaced", [False, True], ids=["add-remove", "replace"])
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_draw_loses_at_most_its_epsilon(part: Fraction, replaced: bool) -> None:
    assert largest_loss(rates_for, part, replaced=replaced) <= float(EPSILON) + DELTA_PER_DRAW + 1e-12


@pytest.mark.parametrize("replaced", [False, True], ids=["add-remove", "replace"])
def test_draw_without_normalization_cost_is_found(replaced: bool) -> None:
    assert largest_loss(free_normalization_rates, Fraction(1, 2), replaced=replaced) > 1.2 * float(EPSILON)


def test_draws_of_groups_lose_epsilon_together_for_a_moved_row() -> None:
    """A row that moves from one group to another changes the draws of both."""
    part = Fraction(9, 10)
    law = rank_law(rates_for(EPSILON, [part], 1, replaced=True, grouped=True)[0], part)
    each = max(loss(one, other, law) for one in tables() for other in with_one_more(one))
    within = max(loss(one, other, law) for one in tables() for other in with_one_changed(one))
    assert max(2.0 * each, within) <= float(EPSILON) + 1e-12
    ungrouped = rank_law(rates_for(EPSILON, [part], 1, replaced=True, grouped=False)[0], part)
    assert 2.0 * max(loss(one, other, ungrouped) for one in tables() for other in with_one_more(one)) > float(
        EPSILON
    )


def test_several_rows_and_quantiles_share_epsilon() -> None:
    parts = [Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)]
    rates = rates_for(EPSILON, parts, 2, replaced=False, grouped=False)
    laws = [rank_law(rate, part) for rate, part in zip(rates, parts, strict=True)]
    worst = max(
        sum(loss(one, other, law) for law in laws)
        for one in tables(0, 12)
        for middle in with_one_more(one)
        for other in with_one_more(middle)
    )
    assert worst <= float(EPSILON) + 1e-12


def test_choice_draws_each_code_by_its_weight() -> None:
    counts = np.array([2, 0, 3, 1, 0], dtype=np.int64)
    law = rank_law(Fraction(1, 3), Fraction(1, 4))
    weights, total = code_weights(counts, law), sum(code_weights(counts, law))
    places, _ = law.weight_positions(counts)
    order = sorted(range(len(counts)), key=lambda code: (places[code], code))
    start = 0
    for code in order:
        first = -(-(start << UNIFORM_BITS) // total)
        start += weights[code]
        last = -(-(start << UNIFORM_BITS) // total) - 1
        assert choose_code(counts, law, first) == choose_code(counts, law, last) == code


def test_weights_are_those_of_the_distance() -> None:
    counts, part, rate = np.array([4, 0, 1, 7, 2], dtype=np.int64), Fraction(3, 10), Fraction(1, 5)
    rows, below = int(counts.sum()), 0
    for code, weight in enumerate(code_weights(counts, rank_law(rate, part))):
        upto = below + int(counts[code])
        distance = max(Fraction(0), below - part * rows, part * rows - upto)
        assert weight / 2**192 == pytest.approx(math.exp(-float(rate * distance)), rel=1e-14)
        below = upto


@pytest.mark.parametrize("codes", [(0,), (3,), (1, 2), (0, 7)])
def test_ranges_around_codes_move_by_at_most_one_row(codes: tuple[int, ...]) -> None:
    """The ranges are public, disjoint and cover all codes, so a row is in one of them."""
    edges = ranges_around(8, codes)
    assert edges[0] == 0
    assert edges[-1] == 8
    assert np.all(np.diff(edges) > 0)
    assert all(code in edges and code + 1 in edges for code in codes)


LAWS: list[Symmetric] = [TwoSidedGeometric(Fraction(rate)) for rate in ("3", "1", "0.5", "0.1")]
LAWS += [Gaussian(Fraction(variance)) for variance in ("0.3", "1", "9", "100")]


def misfit_tail(law: Symmetric, quantile: Fraction, below: int, others: int, reach: float) -> float:
    """P((1 − q)·A − q·B > ``reach``) for sums A and B of discrete draws, by their exact characteristic function."""
    top, bottom = quantile.numerator, quantile.denominator
    most = math.ceil(40.0 / float(law.rate) if isinstance(law, TwoSidedGeometric) else 12.0 * law.variance**0.5)
    values = np.arange(-most, most + 1)
    if isinstance(law, TwoSidedGeometric):
        masses = np.exp(-float(law.rate) * np.abs(values))
    else:
        masses = np.exp(-np.square(values) / (2.0 * float(law.variance)))
    points = 1 << math.ceil(math.log2(2 * bottom * most * math.sqrt(below + others)))
    factors = []
    for weight in (bottom - top, top):
        one = np.zeros(points)
        np.add.at(one, (values * weight) % points, masses / masses.sum())
        factors.append(np.fft.rfft(one))
    law_of_misfit = np.fft.irfft(factors[0] ** below * np.conj(factors[1]) ** others, points)[: points // 2]
    return float(law_of_misfit[np.arange(points // 2) > reach * bottom + 1e-9].sum())


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_edge_reaches_are_rarely_exceeded(law: Symmetric) -> None:
    """The noise of a misfit exceeds its reach with the allowed probability at most, also if the noise is small."""
    for quantile, (below, others) in product(
        (Fraction(1, 2), Fraction(1, 4), Fraction(9, 10), Fraction(1, 20)),
        ((1, 0), (1, 1), (2, 1), (1, 5), (3, 3), (10, 2), (10, 10)),
    ):
        reach = edge_reaches(law, np.array([below, below + others]), float(quantile), 0.025)[0]
        assert misfit_tail(law, quantile, below, others, reach) <= 0.025


@pytest.mark.parametrize("replaced", [False, True], ids=["add-remove", "replace"])
def test_moments_move_by_at_most_their_widths(replaced: bool) -> None:
    most = person_sensitivities(CODES, replaced=replaced)
    neighbors = with_one_changed if replaced else with_one_more
    reached = [0, 0, 0]
    for one in tables(0, 1):
        for other in neighbors(one):
            pairs = zip(compute_moments(np.array(one)), compute_moments(np.array(other)), strict=True)
            reached = [max(known, abs(up - down)) for known, (up, down) in zip(reached, pairs, strict=True)]
    assert all(found <= limit for found, limit in zip(reached, most, strict=True))
    # Codes 0 and 3 have the largest squares and 1 and 2 the smallest: 16 apart, of at most 18.
    assert reached == ([0, 6, 16] if replaced else [1, 3, 9])
