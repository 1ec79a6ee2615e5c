"""A running count of texts is (ε, δ)-private, by exact computation for all events that one person can have in a small horizon.

The laws of the noise are those of the shipped sampler, as doubles; ``SLACK`` bounds the rounding errors and the cut
tails. Which texts are released, and when the texts are too large, is decided by the shipped rules.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import accumulate, combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest

from schemas import RunningCountCalibration
from stream.privacy.accuracy.source_facts import GroupSensitivity, SourceFacts
from stream.privacy.mechanisms.releases import RunningRelease
from stream.privacy.noise.samplers import Sampler, sampler
from stream.privacy.planning import running_text_plans
from stream.privacy.planning.plans import choose_calibration
from stream.privacy.planning.release_plans import node_law, node_rate, tree_of
from stream.privacy.planning.running_text_plans import (
    release_probability,
    running_size_law,
    sum_tail_above,
    text_interval,
    texts_are_too_large,
)
from stream.privacy.planning.unknown_groups_plans import text_size
from tests.builders import parse_spec
from tests.privacy.exact import law_of

Counts = tuple[int, ...]
"""The events of one text in each window."""
Texts = Mapping[str, Counts]
Outcomes = Mapping[tuple[int | None, ...], float]
"""The probability of a text's noisy counts in the windows so far; None for a window without it."""

EPSILON, DELTA, TOTAL, STEPS = 6.0, 0.02, 2, 2
LIMIT, SIZE = 6000, text_size(b"k")
REACH = 9
"""Noise of a node beyond this is left out."""
SLACK = 1e-7


def plan_texts(
    monkeypatch: pytest.MonkeyPatch, *, replace: bool = False, levels: int | None = None
) -> RunningCountCalibration:
    """Return the plan for texts of one byte, with a limit that few texts reach."""
    people = 2 if replace else 1
    monkeypatch.setattr(running_text_plans, "MOST_WINDOW_BYTES", LIMIT * people)
    facts = SourceFacts(
        sensitivity_steps=people * TOTAL,
        neighbors="replace" if replace else "add-remove",
        contribution=TOTAL,
        horizon=GroupSensitivity(TOTAL, people * TOTAL, people, people * TOTAL),
        text_bytes=1,
    )
    spec = parse_spec("running_count", steps=STEPS, epsilon=EPSILON, delta=DELTA)
    listed = running_text_plans.plan_calibrations(spec, facts)
    found = choose_calibration(spec, facts) if levels is None else listed[0]
    assert isinstance(found, RunningCountCalibration)
    assert levels in {None, found.levels}
    return found


def weights(law: Sampler) -> Mapping[int, float]:
    known = law_of(law)
    return {known.first + place: weight / (1 << known.bits) for place, weight in enumerate(known.weights)}


def outcomes_of(plan: RunningCountCalibration, counts: Counts, released: Callable[..., Any]) -> Sequence[Outcomes]:
    """Return the law of one text's results after 0, 1, … windows, by the shipped release."""
    tree, law = tree_of(plan), weights(node_law(plan))
    nodes = sorted({node for window in range(len(counts)) for node in tree.nodes(window + 1)}, key=str)
    found: list[dict[tuple[int | None, ...], float]] = [defaultdict(float) for _ in range(len(counts) + 1)]
    for drawn in product(range(-REACH, REACH + 1), repeat=len(nodes)):
        chance, noise = math.prod(law.get(one, 0.0) for one in drawn), dict(zip(nodes, drawn, strict=True))
        state = RunningRelease()
        seen: tuple[int | None, ...] = ()
        found[0][()] += chance
        for window, count in enumerate(accumulate(counts)):
            _, shown = released(
                state,
                [b"k"] if count else [],
                np.array([count] if count else [], dtype=np.int64),
                np.array([sum(noise[node] for node in tree.nodes(window + 1))] if count else [], dtype=np.int64),
                plan.threshold,
            )
            seen = (*seen, shown[0].rows if shown else None)
            found[window + 1][seen] += chance
    return found


def ends_of(plan: RunningCountCalibration, sizes: Sequence[int]) -> list[float]:
    """Return the probability of an end in each window, and of no end, by the shipped test."""
    law = running_size_law(plan)
    noise, chances = _column(law)
    below = np.concatenate([[0.0], np.cumsum(chances)])
    left, found = chances.copy(), []
    for size in sizes:
        # The largest noise of a window for each noise of the limit with which the texts are small enough.
        largest = np.array([plan.size_threshold or 0]) + noise - size
        if size > (plan.most_bytes or 0):
            largest = np.full_like(largest, noise[0] - 1)
        kept = below[np.clip(largest - noise[0] + 1, 0, len(noise))]
        found.append(float(np.sum(left * (1 - kept))))
        left = left * kept
    return [*found, float(np.sum(left))]


