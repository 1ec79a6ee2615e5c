"""``sotto events publish``: a file of events, unchanged or with marks between the events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas import EventsSource, moment_ms
from sotto import Driver, Invalid
from stream.cli.app import app
from stream.cli.manage import event_commands
from stream.cli.manage.event_commands import EVENTS_PER_BATCH, _batch_lines
from stream.cli.output import CommandError
from stream.feeds.event_reader import EventCheck
from stream.questions.live_events import Replay
from stream.settings import Settings
from tests import builders
from tests.commands import connect_commands, run_connected
from tests.patience import SECONDS
from tests.unit.departures import FLIGHTS, LATE, event

DAY = "2026-01-01T"
LINES = [
    event("N1", f"{DAY}02:59:59.999Z"),
    event("N2", f"{DAY}00:30:00Z"),
    {"plane": {"tail": "N3"}},
    event("N4", f"{DAY}03:00:00Z"),
    event("N5", f"{DAY}00:10:00+00:00"),
]


def bytes_of(events: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(one).encode() for one in events]


def events_with_times(events: list[bytes], about: EventsSource) -> list[tuple[bytes, int]]:
    """Return events with their times."""
    return list(zip(events, EventCheck(about, []).check(events, None)[0], strict=True))


def source(clock: str = "marks", **fields: Any) -> EventsSource:
    return EventsSource.model_validate({**FLIGHTS, "clock": clock, **fields})


def events_by_mark(steps: Any) -> list[tuple[str, list[str]]]:
    return [
        (f"{mark // 3_600_000 % 24}:{mark // 60_000 % 60:02}", [json.loads(one)["plane"]["tail"] for one in some])
        for mark, some in steps
    ]


def test_events_are_sorted_by_time_between_the_marks_around_them() -> None:
    assert events_by_mark(Replay(source(), "1h").group_by_mark(events_with_times(bytes_of(LINES), source()))) == [
        ("0:00", ["N5", "N2", "N3"]),
        ("1:00", []),
        ("2:00", ["N1"]),
        ("3:00", ["N4"]),
        ("4:00", []),
    ]


def test_replay_ends_at_its_limit_for_any_events() -> None:
    last = moment_ms(f"{DAY}02:30:00Z")
    expected = [("0:00", ["N5", "N2", "N3"]), ("1:00", []), ("2:00", ["N1"]), ("2:30", ["N4"])]
    assert (
        events_by_mark(Replay(source(), "1h", last).group_by_mark(events_with_times(bytes_of(LINES), source())))
        == expected
    )


def test_refused_or_endless_replay_is_reported_before_writing() -> None:
    with pytest.raises(Invalid, match="has the broker's clock"):
        Replay(source("broker"), "1h")
    with pytest.raises(Invalid, match="refuses events that are more than 5m ahead"):
        Replay(source(ahead="5m"), "1h")
    with pytest.raises(Invalid, match="marks: "):
        Replay(source(), "hourly")
    with pytest.raises(Invalid, match=r"marks: the interval is less than a millisecond"):
        Replay(source(), "0s")
    with pytest.raises(Invalid, match="leave out events with wrong dates"):
        Replay(source(), "1h").group_by_mark(
            events_with_times(bytes_of([LINES[0], event("N9", "9999-01-01T00:00:00Z")]), source())
        )
    with pytest.raises(Invalid, match="no event has a valid time"):
        Replay(source(), "1h").group_by_mark(events_with_times(bytes_of([LINES[2]]), source()))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(bytes(32), partitions=2)
    connect_commands(monkeypatch, made)
    monkeypatch.setenv("COLUMNS", "500")
    return made


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (True, "created ops.departures with 1 partition"),
        (False, "ops.departures exists already, with 3 partitions"),
    ],
)
def test_missing_topic_of_a_source_is_created(
    new: bool, said: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make(_: Settings, declared: EventsSource, partitions: int) -> tuple[int, bool]:
        assert declared.source == "flights"
        return partitions, new

    monkeypatch.setattr(event_commands, "create_live_topic", make)
    driver.register({**FLIGHTS, "clock": "marks"})
    assert run_connected("events", "topic", "flights", "--partitions", "1" if new else "3") == f"{said}\n"
    driver.register(builders.source())
    with pytest.raises(Invalid, match="is not a live topic"):
        run_connected("events", "topic", "feed")


@pytest.mark.parametrize(
    ("wanted", "remedy"),
    [
        ("8", "it is; to add partitions while it has no event and no stream, use kafka-topics.sh --alter"),
        ("2", "it is"),
        (None, None),
    ],
)
def test_topic_with_other_partitions_than_asked_is_an_error(
    wanted: str | None, remedy: str | None, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the option, an existing topic is taken as it is."""

    async def find(*_: object) -> tuple[int, bool]:
        return 4, False

    monkeypatch.setattr(event_commands, "create_live_topic", find)
    driver.register({**FLIGHTS, "clock": "marks"})
    if wanted is None:
        assert run_connected("events", "topic", "flights") == "ops.departures exists already, with 4 partitions\n"
        return
    with pytest.raises(CommandError) as error:
        run_connected("events", "topic", "flights", "--partitions", wanted)
    assert str(error.value) == (
        f"--partitions: topic ops.departures exists with 4 partitions, not with {wanted}; leave the option out to use "
        f"it as {remedy}"
    )


