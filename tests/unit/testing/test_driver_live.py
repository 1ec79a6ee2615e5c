"""Live topics in memory: events are counted, windows are answered, and crashes and redeliveries change nothing."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from itertools import product
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pytest

from schemas import Query
from schemas.windows import moment_ms
from sotto import Driver, Invalid, SottoError, Unknown
from tests.builders import installation, source, stream
from tests.unit.departures import AIRPORTS, FLIGHTS, LATE, event


def running(steps: int) -> dict[str, Any]:
    """Return the definition of the same stream as a running count of hours."""
    standing = {**LATE["standing"], "window": {"size": "1h"}}
    return {
        **LATE,
        "stream": "so-far",
        "mechanism": {"kind": "running_count", "steps": steps},
        "standing": standing,
    }


def new_driver(clock: str = "broker", *streams: dict[str, Any], partitions: int = 2) -> Driver:
    driver = installation(*(streams or (LATE,)), sources=[{**FLIGHTS, "clock": clock}], partitions=partitions)
    driver.advance("flights", "2026-01-01T00:00:00Z")
    return driver


def asked_numbers(driver: Driver) -> dict[tuple[str, str, str], Any]:
    """Return the numbers on the topic of queries, by stream, window and group."""
    found: dict[tuple[str, str, str], Any] = {}
    for record in driver.records(driver.topics.queries):
        query = Query.model_validate_json(record.value or b"")
        assert query.window is not None
        place = (query.stream, query.window.start, str((query.group or {}).get("origin")))
        assert place not in found
        found[place] = query.value if query.value is not None else sum(query.values or ())  # noqa: PD011
    return found


def some_events(chance: random.Random, hours: int) -> list[dict[str, Any]]:
    return [
        event(
            f"N{chance.randrange(20)}",
            f"2026-01-01T{chance.randrange(hours):02}:{chance.randrange(60):02}:00Z",
            chance.choice(AIRPORTS),
            chance.choice((0, 59, 60, 200)),
        )
        for _ in range(300)
    ]


def plainly(events: list[dict[str, Any]], hours: int) -> Counter[tuple[str, str]]:
    """Return the counts per hour and airport; each plane's first two late departures in an hour count."""
    counts: Counter[tuple[str, str]] = Counter()
    seen: Counter[tuple[str, str]] = Counter()
    for one in events:
        hour = f"{one['scheduled'][:13]}:00:00Z"
        person = (one["plane"]["tail"], hour)
        if one["delay"] >= 60 and seen[person] < 2:
            seen[person] += 1
            counts[hour, one["origin"]] += 1
    assert len({hour for hour, _ in counts}) == hours
    return counts


@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_each_window_and_group_is_answered_once(clock: str) -> None:
    """The answers rest on the counts of a plain count."""
    driver = new_driver(clock)
    events = some_events(random.Random(1), 3)
    answers = list(driver.publish("flights", events))
    for time in ("02:30", "03:10", "05:10"):
        answers += driver.advance("flights", f"2026-01-01T{time}:00Z")
    counts = plainly(events, 3)
    found = asked_numbers(driver)
    starts = [f"2026-01-01T{half // 2:02}:{30 * (half % 2):02}:00Z" for half in range(9)]
    assert [key for key in found if key[2] == "EWR"] == [("late", start, "EWR") for start in starts]
    for (name, start, origin), value in found.items():
        assert name == "late"
        if start[14:16] == "00":
            assert value == counts[start, origin]
    assert len(answers) == len(found) == 27
    assert {(one.window.start, (one.group or {})["origin"]) for one in answers if one.window} == {
        (start, origin) for _, start, origin in found
    }


def test_first_window_of_a_later_stream_has_all_events() -> None:
    """A stream that opens just before a window skips it, because feeds count its events from ``idle`` later on."""
    driver = new_driver()
    driver.advance("flights", "2026-01-01T00:59:57Z")
    so_far = running(5)
    del so_far["standing"]["begins"]
    driver.open(so_far)
    for hour in ("01", "02"):
        driver.advance("flights", f"2026-01-01T{hour}:00:01Z")
        driver.publish("flights", [event("N1", f"2026-01-01T{hour}:00:01Z")])
    driver.advance("flights", "2026-01-01T03:10:00Z")
    counts = {
        start: value
        for (name, start, at), value in asked_numbers(driver).items()
        if (name, at) == ("so-far", "EWR")
    }
    assert counts == {"2026-01-01T02:00:00Z": 1}


