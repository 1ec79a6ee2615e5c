"""The exact privacy loss of unknown groups without counts, over all small tables and their neighbors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise, product

import numpy as np
import pytest

from schemas import UnknownGroupsCalibration
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.mechanisms.releases import release_keys
from stream.privacy.noise.keyed_noise import name_words
from stream.privacy.planning.noise_layouts import PlanError
from stream.privacy.planning.plans import choose_calibration
from stream.privacy.planning.unknown_groups_plans import CERTAIN, Rule, rows_released_with, rule_of, selection_rule
from tests.builders import parse_spec
from tests.privacy.exact import exponential_below

EPSILON, DELTA = 2.0, 1e-2

Counts = tuple[int, ...]


def plan_groups(
    rows: int = 1, *, replace: bool = False, epsilon: float = EPSILON, delta: float = DELTA
) -> UnknownGroupsCalibration:
    facts = SourceFacts(contribution=rows, neighbors="replace" if replace else "add-remove", disjoint=True)
    found = choose_calibration(parse_spec("unknown_groups", counts=False, epsilon=epsilon, delta=delta), facts)
    assert isinstance(found, UnknownGroupsCalibration)
    return found


def chance(rule: Rule, people: int) -> Fraction:
    """Return the probability that the shipped selection releases a text, from the first word that it does not release."""
    limit = int(rule[min(people, len(rule) - 1)])
    words = np.array([0, max(0, 2 * limit - 1), min(2 * limit, 2 * CERTAIN - 1)], dtype=np.uint64)
    found = release_keys([b"0", b"1", b"2"], np.full(3, people), words, rule)
    assert found == ([] if limit == 0 else [b"0", b"1", b"2"] if limit == CERTAIN else [b"0", b"1"])
    return Fraction(limit, CERTAIN)


def divergence(one: Counts, other: Counts, chance_of: Callable[[int], Fraction], factor: Fraction) -> Fraction:
    """Return an upper bound of the hockey-stick divergence of the sets of released texts."""
    lost = Fraction(0)
    for released in product((False, True), repeat=len(one)):
        left = right = Fraction(1)
        for count, theirs, shown in zip(one, other, released, strict=True):
            left *= chance_of(count) if shown else 1 - chance_of(count)
            right *= chance_of(theirs) if shown else 1 - chance_of(theirs)
        lost += max(Fraction(0), left - factor * right)
    return lost


def text_sets_of_a_person(most: int, texts: int) -> Iterator[Counts]:
    """Return all sets of at most ``most`` texts that one person may have."""
    return (own for own in product((0, 1), repeat=texts) if sum(own) <= most)


def neighbors(
    plan: UnknownGroupsCalibration, texts: int, people: Sequence[int]
) -> Iterator[tuple[Counts, Counts]]:
    replaces = plan.sensitivity_steps > plan.contribution
    for others in product(people, repeat=texts):
        for one in text_sets_of_a_person(plan.contribution, texts):
            for other in text_sets_of_a_person(plan.contribution, texts) if replaces else [(0,) * texts]:
                first = tuple(count + own for count, own in zip(others, one, strict=True))
                second = tuple(count + own for count, own in zip(others, other, strict=True))
                yield first, second
                yield second, first


def worst(plan: UnknownGroupsCalibration, rule: Rule, texts: int = 2) -> Fraction:
    """Return the largest δ at the calibration's ε over all neighboring tables of these texts."""
    people = range(len(rule)) if texts == 1 else (0, 1, len(rule) // 2, len(rule) - 2)
    factor = exponential_below(Fraction(plan.epsilon))
    chance_of = cache(lambda count: chance(rule, count))
    return max(divergence(one, other, chance_of, factor) for one, other in set(neighbors(plan, texts, people)))


@pytest.mark.parametrize(("rows", "replace", "texts"), [(1, False, 1), (1, True, 2), (2, False, 2), (2, True, 3)])
def test_selection_keeps_its_epsilon_and_delta(rows: int, replace: bool, texts: int) -> None:
    plan = plan_groups(rows, replace=replace)
    lost = worst(plan, rule_of(plan), texts)
    assert lost <= Fraction(plan.delta)
    assert lost > Fraction(plan.delta) / 4


def test_check_finds_a_rule_for_one_text_of_two() -> None:
    plan = plan_groups(2)
    forgetful = selection_rule(Fraction(plan.epsilon_answer), Fraction(plan.delta_answer))
    assert worst(plan, forgetful) > Fraction(DELTA)


def test_check_finds_a_rule_for_added_people_if_they_are_replaced() -> None:
    plan = plan_groups(1, replace=True)
    added = plan.model_copy(update={"sensitivity_steps": 1})
    assert worst(plan, rule_of(added)) > Fraction(DELTA)


def test_check_finds_a_text_released_one_person_too_early() -> None:
    plan = plan_groups()
    rule = rule_of(plan)
    assert worst(plan, np.concatenate([rule[:1], rule[2:]]), texts=1) > Fraction(DELTA)


def test_rule_is_the_largest_that_is_private() -> None:
    """Each entry is, up to rounding, the largest that both conditions of privacy allow after the previous entry."""
    epsilon, delta = Fraction(1, 2), Fraction(1, 10**5)
    rule = [int(one) for one in selection_rule(epsilon, delta)]
    factor = exponential_below(epsilon)
    for last, following in pairwise(rule):
        rising = factor * last + delta * CERTAIN
        falling = CERTAIN - (CERTAIN - last - delta * CERTAIN) / factor
        allowed = min(rising, falling, Fraction(CERTAIN))
        assert 0 <= allowed - following < 3
    assert rule[0] == 0
    assert rule[-1] == CERTAIN


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_text_with_the_stated_people_is_released_as_often_as_stated(level: float) -> None:
    plan = plan_groups(2, epsilon=0.7, delta=1e-6)
    rule, people = rule_of(plan), rows_released_with(plan, level)
    assert chance(rule, people) >= level > chance(rule, people - 1)


def test_selection_releases_earlier_than_a_threshold_with_counts() -> None:
    for epsilon in (0.1, 1.0):
        counted = choose_calibration(
            parse_spec("unknown_groups", epsilon=epsilon, delta=1e-6), SourceFacts(disjoint=True)
        )
        assert isinstance(counted, UnknownGroupsCalibration)
        assert rows_released_with(plan_groups(epsilon=epsilon, delta=1e-6), 0.5) < rows_released_with(counted, 0.5)


def test_words_depend_on_key_and_name_alone() -> None:
    names = [b"flu", b"", "Ä".encode(), *(b"text %d" % number for number in range(100))]
    found = dict(zip(names, name_words(bytes(32), names).tolist(), strict=True))
    assert len(set(found.values())) == len(names)
    assert name_words(bytes(32), [b"flu"]).tolist() == [found[b"flu"]]
    assert name_words(b"1" * 32, [b"flu"]).tolist() != [found[b"flu"]]


def test_too_small_an_epsilon_is_refused() -> None:
    with pytest.raises(PlanError, match="more than 131,072 people"):
        plan_groups(epsilon=1e-5, delta=1e-9)