def test_file_is_replayed_and_its_windows_are_answered(driver: Driver, tmp_path: Path) -> None:
    driver.register({**FLIGHTS, "clock": "marks"})
    driver.open(LATE)
    path = tmp_path / "events.jsonl"
    crowd = [event(f"P{number}", f"{DAY}0{number % 2}:40:00Z") for number in range(200)]
    path.write_bytes(b"\n\n".join(bytes_of([*crowd, event("last", f"{DAY}03:00:00Z")])) + b"\n")
    said = run_connected("events", "publish", "flights", str(path), "--marks", "1h", "--until", f"{DAY}04:00:00Z")
    assert (
        "201 events accepted, 0 refused in ops.departures, with marks from 2026-01-01T00:00:00Z to 2026-01-01T04:00:00Z"
        in " ".join(said.split())
    )
    answers = list(driver.answers(from_beginning=True))
    above = {one.window.start for one in answers if one.outcome == "above" and one.window is not None}
    assert above == {f"{DAY}00:00:00Z", f"{DAY}00:30:00Z", f"{DAY}01:00:00Z", f"{DAY}01:30:00Z"}
    assert not driver.records(driver.topics.rejected)


def test_standard_input_goes_to_a_topic_with_the_broker_clock(driver: Driver, tmp_path: Path) -> None:
    driver.register(FLIGHTS)
    text = b"\n".join([*bytes_of(LINES), b"no event"])
    done = CliRunner().invoke(app, ["events", "publish", "flights", "-"], input=text, catch_exceptions=False)
    assert done.exit_code == 1
    reasons = [
        "1 refused, the first at line 3: time: missing,",
        "1 refused, the first at line 6: event: is not JSON;",
    ]
    for line, said in zip(
        done.output.splitlines(),
        [*reasons, "4 events accepted, 2 refused in ops.departures; accepted events count"],
        strict=True,
    ):
        assert line.startswith(said)
    assert sum(len(driver.log(("ops.departures", number))) for number in (0, 1)) == 6
    path = tmp_path / "events.jsonl"
    path.write_bytes(text)
    with pytest.raises(Invalid, match="has the broker's clock"):
        run_connected("events", "publish", "flights", str(path), "--marks", "1h")
    with pytest.raises(CommandError, match="--until: needs --marks"):
        run_connected("events", "publish", "flights", str(path), "--until", f"{DAY}00:00:00Z")
    with pytest.raises(CommandError, match="cannot read"):
        run_connected("events", "publish", "flights", str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (json.dumps(LINES), "line 1: begins a JSON array; give one object a line, as jq -c '.[]' writes them"),
        (json.dumps(LINES, indent=2), "line 1: begins a JSON array"),
        (json.dumps(LINES[0], indent=2), "line 1: begins a JSON object of several lines"),
        ("tail,scheduled\nN1,2026-01-01T00:00:00Z\n", "line 1: is not JSON; give one JSON object a line"),
        ("\n\n7\n", "line 3: is JSON, but not an object"),
        ("\ufeff" + json.dumps(LINES[0])[:-1], "line 1: begins a JSON object of several lines, or is cut off"),
    ],
)
def test_publish_refuses_a_file_whose_first_line_is_no_object(
    text: str, said: str, driver: Driver, tmp_path: Path
) -> None:
    """A JSON array, indented JSON or CSV is refused at its first line, from a file and standard input, and nothing is written."""
    driver.register(FLIGHTS)
    path = tmp_path / "events.json"
    path.write_text(text)
    with pytest.raises(CommandError) as raised:
        run_connected("events", "publish", "flights", str(path))
    assert str(raised.value).startswith(f"{path}: {said}")
    done = CliRunner().invoke(app, ["events", "publish", "flights", "-"], input=text)
    assert str(done.exception).startswith(f"standard input: {said}")
    assert not driver.records("ops.departures")


