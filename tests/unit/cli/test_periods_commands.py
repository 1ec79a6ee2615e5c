"""Commands list a source or stream with periods in one line, and all its periods on request."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from schemas import Amount
from sotto import Driver
from stream.cli.app import app
from stream.cli.manage.record_rows import group_by_name, short_start
from stream.cli.top_command import ScreenData, draw_screen
from stream.monitor.api.source_views import SourceQuery, StreamQuery, list_sources, list_streams
from tests.commands import connect_commands
from tests.unit.monitor.periods import installation
from tests.unit.monitor.screen_data import screen_data
from tests.unit.periods import DAYS, played, ready


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    driver = played(ready())
    driver.register(
        {"source": "feed", "kind": "values", "neighbors": "add-remove", "epsilon": 1, "sensitivity": 1}
    )
    connect_commands(monkeypatch, driver)
    monkeypatch.setenv("COLUMNS", "200")

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout

    return said


def test_sources_are_listed_with_their_latest_period(run: Any) -> None:
    text = run("source", "list")
    assert "2 sources" in text
    [line] = [line for line in text.splitlines() if "flights" in line]
    assert "2013-01-04, of 4" in line
    assert "flights@" not in line
    assert "0.63" in line
    assert "period" in text
    every = run("source", "list", "--all")
    assert "6 sources" in every
    assert all(f"flights@{day}" in every for day in DAYS[:4])
    assert len(json.loads(run("source", "list", "--json"))) == 6
    assert "sotto source list --all" in run("source", "show", "flights")


def test_streams_are_listed_with_their_latest_period(run: Any) -> None:
    for arguments in (("stream", "list"), ("stream", "list", "flights")):
        text = run(*arguments)
        assert "1 stream" in text
        [line] = [line for line in text.splitlines() if "late" in line]
        assert "2013-01-04, of 4" in line
        assert "@" not in line
        assert "21 / 200" in line
        every = run(*arguments, "--all")
        assert "5 streams" in every
        assert all(f"late@{day}" in every for day in DAYS[:4])
        assert len(json.loads(run(*arguments, "--json"))) == 5
    assert "a model, which spends nothing; 'sotto stream list flights --all' shows" in run(
        "stream", "show", "late"
    )
    assert "a model" not in run("stream", "show", f"late@{DAYS[1]}")
    one = run("stream", "list", f"flights@{DAYS[1]}")
    assert "1 stream" in one
    assert "closed" in one


def test_stream_list_pages_list_each_period_separately(run: Any) -> None:
    names = ["late", *(f"late@{day}" for day in DAYS[:4])]
    for arguments in (("stream", "list"), ("stream", "list", "flights")):
        text = run(*arguments, "--limit", "3")
        assert f"3 streams; for the next page add '--after {names[2]}'" in text
        pages = [("--limit", "3"), ("--limit", "3", "--after", names[2])]
        found = [one["spec"]["stream"] for page in pages for one in json.loads(run(*arguments, *page, "--json"))]
        assert found == names
    assert "no streams after 'late~'" in run("stream", "list", "--after", "late~")


def test_page_of_stream_list_reads_no_status(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka cannot find a status by its stream, so each page would need to read the whole topic."""
    monkeypatch.setattr(Driver, "statuses", None)
    assert "1 stream" in run("stream", "list", "--limit", "1")


def test_names_without_periods_are_listed_as_before() -> None:
    assert group_by_name(["b", "a", "b-c"], str) == [("b", "b", ""), ("a", "a", ""), ("b-c", "b-c", "")]
    assert [short_start(f"2013-01-01T{at}Z") for at in ("00:00:00", "05:00:00", "05:30:10")] == [
        "2013-01-01",
        "2013-01-01T05:00",
        "2013-01-01T05:30:10",
    ]


@pytest.mark.parametrize("width", [80, 200])
def test_top_shows_the_latest_period_under_the_opened_name(width: int) -> None:
    found = installation()
    pages = list_sources(found.tables, SourceQuery()), list_streams(found.tables, StreamQuery(), found.now)
    given = screen_data()
    shown = ScreenData(given.overview, *pages, given.workers, given.rejected)
    console = Console(file=io.StringIO(), width=width)
    console.print(draw_screen(shown, width))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "flights 2013-01-04" in text
    assert "late 2013-01-04" in text
    assert "@" not in text
    assert "21/200" in text
    assert f"ε {Amount(epsilon=0.63, delta=0).epsilon:g}" in text
