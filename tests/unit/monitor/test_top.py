"""The picture of ``sotto top`` in a terminal of 80 columns, and in a wide one: every name, state and figure is whole."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from stream.cli.output import CommandError
from stream.cli.top_command import draw_screen, top
from stream.monitor.api.models import StalledSource
from stream.monitor.api.service_models import RefusalsView, RefusedEvents
from tests.unit.monitor.screen_data import MEMBERS, POPULATION, SOURCE, STREAMS, screen_data


@pytest.mark.parametrize("width", [80, 90, 100, 120, 140, 200])
def test_draw_screen_cuts_no_word(width: int) -> None:
    console = Console(file=io.StringIO(), width=width)
    console.print(draw_screen(screen_data(), width))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    assert f"1.2% of {POPULATION}" in text, "the share left is its population's, which is smaller"
    for word in (SOURCE, *STREAMS, *MEMBERS, "not answering", "12,345/100,000", "123,456", "98,765", "1,234,567"):
        assert word in text, text
    for heading in (
        "source",
        "state",
        "budget",
        "left",
        "charged",
        "process",
        "service",
        "partitions",
        "restoring",
    ):
        assert heading in text, text


def test_top_into_pipe_suggests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.cli.top_command.find_monitor", lambda *_: pytest.fail("the monitor is asked"))
    with pytest.raises(CommandError, match=r"needs a terminal.*--once"):
        top(url=None, once=False, rows=10)


def test_draw_screen_breaks_long_name_only() -> None:
    long = screen_data()
    long.streams.items[0] = long.streams.items[0].model_copy(update={"stream": "Q" * 64})
    console = Console(file=io.StringIO(), width=80)
    console.print(draw_screen(long, 80))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "…" not in text
    assert text.count("Q") == 64
    assert "123,456" in text
    assert "12,345/100,000" in text


def test_draw_screen_shows_streams_that_are_charged_once() -> None:
    """One charge pays for all their answers, so no number of charged answers says what was spent."""
    data = screen_data()
    once = {"mechanism": "histogram", "cutoff": None, "tops_left": None, "tops": 0}
    data.streams.items[0] = data.streams.items[0].model_copy(update=once)
    console = Console(file=io.StringIO(), width=200)
    console.print(draw_screen(data, 200))
    assert isinstance(console.file, io.StringIO)
    [line] = (one for one in console.file.getvalue().splitlines() if "histogram" in one)
    assert " once " in line


def test_draw_screen_shows_that_one_more_question_may_wait() -> None:
    """If the lag of a partition is unclear, the overview and the process show a range."""
    data = screen_data()
    unclear = {"hidden_lag": 1}
    data.workers.members[0] = data.workers.members[0].model_copy(update=unclear)
    data = replace(data, overview=data.overview.model_copy(update=unclear))
    console = Console(file=io.StringIO(), width=200)
    console.print(draw_screen(data, 200))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count("1,234,567 to 1,234,568") == 2


def test_draw_screen_shows_refused_live_events_with_cause() -> None:
    """For operators, the picture names source, share and remedy of refused events."""
    refused = RefusedEvents(
        sources=["flights", "strict"],
        topic="ops.departures",
        events=2000,
        share="50 to 90 %",
        at_least=0.5,
        reason="partition: person: wrong; set partitioner=murmur2_random",
        last=screen_data().overview.time - 7200.0,
    )
    data = replace(screen_data(), refusals=RefusalsView(items=[refused]))
    console = Console(file=io.StringIO(), width=80)
    console.print(draw_screen(data, 80))
    assert isinstance(console.file, io.StringIO)
    text = " ".join(console.file.getvalue().split())
    assert (
        "flights, strict: 50 to 90 % of the 2,000 records in partitions with refused events, up to the latest refused one, 2 h ago, were refused by at least one "
        "of these sources (feeds' logs name it); most often: partition" in text
    )
    assert "partitioner=murmur2_random" in text
    assert "for operators' tokens only" not in text
    console.print(draw_screen(screen_data(), 80))
    assert "Refused events of live topics: for operators' tokens only" in console.file.getvalue()


@pytest.mark.parametrize(
    ("since", "runs", "said"),
    [
        (
            1.0,
            True,
            "not asked since 1970-01-01T00:00:01Z, feed or workers are behind, or refuse the topic: see their logs",
        ),
        (None, False, "not asked yet, no feed runs"),
    ],
)
def test_draw_screen_names_live_topics_that_are_not_asked(since: float | None, runs: bool, said: str) -> None:
    """Otherwise their streams look as if they ran."""
    data = screen_data()
    stalled = [StalledSource(source="flights", since=since, feed_runs=runs)]
    data = replace(data, overview=data.overview.model_copy(update={"stalled": stalled}))
    console = Console(file=io.StringIO(), width=200)
    console.print(draw_screen(data, 200))
    assert isinstance(console.file, io.StringIO)
    assert f"flights: {said}\n" in console.file.getvalue().replace(" \n", "\n")


def test_draw_screen_names_silent_processes_and_a_missing_budget_service() -> None:
    """Kafka lists a dead process for 45 s; without a budget service nothing is opened."""
    data = screen_data()
    changes = {"role": "feed", "heard": data.workers.time - 22.0}
    data.workers.members[0] = data.workers.members[0].model_copy(update=changes)
    data = replace(data, overview=data.overview.model_copy(update={"budget_runs": False}))
    console = Console(file=io.StringIO(), width=200)
    console.print(draw_screen(data, 200))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.count("silent") == 1
    assert "feed, silent" in text
    assert "A feed's lag and events are those of the topic of partial counts." in text
    assert "No budget service runs, so no source's 'spent' grows: start one with 'sotto serve budget'" in text


def test_draw_screen_says_why_a_process_is_not_ready() -> None:
    data, reason = screen_data(), "input-0: the topic was rolled back"
    first = data.workers.members[0]
    data.workers.members[0] = first.model_copy(update={"not_ready": reason})
    console = Console(file=io.StringIO(), width=200)
    console.print(draw_screen(data, 200))
    assert isinstance(console.file, io.StringIO)
    assert f"{first.member} is not ready: {reason}" in console.file.getvalue()
