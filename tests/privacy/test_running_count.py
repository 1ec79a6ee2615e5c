"""A running count loses no more than it claims, by exact computation for all events that one person can have in a small horizon.

For any data, each answer is a sum of exact sums of nodes and of the nodes' noise. The test records the names of the shipped worker's
draws, which show the noise in each answer. The probability of published numbers follows from the sampler's own fixed-point
probabilities. The answers reveal each node's noisy sum, so the loss is that of all nodes together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest

from stream.privacy.accuracy.source_facts import GroupSensitivity
from stream.privacy.noise.samplers import Sampler, sampler
from stream.privacy.planning.release_plans import node_law, node_name, tree_of
from stream.worker.families import window_families
from tests.privacy.chance import at_most, follows
from tests.privacy.exact import exponential_below, law_of
from tests.privacy.losses import cut_tail, worst_delta
from tests.unit.worker.families.running_counts import Person, Stream, answer_batch, counts_of, worker_of

Moves = Mapping[bytes, int]
"""The exact number to which noise is added, by the name of that noise."""

INFINITE = 10**6
"""Stands for a move that no noise hides, because the same noise is added to different numbers."""


def events_once(replaced: bool) -> GroupSensitivity:
    return GroupSensitivity(1, 2, 2, 2) if replaced else GroupSensitivity(1, 1, 1, 1)


def events_twice(replaced: bool) -> GroupSensitivity:
    return GroupSensitivity(2, 4, 2, 4) if replaced else GroupSensitivity(2, 2, 1, 2)


DYADIC = Stream(steps=3, by=("side",), method="textbook", epsilon=2.0)
BALANCED = Stream(steps=5, by=("side",), epsilon=2.0, changed={"levels": 2, "nodes": 2})
SHALLOW = Stream(steps=3, by=("side",), epsilon=2.0)
HORIZONS = {
    "dyadic": DYADIC,
    "balanced": BALANCED,
    "of one level": SHALLOW,
    "deep": replace(DYADIC, steps=4, by=()),
}
BOUNDS = {1: events_once, 2: events_twice}


def lives(stream: Stream, total: int) -> list[Person]:
    """Return all sets of events of one person within these bounds, in any windows and groups."""
    places = list(product(range(stream.steps), range(len(stream.groups))))
    return [life for events in range(total + 1) for life in combinations_with_replacement(places, events)]


def released(stream: Stream, people: Sequence[Person]) -> Moves:
    """Return the numbers to which the shipped worker adds noise once all windows have asked, by the name of the noise."""
    found: dict[bytes, int] = {}
    taken: list[bytes] = []

    def taking_down(law: Sampler, subkey: bytes, names: Sequence[bytes]) -> Any:
        del law, subkey
        taken.extend(names)
        return np.zeros(len(names), dtype=np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_families, "cell_noise", taking_down)
        worker = worker_of(stream)
        for place, (question, sums) in enumerate(_questions_with_sums(stream, people)):
            taken.clear()
            [answer] = answer_batch(worker, [question], start=place)
            assert answer.estimate == sum(sums)
            for name, number in zip(taken, sums, strict=True):
                found[name] = number if found.get(name, number) == number else INFINITE
    return found


def _questions_with_sums(stream: Stream, people: Sequence[Person]) -> Iterator[tuple[bytes, list[int]]]:
    counts = counts_of(stream, people)
    for question in stream.questions(counts):
        sums = question.split(b'"values": [')[1].split(b"]")[0]
        yield question, [int(one) for one in sums.split(b",")]


@lru_cache(maxsize=64)
def all_released(stream: str, total: int) -> tuple[Moves, ...]:
    return tuple(released(HORIZONS[stream], [life]) for life in lives(HORIZONS[stream], total))


def moves_between(one: Moves, other: Moves) -> list[int]:
    """Return the differences of the numbers to which noise is added."""
    found = [one.get(name, 0) - other.get(name, 0) for name in one.keys() | other.keys()]
    return sorted((step for step in found if step), reverse=True)


@lru_cache(maxsize=256)
def ratio(law: Sampler, move: int, least: float = 2.0**-30) -> Fraction:
    """Return the exact largest P(x)/P(x − move) of a noisy number x that is not too rare."""
    known = law_of(law)
    common = max(abs(move), 0)
    if common >= len(known.weights):
        return Fraction(INFINITE) ** 2
    floor = int(Fraction(least) * (1 << known.bits))
    pairs = [
        (weight, known.weights[place - move])
        for place, weight in enumerate(known.weights)
        if weight >= floor and 0 <= place - move < len(known.weights)
    ]
    return max(Fraction(ours, theirs) for ours, theirs in pairs)


def largest_ratio(law: Sampler, moves: Sequence[int]) -> Fraction:
    """Return the largest ratio of all noisy numbers together; they are independent, so the largest ratios multiply."""
    return math.prod((ratio(law, move) for move in moves), start=Fraction(1))


def worst(stream: Stream, one: Sequence[Moves], other: Sequence[Moves]) -> float:
    """Return the largest loss between any two of these."""
    apart = {tuple(moves_between(left, right)) for left in one for right in other}
    law = node_law(stream.calibration)
    return max(math.log(largest_ratio(law, moves)) for moves in apart)


def keeps(law: Sampler, moves: Sequence[int], epsilon: float) -> bool:
    return largest_ratio(law, moves) <= exponential_below(Fraction(epsilon)) * (1 + Fraction(1, 10**12))


@pytest.mark.parametrize("total", [1, 2])
@pytest.mark.parametrize("name", HORIZONS)
def test_events_of_one_person_lose_exactly_epsilon(name: str, total: int) -> None:
    stream = replace(HORIZONS[name], moved=BOUNDS[total](False))
    law, nobody = node_law(stream.calibration), released(stream, [])
    assert set(nobody.values()) == {0}
    for life in all_released(name, total):
        moves = moves_between(life, nobody)
        assert keeps(law, moves, stream.epsilon)
        assert keeps(law, [-move for move in moves], stream.epsilon)
    lost = worst(stream, all_released(name, total), [nobody])
    assert lost == pytest.approx(stream.epsilon, rel=1e-9)


@pytest.mark.parametrize("total", [1, 2])
@pytest.mark.parametrize("name", HORIZONS)
def test_replaced_person_loses_exactly_epsilon(name: str, total: int) -> None:
    stream = replace(HORIZONS[name], moved=BOUNDS[total](True))
    lived = all_released(name, total)
    assert worst(stream, lived, lived) <= stream.epsilon * (1 + 1e-9)
    if len(stream.groups) > 1:
        assert worst(stream, lived, lived) == pytest.approx(stream.epsilon, rel=1e-9)


@pytest.mark.parametrize(("name", "total"), [("dyadic", 1), ("dyadic", 2), ("balanced", 1), ("of one level", 2)])
def test_rare_outcomes_add_at_most_the_cut_tail_to_delta(name: str, total: int) -> None:
    stream = replace(HORIZONS[name], moved=BOUNDS[total](False), epsilon=4.0)
    law = node_law(stream.calibration)
    apart = {tuple(moves_between(life, {})) for life in all_released(name, total)}
    for moves in apart:
        if 0 < len(moves) <= 2:
            found = worst_delta([law_of(law)] * len(moves), moves, stream.epsilon)
            assert found <= cut_tail(len(moves), stream.epsilon)


@pytest.mark.parametrize(("steps", "levels"), [(3, 1), (5, 2)])
@pytest.mark.parametrize("total", [1, 2])
def test_gaussian_noise_keeps_its_delta_for_any_events_of_a_person(steps: int, levels: int, total: int) -> None:
    epsilon, delta = 1.0, 0.01
    bounds = BOUNDS[total](False)
    stream = Stream(steps=steps, method="gaussian", epsilon=epsilon, delta=delta, moved=bounds)
    planned = stream.calibration
    assert planned.levels == levels
    law = law_of(node_law(planned))
    apart = {tuple(moves_between(released(stream, [life]), {})) for life in lives(stream, total)}
    found = [worst_delta([law] * len(moves), moves, epsilon) for moves in apart if 0 < len(moves) <= 2]
    assert max(found) <= Fraction(delta) + cut_tail(levels, epsilon)
    assert max(found) >= 0.3 * delta


def test_answers_reveal_each_node_and_no_other_number() -> None:
    """The answer after t windows and the answer before its last node give that node's noisy sum; there is one node per window."""
    for stream in HORIZONS.values():
        tree = tree_of(stream.calibration)
        names = {node_name(0, node) for windows in range(1, stream.steps + 1) for node in tree.nodes(windows)}
        assert len(names) == stream.steps
        assert names == {node_name(0, tree.nodes(windows)[-1]) for windows in range(1, stream.steps + 1)}


