"""Running counts on sources with periods, in memory: each period counts from 0, with a separate horizon and bound."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from schemas import GrantRecord, RunningCountCalibration, format_moment, moment_ms, period_name
from sotto import Driver
from stream.privacy.planning.release_plans import tree_of
from tests.builders import installation, stream
from tests.unit.periods import AIRPORTS, DAYS, FLIGHTS, event, findings, grants, sources

HOUR = 3_600_000
DAY = 24 * HOUR
PARTITIONS = 3
WINDOW = 2 * HOUR
TOTAL = 3
STEPS = 10
"""The windows of a day that count: the first ten of its twelve."""

Events = list[dict[str, Any]]


def so_far(**changed: Any) -> dict[str, Any]:
    standing = {"by": ["origin"], "window": {"size": "2h"}, "begins": DAYS[0]}
    fields: dict[str, Any] = {"epsilon": 6.0, "calibration": "textbook", "standing": standing, **changed}
    return stream("so-far", "flights", "running_count", mechanism={"steps": STEPS}, **fields)


def ready(begins: str = DAYS[0], count: Any = "events") -> Driver:
    return installation(
        so_far(standing={"by": ["origin"], "window": {"size": "2h"}, "begins": begins, "count": count}),
        sources=[FLIGHTS | {"total": TOTAL}],
        partitions=PARTITIONS,
    )


def events(days: int, seed: int) -> Events:
    """Return events of a few aircraft over some days; their order of arrival differs from their order in time."""
    chance = random.Random(seed)
    found = [
        event(
            f"N{chance.randrange(5)}",
            format_moment(moment_ms(DAYS[0]) + chance.randrange(days * 24 * 2) * HOUR // 2),
            chance.choice(AIRPORTS),
        )
        for _ in range(60 * days)
    ]
    chance.shuffle(found)
    return found


def plain_counts(coming: Iterable[Mapping[str, Any]], begins: int, *, people: bool) -> dict[int, Counter[int]]:
    """Return the counts of each window and group, event by event in order of arrival; a person's events are in one partition."""
    bound = 1 if people else FLIGHTS["contribution"]
    found: dict[int, Counter[int]] = defaultdict(Counter)
    visits: Counter[tuple[str, int]] = Counter()
    lives: Counter[tuple[str, int]] = Counter()
    for one in coming:
        start = moment_ms(one["at"]) // WINDOW * WINDOW
        who, day = one["tail"], start // DAY
        if start < begins or start % DAY >= STEPS * WINDOW:
            continue
        if visits[who, start] < bound and lives[who, day] < TOTAL:
            visits[who, start] += 1
            lives[who, day] += 1
            found[start][AIRPORTS.index(one["origin"])] += 1
    return found


def expected_questions(
    driver: Driver, coming: Events, begins: str, days: int, *, people: bool
) -> dict[tuple[str, str], list[int]]:
    """Return the expected questions of some days: by stream and id, the sums over the nodes of the day so far."""
    first = moment_ms(begins)
    numbers = plain_counts(coming, first, people=people)
    found: dict[tuple[str, str], list[int]] = {}
    for day in range(moment_ms(DAYS[0]), moment_ms(DAYS[0]) + days * DAY, DAY):
        stream = period_name("so-far", day)
        starts = [one for one in range(day, day + STEPS * WINDOW, WINDOW) if one >= first]
        if not starts:
            continue
        calibration = grants(driver)[stream].calibration
        assert isinstance(calibration, RunningCountCalibration)
        for windows, start in enumerate(starts, 1):
            for cell in range(len(AIRPORTS)):
                passed = [numbers[one][cell] for one in starts[:windows]]
                sums = [sum(passed[node.start : node.end]) for node in tree_of(calibration).nodes(windows)]
                found[stream, f"{format_moment(start)}/{cell}"] = sums
    return found