def test_later_stream_with_marks_counts_from_the_next_mark() -> None:
    """Events before the first mark that follows the opening are not counted, whatever ``begins`` is."""
    driver = new_driver("marks")
    driver.wait(60)
    driver.open(running(5))
    driver.publish("flights", [event("N1", "2026-01-01T00:04:00Z")])
    for minute in ("00:50", "01:10"):
        driver.advance("flights", f"2026-01-01T{minute}:00Z")
        driver.publish("flights", [event("N1", f"2026-01-01T{minute}:00Z")])
    driver.advance("flights", "2026-01-01T02:10:00Z")
    counts = {
        start: value
        for (name, start, at), value in asked_numbers(driver).items()
        if (name, at) == ("so-far", "EWR")
    }
    assert counts == {"2026-01-01T00:00:00Z": 1, "2026-01-01T01:00:00Z": 2}


def test_window_is_answered_once_the_clock_passes_its_lateness() -> None:
    """It is not answered before."""
    driver = new_driver()
    assert not driver.advance("flights", "2026-01-01T01:09:59Z")
    assert len(driver.advance("flights", "2026-01-01T01:10:00Z")) == 3
    assert not driver.publish("flights", [event("N1", "2026-01-01T00:30:00Z")] * 3)
    driver.advance("flights", "2026-01-01T01:40:00Z")
    assert asked_numbers(driver)["late", "2026-01-01T00:00:00Z", "EWR"] == 0.0
    assert asked_numbers(driver)["late", "2026-01-01T00:30:00Z", "EWR"] == 2.0


def test_windows_hold_events_from_their_start_to_before_their_end() -> None:
    """An event in the millisecond of a window's start is in it, and one in the millisecond of its end is not."""
    driver = new_driver()
    driver.advance("flights", "2026-01-01T00:40:00Z")
    times = ["00:00:00.000", "00:00:00.001", "00:29:59.999", "00:30:00.000", "00:59:59.999", "01:00:00.000"]
    before = event("before", "2025-12-31T23:59:59.999Z")
    driver.publish("flights", [before, *(event(at, f"2026-01-01T{at}Z") for at in times)])
    driver.advance("flights", "2026-01-01T01:40:00Z")
    driver.advance("flights", "2026-01-01T02:10:00Z")
    found = {start[11:16]: value for (_, start, origin), value in asked_numbers(driver).items() if origin == "EWR"}
    assert found == {"00:00": 5.0, "00:30": 3.0, "01:00": 1.0}
    assert [letter.code for letter in driver.dead_letters("flights")] == ["before"]


def test_live_sums_bound_people_and_values_however_large() -> None:
    """One person's fifty events count like two even if all values are equal; a value beyond the range counts as its end."""
    standing = {**LATE["standing"], "count": {"sum": "delay"}, "window": {"size": "1h"}}
    driver = new_driver("broker", {**LATE, "mechanism": {"kind": "laplace", "answers": 300}, "standing": standing})
    driver.advance("flights", "2026-01-01T00:40:00Z")
    time = "2026-01-01T00:30:00Z"
    driver.publish("flights", [event("outlier", time)] * 50 + [event(f"N{number}", time) for number in range(10)])
    huge: list[Any] = [2**63 - 1, 2**63, 2**64, 2**200, 1e300]
    driver.publish("flights", [event(f"H{place}", time, delay=value) for place, value in enumerate(huge)])
    driver.advance("flights", "2026-01-01T01:10:00Z")
    assert asked_numbers(driver)["late", "2026-01-01T00:00:00Z", "EWR"] == 12 * 100 + 1500 * len(huge)
    assert not driver.records(driver.topics.rejected)


