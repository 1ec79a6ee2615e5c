"""A person with all events moves no number of a standing stream further than promised, in any window and group.

All small topics with a whole person added, removed or replaced go through the shipped code, from the events' bytes to the numbers in
merging's questions. docs/proofs/standing-streams.md proves this claim.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from schemas import EventsSource
from stream.privacy.accuracy.source_facts import window_sensitivity
from tests.privacy import standing_variants
from tests.privacy.audit_variants import Variant, broken
from tests.privacy.live_topics import (
    MINUTE,
    BoundedQuery,
    Counted,
    LargestMoves,
    Moment,
    Person,
    Schedule,
    about,
    asked_questions,
    behind,
    find_neighbors,
    lives,
    opened,
    punctual,
    records_of_people,
)
from tests.privacy.standing_variants import VARIANTS

M = 2
HIGH = 3
VALUES = 6
"""The number of declared amounts."""
END = 60

UNKNOWN = {"kind": "unknown_groups"}
QUERIES: Mapping[str, BoundedQuery] = {
    "events": BoundedQuery({"window": {"size": "10m"}}, M, M),
    "groups": BoundedQuery({"window": {"size": "10m"}, "by": ["group"]}, M, M),
    "people": BoundedQuery({"window": {"size": "10m"}, "count": "people"}, 1, 1),
    "people-in-groups": BoundedQuery({"window": {"size": "10m"}, "count": "people", "by": ["group"]}, 1, 1),
    "sum": BoundedQuery(
        {"window": {"size": "10m"}, "count": {"sum": "amount"}, "by": ["group"]}, HIGH * M, HIGH * M
    ),
    "where": BoundedQuery({"window": {"size": "10m"}, "where": "amount > 0", "by": ["group"]}, M, M),
    "hopping": BoundedQuery({"window": {"size": "10m", "every": "5m"}, "by": ["group"]}, M, M),
    "lateness": BoundedQuery({"window": {"size": "10m", "every": "5m"}, "lateness": "7m", "by": ["group"]}, M, M),
    "median": BoundedQuery({"window": {"size": "10m"}, "quantile": "amount", "by": ["group"]}, M, M),
    "texts": BoundedQuery({"window": {"size": "10m", "every": "5m"}, "by": ["name"]}, M, M, UNKNOWN),
}

LATER: Mapping[str, BoundedQuery] = {
    "first": QUERIES["groups"],
    **{
        name: replace(QUERIES[name], opened_at=moment * MINUTE)
        for name, moment in {
            "events": 10,
            "groups": 11,
            "people": 12,
            "sum": 10,
            "where": 9,
            "hopping": 10,
        }.items()
    },
}
"""Streams that are opened after many events, with windows that began earlier; the first stream is open from the start."""

GAPS: Mapping[str, tuple[tuple[int, int | None], ...]] = {
    "events": ((9, 13),),
    "people": ((28, 31),),
    "sum": ((1, 2), (22, 23)),
    "where": ((11, None),),
    "hopping": ((13, 14),),
    "lateness": ((20, 20),),
}
"""Pairs of minutes: when control tells that a stream has ended, and when it tells of the extension."""
EXTENDED: Mapping[str, BoundedQuery] = {
    name: replace(QUERIES[name], gaps=tuple((end * MINUTE, again and again * MINUTE) for end, again in gaps))
    for name, gaps in GAPS.items()
}

MOMENTS = (
    Moment(1, group="b"),
    Moment(4, amount=9),
    Moment(6, ago=-5, amount=-9),
    Moment(9, amount=3),
    Moment(12, ago=4, group="b", amount=-2),
    Moment(17, group="b", amount=3),
    Moment(24, amount=0),
)
OTHERS: Mapping[str, Person] = {
    "ann": (Moment(5), Moment(28, group="b")),  # alone in her partition
    "kim": (Moment(2, group="b"), Moment(13, ago=5), Moment(15, amount=3)),
    "lea": (Moment(7, group="b", amount=-1), Moment(11, ago=3)),
    "max": (Moment(7, group="b"), Moment(14, ago=6)),
    "pat": (Moment(8, group="b"), Moment(12, ago=3), Moment(18, ago=10)),
    "sam": (Moment(10, amount=2), Moment(11, group="b", amount=3)),
    "tim": (Moment(11, amount=3), Moment(12, group="b")),
    "una": (Moment(10, group="b"), Moment(11, amount=1)),
}


def largest_moves(
    source: EventsSource,
    queries: Mapping[str, BoundedQuery],
    most: int = 4,
    step: int = 3,
    schedule: Schedule = punctual,
) -> LargestMoves:
    found = LargestMoves()
    streams = opened(source, queries)
    known: dict[Any, Any] = {}
    counted: Counted = {}

    def numbers(people: Mapping[str, Person]) -> Any:
        key = tuple(sorted(people.items()))
        if key not in known:
            known[key] = asked_questions(source, streams, records_of_people(people), END, step, schedule, counted)
        return known[key]

    for one, other in find_neighbors(source, OTHERS, lives(MOMENTS, most)):
        found.compare(numbers(one), numbers(other))
    return found


@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_added_person_moves_numbers_within_the_promised_bounds(clock: str) -> None:
    found = largest_moves(about(clock=clock), QUERIES, most=5)
    assert found.same_questions
    for name, query in QUERIES.items():
        assert (found.each[name], found.all[name]) <= (query.each, query.all), name
        assert found.each[name] <= query.each
        assert found.all[name] <= query.all
    # The bounds are reached, so the promise is not larger than necessary.
    tight = {
        name for name, query in QUERIES.items() if (found.each[name], found.all[name]) == (query.each, query.all)
    }
    assert tight == set(QUERIES)


@pytest.mark.parametrize("schedule", [punctual, behind])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_late_feeds_at_an_opening_let_no_person_move_others_counts(
    clock: str, step: int, schedule: Schedule
) -> None:
    """The beginning of a step depends on the number of events, so a person with more events moves the content of steps."""
    found = largest_moves(about(clock=clock, idle="2m"), LATER, step=step, schedule=schedule)
    assert found.same_questions
    for name, query in LATER.items():
        assert found.each[name] <= query.each, name
        assert found.all[name] <= query.all, name
    assert all(found.all.values())


@pytest.mark.parametrize("schedule", [punctual, behind])
@pytest.mark.parametrize("step", [1, 3, 7])
@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_person_moves_no_end_and_no_extension(clock: str, step: int, schedule: Schedule) -> None:
    """Streams that end and are extended get the same windows, and one person moves their numbers no further."""
    found = largest_moves(about(clock=clock, idle="2m"), EXTENDED, most=2, step=step, schedule=schedule)
    assert found.same_questions
    for name, query in EXTENDED.items():
        assert found.each[name] <= query.each, name
        assert found.all[name] <= query.all, name
    assert all(found.all.values())


@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_schedules_of_reading_control_change_no_question(clock: str) -> None:
    """Every schedule of reading control gives the same windows and counts, for steps of any size."""
    source = about(clock=clock, idle="2m")
    streams = opened(source, EXTENDED)
    wanted = asked_questions(source, streams, records_of_people(OTHERS), END, 1)
    for seed in range(60):
        chance = random.Random(seed)
        ahead = [chance.choice((0, 0, 1, 5, 20)) * MINUTE for _ in range(60)]
        found = asked_questions(
            source,
            streams,
            records_of_people(OTHERS),
            END,
            1 + seed % 7,
            lambda step, due: due + ahead[step],  # noqa: B023
        )
        assert found == wanted, seed


def test_windows_are_those_between_openings_and_ends() -> None:
    """A window is asked if it closes at most ``idle`` after an end, or begins at least ``idle`` after an extension."""
    source = about(idle="2m")
    numbers = asked_questions(source, opened(source, EXTENDED), records_of_people(OTHERS), END)
    starts = {name: [start // MINUTE for stream, start in sorted(numbers) if stream == name] for name in EXTENDED}
    assert starts == {
        "events": [0, 20, 30, 40],
        "people": [0, 10, 20, 40],
        "sum": [10, 30, 40],
        "where": [0],
        "hopping": [0, 5, 20, 25, 30, 35, 40, 45],
        "lateness": [0, 5, 25, 30, 35, 40],
    }


def test_replaced_person_moves_numbers_at_most_twice_as_far() -> None:
    found = largest_moves(about(neighbors="replace"), QUERIES, most=2)
    assert found.same_questions
    widths = {"sum": (HIGH + 2) * M}
    for name, query in QUERIES.items():
        assert found.each[name] <= widths.get(name, query.each), name
        assert found.all[name] <= 2 * query.all, name


@pytest.mark.parametrize(
    ("count", "by"),
    [
        ("events", "group"),
        ("people", "group"),
        ({"sum": "amount"}, "group"),
        ("events", "name"),
        ("people", "name"),
    ],
)
def test_counts_of_a_person_in_all_windows_are_bounded(count: Any, by: str) -> None:
    """The bound is the running count's total."""
    total = 3
    standing = {"window": {"size": "5m"}, "count": count, "by": [by]}
    query = BoundedQuery(standing, M, M, {"kind": "running_count", "steps": 8})
    found = largest_moves(about(total=total), {"running": query}, most=7)
    each = HIGH if isinstance(count, dict) else 1
    assert found.same_questions
    assert found.all_windows["running"] == total * each