NEW_YEAR = moment_ms(f"{DAY}00:00:00Z")


@pytest.mark.parametrize("marks", [(), ("--marks", "1h")])
@pytest.mark.parametrize("until", [1, 5])
def test_publish_counts_refused_events_and_exits_with_1(
    marks: tuple[str, ...], until: int, driver: Driver, tmp_path: Path
) -> None:
    """The last line counts accepted and refused events; times in other units are refused with the unit, and feeds refuse the same."""
    driver.register({**FLIGHTS, "clock": "marks"})
    driver.open(LATE)
    times = [NEW_YEAR + 60_000, NEW_YEAR // 1000, NEW_YEAR * 1000, NEW_YEAR * 1_000_000, NEW_YEAR // 1000 + 1][
        :until
    ]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(bytes_of([event(f"N{time}", time) for time in times])))  # type: ignore[arg-type]
    done = CliRunner().invoke(app, ["events", "publish", "flights", str(path), *marks])
    assert done.exit_code == (0 if until == 1 else 1)
    *reasons, last = done.output.splitlines()
    assert last.startswith(f"1 event accepted, {until - 1} refused in ops.departures")
    assert [reason.split(" since")[0] for reason in reasons] == [
        "2 refused, the first at line 2: time: is in seconds",
        "1 refused, the first at line 3: time: is in microseconds",
        "1 refused, the first at line 4: time: is in nanoseconds",
    ][: until - 1]
    assert len(list(driver.dead_letters("flights"))) == until - 1


def test_replay_counts_events_too_far_after_the_last_mark_as_refused(driver: Driver, tmp_path: Path) -> None:
    """With ``--until`` before the last events, the command refuses the same events as the feeds."""
    driver.register({**FLIGHTS, "clock": "marks", "ahead": "1h"})
    driver.open(LATE)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(bytes_of([event(f"N{hour}", f"{DAY}0{hour}:00:00Z") for hour in range(6)])))
    done = CliRunner().invoke(
        app, ["events", "publish", "flights", str(path), "--marks", "1h", "--until", f"{DAY}02:00:00Z"]
    )
    assert done.exit_code == 1
    assert done.output.startswith("2 refused, the first at line 5: time: further ahead of the clock")
    assert "\n4 events accepted, 2 refused in ops.departures" in done.output
    assert [one.code for one in driver.dead_letters("flights")] == ["ahead", "ahead"]