def test_noise_of_a_worker_follows_the_claimed_law() -> None:
    stream = Stream(steps=500, by=("side", "ward"))
    nothing = [[0] * 6 for _ in range(stream.steps)]
    answers = answer_batch(worker_of(stream), stream.questions(nothing))
    tree, drawn = tree_of(stream.calibration), []
    for group in range(6):
        so_far = {0: 0.0}
        for windows in range(1, stream.steps + 1):
            so_far[windows] = answers[6 * (windows - 1) + group].estimate or 0.0
            drawn.append(so_far[windows] - so_far[tree.nodes(windows)[-1].start])
    assert follows(np.array(drawn, dtype=np.int64), law_of(node_law(stream.calibration)))


Break = Callable[[pytest.MonkeyPatch], None]


def noise_of_its_own_for_each_answer(patch: pytest.MonkeyPatch) -> None:
    """A node's noise is drawn again for each question."""
    names = iter(range(10**6))
    patch.setattr(
        window_families, "node_name", lambda group, node: node_name(group, node) + bytes(str(next(names)), "ascii")
    )


def one_noise_for_all_groups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(window_families, "node_name", lambda _, node: node_name(0, node))


def one_noise_for_nodes_that_end_together(patch: pytest.MonkeyPatch) -> None:
    """The noise depends on the end of the count, and not on the node."""
    patch.setattr(window_families, "node_name", lambda group, node: bytes((group, node.end % 2)))


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (noise_of_its_own_for_each_answer, "dyadic"),
        (noise_of_its_own_for_each_answer, "balanced"),
        (noise_of_its_own_for_each_answer, "of one level"),
        (one_noise_for_all_groups, "dyadic"),
        (one_noise_for_nodes_that_end_together, "balanced"),
    ],
)
def test_noise_that_does_not_belong_to_the_node_is_found(broken: Break, name: str) -> None:
    stream = replace(HORIZONS[name], moved=events_once(False))
    with pytest.MonkeyPatch.context() as patch:
        broken(patch)
        lived = [released(stream, [life]) for life in lives(stream, 1)]
        nobody = released(stream, [])
    assert worst(stream, lived, [nobody]) > 1.4 * stream.epsilon


