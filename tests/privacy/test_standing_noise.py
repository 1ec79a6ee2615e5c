"""Whole people with all their events are added, removed and replaced in a window: their moves, and the loss of these moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import pytest

from schemas import AnswersCalibration, SparseVectorCalibration, StandingQuery, format_moment
from sotto import Driver
from stream.privacy.accuracy.source_facts import window_sensitivity
from stream.privacy.composition.gaussian_losses import gaussian_rho
from stream.privacy.composition.losses import losses
from stream.privacy.noise.keyed_noise import DrawRole, event_words, stream_subkey
from stream.privacy.noise.samplers import DELTA_PER_DRAW, Sampler
from stream.privacy.planning.answer_plans import answer_law
from tests import builders
from tests.privacy.exact import Machine, law_of, outcomes, worst_delta
from tests.privacy.service import KEY, Derived, definition_of

CONTRIBUTION = 2
GROUPS = ("a", "b", "c")

Person = tuple[tuple[int, int], ...]
"""A person's events of one window, in order: the group and the amount of each."""
Move = tuple[int, ...]

RANGES = {"events": (0, 1), "people": (0, 1), "paid": (0, 2), "owed": (-2, 0), "balance": (-1, 2)}
"""The kinds of counts, each with the range of its amounts."""


def window(number: int) -> dict[str, str]:
    """Return one of the consecutive windows of an hour."""
    return {"start": format_moment(number * 3_600_000), "end": format_moment((number + 1) * 3_600_000)}


def numbers_of_person(person: Person, count: str) -> Move:
    """Return what a person adds to each group's number. Only the first events count; in a count of people, only the first one."""
    numbers = [0] * len(GROUPS)
    for group, amount in person[: 1 if count == "people" else CONTRIBUTION]:
        numbers[group] += amount if count in {"paid", "owed", "balance"} else 1
    return tuple(numbers)


@cache
def moves(count: str, neighbors: str) -> frozenset[Move]:
    """Return how far one person's events move the numbers of all groups; some people have more events than count."""
    low, high = RANGES[count]
    events = list(product(range(len(GROUPS)), {low, 0, high}))
    added = {numbers_of_person(person, count) for size in range(4) for person in product(events, repeat=size)}
    if neighbors == "add-remove":
        return frozenset(added | {tuple(-step for step in one) for one in added})
    return frozenset(tuple(a - b for a, b in zip(one, two, strict=True)) for one, two in product(added, repeat=2))


def source(neighbors: str) -> dict[str, Any]:
    amounts = {
        name: {"kind": "integers", "minimum": low, "maximum": high}
        for name, (low, high) in RANGES.items()
        if name not in {"events", "people"}
    }
    return builders.topic_source(neighbors, CONTRIBUTION, group=list(GROUPS), **amounts)


def asks(count: str) -> dict[str, Any]:
    return {
        "count": count if count in {"events", "people"} else {"sum": count},
        "by": ["group"],
        "window": {"size": "1h"},
    }


def opened(
    mechanism: dict[str, Any], count: str, neighbors: str = "add-remove", **spec: Any
) -> tuple[Driver, Any]:
    fields = {"expected_queries": 9, "standing": asks(count), **spec}
    windows = builders.stream("s", "live", mechanism=mechanism, **fields)
    driver = builders.installation(windows, sources=[source(neighbors)], key=KEY)
    return driver, driver.grant("live", "s").calibration


def loss(law: Sampler, moved: Sequence[int]) -> float:
    """Return the largest loss of numbers with independent noise and these moves."""
    exact = law_of(law)
    found = 0.0
    for step in filter(None, map(abs, moved)):
        near = range(-step - 2, step + 3)
        found += max(math.log(exact.probability(one) / exact.probability(one - step)) for one in near)
    return found


CASES = list(product(RANGES, ["add-remove", "replace"]))


@pytest.mark.parametrize(("count", "neighbors"), CASES)
def test_planned_sensitivity_is_the_largest_change_by_a_person(count: str, neighbors: str) -> None:
    seen = moves(count, neighbors)
    planned = window_sensitivity(
        builders.parse_source(source(neighbors)), StandingQuery.model_validate(asks(count)), len(GROUPS)
    )
    assert planned.each == max(abs(step) for one in seen for step in one)
    assert planned.together == max(sum(map(abs, one)) for one in seen)
    assert planned.numbers == max(sum(map(bool, one)) for one in seen)
    assert max(sum(step * step for step in one) for one in seen) <= Fraction(planned.together**2, planned.spread)


@pytest.mark.parametrize(("count", "neighbors"), CASES)
def test_one_number_loses_exactly_its_epsilon(count: str, neighbors: str) -> None:
    _, calibration = opened({"kind": "laplace", "answers": 3}, count, neighbors, epsilon=3.0)
    assert isinstance(calibration, AnswersCalibration)
    law = answer_law(calibration, calibration.sensitivity_steps, 1)
    lost = max(loss(law, [step]) for one in moves(count, neighbors) for step in one)
    assert lost == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(("count", "neighbors"), CASES)