def test_replay_without_an_acceptable_event_writes_nothing(driver: Driver, tmp_path: Path) -> None:
    """If all events of a replay are refused the reasons are printed, and neither marks nor events are written."""
    driver.register({**FLIGHTS, "clock": "marks"})
    driver.open(LATE)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(bytes_of([event("N1", NEW_YEAR // 1000)])))  # type: ignore[arg-type]
    done = CliRunner().invoke(app, ["events", "publish", "flights", str(path), "--marks", "1h"])
    assert "1 refused, the first at line 1: time: is in seconds" in done.output
    assert "no event has a valid time" in str(done.exception)
    assert not driver.records("ops.departures")


@pytest.mark.parametrize(
    ("time", "accepted"), [("1999-12-31T23:59:59Z", False), ("2999-01-01T00:00:00Z", False), (None, True)]
)
def test_publish_knows_the_refusals_of_a_broker_clock(
    time: str | None, accepted: bool, driver: Driver, tmp_path: Path
) -> None:
    """With the broker's clock, events before every stream's first window or far in the future are counted as refused."""
    driver.register(FLIGHTS)
    driver.wait(NEW_YEAR / 1000)
    driver.open(LATE)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(bytes_of([event("N1", time or f"{DAY}00:00:00Z")])))
    done = CliRunner().invoke(app, ["events", "publish", "flights", str(path)])
    assert done.exit_code == (0 if accepted else 1)
    assert f"{int(accepted)} event{'s' * (not accepted)} accepted, {int(not accepted)} refused" in done.output
    assert [letter.code for letter in driver.dead_letters()] == (
        [] if accepted else ["before" if "1999" in str(time) else "ahead"]
    )


@pytest.mark.parametrize("marks", [(), ("--marks", "1h")])
def test_publish_names_events_before_every_window_that_feeds_do_not_refuse(
    marks: tuple[str, ...], driver: Driver, tmp_path: Path
) -> None:
    """While the clock is before the first window, such events count in none, and are no dead letters."""
    driver.register({**FLIGHTS, "clock": "marks" if marks else "broker"})
    driver.wait(NEW_YEAR / 1000 + 3 * 3600)
    begins = f"{DAY}02:00:00Z" if marks else "2100-01-01T00:00:00Z"
    driver.open({**LATE, "standing": {**LATE["standing"], "begins": begins}}, acknowledge=True)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(bytes_of([event("N1", f"{DAY}00:20:00Z"), event("N2", f"{DAY}02:20:00Z")])))
    done = CliRunner().invoke(app, ["events", "publish", "flights", str(path), *marks])
    counted = 1 if marks else 0
    early, last = done.output.splitlines()
    assert early.startswith(f"{2 - counted} before the first window of every stream, which begins {begins}")
    assert last.startswith(f"{counted} event{'s' * (not counted)} accepted, 0 refused in ops.departures")
    assert done.exit_code == 1
    assert not list(driver.dead_letters("flights"))


def test_publish_sends_the_lines_of_a_pipe_as_they_come() -> None:
    """A pipe may pause for an hour after any line."""
    go_on = Event()

    def lines() -> Iterator[tuple[int, bytes]]:
        yield from ((number, b"{}") for number in range(3))
        assert go_on.wait(SECONDS)
        yield from ((number, b"{}") for number in range(3, EVENTS_PER_BATCH + 5))

    batches = _batch_lines(lines())
    found: list[tuple[int, bytes]] = []
    while len(found) < 3:
        found += next(batches)
    go_on.set()
    for batch in batches:
        assert len(batch) <= EVENTS_PER_BATCH
        found += batch
    assert [number for number, _ in found] == list(range(EVENTS_PER_BATCH + 5))


def test_publish_ends_with_the_error_of_its_input() -> None:
    def lines() -> Iterator[tuple[int, bytes]]:
        yield 1, b"{}"
        raise OSError("input/output error")

    batches = _batch_lines(lines())
    assert next(batches) == [(1, b"{}")]
    with pytest.raises(OSError, match="input/output error"):
        next(batches)
