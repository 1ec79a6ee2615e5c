"""The exact privacy loss of unknown groups, over all small tables and their neighbors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import product

import numpy as np
import pytest

from schemas import UnknownGroupsCalibration
from stream.privacy.accuracy.source_facts import SourceFacts
from stream.privacy.mechanisms.releases import release_groups
from stream.privacy.noise.keyed_noise import DrawRole, cell_noise, event_subkey, stream_subkey
from stream.privacy.planning import unknown_groups_plans
from stream.privacy.planning.plans import choose_calibration
from stream.privacy.planning.unknown_groups_plans import (
    TEXT_OVERHEAD,
    count_law,
    group_interval,
    groups_reach,
    is_too_large,
    least_threshold,
    release_probability,
    rows_released_with,
    size_law,
    text_size,
)
from tests.builders import KEY, parse_spec
from tests.privacy.exact import Law, exponential_below, law_of

Counts = tuple[int, ...]
Outcomes = dict[int | None, int]
"""The probability of each noisy count of a text out of 2^192, and of None: it is not released."""
Released = Callable[[Law, int, int], Outcomes]

BITS = 192
SLACK = Fraction(1, 1 << 150)
"""An upper bound of the error that rounding down adds to a divergence."""
EPSILON, DELTA = 2.0, 1e-2


def plan_groups(
    rows: int = 1, *, replace: bool = False, epsilon: float = EPSILON, delta: float = DELTA
) -> UnknownGroupsCalibration:
    facts = SourceFacts(contribution=rows, neighbors="replace" if replace else "add-remove", disjoint=True)
    found = choose_calibration(parse_spec("unknown_groups", epsilon=epsilon, delta=delta), facts)
    assert isinstance(found, UnknownGroupsCalibration)
    return found


def release_law_of_text(law: Law, count: int, threshold: int) -> Outcomes:
    """Return the law of one text's result, by the shipped release."""
    found: Outcomes = {}
    for noise, weight in enumerate(law.weights, start=law.first):
        groups = release_groups([b"k"], np.array([count]), np.array([noise]), threshold)
        outcome = groups[0].rows if groups else None
        found[outcome] = found.get(outcome, 0) + (weight >> law.bits - BITS)
    return found


def divergence(one: Sequence[Outcomes], other: Sequence[Outcomes], epsilon: float) -> Fraction:
    """Return an upper bound of the hockey-stick divergence of the results of all texts, which are independent."""
    factor = int(exponential_below(Fraction(epsilon)) * (1 << 64))
    left, right = np.array([1], dtype=object), np.array([1], dtype=object)
    for own, theirs in zip(one, other, strict=True):
        left = np.multiply.outer(left, np.array(list(own.values()), dtype=object)).ravel()
        right = np.multiply.outer(right, np.array([theirs.get(key, 0) for key in own], dtype=object)).ravel()
    excess = (left << 64) - factor * right
    return Fraction(int(excess[excess > 0].sum()), 1 << 64 + BITS * len(one)) + SLACK


def row_divisions_of_a_person(rows: int, texts: int) -> Iterator[Counts]:
    """Return all ways in which one person may have 1 to ``rows`` rows among the texts."""
    return (own for own in product(range(rows + 1), repeat=texts) if 0 < sum(own) <= rows)


def neighbors(plan: UnknownGroupsCalibration, texts: int) -> Iterator[tuple[Counts, Counts]]:
    """Yield pairs of counts that differ in one person; other people have 0, 1 or T rows of each text."""
    rows, threshold = plan.contribution, plan.threshold
    replaces = plan.sensitivity_steps > rows
    for others in product((0, 1, threshold), repeat=texts):
        for one in row_divisions_of_a_person(rows, texts):
            for other in row_divisions_of_a_person(rows, texts) if replaces else [(0,) * texts]:
                first = tuple(count + own for count, own in zip(others, one, strict=True))
                second = tuple(count + own for count, own in zip(others, other, strict=True))
                yield first, second
                yield second, first