def test_running_counts_continue_across_windows_to_their_horizon() -> None:
    driver = new_driver("broker", running(3))
    events = some_events(random.Random(2), 3)
    answers = list(driver.publish("flights", events))
    for time in ("01:10", "02:10", "09:00"):
        answers += driver.advance("flights", f"2026-01-01T{time}:00Z")
        driver.crash()
    found, so_far = asked_numbers(driver), Counter[str]()
    starts = [f"2026-01-01T{hour:02}:00:00Z" for hour in range(3)]
    assert list(found) == [("so-far", start, origin) for start in starts for origin in AIRPORTS]
    counts: Counter[tuple[str, str]] = Counter()
    hourly, lives = Counter[tuple[str, str]](), Counter[str]()
    for one in events:
        tail, hour = one["plane"]["tail"], f"{one['scheduled'][:13]}:00:00Z"
        if one["delay"] >= 60 and hour in starts and hourly[tail, hour] < 2:
            hourly[tail, hour] += 1
            if lives[tail] < 4:
                lives[tail] += 1
                counts[hour, one["origin"]] += 1
    assert max(lives.values()) == 4
    for start in starts:
        for origin in AIRPORTS:
            so_far[origin] += counts[start, origin]
            assert found["so-far", start, origin] == so_far[origin]
    assert [one.outcome for one in answers] == ["answer"] * 9


@pytest.mark.parametrize("together", [False, True], ids=["laplace", "histogram"])
def test_window_quantiles_rest_on_the_counts_of_a_plain_count(together: bool) -> None:
    """Each question has the count of every declared value; its answer is a value with a rank near the wanted rank."""
    driver = new_driver("broker", typical(together=together))
    events = some_events(random.Random(5), 2)
    answers = list(driver.publish("flights", events))
    for time in ("01:10", "02:10"):
        answers += driver.advance("flights", f"2026-01-01T{time}:00Z")
        driver.crash()
    delays = plain_delays(events)
    questions = [Query.model_validate_json(one.value or b"") for one in driver.records(driver.topics.queries)]
    places = list(product((0, 1), AIRPORTS))
    for number, question in enumerate(questions):
        counts = iter(question.values or ())  # noqa: PD011
        for hour, origin in places[3 * number : 3 * number + 3] if together else places[number : number + 1]:
            found = [delay for delay in range(-60, 241) for _ in range(int(next(counts)))]
            assert found == sorted(delays[hour, origin])
        assert next(counts, None) is None
    shown: list[tuple[Any, Any]] = []
    for one in answers:
        shown += zip(one.estimates or (one.estimate,), one.intervals or (one.interval,), strict=True)
    alpha = driver.grant("flights", "typical").calibration.alpha
    assert {one.alpha for one in answers} == {alpha}
    for (estimate, interval), place in zip(shown, places, strict=True):
        own = sorted(delays[place])
        below, upto = sum(one < estimate for one in own), sum(one <= estimate for one in own)
        assert below - alpha <= 0.8 * len(own) <= upto + alpha
        assert interval[0] <= estimate <= interval[1]


@pytest.mark.parametrize("top", [1, 2, 9])
def test_top_of_a_window_publishes_its_largest_groups(top: int) -> None:
    """A question has the numbers of all groups; the largest noisy numbers are published with their groups."""
    mechanism = {"kind": "histogram", "attributes": ["origin"], "answers": 9}
    standing = {**LATE["standing"], "window": {"size": "1h"}, "by": [], "top": top}
    driver = new_driver("broker", {**LATE, "epsilon": 99.0, "mechanism": mechanism, "standing": standing})
    late = [event(f"N{n}", "2026-01-01T00:30:00Z", AIRPORTS[n % 11 % 3], 60 + n) for n in range(220)]
    driver.publish("flights", late)
    [answer] = driver.advance("flights", "2026-01-01T01:10:00Z")
    counts = Counter(one["origin"] for one in late)
    largest = [{"origin": name} for name, _ in counts.most_common(top)]
    assert answer.groups == tuple(largest)
    assert answer.intervals is None
    assert answer.alpha is not None
    for group, estimate in zip(answer.groups or (), answer.estimates or (), strict=True):
        assert abs(estimate - counts[str(group["origin"])]) <= answer.alpha
    asked_counts = Query.model_validate_json(driver.records(driver.topics.queries)[0].value or b"")
    assert sorted(asked_counts.values or ()) == sorted(counts.values())  # noqa: PD011