@cache
def _column(law: Sampler) -> tuple[Any, Any]:
    known = weights(law)
    return np.array(list(known)), np.array(list(known.values()))


def divergence(
    plan: RunningCountCalibration,
    one: Texts,
    other: Texts,
    others_size: int,
    known: Callable[[Counts], Sequence[Outcomes]],
) -> float:
    """Return the hockey-stick divergence of all answers, if other people's texts have so many bytes."""
    names = sorted(one.keys() | other.keys())
    nothing, factor = (0,) * plan.steps, math.exp(plan.epsilon)
    left, right = (ends_of(plan, _sizes(texts, plan.steps, others_size)) for texts in (one, other))
    excess = SLACK
    for window in range(plan.steps + 1):
        mine, theirs = np.array([left[window]]), np.array([right[window]])
        for name in names:
            ours, others = known(one.get(name, nothing))[window], known(other.get(name, nothing))[window]
            mine = np.multiply.outer(mine, list(ours.values())).ravel()
            theirs = np.multiply.outer(theirs, [others.get(key, 0.0) for key in ours]).ravel()
        excess += float(np.maximum(mine - factor * theirs, 0.0).sum())
    return excess


def _sizes(texts: Texts, steps: int, others: int) -> list[int]:
    seen = [sum(any(counts[: window + 1]) for counts in texts.values()) for window in range(steps)]
    return [others + SIZE * count for count in seen]


def add_person(texts: Texts, life: Sequence[tuple[str, int]]) -> Texts:
    """Return the texts' counts with a person's events, each of which has a text and a window."""
    found = {name: list(counts) for name, counts in texts.items()}
    for name, window in life:
        found.setdefault(name, [0] * STEPS)[window] += 1
    return {name: tuple(counts) for name, counts in found.items()}


def neighbors(plan: RunningCountCalibration, others: Texts) -> Iterator[tuple[Texts, Texts]]:
    places = list(product(["a", "b"], range(STEPS)))
    lives = [life for most in range(1, TOTAL + 1) for life in combinations_with_replacement(places, most)]
    replaces = plan.sensitivity_steps > TOTAL
    for life in lives:
        for theirs in lives if replaces else [()]:
            pair = add_person(others, life), add_person(others, theirs)
            yield pair
            yield pair[1], pair[0]


def worst(
    plan: RunningCountCalibration,
    sizes: Sequence[int] = (0,),
    released: Callable[..., Any] = RunningRelease.release,
    others: Sequence[Texts] = (),
) -> float:
    threshold = plan.threshold or 0
    known = cache(lambda counts: outcomes_of(plan, counts, released))
    beside = others or [
        {"a": (threshold, 1)},
        {"a": (threshold - TOTAL, 0)},
        {"a": (0, threshold)},  # other people have the text later than the person
        {"a": (1, 1), "b": (threshold - 1, 0)},
        {},
    ]
    return max(
        divergence(plan, one, other, size, known)
        for texts in beside
        for one, other in neighbors(plan, texts)
        for size in sizes
    )


@pytest.mark.parametrize("replace", [False, True])
def test_all_answers_keep_epsilon_and_delta(monkeypatch: pytest.MonkeyPatch, replace: bool) -> None:
    plan = plan_texts(monkeypatch, replace=replace)
    lost = worst(plan, others=[] if not replace else [{"a": ((plan.threshold or 0) - 1, 0)}, {}])
    assert lost <= DELTA
    # Of the factor 1 + e^ε in the proof, this side's own texts need 1.
    assert lost > DELTA / (1 + math.exp(EPSILON)) / 20


def test_answers_with_shared_nodes_keep_epsilon_and_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.privacy.test_running_texts.REACH", 14)
    plan = plan_texts(monkeypatch, levels=2)
    assert worst(plan, others=[{"a": ((plan.threshold or 0) - 1, 0)}, {"a": (0, plan.threshold or 0)}]) <= DELTA


def test_size_of_the_texts_keeps_epsilon_and_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_texts(monkeypatch)
    edge, most = plan.size_threshold or 0, plan.most_bytes or 0
    sizes = [*range(edge - 400, edge + 400, 80), *range(most - 2 * SIZE, most + 2, 7)]
    assert worst(plan, sizes, others=[{}, {"a": (0, 1)}]) <= DELTA