def worst(plan: UnknownGroupsCalibration, *, texts: int = 2, by: Released = release_law_of_text) -> Fraction:
    """Return the largest δ at the calibration's ε over all neighboring tables."""
    law = law_of(count_law(plan))
    known = cache(lambda count: by(law, count, plan.threshold))
    divergences = {
        pair: divergence([known(count) for count in pair[0]], [known(count) for count in pair[1]], plan.epsilon)
        for pair in set(neighbors(plan, texts))
    }
    return max(divergences.values())


@pytest.mark.parametrize(("rows", "replace"), [(1, False), (1, True), (2, False), (2, True)])
def test_release_keeps_its_epsilon_and_delta(rows: int, replace: bool) -> None:
    plan = plan_groups(rows, replace=replace)
    lost = worst(plan)
    assert lost <= Fraction(plan.delta)
    # One step of the threshold changes δ by e^(−rate).
    assert lost > Fraction(plan.delta) * exponential_below(Fraction(-plan.epsilon) / plan.sensitivity_steps) / 2


@pytest.mark.parametrize(("rows", "replace"), [(1, False), (1, True), (2, False)])
def test_check_finds_a_threshold_that_is_one_too_low(rows: int, replace: bool) -> None:
    plan = plan_groups(rows, replace=replace)
    lower = plan.model_copy(update={"threshold": plan.threshold - 1})
    assert worst(lower) > Fraction(plan.delta)


def test_check_finds_a_threshold_for_one_row_of_two() -> None:
    one, two = plan_groups(1), plan_groups(2)
    rate = Fraction(two.epsilon_answer) / two.sensitivity_steps
    forgetful = two.model_copy(update={"threshold": least_threshold(rate, 1, Fraction(DELTA))})
    assert forgetful.threshold > one.threshold
    assert worst(forgetful) > Fraction(DELTA)


def test_check_finds_noise_for_one_row_of_two() -> None:
    plan = plan_groups(2)
    assert worst(plan.model_copy(update={"sensitivity_steps": 1})) > Fraction(DELTA)


def test_check_finds_noise_for_an_added_row_if_rows_are_replaced() -> None:
    plan = plan_groups(1, replace=True)
    assert worst(plan.model_copy(update={"sensitivity_steps": 1, "threshold": 30}), texts=2) <= Fraction(DELTA)
    # Both counts are far above the threshold, and move by 1 each.
    law = law_of(count_law(plan.model_copy(update={"sensitivity_steps": 1})))
    known = [release_law_of_text(law, count, plan.threshold) for count in (30, 31)]
    assert divergence(known, known[::-1], EPSILON) > Fraction(DELTA)


def test_check_finds_a_text_released_with_its_exact_count() -> None:
    def exact(law: Law, count: int, threshold: int) -> Outcomes:
        found = release_law_of_text(law, count, threshold)
        absent = found.get(None, 0)
        return {None: absent, count: (1 << BITS) - absent}

    assert worst(plan_groups(), texts=1, by=exact) > Fraction(DELTA)


LIMIT = 400
"""Bytes of a window's texts in the checks below; the shipped limit is thousands of texts away."""


def planned_window(
    monkeypatch: pytest.MonkeyPatch, rows: int = 1, *, replace: bool = False, limit: int = LIMIT
) -> UnknownGroupsCalibration:
    """Return the plan of a live topic whose texts have one byte, with a limit that few texts reach."""
    monkeypatch.setattr(unknown_groups_plans, "MOST_WINDOW_BYTES", limit * rows)
    facts = SourceFacts(
        contribution=rows, neighbors="replace" if replace else "add-remove", disjoint=True, text_bytes=1
    )
    spec = parse_spec("unknown_groups", epsilon=EPSILON, delta=DELTA)
    found = choose_calibration(spec.model_copy(update={"beta": 0.06}), facts)
    assert isinstance(found, UnknownGroupsCalibration)
    assert (found.text_bytes, found.most_bytes) == (1 + TEXT_OVERHEAD, limit * rows)
    return found


