"""Live topics and standing streams in commands, results and frames; commands that do not apply to them say so."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas.windows import moment_ms
from sotto import Driver, Invalid, Refused, Result
from stream.cli.app import app
from stream.cli.manage import answer_commands
from stream.cli.manage.query_commands import _format_answer
from stream.formatting import format_error_bound
from stream.kafka.topic_creation import LiveTopicReport
from tests.builders import KEY
from tests.commands import Connected, connect_commands, run_connected, set_live_topic_report
from tests.unit.feeds.live import GROUP, WINDOW, flights, question, standing, window


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(KEY, partitions=1)
    connect_commands(monkeypatch, made)
    monkeypatch.setenv("COLUMNS", "300")
    return made


def test_commands_show_declaration_questions_and_promises(driver: Driver) -> None:
    said = run_connected("source", "add", json.dumps(flights(total=5)))
    lines = (
        "topic ops.departures: of each 'tailnum' at most 2 events count in a window of a stream, and 5 in all windows of a running count; "
        "windows close by the broker's timestamps, 5s later if a partition is silent; events more than 5m ahead are refused"
    )
    assert lines in said
    assert lines in run_connected("source", "show", "flights")
    said = run_connected("stream", "open", json.dumps(standing()), "--force")
    asks = (
        "asks how many events with delay >= 60 for each origin in windows of 1h, one every 15m, from 1970-01-01T00:00:10Z on; each is asked "
        "10m after its end; events that arrive later do not count"
    )
    assert asks in said
    assert (
        "this promise lasts for 10,000 windows, all groups of each, or until the grant for 3 charged answers is used up"
        in said
    )
    first = (
        "first answer: as soon as the feeds have read the topic; the first window, from 1970-01-01T00:15:00Z, ends "
        "1970-01-01T01:15:00Z plus the lateness 10m"
    )
    assert first in said
    assert asks in run_connected("stream", "show", "flights", "late")
    histogram = standing("all", {"kind": "histogram", "attributes": ["origin"], "answers": 7}, by=[])
    bound = "of each 'tailnum' at most 2 events count in a window"
    opened = run_connected("stream", "open", json.dumps(histogram))
    assert "each number of a window is within ±" in opened
    assert bound in opened
    summed = standing("sum", {"kind": "laplace", "answers": 9000}, count={"sum": "delay"}, by=[])
    said = run_connected("stream", "open", json.dumps(summed))
    assert "values of 'delay' outside -60 to 1500 count as its ends; no ± covers this" in said
    shown = run_connected("stream", "show", "flights", "sum")
    assert (
        format_error_bound(driver.grant("flights", "sum").calibration.alpha, grouped=True)
        in shown.split("within")[0]
    )
    assert bound in run_connected("stream", "show", "flights", "all")
    median = standing("median", {"kind": "laplace", "answers": 9}, quantile="delay", by=[])
    assert " events with probability 0.95" in run_connected("stream", "open", json.dumps(median))
    people = standing("people", {"kind": "laplace", "answers": 9000}, count="people")
    said = run_connected("stream", "open", json.dumps(people))
    assert "; each person counts once in a window, with groups in the group of the person's first event" in said
    assert bound not in said
    running = standing("running", {"kind": "running_count", "steps": 9}, window={"size": "1h"})
    said = run_connected("stream", "open", json.dumps(running))
    assert f"; {bound}; in all windows together, at most 5" in said
    assert " for each origin so far, after each window of 1h, from " in said
    assert driver.grant("flights", "all").spec.standing is not None


def test_stream_show_says_which_windows_lack_events(driver: Driver) -> None:
    """The driver opens all streams in the first seconds of 1970; the first stream of a source counts all events."""
    lacks = "lack the events that feeds have already read for earlier streams of 'flights', unless this stream was opened before they began"
    driver.register(flights(total=5))
    running: dict[str, Any] = {"mechanism": {"kind": "running_count", "steps": 9}, "window": {"size": "1h"}}
    for name, fields, text in (
        ("first", {"begins": "1970-01-01T00:00:00Z"}, None),
        ("past", {"begins": "1970-01-01T00:00:00Z"}, "windows that begin before 1970-01-01T00:00:0"),
        (
            "total",
            {"begins": "1970-01-01T00:00:00Z", **running},
            "all totals of this running count, which begins before",
        ),
        ("now", {}, None),
    ):
        driver.open(standing(name, **fields), acknowledge=True)
        shown = run_connected("stream", "show", name)
        assert (lacks in shown) is (text is not None)
        assert text is None or text in shown


def test_stream_show_says_what_later_streams_lack_with_marks(driver: Driver) -> None:
    lacks = (
        "; windows that begin at most 5m after a partition's first mark that is written 5s or more after the opening may lack the events that "
        "feeds have already read for earlier streams of 'flights', unless this stream was opened before they began or before the first mark"
    )
    driver.register(flights(clock="marks"))
    for name in ("first", "later"):
        opened = run_connected("stream", "open", json.dumps(standing(name)), "--force")
        for shown in (opened, run_connected("stream", "show", name)):
            assert (lacks in shown) is (name == "later")


def test_opening_without_a_fit_topic_has_no_forecast(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream opens, and the command says what to mend, also beside JSON."""
    driver.register(flights())
    set_live_topic_report(
        monkeypatch, LiveTopicReport(is_missing=True, problem="topic t does not exist; create it")
    )
    for name, options in (("one", ()), ("two", ("--json",))):
        said = CliRunner().invoke(app, ["stream", "open", json.dumps(standing(name)), "--force", *options])
        assert said.exit_code == 0
        assert "warning: no window is asked yet: topic t does not exist; create it\n" in said.stderr
        assert "first answer" not in said.output
        assert driver.grant("flights", name).state == "open"
    # Feeds ask a topic that exists, until they read an event with a wrong timestamp.
    set_live_topic_report(monkeypatch, LiveTopicReport(problem="topic t has other timestamps"))
    said = CliRunner().invoke(app, ["stream", "open", json.dumps(standing("three")), "--force"])
    assert "warning: topic t has other timestamps\n" in said.stderr
    assert "first answer" not in said.output
    extending = ("stream", "extend", "three", "--epsilon", "1")
    listing = ("stream", "list")
    for arguments in (listing, ("stream", "show", "three"), ("source", "show", "flights"), extending):
        assert CliRunner().invoke(app, arguments).stderr == "warning: topic t has other timestamps\n"


