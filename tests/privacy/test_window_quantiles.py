"""The exact privacy loss of a window's quantiles when one person with all events is added or replaced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pytest

from schemas import AnswersCalibration, EventsSource, StandingQuery
from stream.privacy.accuracy.source_facts import window_sensitivity
from stream.privacy.composition.gaussian_losses import gaussian_rho
from stream.privacy.composition.losses import losses
from stream.privacy.mechanisms.selection import RankLaw
from stream.privacy.planning import answer_plans
from stream.worker.families.laplace_statistics import LaplaceStatistic, plan_quantiles
from stream.worker.families.statistics import window_statistic
from tests import builders
from tests.privacy.exact import code_weights, law_of
from tests.privacy.service import KEY, definition_of

CONTRIBUTION = 2
GROUPS = 2
DELTA_PER_DRAW = 2.0**-147
OTHERS: tuple[dict[int, int], ...] = ({}, {0: 9}, {3: 4, 9: 5}, dict.fromkeys(range(13), 1), {12: 30})
"""Other people's events in each group, by value."""

Event = tuple[int, int]
"""The group and the value of an event."""
Floats = npt.NDArray[np.float64]


def source(neighbors: str, values: int) -> dict[str, Any]:
    return builders.topic_source(neighbors, CONTRIBUTION, group=GROUPS, pay=values)


def opened(
    neighbors: str, values: int, q: Any, *, together: bool, answers: int = 3, **spec: Any
) -> tuple[AnswersCalibration, LaplaceStatistic, EventsSource]:
    """The calibration of a stream, and the noise of each of its answers."""
    mechanism: dict[str, Any] = {"kind": "laplace", "answers": answers}
    if together:
        mechanism = {"kind": "histogram", "attributes": ["group"], "answers": answers}
    standing = {"quantile": "pay", "q": q, "by": ["group"], "window": {"size": "1h"}}
    fields = {"epsilon": 3.0, "expected_queries": 9, "standing": standing, **spec}
    windows = builders.stream("s", "live", mechanism=mechanism, **fields)
    driver = builders.installation(windows, sources=[source(neighbors, values)], key=KEY)
    definition = definition_of(driver, "s")
    assert isinstance(definition.source, EventsSource)
    assert isinstance(definition.calibration, AnswersCalibration)
    assert definition.spec.standing is not None
    asked = window_statistic(definition.source, definition.spec.standing, together=together)
    return (
        definition.calibration,
        plan_quantiles(asked, definition.calibration, definition.source),
        definition.source,
    )


@cache
def people(values: int) -> tuple[tuple[Event, ...], ...]:
    """All that a person may do in a window, the order aside: the events that count."""
    events = list(product(range(GROUPS), range(values)))
    return tuple(one for size in range(CONTRIBUTION + 1) for one in combinations_with_replacement(events, size))


def counts_with(others: dict[int, int], person: tuple[Event, ...], group: int, values: int) -> tuple[int, ...]:
    counts = [others.get(value, 0) for value in range(values)]
    for own, value in person:
        counts[value] += own == group
    return tuple(counts)


@cache
def logarithms(counts: tuple[int, ...], law: RankLaw) -> tuple[float, ...]:
    """The logarithm of each code's probability, from the sampler's integers."""
    found = code_weights(np.array(counts, dtype=np.int64), law)
    total = math.log(sum(found))
    return tuple(math.log(weight) - total for weight in found)


def draws_loss(question: LaplaceStatistic, neighbors: str, *, together: bool) -> float:
    """The largest loss of all draws of an answer, over all neighbors."""
    values = question.statistic.size
    worst = 0.0
    for others in OTHERS:
        lost: Floats = np.zeros((len(people(values)),) * 2)
        for group in range(GROUPS if together else 1):
            for law in question.draws:
                rows = [logarithms(counts_with(others, one, group, values), law) for one in people(values)]
                table = np.array(rows)
                lost += np.abs(table[:, None, :] - table[None, :, :]).max(axis=2)
        # Nobody is the first: with add-remove one of the two topics lacks the person.
        worst = max(worst, float((lost if neighbors == "replace" else lost[0]).max()))
    return worst