def window_divergence(
    plan: UnknownGroupsCalibration, others: int, one: Counts, other: Counts, by: Callable[[int], Outcomes]
) -> Fraction:
    """Return the hockey-stick divergence of a window's answers, if other people's texts have so many bytes."""

    def too_large(counts: Counts) -> Fraction:
        size = others + sum(text_size(b"k") for count in counts if count)
        return Fraction(
            sum(weight for noise, weight in drawn if is_too_large(plan, size, noise)), 1 << size_of.bits
        )

    size_of = law_of(size_law(plan))
    drawn = list(enumerate(size_of.weights, start=size_of.first))
    factor = exponential_below(Fraction(plan.epsilon_answer))
    left, right = too_large(one), too_large(other)
    excess = max(Fraction(0), left - factor * right)
    for outcomes in product(*(by(count).items() for count in one)):
        mine = theirs = Fraction(1)
        for (outcome, weight), count in zip(outcomes, other, strict=True):
            mine *= Fraction(weight, 1 << BITS)
            theirs *= Fraction(by(count).get(outcome, 0), 1 << BITS)
        excess += max(Fraction(0), (1 - left) * mine - factor * (1 - right) * theirs)
    return excess + SLACK


def worst_window(plan: UnknownGroupsCalibration) -> Fraction:
    """Return the largest δ over neighboring windows whose other texts have any size around both limits."""
    law, rows, threshold = law_of(count_law(plan)), plan.contribution, plan.threshold
    known = cache(lambda count: release_law_of_text(law, count, threshold))
    replaces = plan.sensitivity_steps > rows
    pairs = set()
    for own in row_divisions_of_a_person(rows, rows):
        for theirs in row_divisions_of_a_person(rows, rows) if replaces else [(0,) * rows]:
            # Nobody else has a text of either person: these cost δ, and change the size.
            pairs |= {((*own, *(0,) * rows), (*(0,) * rows, *theirs)) if replaces else (own, theirs)}
    pairs |= {(other, one) for one, other in pairs}
    edge = plan.size_threshold or 0
    sizes = sorted(
        {
            *range(0, edge, 97),
            *range(edge - 60, edge + 30, 7),
            *range((plan.most_bytes or 0) - 40, (plan.most_bytes or 0) + 14, 9),
        }
    )
    return max(window_divergence(plan, size, one, other, known) for one, other in pairs for size in sizes)


@pytest.mark.parametrize(("rows", "replace"), [(1, False), (1, True)])
def test_window_keeps_its_epsilon_and_delta_at_any_size(
    monkeypatch: pytest.MonkeyPatch, rows: int, replace: bool
) -> None:
    plan = planned_window(monkeypatch, rows, replace=replace)
    lost = worst_window(plan)
    assert Fraction(plan.delta) / 20 < lost <= Fraction(plan.delta)


def test_check_finds_a_size_with_too_little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned_window(monkeypatch)
    assert worst_window(plan.model_copy(update={"text_bytes": 4})) > Fraction(DELTA)


def test_check_finds_a_threshold_too_close_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned_window(monkeypatch)
    assert worst_window(plan.model_copy(update={"size_threshold": LIMIT - 10})) > Fraction(DELTA)


def test_check_finds_a_limit_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned_window(monkeypatch)
    monkeypatch.setattr(
        "tests.privacy.test_unknown_groups.is_too_large", lambda one, size, _: size > one.most_bytes
    )
    assert worst_window(plan) == 1 + SLACK