def test_window_quantile_of_ordered_categories_is_a_category() -> None:
    source = {
        **FLIGHTS,
        "attributes": {"delay": {"kind": "categories", "values": ["none", "short", "long"], "ordered": True}},
    }
    standing = {"quantile": "delay", "q": [0.5, 1.0], "window": {"size": "1h"}, "begins": "2026-01-01T00:00:00Z"}
    spec = {**LATE, "epsilon": 90.0, "mechanism": {"kind": "laplace", "answers": 1}, "standing": standing}
    driver = installation({**spec, "expected_queries": 1}, sources=[source])
    driver.advance("flights", "2026-01-01T00:00:00Z")
    times = ["none"] * 40 + ["short"] * 70 + ["long"] * 20
    events = [{**event(f"N{n}", "2026-01-01T00:30:00Z"), "delay": delay} for n, delay in enumerate(times)]
    driver.publish("flights", events)
    [answer] = driver.advance("flights", "2026-01-01T01:00:00Z")
    assert answer.choices == ("short", "long")
    assert answer.alpha is not None


def typical(*, together: bool) -> dict[str, Any]:
    """Return the definition of a stream of the delay below which four fifths of an hour's departures are, at each airport."""
    mechanism: dict[str, Any] = {"kind": "laplace", "answers": 300}
    if together:
        mechanism = {"kind": "histogram", "attributes": ["origin"], "answers": 100}
    asked = {"quantile": "delay", "q": 0.8, "where": "delay <= 240", "window": {"size": "1h"}}
    standing = {**LATE["standing"], **asked}
    return {**LATE, "stream": "typical", "epsilon": 60.0, "mechanism": mechanism, "standing": standing}


def plain_delays(events: list[dict[str, Any]]) -> dict[tuple[int, str], list[int]]:
    """Return the delays by hour and airport; each plane's first two departures in an hour count."""
    found: dict[tuple[int, str], list[int]] = {place: [] for place in product(range(24), AIRPORTS)}
    seen: Counter[tuple[str, int]] = Counter()
    for one in events:
        hour = int(one["scheduled"][11:13])
        person = (one["plane"]["tail"], hour)
        if one["delay"] <= 240 and seen[person] < 2:
            seen[person] += 1
            found[hour, one["origin"]].append(one["delay"])
    return found


@pytest.mark.parametrize("seed", range(6))
def test_crashes_and_redeliveries_change_no_visible_record(seed: int) -> None:
    plain, upset = (new_driver("marks", LATE, running(4), typical(together=False), partitions=3) for _ in range(2))
    chance = random.Random(seed)
    records: list[list[bytes]] = [[], []]
    for step in range(8):
        events = some_events(chance, 4)[:60]
        time = 1_767_225_600 + 1800 * step + chance.randrange(600)
        for number, driver in enumerate((plain, upset)):
            for publishes in (True, False):
                found = driver.publish("flights", events) if publishes else driver.advance("flights", time)
                records[number] += sorted(one.model_dump_json().encode() for one in found)
                if driver is upset and chance.random() < 0.6:
                    assert driver.redeliver() == found
                if driver is upset and chance.random() < 0.5:
                    driver.crash()
    assert records[0] == records[1]
    assert records[0]
    for topic in (plain.topics.queries, plain.topics.partials, plain.topics.rejected):
        assert [one[:3] + one[4:] for one in plain.records(topic)] == [
            one[:3] + one[4:] for one in upset.records(topic)
        ]
    for driver in (plain, upset):
        driver.crash()
    assert plain.snapshot_streams() == upset.snapshot_streams()


def test_invalid_event_is_a_dead_letter_and_stops_no_other() -> None:
    driver = new_driver()
    right = event("N1", "2026-01-01T00:30:00Z")
    wrong: list[Any] = [
        b"{",
        b"\xff",
        {**right, "plane": {}},
        {**right, "origin": "SFO"},
        {**right, "scheduled": "2030-01-01T00:00:00Z"},
        {**right, "padding": "x" * 1_000_000},
        json.dumps(right).encode() + b"}",
    ]
    driver.advance("flights", "2026-01-01T00:40:00Z")
    driver.publish("flights", [*wrong, right])
    driver.advance("flights", "2026-01-01T01:10:00Z")
    assert len(driver.records(driver.topics.rejected)) == len(wrong)
    assert asked_numbers(driver)["late", "2026-01-01T00:00:00Z", "EWR"] == 1.0
    headers = [value for one in driver.records(driver.topics.rejected) for _, value in one.headers]
    assert not [value for value in headers if b"SFO" in value or b"N1" in value]


