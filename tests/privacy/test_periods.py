"""A person's events in one period move only the numbers of that period's account, and no further than promised.

All small topics with periods of an hour are tested: each person has events in several periods, and the events of one period are added,
removed or replaced. docs/proofs/standing-streams.md proves this claim.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from schemas import RunningCountCalibration
from stream.privacy.accuracy.source_facts import horizon_sensitivity, window_sensitivity
from tests.privacy.audit_variants import Variant, broken
from tests.privacy.live_periods import HOUR, Asked, MovedInPeriod, World, find_neighbors, in_period
from tests.privacy.live_topics import MINUTE, BoundedQuery, Counted, Moment, Person, about, lives
from tests.privacy.period_variants import VARIANTS

M = 2
TOTAL = 3
HIGH = 3
PERIODS = 3
END = 190

QUERIES: Mapping[str, BoundedQuery] = {
    "groups": BoundedQuery({"window": {"size": "20m"}, "by": ["group"]}, M, M),
    "people": BoundedQuery({"window": {"size": "20m"}, "count": "people", "by": ["group"]}, 1, 1),
    "sum": BoundedQuery(
        {"window": {"size": "30m"}, "count": {"sum": "amount"}, "by": ["group"]}, HIGH * M, HIGH * M
    ),
    "hopping": BoundedQuery({"window": {"size": "20m", "every": "10m"}, "lateness": "5m", "by": ["group"]}, M, M),
    "texts-so-far": BoundedQuery(
        {"window": {"size": "20m"}, "by": ["name"]}, M, M, {"kind": "running_count", "steps": 3}
    ),
    "so-far": BoundedQuery(
        {"window": {"size": "20m"}, "by": ["group"]}, M, M, {"kind": "running_count", "steps": 3}
    ),
    "seen": BoundedQuery(
        {"window": {"size": "10m"}, "count": "people", "by": ["group"]},
        1,
        1,
        {"kind": "running_count", "steps": 5},
    ),
}
RUNNING = ("so-far", "texts-so-far", "seen")

MOMENTS = (
    Moment(5, amount=3),
    Moment(25, group="b", amount=3),
    Moment(26, ago=2, amount=9),
    Moment(45),
    Moment(58, ago=-3, group="b"),  # the event's time is in the second hour, and it comes in the first
    Moment(61, ago=4),  # the event's time is in the first hour, and it comes late
    Moment(65, group="b", amount=3),
    Moment(85),
    Moment(110, group="b", amount=-2),
    Moment(119, ago=-1, amount=2),  # the event's time is exactly the beginning of the third hour
)
OTHERS: Mapping[str, Person] = {
    "ann": (Moment(5), Moment(70, group="b"), Moment(130)),
    "kim": (Moment(2, group="b"), Moment(62, ago=5), Moment(63), Moment(64), Moment(90)),
    "lea": (Moment(59, ago=-2, group="b"), Moment(61, ago=3)),
}


@cache
def world(neighbors: str = "add-remove", contribution: int = M) -> World:
    source = about(
        neighbors=neighbors,
        contribution=contribution,
        unit="person-period",
        period="1h",
        total=TOTAL,
        epsilon=10.0,
        delta=1e-3,
    )
    return World(source, QUERIES, PERIODS + 1)


def pairs(where: World, chosen: Iterable[Person]) -> Iterator[tuple[Asked, Asked, int]]:
    """Yield the questions of pairs of topics that differ in one person's events of a period, for all histories with events in it."""
    known: dict[Any, Asked] = {}
    counted: Counted = {}
    replaced = where.source.neighbors == "replace"

    def numbers(people: Mapping[str, Person]) -> Asked:
        key = tuple(sorted(people.items(), key=repr))
        if key not in known:
            known[key] = where.asked(people, END, counted=counted)
        return known[key]

    all_chosen = list(chosen)
    for period in range(PERIODS):
        own = [life for life in all_chosen if in_period(life, period)]
        for one, other in find_neighbors(OTHERS, own, period, replaced=replaced):
            yield numbers(one), numbers(other), period