def release_early(state: RunningRelease, texts: Any, counts: Any, noise: Any, threshold: int) -> Any:
    return state.release(texts, counts, noise, threshold - 6)


def release_unseen(state: RunningRelease, texts: Any, counts: Any, noise: Any, threshold: int) -> Any:
    """Release texts by exact counts, so that noise does not decide."""
    return state.release(texts, counts, 0 * noise, threshold)


@pytest.mark.parametrize("released", [release_early, release_unseen])
def test_check_finds_a_wrong_release(monkeypatch: pytest.MonkeyPatch, released: Callable[..., Any]) -> None:
    assert worst(plan_texts(monkeypatch), released=released) > DELTA


def test_check_finds_noise_for_fewer_events(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_texts(monkeypatch).model_copy(update={"sensitivity_steps": 1})
    assert worst(plan, others=[{"a": (plan.threshold or 0, 1)}]) > DELTA


@pytest.mark.parametrize("changed", [{"epsilon_size": 5.9, "text_bytes": 1}, {"size_threshold": LIMIT - 10}])
def test_check_finds_a_wrong_test_of_the_size(monkeypatch: pytest.MonkeyPatch, changed: dict[str, float]) -> None:
    plan = plan_texts(monkeypatch).model_copy(update=changed)
    edge, most = plan.size_threshold or 0, plan.most_bytes or 0
    sizes = [*range(edge - 100, edge + 100, 25), *range(most - 2 * SIZE, most + 2, 7)]
    assert worst(plan, sizes, others=[{}]) > DELTA


def test_shipped_test_of_the_size_is_the_enumerated_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_texts(monkeypatch)
    noise, chances = _column(running_size_law(plan))
    likely = [(one, chance) for one, chance in zip(noise.tolist(), chances.tolist(), strict=True) if chance > 1e-4]
    for size in (plan.size_threshold or 0, LIMIT, LIMIT + 1):
        ended = sum(
            a * b
            for (one, a), (limit, b) in product(likely, likely)
            if texts_are_too_large(plan, size, one, limit)
        )
        assert ended == pytest.approx(ends_of(plan, [size])[0], abs=0.2 if size <= LIMIT else 0.5)


@pytest.mark.parametrize(("rate", "nodes"), [(0.7, 1), (0.4, 3), (1.3, 8)])
def test_tail_of_a_sum_is_that_of_its_law(rate: float, nodes: int) -> None:
    law = weights(sampler("two_sided", Fraction(rate)))
    one = np.array(list(law.values()))
    total = one
    for _ in range(nodes - 1):
        total = np.convolve(total, one)
    first = nodes * min(law)
    for at_least in (1, 5, 12):
        claimed = float(sum_tail_above(Fraction(rate), nodes, at_least))
        assert claimed == pytest.approx(float(total[at_least - first :].sum()), rel=1e-9)


def test_delta_of_a_person_is_the_worst_division_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_texts(monkeypatch)
    rate, threshold = node_rate(plan), plan.threshold or 0
    tails = {own: sum_tail_above(rate, plan.nodes, threshold - own) for own in range(1, TOTAL + 1)}
    divisions = [[2], [1, 1], [1]]
    worst_division = max(sum(tails[own] for own in division) for division in divisions)
    assert release_probability(rate, plan.nodes, TOTAL, threshold) == pytest.approx(worst_division)


def test_intervals_cover_given_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every count, at least 95 % of a released text's noisy counts have an interval that contains it."""
    plan = plan_texts(monkeypatch)
    for first, second in product([1, 2, (plan.threshold or 0) - 1, 3 * (plan.threshold or 0)], [0, 1, 5]):
        known = outcomes_of(plan, (first, second), RunningRelease.release)
        for window, count in ((1, first), (2, first + second)):
            released = {seen[-1]: 0.0 for seen in known[window] if seen[-1] is not None}
            for seen, chance in known[window].items():
                if seen[-1] is not None:
                    released[seen[-1]] += chance
            nodes = len(tree_of(plan).nodes(window))
            ends = {noisy: text_interval(plan, nodes, noisy) for noisy in released}
            covered = sum(
                chance for noisy, chance in released.items() if ends[noisy][0] <= count <= ends[noisy][1]
            )
            assert covered >= 0.95 * sum(released.values())