def cells_loss(question: LaplaceStatistic, neighbors: str, *, together: bool) -> float:
    """The largest loss of the noisy counts of one value a range, the finest division."""
    assert question.count_noise is not None
    values, exact = question.statistic.size, law_of(question.count_noise)
    groups = range(GROUPS if together else 1)
    moved = [sum((counts_with({}, one, group, values) for group in groups), ()) for one in people(values)]
    table = np.array(moved)
    steps = np.abs(table[:, None, :] - table[None, :, :]) if neighbors == "replace" else table[None, :, :]
    loss = [0.0] + [
        max(math.log(exact.probability(one) / exact.probability(one - step)) for one in range(-step - 2, step + 3))
        for step in range(1, 2 * CONTRIBUTION + 1)
    ]
    return float(np.array(loss)[steps].sum(axis=2).max())


def answer_loss(neighbors: str, q: Any, *, together: bool) -> float:
    """The loss of the draws and of the counts of an answer, whose ε is 1."""
    calibration, question, _ = opened(neighbors, 13, q, together=together)
    assert bool(question.draws) is not isinstance(q, list)
    assert calibration.epsilon_answer == pytest.approx(1.0)
    assert losses(calibration).total == pytest.approx(3.0)
    return draws_loss(question, neighbors, together=together) + cells_loss(question, neighbors, together=together)


CASES = list(product(["add-remove", "replace"], [False, True]))


@pytest.mark.parametrize("q", [0.5, 0.9, 0.0], ids=str)
@pytest.mark.parametrize(("neighbors", "together"), CASES)
def test_drawn_quantiles_of_a_window_lose_at_most_epsilon(neighbors: str, together: bool, q: float) -> None:
    assert 0.4 < answer_loss(neighbors, q, together=together) <= 1.0 + DELTA_PER_DRAW + 1e-9


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_counted_quantiles_of_a_window_lose_epsilon(neighbors: str) -> None:
    assert answer_loss(neighbors, [0.25, 0.5], together=False) == pytest.approx(1.0, rel=1e-6)


def rates_of_one_event(
    epsilon: Fraction, parts: Sequence[Fraction], moved: int, *, replaced: bool, grouped: bool
) -> list[Fraction]:
    """A broken variant: a person is taken to have one event in a window."""
    del moved
    return RATES_FOR(epsilon, parts, 1, replaced=replaced, grouped=grouped)


def rates_of_one_group(
    epsilon: Fraction, parts: Sequence[Fraction], moved: int, *, replaced: bool, grouped: bool
) -> list[Fraction]:
    """A broken variant: an event that is replaced is taken to stay in its group."""
    del grouped
    return RATES_FOR(epsilon, parts, moved, replaced=replaced, grouped=False)


RATES_FOR = answer_plans.rates_for


@pytest.mark.parametrize(
    ("broken", "neighbors", "together"),
    [
        (rates_of_one_event, "add-remove", False),
        (rates_of_one_event, "replace", True),
        (rates_of_one_group, "replace", True),
    ],
)
def test_wrong_rates_of_a_window_are_found(broken: Any, neighbors: str, together: bool) -> None:
    with patch.object(answer_plans, "rates_for", broken):
        assert answer_loss(neighbors, 0.0, together=together) > 1.5


@pytest.mark.parametrize(("neighbors", "together"), CASES)
def test_gaussian_noise_of_a_windows_counts_fits_their_norm(neighbors: str, together: bool) -> None:
    calibration, question, about = opened(neighbors, 5, 0.5, together=together, answers=500, delta=1e-6)
    assert calibration.method == "gaussian"
    assert not question.draws
    seen = [
        sum((counts_with({}, one, group, 5) for group in (range(GROUPS) if together else range(1))), ())
        for one in people(5)
    ]
    table = np.array(seen)
    steps = table[:, None, :] - table[None, :, :] if neighbors == "replace" else table[None, :, :]
    variance = Fraction(question.count_noise.variance)  # type: ignore[union-attr]
    noise = losses(calibration).gaussian
    assert 500 * int((steps**2).sum(axis=2).max()) / variance <= 2 * gaussian_rho(noise)
    assert sum(one.count for one in noise) >= 500 * int((steps != 0).sum(axis=2).max())
    query = StandingQuery.model_validate({"quantile": "pay", "by": ["group"], "window": {"size": "1h"}})
    planned = window_sensitivity(about, query, GROUPS if together else 1)
    assert planned.each == int(np.abs(steps).max())
    assert planned.together == int(np.abs(steps).sum(axis=2).max())