def test_planned_sensitivities_are_the_largest_changes() -> None:
    """The ledger's figures of one person's largest moves are those of each of these queries."""
    for neighbors in ("add-remove", "replace"):
        source = about(neighbors=neighbors)
        found = largest_moves(source, QUERIES, most=5 if neighbors == "add-remove" else 2)
        for name, stream in zip(QUERIES, opened(source, QUERIES), strict=True):
            groups = 2 if stream.standing.by else 1
            planned = window_sensitivity(source, stream.standing, groups)
            assert found.each[name] <= planned.each, (neighbors, name)
            assert found.all[name] <= planned.together, (neighbors, name)


def test_ten_thousand_events_of_a_person_stay_within_the_bound() -> None:
    source, queries = (
        about(),
        {name: QUERIES[name] for name in ("events", "groups", "people", "hopping", "sum", "median")},
    )
    streams = opened(source, queries)
    busy = tuple(Moment(3 + place % 6, group="ab"[place % 2], amount=3) for place in range(10_000))
    found = LargestMoves()
    found.compare(
        asked_questions(source, streams, records_of_people(OTHERS), END, 3000),
        asked_questions(source, streams, records_of_people({**OTHERS, "me": busy}), END, 3000),
    )
    assert found.same_questions
    for name, query in queries.items():
        assert found.each[name] <= query.each
        assert found.all[name] == query.all


