"""The exact privacy loss of a randomized response, and a check that its answers follow the stated law."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.privacy.mechanisms.selection import RESPONSE_WORDS, choose_response
from stream.privacy.noise.keyed_noise import DrawRole, event_words, stream_subkey
from stream.privacy.planning.response_plans import RESPONSE_BITS, ResponseLaw, response_law
from tests.builders import KEY, installation, source, stream
from tests.privacy.chance import fits
from tests.privacy.exact import exponential_below

SURVEY = stream("survey", "people", "randomized_response", mechanism={"categories": ["a", "b", "c"]}, epsilon=2.0)
epsilons = st.floats(min_value=1e-6, max_value=1000.0).map(Fraction)
sizes = st.integers(min_value=2, max_value=4096)


def count_numbers_by_category(law: ResponseLaw, own: int | None) -> list[int]:
    """Return how many of the 2^128 uniform numbers lead to each category, from the answers at the ends of every stretch."""
    whole, k = 1 << RESPONSE_BITS, law.categories
    edges = [number * law.other_weight for number in range(k)] + [whole]
    if own is None:
        edges = [-(-number * whole // k) for number in range(k + 1)]
    counts = [0] * law.categories
    for low, high in pairwise(edges):
        chosen = choose_response(own, law, low)
        assert choose_response(own, law, high - 1) == chosen
        assert choose_response(own, law, (low + high) // 2) == chosen
        counts[chosen] += high - low
    return counts


@given(epsilon=epsilons, categories=sizes)
def test_answer_loses_at_most_its_epsilon_exactly(epsilon: Fraction, categories: int) -> None:
    law = ResponseLaw(epsilon, categories)
    assert law.own_weight + (categories - 1) * law.other_weight == 1 << RESPONSE_BITS
    assert Fraction(law.own_weight, law.other_weight) <= exponential_below(epsilon)


@given(epsilon=st.floats(min_value=1e-3, max_value=40.0).map(Fraction), categories=sizes)
def test_answer_loses_its_epsilon_to_fifteen_digits(epsilon: Fraction, categories: int) -> None:
    law = ResponseLaw(epsilon, categories)
    assert Fraction(law.own_weight, law.other_weight) >= exponential_below(epsilon) * (1 - Fraction(1, 10**15))


@pytest.mark.parametrize(("epsilon", "categories"), [(math.log(3), 2), (0.1, 5), (4.0, 3), (1000.0, 4)])
def test_every_category_has_exactly_the_stated_probability(epsilon: float, categories: int) -> None:
    law = response_law(Fraction(epsilon), categories)
    for own in range(categories):
        counts = count_numbers_by_category(law, own)
        assert counts.pop(own) == law.own_weight
        assert counts == [law.other_weight] * (categories - 1)


@pytest.mark.parametrize(("epsilon", "categories"), [(1e-6, 2), (1e-6, 4096), (0.1, 5), (4.0, 3), (1000.0, 4)])
def test_unlisted_category_is_no_easier_to_distinguish(epsilon: float, categories: int) -> None:
    law = response_law(Fraction(epsilon), categories)
    counts = count_numbers_by_category(law, None)
    assert sum(counts) == 1 << RESPONSE_BITS
    assert max(counts) - min(counts) <= 1
    # Every listed category gives each answer ``own`` or ``other`` of the numbers.
    worst = max(Fraction(law.own_weight, min(counts)), Fraction(max(counts), law.other_weight))
    assert law.other_weight <= min(counts)
    assert worst <= exponential_below(Fraction(epsilon))


def test_stream_answers_unlisted_people_with_any_category_alike() -> None:
    driver = installation(SURVEY, sources=[source("people", "records", epsilon=2.0)])
    draws = 6000
    answers = driver.ask_many({"id": str(n), "stream": "survey", "category": "z" * n} for n in range(draws))
    assert fits([sum(answer.choice == category for answer in answers) for category in "abc"], [draws / 3] * 3)


def test_law_for_two_fair_coins_is_the_notes_example() -> None:
    law = response_law(Fraction(math.log(3)), 2)
    assert law.probabilities == pytest.approx((0.75, 0.25), abs=1e-15)


def test_law_for_bits_is_that_of_the_notes() -> None:
    for q in (0.1, 0.5, 0.9):
        own, other = response_law(Fraction(math.log((1 + q) / (1 - q))), 2).probabilities
        assert (own, other) == pytest.approx((q + (1 - q) / 2, (1 - q) / 2), abs=1e-14)


def test_keyed_answers_follow_the_exact_law() -> None:
    law, draws = response_law(Fraction(1), 5), 20000
    subkey = stream_subkey(KEY, incarnation="0" * 32, definition=b"survey", role=DrawRole.ANSWER)
    words, _ = event_words([subkey] * draws, "queries", 0, range(draws), [b"{}"] * draws, RESPONSE_WORDS)
    answers = [choose_response(2, law, int.from_bytes(row.tobytes(), "little")) for row in words]
    own, other = law.probabilities
    assert fits(np.bincount(answers, minlength=5).tolist(), [draws * (own if c == 2 else other) for c in range(5)])


def test_stream_answers_with_the_law_of_its_part_of_epsilon() -> None:
    driver = installation(SURVEY, sources=[source("people", "records", epsilon=2.0, contributions=2)])
    draws = 6000
    answers = driver.ask_many({"id": str(n), "stream": "survey", "category": "b"} for n in range(draws))
    own, other = response_law(Fraction(1), 3).probabilities
    counts = [sum(answer.choice == category for answer in answers) for category in "abc"]
    assert fits(counts, [draws * other, draws * own, draws * other])