class Tail(str, Enum):  # noqa: UP042  (its text is another than that of a StrEnum)
    """A text that is also a member of an enumeration, whose ``str`` is another text."""

    FIRST = "N-1"


IDS = [
    *(UUID(int=number) for number in range(20)),
    *(Decimal(number) / 4 for number in range(20)),
    *(b"N%d" % number for number in range(20)),
    *(np.int64(number) for number in range(20)),
    *(np.str_(f"K{number}") for number in range(20)),
    *(number << 70 for number in range(1, 20)),
    Tail.FIRST,
]


def test_publish_keys_an_event_by_its_encoded_person() -> None:
    """Events of people whose names are UUIDs, decimals, bytes, enumerations or numpy's scalars are counted in the right partition."""
    driver = new_driver(partitions=4)
    driver.advance("flights", "2026-01-01T00:40:00Z")
    time = "2026-01-01T00:30:00Z"
    driver.publish("flights", [{**event("", time), "plane": {"tail": tail}} for tail in IDS])
    driver.advance("flights", "2026-01-01T01:10:00Z")
    assert not driver.records(driver.topics.rejected)
    assert asked_numbers(driver)["late", "2026-01-01T00:00:00Z", "EWR"] == len(IDS)
    for number in range(4):
        for record in driver.log(("ops.departures", number)):
            assert record.key == str(json.loads(record.value or b"")["plane"]["tail"]).encode()


TIMES = [
    np.datetime64("2026-01-01T00:30:00"),
    np.datetime64("2026-01-01T00:30:00.123456789", "ns"),
    np.int64(1_767_227_400_000),
    pd.Timestamp("2026-01-01T00:30:00", tz="UTC"),
    datetime(2026, 1, 1, 0, 30, tzinfo=UTC),
]
DELAYS = [np.int32(60), np.uint8(60), np.float32(60), np.float64(60), Decimal(60)]


def test_publish_takes_scalars_and_moments_of_numpy() -> None:
    """Events whose fields are scalars of numpy, moments or decimals are counted like those of Python's numbers and texts."""
    driver = new_driver()
    driver.advance("flights", "2026-01-01T00:40:00Z")
    both = list(product(TIMES, DELAYS))
    events = [
        {**event(f"N{row}", ""), "scheduled": time, "delay": delay} for row, (time, delay) in enumerate(both)
    ]
    driver.publish("flights", map(MappingProxyType, events))
    driver.advance("flights", "2026-01-01T01:10:00Z")
    assert not driver.records(driver.topics.rejected)
    assert asked_numbers(driver)["late", "2026-01-01T00:00:00Z", "EWR"] == len(both)


def test_publish_names_the_field_that_has_no_json_form() -> None:
    """A value that JSON cannot hold is Invalid, with the path of its field, and nothing is written."""
    driver = new_driver()
    right = event("N1", "2026-01-01T00:00:00Z")
    itself: dict[str, Any] = {}
    itself["on"] = itself
    for wrong, field in (
        ({**right, "plane": {"tail": object()}}, "plane.tail: object has"),
        ({**right, "delay": np.array([1, 2])}, "delay: ndarray has"),
        ({**right, "delay": np.complex64(1)}, "delay: complex64 has"),
        ({**right, "note": "\ud800"}, "note: str has"),
        (itself, r"on\.on\.on"),
        ("scheduled", "event: is of type str"),
    ):
        with pytest.raises(Invalid, match=f"^{field}"):
            driver.publish("flights", [right, wrong])  # type: ignore[list-item]
    assert not driver.records("ops.departures")