def test_test_of_the_size_costs_no_epsilon() -> None:
    """A window's threshold is that of a table for fifteen sixteenths of its δ, with noise of the same rate."""
    window = choose_calibration(
        parse_spec("unknown_groups", epsilon=EPSILON, delta=DELTA), SourceFacts(disjoint=True, text_bytes=64)
    )
    table = plan_groups(delta=DELTA * 15 / 16)
    assert isinstance(window, UnknownGroupsCalibration)
    assert (window.threshold, count_law(window)) == (table.threshold, count_law(table))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_delta_of_a_person_is_the_worst_division_of_rows(rows: int) -> None:
    """Compare the two divisions of the formula with all divisions of a person's rows among texts."""
    plan = plan_groups(rows, epsilon=1.0, delta=1e-4)
    law, threshold = law_of(count_law(plan)), plan.threshold
    missed = {own: 1 - Fraction(law.at_least(threshold - own), 1 << law.bits) for own in range(1, rows + 1)}
    chances = []
    for own in row_divisions_of_a_person(rows, rows):
        kept = Fraction(1)
        for share in own:
            kept *= missed[share] if share else 1
        chances.append(1 - kept)
    claimed = Fraction(
        release_probability(Fraction(plan.epsilon_answer) / plan.sensitivity_steps, rows, threshold)
    )
    assert max(chances) <= claimed <= Fraction(plan.delta)
    assert max(chances) > claimed * Fraction(999, 1000)


def test_keyed_noise_of_a_text_depends_on_event_and_text_alone() -> None:
    law = count_law(plan_groups())
    subkey = stream_subkey(KEY, incarnation="0" * 32, definition=b"d", role=DrawRole.KEYS)

    def drawn(texts: Sequence[bytes], offset: int = 7, payload: bytes = b"{}") -> dict[bytes, int]:
        key = event_subkey(subkey, "queries", 3, offset, payload)
        return dict(zip(texts, cell_noise(law, key, texts).tolist(), strict=True))

    texts = [b"flu", b"", b"a" * 300, "Ä".encode()] + [b"text %d" % number for number in range(200)]
    found = drawn(texts)
    assert drawn(texts[::-1]) == found
    assert drawn([b"flu"]) == {b"flu": found[b"flu"]}
    assert drawn(texts, offset=8) != found
    assert drawn(texts, payload=b"{ }") != found


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_text_with_the_stated_rows_is_released_as_often_as_stated(level: float) -> None:
    plan = plan_groups(2, epsilon=0.7, delta=1e-6)
    law, rows = law_of(count_law(plan)), rows_released_with(plan, level)

    def chance(count: int) -> float:
        return law.at_least(plan.threshold - count) / (1 << law.bits)

    assert chance(rows) >= level > chance(rows - 1)


def test_intervals_cover_given_release() -> None:
    """For every number of rows, at least 95 % of the released noisy counts have an interval that contains it."""
    plan = plan_groups(1, epsilon=0.5, delta=1e-4)
    law = law_of(count_law(plan))
    for count in [*range(1, 2 * plan.threshold), 10 * plan.threshold]:
        known = {
            noisy: chance
            for noisy, chance in release_law_of_text(law, count, plan.threshold).items()
            if noisy is not None
        }
        intervals = {noisy: group_interval(plan, noisy) for noisy in known}
        covered = sum(
            chance for noisy, chance in known.items() if intervals[noisy][0] <= count <= intervals[noisy][1]
        )
        assert covered >= Fraction(95, 100) * sum(known.values())


def test_alpha_holds_for_as_many_texts_as_a_table_may_have() -> None:
    plan = plan_groups(epsilon=1.0, delta=1e-6)
    law, reach = law_of(count_law(plan)), groups_reach(plan)

    def failing(bound: int) -> float:
        each = Fraction(2 * law.at_least(bound + 1), 1 << law.bits)
        return 1 - (1 - float(each)) ** (1 << 20)

    assert failing(reach) <= 0.05 < failing(reach - 1)
    assert groups_reach(plan, cells=4096) - reach in {8, 9}  # ln(4096) / ε = 8.3
