"""``sotto events publish``: a file of events, as it is or between marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas import EventsSource, moment_ms
from sotto import Driver, Invalid
from stream.asking.replays import Replay
from stream.cli import events
from stream.cli.app import app
from stream.cli.output import CommandError
from stream.settings import Settings
from tests.commands import Connected, run_connected
from tests.unit.departures import FLIGHTS, LATE, event
from tests.unit.processors.installation import VALUES

DAY = "2026-01-01T"
LINES = [
    event("N1", f"{DAY}02:59:59.999Z"),
    event("N2", f"{DAY}00:30:00Z"),
    {"plane": {"tail": "N3"}},
    event("N4", f"{DAY}03:00:00Z"),
    event("N5", f"{DAY}00:10:00+00:00"),
]


def bytes_of(told: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(one).encode() for one in told]


def source(clock: str = "marks", **fields: Any) -> EventsSource:
    return EventsSource.model_validate({**FLIGHTS, "clock": clock, **fields})


def told(steps: Any) -> list[tuple[str, list[str]]]:
    return [
        (f"{mark // 3_600_000 % 24}:{mark // 60_000 % 60:02}", [json.loads(one)["plane"]["tail"] for one in some])
        for mark, some in steps
    ]


def test_each_event_stands_between_the_marks_where_its_own_time_is() -> None:
    assert told(Replay(source(), "1h").steps(bytes_of(LINES))) == [
        ("0:00", ["N2", "N3", "N5"]),
        ("1:00", []),
        ("2:00", ["N1"]),
        ("3:00", ["N4"]),
        ("4:00", []),
    ]


def test_a_replay_ends_where_it_is_told_to_whatever_its_events_say() -> None:
    last = moment_ms(f"{DAY}02:30:00Z")
    expected = [("0:00", ["N2", "N3", "N5"]), ("1:00", []), ("2:00", ["N1"]), ("2:30", ["N4"])]
    assert told(Replay(source(), "1h", last).steps(bytes_of(LINES))) == expected


def test_what_would_be_refused_or_never_end_is_said_before_anything_is_written() -> None:
    with pytest.raises(Invalid, match="the broker's clock moves by itself"):
        Replay(source("broker"), "1h")
    with pytest.raises(Invalid, match="refuses events more than 5m ahead"):
        Replay(source(ahead="5m"), "1h")
    with pytest.raises(Invalid, match="marks: "):
        Replay(source(), "hourly")
    with pytest.raises(Invalid, match=r"marks: .*closer together than a millisecond"):
        Replay(source(), "0s")
    with pytest.raises(Invalid, match="leave out events that are dated wrongly"):
        Replay(source(), "1h").steps(bytes_of([LINES[0], event("N9", "9999-01-01T00:00:00Z")]))
    with pytest.raises(Invalid, match=r"no event tells its time in 'scheduled'"):
        Replay(source(), "1h").steps(bytes_of([LINES[2]]))


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(bytes(32), partitions=2)
    monkeypatch.setattr(events, "AsyncClient", lambda: Connected(made))
    return made


@pytest.mark.parametrize(
    ("new", "said"), [(True, "created ops.departures with 3"), (False, "ops.departures is there, with 3")]
)
def test_the_topic_of_a_source_is_made_where_it_is_missing(
    new: bool, said: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def make(_: Settings, declared: EventsSource, partitions: int) -> tuple[int, bool]:
        assert declared.source == "flights"
        return partitions, new

    monkeypatch.setattr(events, "create_live_topic", make)
    driver.register({**FLIGHTS, "clock": "marks"})
    assert run_connected("events", "topic", "flights", "--partitions", "3") == f"{said} partitions\n"
    driver.register(VALUES)
    with pytest.raises(Invalid, match="is no live topic"):
        run_connected("events", "topic", "feed")


def test_a_file_is_replayed_and_its_windows_are_answered(driver: Driver, tmp_path: Path) -> None:
    driver.register({**FLIGHTS, "clock": "marks"})
    driver.open(LATE)
    path = tmp_path / "events.jsonl"
    crowd = [event(f"P{number}", f"{DAY}0{number % 2}:40:00Z") for number in range(200)]
    path.write_bytes(b"\n\n".join(bytes_of([*crowd, event("last", f"{DAY}03:00:00Z")])) + b"\n")
    said = run_connected("events", "publish", "flights", str(path), "--marks", "1h", "--until", f"{DAY}04:00:00Z")
    assert (
        "201 events are in ops.departures, with marks from 2026-01-01T00:00:00Z to 2026-01-01T04:00:00Z"
        in " ".join(said.split())
    )
    answers = list(driver.answers(from_beginning=True))
    above = {one.window.start for one in answers if one.outcome == "above" and one.window is not None}
    assert above == {f"{DAY}00:00:00Z", f"{DAY}00:30:00Z", f"{DAY}01:00:00Z", f"{DAY}01:30:00Z"}
    assert not driver.records(driver.topics.rejected)


def test_standard_input_goes_to_a_topic_with_the_brokers_clock(driver: Driver, tmp_path: Path) -> None:
    driver.register(FLIGHTS)
    text = b"\n".join([*bytes_of(LINES), b"no event"])
    done = CliRunner().invoke(app, ["events", "publish", "flights", "-"], input=text, catch_exceptions=False)
    assert "6 events are in ops.departures" in done.output
    assert sum(len(driver.log(("ops.departures", number))) for number in (0, 1)) == 6
    path = tmp_path / "events.jsonl"
    path.write_bytes(text)
    with pytest.raises(Invalid, match="the broker's clock moves by itself"):
        run_connected("events", "publish", "flights", str(path), "--marks", "1h")
    with pytest.raises(CommandError, match="give --marks as well"):
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
        ("\n\n7\n", "line 3: is JSON and no object"),
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