def values(driver: Driver) -> dict[tuple[str, str], list[int]]:
    """Return the values of all questions, each question once."""
    records = driver.records(driver.topics.queries)
    found = [json.loads(record.value or b"") for record in records]
    assert len({(one["stream"], one["id"]) for one in found}) == len(found)
    return {(one["stream"], one["id"]): one["values"] for one in found}


@pytest.mark.parametrize("count", ["events", "people"])
@pytest.mark.parametrize("begins", [DAYS[0], "2013-01-01T07:00:00Z"])
def test_period_counts_from_zero_with_its_own_bound(begins: str, count: str) -> None:
    driver = ready(begins, count)
    coming = events(3, seed=4)
    for place in range(0, len(coming), 17):
        driver.publish("flights", coming[place : place + 17])
    for day in DAYS[1:5]:
        driver.advance("flights", day)

    found = values(driver)
    assert found == expected_questions(driver, coming, begins, 4, people=count == "people")
    assert any(sum(sums) for sums in found.values())
    answers = list(driver.answers(from_beginning=True))
    assert len(answers) == len(found)
    assert {answer.outcome for answer in answers} == {"answer"}
    assert findings(driver) == []


def test_period_counts_survive_crashes_and_redelivery() -> None:
    coming = events(4, seed=9)
    driver = ready()
    rounds = [coming[place : place + 40] for place in range(0, len(coming), 40)]
    for some in rounds:
        driver.publish("flights", some)
        driver.crash()
    for hour in range(2, 4 * 24 + 1, 2):
        driver.advance("flights", format_moment(moment_ms(DAYS[0]) + hour * HOUR))
        if hour % 3 == 0:
            driver.redeliver()
        driver.crash()
    assert values(driver) == expected_questions(driver, coming, DAYS[0], 4, people=False)


def test_person_moves_the_sums_of_one_period_by_its_total() -> None:
    """An additional person moves no sum of another period."""
    coming = events(3, seed=2)
    busy = [event("Nobody", format_moment(moment_ms(DAYS[1]) + hour * HOUR)) for hour in range(24)]
    one, other = ready(), ready()
    one.publish("flights", coming)
    other.publish("flights", [*busy, *coming])
    for driver in (one, other):
        for day in DAYS[1:5]:
            driver.advance("flights", day)
    here, there = values(one), values(other)
    moved = {key: sum(there[key]) - sum(here[key]) for key in here if here[key] != there[key]}
    assert {stream for stream, _ in moved} == {period_name("so-far", moment_ms(DAYS[1]))}
    assert max(moved.values()) == TOTAL


def test_noise_and_cost_belong_to_one_period() -> None:
    driver = ready()
    driver.publish("flights", [])
    for day in DAYS[1:4]:
        driver.advance("flights", day)
    numbers: dict[str, list[Any]] = defaultdict(list)
    for answer in driver.answers(from_beginning=True):
        numbers[answer.stream].append(answer.estimate)
    assert len(numbers) == 3
    assert len({tuple(found) for found in numbers.values()}) == 3
    opened: dict[str, GrantRecord] = grants(driver)
    assert sources(driver)[f"flights@{DAYS[0]}"].spent.epsilon == opened["so-far"].cost.epsilon
    assert sources(driver)["flights"].spent.epsilon == 0.0
    assert opened["so-far"].answered == 0


def test_window_published_twice_ends_questions_of_all_periods() -> None:
    """The partition's counts of people are lost with its windows, including those of open periods."""
    driver = ready()
    driver.publish("flights", events(2, seed=5))
    driver.advance("flights", DAYS[1])
    asked = values(driver)
    partials = driver.topics.partials
    [place, partial] = next(
        ((partials, partition), record)
        for partition in range(PARTITIONS)
        for record in driver.log((partials, partition))
        if record.value
    )
    driver._append(place, partial.key, partial.value)
    driver._process_all()
    driver.crash()
    for day in DAYS[2:4]:
        driver.advance("flights", day)
    assert asked
    assert values(driver) == asked
    assert driver.records(driver.topics.rejected)