def test_numbers_of_a_window_lose_one_epsilon_together(count: str, neighbors: str) -> None:
    histogram = {"kind": "histogram", "attributes": ["group"], "answers": 3}
    _, calibration = opened(histogram, count, neighbors, epsilon=3.0)
    assert isinstance(calibration, AnswersCalibration)
    law = answer_law(calibration, calibration.sensitivity_steps, 1)
    lost = max(loss(law, one) for one in moves(count, neighbors))
    assert lost == pytest.approx(1.0, rel=1e-6)
    assert losses(calibration).total == pytest.approx(3.0)


@pytest.mark.parametrize(("count", "neighbors"), CASES)
def test_gaussian_noise_of_a_window_fits_the_largest_norm(count: str, neighbors: str) -> None:
    """Its loss counts every number that moves."""
    histogram = {"kind": "histogram", "attributes": ["group"], "answers": 500}
    driver, calibration = opened(histogram, count, neighbors, delta=1e-6)
    assert isinstance(calibration, AnswersCalibration)
    assert calibration.method == "gaussian"
    query = definition_of(driver, "s").spec.standing
    assert query is not None
    spread = window_sensitivity(builders.parse_source(source(neighbors)), query, len(GROUPS)).spread
    variance = Fraction(calibration.deviation) ** 2 * calibration.sensitivity_steps**2 / spread
    assert answer_law(calibration, calibration.sensitivity_steps, spread).variance == variance  # type: ignore[union-attr]
    seen = moves(count, neighbors)
    norm = max(sum(step * step for step in one) for one in seen)
    noise = losses(calibration).gaussian
    assert 500 * norm / variance <= 2 * gaussian_rho(noise)
    assert sum(one.count for one in noise) == 500 * max(sum(map(bool, one)) for one in seen)


@pytest.mark.parametrize("kind", ["above_threshold", "numeric_sparse"])
@pytest.mark.parametrize(
    ("count", "monotone"), [("events", False), ("events", True), ("people", True), ("paid", True)]
)
def test_sparse_vectors_of_windows_are_private_for_whole_people(kind: str, count: str, monotone: bool) -> None:
    _, calibration = opened({"kind": kind, "threshold": 1.0, "monotone": monotone}, count)
    assert isinstance(calibration, SparseVectorCalibration)
    seen = {step for one in moves(count, "add-remove") for step in one}
    reach = max(seen)
    assert calibration.sensitivity_steps == reach
    margins = range(calibration.shift - 1, calibration.shift + reach + 1)
    either = [sorted(step for step in seen if step >= 0), sorted(step for step in seen if step <= 0)]
    for allowed in either if monotone else [sorted(seen)]:
        within = [(one, one + step) for one in margins for step in allowed if one + step in margins]
        machine = Machine.shipped(calibration, range(-1, 3) if kind == "numeric_sparse" else ())
        found = outcomes(machine, margins, 3)
        assert worst_delta(found, within, lambda _: Fraction(1)) <= Fraction(40 * DELTA_PER_DRAW)
        # The loss is nearly all of ε: noise for one event alone would lose more.
        assert worst_delta(found, within, lambda _: Fraction(1, 2)) > Fraction(1, 1000)


def test_window_decisions_are_recomputed_from_the_key() -> None:
    """The noise depends on the whole question, including its window and group."""
    driver, calibration = opened({"kind": "above_threshold", "threshold": 5.0, "cutoff": 4}, "events")
    answers = driver.ask_many(
        {
            "id": f"{number}",
            "stream": "s",
            "value": 5 + calibration.shift + number % 5 - 2,
            "window": window(number),
            "group": {"group": GROUPS[number % 3]},
        }
        for number in range(60)
    )
    expected = Derived(KEY, definition_of(driver, "s")).outcomes(driver.records(driver.topics.queries))
    assert [answer.outcome for answer in answers] == expected
    assert expected.count("above") == 4


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("count", ["events", "people", "balance"])
def test_window_numbers_are_recomputed_from_the_key(count: str, delta: float) -> None:
    histogram = {"kind": "histogram", "attributes": ["group"], "answers": 500}
    driver, calibration = opened(histogram, count, "replace", delta=delta)
    definition = definition_of(driver, "s")
    query = definition.spec.standing
    assert query is not None
    spread = window_sensitivity(builders.parse_source(source("replace")), query, len(GROUPS)).spread
    law = answer_law(calibration, calibration.sensitivity_steps, spread)
    answers = driver.ask_many(
        {"id": f"{number}", "stream": "s", "values": [number, 0, -number], "window": window(number)}
        for number in range(20)
    )
    subkey = stream_subkey(
        KEY,
        incarnation=definition.identity.incarnation,
        definition=bytes.fromhex(definition.identity.digest),
        role=DrawRole.ANSWER,
    )
    for number, (record, answer) in enumerate(zip(driver.records(driver.topics.queries), answers, strict=True)):
        words, low = event_words(
            [subkey], record.topic, record.partition, [record.offset], [record.value or b""], 3 * law.words
        )
        for place, exact in enumerate((number, 0, -number)):
            own = slice(place * law.words, (place + 1) * law.words)
            drawn = int(law.draw(words[:, own], lambda row, low=low, own=own: low(row)[own])[0])  # type: ignore[misc]
            assert answer.estimates is not None
            assert answer.estimates[place] == exact + drawn