@pytest.mark.parametrize("name", ["dyadic", "balanced", "deep"])
def test_unpaid_level_is_found(name: str) -> None:
    stream = replace(HORIZONS[name], moved=events_once(False))
    levels = stream.calibration.levels
    law = sampler("two_sided", Fraction(stream.epsilon) / (levels - 1))
    lost = max(math.log(largest_ratio(law, moves_between(life, {}))) for life in all_released(name, 1))
    assert lost == pytest.approx(stream.epsilon * levels / (levels - 1), rel=1e-9)


@pytest.mark.parametrize("name", HORIZONS)
def test_person_who_counts_once_too_often_is_found(name: str) -> None:
    stream = replace(HORIZONS[name], moved=events_once(False))
    assert worst(stream, all_released(name, 2), [released(stream, [])]) == pytest.approx(
        2 * stream.epsilon, rel=1e-9
    )


def test_bound_for_each_window_without_a_total_is_found() -> None:
    stream = replace(SHALLOW, moved=events_once(False))
    always = released(stream, [tuple((window, 0) for window in range(stream.steps))])
    assert worst(stream, [always], [released(stream, [])]) == pytest.approx(
        stream.steps * stream.epsilon, rel=1e-9
    )


def test_replacement_without_twice_the_noise_is_found() -> None:
    stream = replace(DYADIC, moved=events_once(False))
    lived = all_released("dyadic", 1)
    assert worst(stream, lived, lived) == pytest.approx(2 * stream.epsilon, rel=1e-9)


@pytest.mark.parametrize("method", ["basic", "textbook", "gaussian"])
def test_answers_keep_their_alpha_in_as_many_streams_as_promised(method: str) -> None:
    streams = [
        Stream(name=f"s{number}", steps=30, by=("side",), method=method, delta=1e-3, moved=events_twice(False))
        for number in range(40)
    ]
    nothing = [[0, 0]] * 30
    answers = answer_batch(worker_of(*streams), [one for stream in streams for one in stream.questions(nothing)])
    shares = [abs(answer.estimate or 0.0) / (answer.alpha or math.nan) for answer in answers]
    largest = [max(shares[start : start + 60]) for start in range(0, len(shares), 60)]
    assert at_most(sum(share > 1.0 for share in largest), len(streams), 0.05)
    assert max(largest) > 0.5