def test_dead_letters_are_refused_events_with_their_reasons() -> None:
    """The driver returns refused events unchanged with their reasons, and other refused records only if no source is given."""
    driver = new_driver()
    seconds = {**event("N1", ""), "scheduled": 1_767_227_400}
    headers = (("__connect.errors.length", b"7"), ("traceparent", b"00"))
    driver.publish("flights", [b"{", event("N1", "2026-01-01T00:00:00Z"), seconds])
    driver.send(0, b"no question", headers)
    letters = sorted(driver.dead_letters("flights"), key=lambda letter: letter.code)
    assert [letter.code for letter in letters] == ["malformed", "time"]
    assert letters[0].value == b"{"
    assert json.loads(letters[1].value or b"") == seconds
    assert letters[1].reason.startswith(
        "time: time: is in seconds since 1970, by its size; give whole milliseconds"
    )
    for letter in letters:
        assert letter.value == driver.log((letter.topic, letter.partition))[letter.offset].value
        assert letter.topic == "ops.departures"
        assert letter.time == 1_767_225_600
    [question] = [letter for letter in driver.dead_letters() if letter.topic == driver.topics.queries]
    assert (question.value, question.headers, question.length) == (b"no question", headers, None)
    with pytest.raises(Unknown, match="nobody"):
        list(driver.dead_letters("nobody"))
    driver._append((driver.topics.rejected, 0), None, b"")
    with pytest.raises(SottoError, match=r"partition 0, offset .*not a dead letter"):
        list(driver.dead_letters())


def test_ended_stream_asks_no_more() -> None:
    driver = new_driver()
    driver.advance("flights", "2026-01-01T01:10:00Z")
    driver.close("flights", "late")
    assert not driver.advance("flights", "2026-01-01T09:00:00Z")
    assert len(asked_numbers(driver)) == 3


def test_unknown_live_topic_or_invalid_time_is_refused() -> None:
    driver = new_driver()
    driver.register(source(epsilon=1.0))
    with pytest.raises(Invalid, match="not a live topic"):
        driver.publish("feed", [])
    with pytest.raises(Invalid, match="names no zone"):
        driver.advance("flights", "2026-01-01T00:00:00")
    with pytest.raises(Unknown, match="nobody"):
        driver.advance("nobody", 0)
    assert moment_ms("2026-01-01T00:00:00Z") == 1_767_225_600_000


def test_advance_distinguishes_seconds_from_milliseconds() -> None:
    driver = new_driver()
    with pytest.raises(Invalid, match=r"^time: .*in milliseconds \(2026-01-01T01:10:00Z\), divide it by 1,000$"):
        driver.advance("flights", 1_767_229_800_000)
    assert not driver.advance("flights", 1_767_229_799.999)
    assert len(driver.advance("flights", 1_767_229_800)) == 3


@pytest.mark.parametrize(
    "time", [None, True, float("nan"), float("inf"), -1, 1e300, b"0", datetime(1969, 12, 31, tzinfo=UTC)]
)
def test_invalid_time_is_reported_with_its_unit(time: Any) -> None:
    driver = new_driver()
    with pytest.raises(Invalid, match=r"^time: .*give Unix time in seconds, ISO 8601 with a zone, or a datetime"):
        driver.advance("flights", time)


def test_publish_accepts_questions_to_other_streams() -> None:
    driver = new_driver()
    driver.register(source(epsilon=1.0))
    driver.open(stream("ward", mechanism={"threshold": 5.0}), acknowledge=True)
    driver.publish("ward", value=3.0, id="a")
    assert [one.id for one in driver.answers(from_beginning=True)] == ["a"]


def test_publish_refuses_fields_of_questions_beside_events() -> None:
    driver = new_driver()
    with pytest.raises(Invalid, match="headers: belongs to a question"):
        driver.publish("flights", [], headers=(("traceparent", b"00"),))  # type: ignore[call-overload]
    with pytest.raises(Invalid, match="must be the name of the source"):
        driver.publish({"stream": "late"}, [])  # type: ignore[call-overload]


def test_live_histogram_names_the_groups_of_its_numbers() -> None:
    """No client has asked about the window, so the groups come from the stream's definition."""
    mechanism = {"kind": "histogram", "attributes": ["origin"], "answers": 9}
    standing = {**LATE["standing"], "window": {"size": "1h"}, "by": []}
    driver = new_driver("broker", {**LATE, "epsilon": 99.0, "mechanism": mechanism, "standing": standing})
    driver.publish("flights", [event("N1", "2026-01-01T00:30:00Z", AIRPORTS[0], 60)])
    [answer] = driver.advance("flights", "2026-01-01T01:10:00Z")
    assert answer.groups == tuple({"origin": name} for name in AIRPORTS)
    assert [row["origin"] for row in answer.rows()] == list(AIRPORTS)
    assert [one.groups for one in driver.answers(from_beginning=True)] == [answer.groups]