def largest_moves(where: World, chosen: Iterable[Person]) -> MovedInPeriod:
    """Return the largest moves over all pairs."""
    found = MovedInPeriod()
    for one, other, period in pairs(where, chosen):
        found.compare(one, other, period)
    return found


def shuffled(size: int) -> list[Person]:
    """Return all sequences of so many events; the order of the sequences is random."""
    chosen = [life for life in lives(MOMENTS, size) if len(life) == size]
    random.Random(size).shuffle(chosen)
    return chosen


def test_events_of_one_period_move_its_account_within_the_bounds() -> None:
    """They move no other account."""
    found = largest_moves(world(), [*lives(MOMENTS, 3), *shuffled(5)[:10]])
    assert found.same_questions
    assert found.elsewhere == set()
    for name, query in QUERIES.items():
        assert found.window[name] <= query.all, name
    # The bounds are reached, so the promise is not larger than necessary.
    assert {name for name, query in QUERIES.items() if found.window[name] == query.all} == set(QUERIES)
    assert {name: found.period[name] for name in RUNNING} == dict.fromkeys(RUNNING, TOTAL)


def test_replaced_period_of_a_person_moves_twice_as_much() -> None:
    found = largest_moves(world("replace"), lives(MOMENTS[::2], 2))
    assert found.same_questions
    assert found.elsewhere == set()
    for name, query in QUERIES.items():
        assert found.window[name] <= 2 * query.all, name
    assert all(found.period[name] <= 2 * TOTAL for name in RUNNING)


@pytest.mark.parametrize("neighbors", ["add-remove", "replace"])
def test_plan_of_each_period_fits_the_moves_in_it(neighbors: str) -> None:
    """The ledger's plans for the streams of periods have the noise that the figures above need."""
    where = world(neighbors)
    definitions = where.definitions
    for name in QUERIES:
        streams = [one for stream, one in definitions.items() if stream.startswith(f"{name}@")]
        assert len(streams) == PERIODS + 1
        standing = definitions[name].standing
        if name in RUNNING:
            wanted = horizon_sensitivity(where.source, standing)
            for one in streams:
                assert isinstance(one.calibration, RunningCountCalibration)
                assert (one.calibration.sensitivity_steps, one.calibration.moved) == (
                    wanted.together,
                    wanted.numbers,
                )
        else:
            each = window_sensitivity(where.source, standing, 2).each
            assert {one.calibration.sensitivity_steps for one in streams} == {each}
        assert len({one.incarnation for one in streams}) == PERIODS + 1


def test_account_of_a_window_depends_on_its_time_alone() -> None:
    nobody = world().asked({}, END)
    assert world().asked(OTHERS, END).keys() == nobody.keys()
    for name, query in QUERIES.items():
        window = world().definitions[name].standing.window
        reach = query.mechanism.get("steps", HOUR // window.every_ms) * window.every_ms
        for period in range(PERIODS):
            stream = f"{name}@1970-01-01T{period:02}:00:00Z"
            own = sorted(start * MINUTE for asked, start in nobody if asked == stream)
            first = period * HOUR
            last = first + min(reach, HOUR) - window.size_ms
            assert own == list(range(first, last + 1, window.every_ms)), stream


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_broken_separations_of_periods_are_found(variant: Variant) -> None:
    found = MovedInPeriod()
    with broken(variant):
        for life in shuffled(5):
            for one, other, period in pairs(world(), [life]):
                found.compare(one, other, period)
            if is_beyond(found):
                return
    pytest.fail("nothing was moved further than promised")


def is_beyond(found: MovedInPeriod) -> bool:
    """Return whether a number was moved that must not be moved, or further than promised."""
    further = any(found.window[name] > query.all for name, query in QUERIES.items())
    further |= any(found.period[name] > TOTAL for name in RUNNING)
    return further or bool(found.elsewhere) or not found.same_questions