def test_asked_windows_and_groups_depend_on_the_clock_alone() -> None:
    """With no person, one or many, the same windows are asked, with all their groups, even groups without events."""
    source = about()
    streams = opened(source, QUERIES)
    nobody = asked_questions(source, streams, [], END)
    for people in ({}, {"kim": OTHERS["kim"]}, OTHERS, {"zed": (Moment(50, ago=49),)}):
        assert asked_questions(source, streams, records_of_people(people), END).keys() == nobody.keys()
    for name, query in QUERIES.items():
        every = streams[list(QUERIES).index(name)].standing.window.every_ms
        starts = sorted(start for stream, start in nobody if stream == name)
        assert starts == list(range(0, starts[-1] + 1, every))
        groups = 2 if "by" in query.standing else 1
        groups *= VALUES if "quantile" in query.standing else 1
        assert all(numbers == (0,) * groups for (stream, _), numbers in nobody.items() if stream == name)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
def test_broken_counts_are_found(variant: Variant) -> None:
    queries = QUERIES
    if variant in standing_variants.LATER:
        queries = LATER
    elif variant in standing_variants.EXTENDED:
        queries = EXTENDED
    with broken(variant):
        found = largest_moves(about(idle="0s" if queries is QUERIES else "2m"), queries, most=4, step=4)
    beyond = {
        name for name, query in queries.items() if found.each[name] > query.each or found.all[name] > query.all
    }
    assert beyond or not found.same_questions


def test_times_of_test_events_are_in_minutes() -> None:
    [record] = records_of_people({"kim": (Moment(12, ago=2),)})
    assert record.timestamp == 12 * MINUTE
    assert b'"at": 600000' in (record.value or b"")
