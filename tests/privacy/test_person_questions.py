"""Rates and numbers for each person: how far one person moves them, and the exact loss of these moves with the shipped noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from schemas import AnswersCalibration
from stream.privacy.accuracy.intervals import NoisyNumber
from stream.privacy.accuracy.rate_intervals import rate_bounds, rate_interval
from stream.privacy.composition.gaussian_losses import gaussian_rho
from stream.privacy.composition.losses import losses
from stream.privacy.noise.samplers import gaussian, sampler
from stream.privacy.planning.answer_plans import alpha_for, answer_law, rates_reach
from stream.tables.columns_table import PrivateTable
from stream.tables.predicates import parse
from tests import builders
from tests.privacy.exact import Law, law_of
from tests.privacy.moved_numbers import worst
from tests.privacy.service import KEY

VALUES = 3
CONTRIBUTION = 2
BOUND = 4
OWN = [own for size in range(4) for own in combinations_with_replacement(range(VALUES), size)]
"""All sets of up to three rows that one person may have; two of them count."""
OTHERS: list[list[tuple[int, ...]]] = [[], [(0, 1)], [(1, 1, 2), (2,)], [(0, 0, 1), (2,), (1, 2)]]

Move = tuple[int, ...]
Numbers = Callable[[PrivateTable], Move]


def source_of_visits(neighbors: str = "add-remove", minimum: int = 0) -> dict[str, Any]:
    return builders.source(
        "visits",
        "table",
        neighbors=neighbors,
        epsilon=1000.0,
        delta=0.1,
        path="-",
        person="who",
        contribution=CONTRIBUTION,
        attributes={
            "x": {"kind": "integers", "minimum": minimum, "maximum": minimum + VALUES - 1},
            "y": ["a", "b"],
        },
    )


def loaded(people: Sequence[tuple[int, ...]], minimum: int = 0) -> PrivateTable:
    named = [(f"p{number}", value + minimum) for number, own in enumerate(people) for value in own]
    columns: dict[str, Sequence[object]] = {
        "who": [who for who, _ in named],
        "x": [value for _, value in named],
        "y": ["ab"[value % 2] for _, value in named],
    }
    return PrivateTable.load(builders.parse_source(source_of_visits(minimum=minimum)), columns, bytes(range(32)))


def predicate(text: str, minimum: int = 0) -> Any:
    return parse(text, builders.parse_source(source_of_visits(minimum=minimum)).attributes)


def people_groups(table: PrivateTable) -> Move:
    return tuple(table.group_counts(["x"], predicate("TRUE"), people=True).tolist())


def repeaters(table: PrivateTable) -> Move:
    return (table.people_count(predicate("x < 2"), 2),)


def person_sum(table: PrivateTable) -> Move:
    return (table.person_total("x", predicate("y = 'b' OR x = 2"), BOUND),)


def hits_and_misses(table: PrivateTable) -> Move:
    everyone, hit = predicate("x < 2"), predicate("x < 2 AND y = 'a'")
    rows, hits = (table.group_counts(["y"], one).tolist() for one in (everyone, hit))
    return (*hits, *(total - one for total, one in zip(rows, hits, strict=True)))


@cache
def moves_of_an_added_person(numbers: Numbers, minimum: int = 0) -> frozenset[Move]:
    """Return how far a person with all rows moves the numbers, over all small tables."""
    found = set()
    for others in OTHERS:
        before = numbers(loaded(others, minimum)) if others else None
        for own in OWN:
            if own:
                after = numbers(loaded([*others, own], minimum))
                base = (0,) * len(after) if before is None else before
                found.add(tuple(one - two for one, two in zip(after, base, strict=True)))
    return frozenset(found)


def moves(numbers: Numbers, neighbors: str, minimum: int = 0) -> frozenset[Move]:
    """Return how far one person moves the numbers: added, removed, or replaced by another."""
    seen = moves_of_an_added_person(numbers, minimum)
    if neighbors == "add-remove":
        return seen | {tuple(-step for step in one) for one in seen}
    return frozenset(tuple(a - b for a, b in zip(one, two, strict=True)) for one, two in product(seen, seen))


def calibration(neighbors: str = "add-remove", minimum: int = 0, **spec: Any) -> tuple[Any, AnswersCalibration]:
    answers = spec.pop("answers", 4)
    driver = builders.installation(
        builders.stream(
            "s", "visits", mechanism={"kind": "laplace", "answers": answers}, **{"epsilon": 4.0, **spec}
        ),
        sources=[source_of_visits(neighbors, minimum)],
        rows={"visits": {"who": ["a", "a", "b"], "x": [minimum] * 3, "y": ["a", "b", "a"]}},
        key=KEY,
    )
    found = driver.grant("visits", "s").calibration
    assert isinstance(found, AnswersCalibration)
    return driver, found


PEOPLE = [
    ({"people": True, "group_by": ["x"]}, people_groups, {"add-remove": 2, "replace": 3}, VALUES),
    ({"people": True, "min_rows": 2, "where": "x < 2"}, repeaters, {"add-remove": 1, "replace": 1}, 1),
    ({"person_sum": "x", "bound": BOUND}, person_sum, {"add-remove": BOUND, "replace": BOUND}, 1),
]


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
@pytest.mark.parametrize(("question", "numbers", "widths", "values"), PEOPLE, ids=["groups", "repeaters", "sums"])
def test_numbers_of_people_lose_exactly_their_epsilon(
    question: dict[str, Any], numbers: Numbers, widths: dict[str, int], values: int, neighbors: str
) -> None:
    driver, plan = calibration(neighbors)
    width = widths[neighbors]
    # The promise shows the width of the noise.
    assert driver.ask("s", **question).alpha == alpha_for(plan, width, values)
    lost = worst(answer_law(plan, width, 1), moves(numbers, neighbors))
    assert lost == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_sums_of_people_without_positive_values_move_by_the_bound(neighbors: str) -> None:
    driver, plan = calibration(neighbors, -3)
    assert driver.ask("s", person_sum="x", bound=BOUND).alpha == alpha_for(plan, BOUND, 1)

    def total(table: PrivateTable) -> Move:
        return (table.person_total("x", predicate("x <> -2", -3), BOUND),)

    assert worst(answer_law(plan, BOUND, 1), moves(total, neighbors, -3)) == pytest.approx(1.0, rel=1e-6)


def test_sums_of_people_of_either_sign_move_by_twice_the_bound() -> None:
    driver, plan = calibration("replace", -1)
    assert driver.ask("s", person_sum="x", bound=1).alpha == alpha_for(plan, 2, 1)

    def total(table: PrivateTable) -> Move:
        return (table.person_total("x", predicate("TRUE", -1), 1),)

    assert worst(answer_law(plan, 2, 1), moves(total, "replace", -1)) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(("neighbors", "width"), [("add-remove", CONTRIBUTION), ("replace", 2 * CONTRIBUTION)])
def test_hits_and_misses_of_all_groups_lose_one_answer_together(neighbors: str, width: int) -> None:
    driver, plan = calibration(neighbors)
    moved = 2 if neighbors == "replace" else 1
    law = answer_law(plan, width, moved)
    assert worst(law, moves(hits_and_misses, neighbors)) == pytest.approx(1.0, rel=1e-6)
    # Three rows count: two in one group and one in the other; the answer has the law of that width.
    answer = driver.ask("s", rate="y = 'a'")
    assert answer.estimate is not None
    reach = rates_reach(plan, width, 1, moved)
    assert any(
        answer.estimate == pytest.approx(rate_interval(float(h), float(m), reach)[0])
        for h, m in product(range(-60, 61), repeat=2)
    )


def test_gaussian_noise_covers_the_norm_of_people_in_groups() -> None:
    _, plan = calibration("replace", answers=200, delta=1e-6, epsilon=1.0)
    assert plan.method == "gaussian"
    norm = max(sum(step * step for step in moved) for moved in moves(people_groups, "replace"))
    width = min(2 * CONTRIBUTION, VALUES)
    variance = Fraction(plan.deviation) ** 2 * width**2 / width
    assert answer_law(plan, width, width) == gaussian(variance)
    assert 200 * norm / variance <= 2 * gaussian_rho(losses(plan).gaussian)
    assert max(sum(1 for step in moved if step) for moved in moves(people_groups, "replace")) <= plan.moved


def every_row_counts(table: PrivateTable) -> Move:
    """A broken variant: people are grouped by all their rows, not only by those that count."""
    everyone = table.all_rows
    assert everyone is not None
    whose, codes = everyone.people.private_numbers, everyone.private_codes["x"]
    seen = {(int(person), int(code)) for person, code in zip(whose, codes, strict=True)}
    return tuple(sum(1 for _, code in seen if code == value) for value in range(VALUES))


def counted_by_rows(table: PrivateTable) -> Move:
    """A broken variant: rows of people with two or more rows are counted, instead of the people."""
    everyone = table.all_rows
    assert everyone is not None
    rows = np.bincount(everyone.people.private_numbers, minlength=everyone.people.count)
    return (int(rows[rows >= 2].sum()),)


def not_clamped(table: PrivateTable) -> Move:
    return (table.person_total("x", predicate("TRUE"), 1000),)


def hits_and_all(table: PrivateTable) -> Move:
    """A broken variant: numerator and denominator have the noise of one count, although a row in the predicate moves both."""
    return (table.count(predicate("x < 2 AND y = 'a'")), table.count(predicate("x < 2")))


@pytest.mark.parametrize(
    ("numbers", "width"),
    [(every_row_counts, 2), (counted_by_rows, 1), (not_clamped, BOUND), (hits_and_all, CONTRIBUTION)],
)
def test_every_wrong_count_loses_more_than_epsilon(numbers: Numbers, width: int) -> None:
    _, plan = calibration()
    assert worst(answer_law(plan, width, 1), moves_of_an_added_person(numbers)) > 1.4


def _mixed(law: Law, share: Fraction, beyond: float) -> float:
    """P(|(1 − p)·X − p·Y| > beyond) of two independent noises, from their exact weights."""
    places = np.arange(law.first, law.last + 1)
    chances: npt.NDArray[np.float64] = np.array([weight / (1 << law.bits) for weight in law.weights])
    p = float(share)
    if not p:
        return 2.0 * float(chances[places > beyond].sum())
    below = np.concatenate([[0.0], np.cumsum(chances)])
    # (1 − p)·x − p·y > b  ⇔  y < ((1 − p)·x − b)/p; the other side is symmetric.
    limits = np.ceil(((1.0 - p) * places - beyond) / p - 1e-12)
    return 2.0 * float(chances @ below[np.clip(limits - law.first, 0, len(chances)).astype(np.int64)])


def _shares() -> Iterator[Fraction]:
    yield from (Fraction(n, 20) for n in range(21))
    yield from (Fraction(1, 1000), Fraction(1, 97))


@pytest.mark.parametrize("scale", [1, 2, 7])
@pytest.mark.parametrize("rates", [1, 12])
def test_reach_of_rates_holds_for_every_share(scale: int, rates: int) -> None:
    """Exact tails of the shipped noise never exceed the promised failure probability."""
    plan = _plan(scale)
    reach = rates_reach(plan, 1, rates, 1)
    law = law_of(sampler("two_sided", Fraction(1, scale)))
    allowed = -math.expm1(math.log1p(-plan.beta) / rates)
    found = max(_mixed(law, share, reach) for share in _shares())
    assert found <= allowed * (1 + 1e-6)
    # A bound that is lower by a few rows fails, so the check can find a wrong one.
    assert max(_mixed(law, share, reach - 3 * scale) for share in _shares()) > allowed


@pytest.mark.parametrize(("hits", "misses"), [(30, 70), (2, 98)])
def test_intervals_of_rates_contain_the_true_share(hits: int, misses: int) -> None:
    """This computes the exact probability that an interval contains the true share, over all relevant draws of both noises."""
    law = sampler("two_sided", Fraction(1, 2))
    exact = law_of(law)
    places = range(-16, 17)
    chances = [float(exact.probability(place)) for place in places]
    covered = total = 0.0
    for (x, one), (y, two) in product(zip(places, chances, strict=True), repeat=2):
        low, high = rate_bounds(NoisyNumber(hits + x, law), NoisyNumber(misses + y, law))
        total += one * two
        covered += one * two * (low <= hits / (hits + misses) <= high)
        assert 0.0 <= low <= high <= 1.0
    assert 0.95 <= covered / total <= 0.975


@pytest.mark.parametrize("scale", [2, 7, 30])
def test_rate_is_hardly_wider_than_a_count(scale: int) -> None:
    assert rates_reach(_plan(scale), 1, 1, 1) < alpha_for(_plan(scale), 1, 1) + 2.0


@cache
def _plan(scale: int) -> AnswersCalibration:
    return AnswersCalibration(
        method="basic",
        epsilon_answer=1.0 / scale,
        monotone=False,
        sensitivity_steps=1,
        grid=1.0,
        cutoff=1,
        epsilon=1.0 / scale,
        delta=0.0,
        expected_queries=1,
        beta=0.05,
        alpha=1.0,
        rounding=0.0,
    )