def test_source_add_refuses_a_compacted_topic(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    set_live_topic_report(monkeypatch, LiveTopicReport(is_compacted=True, problem="topic t is compacted"))
    refused = CliRunner().invoke(app, ["source", "add", json.dumps(flights())])
    assert str(refused.exception) == "topic: topic t is compacted"
    assert not driver.list_sources()
    set_live_topic_report(monkeypatch, LiveTopicReport(problem="topic t has other timestamps", warning="short"))
    said = CliRunner().invoke(app, ["source", "add", json.dumps(flights())])
    assert said.stderr == "warning: topic t has other timestamps\nwarning: short\n"
    assert [one.source.source for one in driver.list_sources()] == ["flights"]


def test_used_up_grant_says_what_its_promise_covers(driver: Driver) -> None:
    driver.register(flights())
    driver.open(
        standing("numbers", {"kind": "laplace", "answers": 2}, expected_queries=2, by=[]), acknowledge=True
    )
    covers = "the grant is used up, so the promise covers only the 2 answers given so far"
    driver.ask_many([{"id": "1", "stream": "numbers", "value": 3, "window": window(0)}])
    assert covers not in run_connected("stream", "show", "numbers")
    driver.ask_many([{"id": "2", "stream": "numbers", "value": 3, "window": window(1)}])
    assert covers in run_connected("stream", "show", "numbers")
    driver.extend("flights", "numbers", epsilon=1.0)
    driver.ask_many(
        [{"id": f"{hour}", "stream": "numbers", "value": 3, "window": window(hour)} for hour in (2, 3)]
    )
    assert covers.replace("2 answers", "4 answers") in run_connected("stream", "show", "numbers")


@pytest.mark.parametrize("clock", ["broker", "marks"])
def test_extension_of_an_exhausted_stream_names_its_next_window(driver: Driver, clock: str) -> None:
    """A stream that is not exhausted keeps its windows."""
    driver.register(flights(clock=clock))
    driver.open(standing("numbers", {"kind": "laplace", "answers": 2}, by=[]), acknowledge=True)
    extend = ("stream", "extend", "numbers", "--epsilon", "2")
    assert "next" not in run_connected(*extend)
    driver.ask_many(
        [{"id": f"{hour}", "stream": "numbers", "value": 3, "window": window(hour)} for hour in range(9)]
    )
    assert driver.grant("flights", "numbers").state == "exhausted"
    before = time.time()
    said = run_connected(*extend)
    if clock == "marks":
        assert (
            "next answer: of the first window that begins more than 5m after the marks written until 5s after the extension"
            in said
        )
        return
    [(due, start)] = re.findall(
        r"next answer: (\S+) by the broker's timestamps, .*; the next window, from (\S+), ends ", said
    )
    assert moment_ms(start) >= before * 1000 + 5_000, "idle is 5 s"
    assert moment_ms(due) - moment_ms(start) == 70 * 60_000, "a window of an hour, and 10 minutes of lateness"


def test_stream_show_says_that_a_running_count_is_charged_once(driver: Driver) -> None:
    driver.register(flights(total=20))
    driver.open(
        standing("running", {"kind": "running_count", "steps": 9}, window={"size": "1h"}), acknowledge=True
    )
    said = run_connected("stream", "show", "running")
    assert "spent: ε counts in full from the first answer on; further answers add nothing to it\n" in said


def test_results_name_their_window_and_group(driver: Driver) -> None:
    driver.register(flights())
    driver.open(standing("numbers", {"kind": "laplace", "answers": 9}))
    driver.open(standing("all", {"kind": "histogram", "attributes": ["origin"], "answers": 9}, by=[]))
    result = driver.ask(question("numbers", 0, value=3) | {"id": "1"})
    assert result.interval is not None
    about = "numbers [2013-01-01T05:00:00Z … 2013-01-01T06:00:00Z, origin EWR]"
    assert str(result).startswith(f"{about}: ")
    assert _format_answer(result).startswith(f"{about} 1 answer ")
    assert result.rows()[0] == {
        "stream": "numbers",
        "id": "1",
        "outcome": "answer",
        "window_start": WINDOW["start"],
        "window_end": WINDOW["end"],
        "origin": "EWR",
        "estimate": result.estimate,
        "choice": None,
        "interval_low": result.interval[0],
        "interval_high": result.interval[1],
        "alpha": result.alpha,
        "reason": None,
        "informative": False,
    }
    results = driver.ask_many(
        [question("numbers", 2, value=3), {"id": "3", "stream": "all", "values": [1, 2, 3], "window": WINDOW}]
    )
    frame = results.to_polars()
    assert frame["window_start"].to_list() == [window(2)["start"], *[WINDOW["start"]] * 3]
    assert frame["origin"].to_list() == ["EWR", None, None, None]
    assert frame["position"].to_list() == [None, 0, 1, 2]
    heard = list(driver.answers(from_beginning=True))
    assert heard == [result, *results]
    assert (heard[0].window, heard[0].group) == (result.window, GROUP)


def test_answers_print_a_later_warning_of_a_stream_once(capsys: pytest.CaptureFixture[str]) -> None:
    """As after the last answer for which α is promised."""
    printed = set[tuple[str, str]]()
    for name, texts in (("a", ["bound"]), ("a", ["promise", "bound"]), ("b", ["bound"]), ("a", ["promise"])):
        answer_commands._print_new(name, texts, printed)
    assert capsys.readouterr().out == "a: bound\na: promise\nb: bound\n"


def test_answers_name_the_contribution_bound_once_a_stream(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Error bounds do not cover events beyond the contribution bound, so readers of a live stream need it."""
    driver.register(flights(total=5))
    driver.open(standing("numbers", {"kind": "laplace", "answers": 9}))
    asked = [question("numbers", number, value=3) | {"id": str(number)} for number in range(2)]
    hours = {"window": {"size": "1h"}, "begins": WINDOW["start"]}
    driver.open(standing("running", {"kind": "running_count", "steps": 9}, **hours))
    asked.append({"id": "2", "stream": "running", "values": [1], "window": WINDOW, "group": GROUP})
    driver.ask_many(asked)
    results = list(driver.answers(from_beginning=True))

    class Following(Connected):
        async def answers(self, **_: Any) -> AsyncIterator[Result]:
            for result in results:
                yield result

    monkeypatch.setattr(answer_commands, "AsyncClient", lambda: Following(driver))
    said = run_connected("answers", "--limit", "3")
    bound = "of each 'tailnum' at most 2 events count in a window"
    assert said.count(f"numbers: {bound}\n") == 1
    assert f"running: each number is the number so far; {bound}; in all windows together, at most 5\n" in said
    assert said.count("numbers [") == 2
    assert said.count("noisy, not informative)") == 3
    assert re.findall(r"\d+ [a-z ]+ left", said) == [
        "8 charged answers left",
        "7 charged answers left",
        "26 counts left",
    ]
    lines = run_connected("answers", "--limit", "2", "--json").splitlines()
    assert [json.loads(line)["warnings"][0] for line in lines] == [bound] * 2


def test_answers_of_a_model_are_those_of_all_its_periods(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"id": "1", "outcome": "below", "window": WINDOW}
    names = ("late@2026-03-01T00:00:00Z", "other", "late@2026-03-02T00:00:00Z")
    results = [Result.read(json.dumps({**answer, "stream": name}).encode()) for name in names]

    class Following(Connected):
        async def answers(self, **_: Any) -> AsyncIterator[Result]:
            for result in results:
                yield result

    monkeypatch.setattr(answer_commands, "AsyncClient", lambda: Following(driver))
    for name, shown in (("late", names[::2]), (names[0], names[:1])):
        lines = CliRunner().invoke(app, ["answers", "--stream", name, "--json"]).stdout.splitlines()
        assert tuple(json.loads(line)["stream"] for line in lines) == shown


@pytest.mark.parametrize(
    ("intervals", "mark"),
    [
        ([[0, 417], [0, 600]], ", not informative"),
        ([[340, 360], [0, 600]], ", 1 of 2 not informative"),
        ([[340, 360], [120, 122]], ""),
    ],
)
def test_answers_mark_quantiles_of_a_window(intervals: list[list[int]], mark: str) -> None:
    """An empty window also has a median, which is noise; nothing else in the line says so."""
    numbers = {"estimates": [354, 121], "intervals": intervals, "alpha": 919, "basis": "noisy"}
    answer = {"id": "1", "stream": "s", "outcome": "answer", "window": WINDOW, **numbers}
    line = _format_answer(Result.read(json.dumps(answer).encode()))
    assert line.endswith(f"noisy{mark})")


@pytest.mark.parametrize(("first", "mark"), [("2013-01-01", ", 1 of 2 not informative"), ("2013-01-28", "")])
def test_answers_mark_quantiles_of_dates_of_a_window(driver: Driver, first: str, mark: str) -> None:
    day = {"kind": "date", "minimum": "2013-01-01", "maximum": "2013-01-31"}
    driver.register(flights(attributes={"day": day}))
    driver.open(
        standing("numbers", {"kind": "laplace", "answers": 9}, quantile="day", q=[0.5, 0.9], by=[], where=None)
    )
    ends = [[first, "2013-01-31"], ["2013-01-28", "2013-01-31"]]
    answer = {"id": "1", "stream": "numbers", "outcome": "answer", "window": WINDOW, "basis": "noisy"}
    read = Result.read(json.dumps({**answer, "choices": ["2013-01-29"] * 2, "choice_intervals": ends}).encode())
    line = _format_answer(
        read.with_stream(driver.grant("flights", "numbers").spec, driver.budget("flights").source)
    )
    assert line.endswith(f"(noisy{mark})")


def test_attribute_named_like_a_column_is_shown_beside_it() -> None:
    answer: dict[str, Any] = {"id": "1", "stream": "s", "outcome": "above", "window": WINDOW}
    group = {"stream": "a", "estimate": 1, "window_end": "b"}
    result = Result.read(json.dumps({**answer, "group": group}).encode())
    [row] = result.rows()
    assert (row["stream"], row["stream*"], row["estimate"], row["estimate*"]) == ("s", "a", None, 1)
    assert (row["window_end"], row["window_end*"]) == (WINDOW["end"], "b")


def test_commands_unfit_for_live_topics_say_so(driver: Driver, tmp_path: Path) -> None:
    driver.register(flights())
    driver.open(standing("numbers", {"kind": "laplace", "answers": 9}))
    with pytest.raises(Refused, match="source: 'flights' is a live topic, which feeds read continuously"):
        driver.refresh("flights")
    for statement in ("SELECT COUNT(*) FROM numbers", "SELECT COUNT(*) FROM flights"):
        with pytest.raises(Invalid, match="is about a live topic, and statements are about tables"):
            driver.sql(statement)
    checked = CliRunner().invoke(app, ["source", "check", json.dumps(flights())])
    assert checked.exit_code == 1
    assert "flights is a live topic; give a table source" in str(checked.exception)
    (questions := tmp_path / "questions").write_text('{"value": 3}\n')
    said = CliRunner().invoke(
        app, ["simulate", json.dumps(standing()), str(questions), "--source", json.dumps(flights())]
    )
    assert said.exit_code == 1
    assert "source 'flights': standing streams have no file of questions" in str(said.exception)
