"""``sotto source refresh`` confirms the closing of streams, and prints the new version and the closed streams."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from sotto import Driver
from stream.cli.app import app
from stream.cli.manage import budget_commands
from stream.cli.output import CommandError
from tests.commands import connect_commands
from tests.unit.feeds.live import flights, standing

SOURCE = {
    "kind": "table",
    "source": "visits",
    "neighbors": "add-remove",
    "epsilon": 9.0,
    "path": "-",
    "attributes": {"sex": ["F", "M"]},
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(bytes(32))
    driver.register(SOURCE, {"sex": ["F", "M"]})
    for kind in ("histogram", "laplace"):
        mechanism = {"kind": kind, **({"attributes": ["sex"]} if kind == "histogram" else {})}
        driver.open({"stream": kind, "source": "visits", "mechanism": mechanism, "epsilon": 1.0})
    connect_commands(monkeypatch, driver)
    return driver


def refresh(*options: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(app, ["source", "refresh", "visits", *options], answer, env={"COLUMNS": "200"})


@pytest.mark.usefixtures("driver")
def test_refresh_command_prints_the_fate_of_each_stream() -> None:
    said = refresh("--yes")
    assert "source visits has version 2 of its data; 1 stream is closed: histogram" in said.stdout
    assert (note := "a worker answers from the old version until it has loaded the new one") in said.stdout
    shown = CliRunner().invoke(app, ["source", "show", "visits"], env={"COLUMNS": "200"})
    assert "visits (open, version 2 of the data)" in shown.stdout
    found = json.loads(refresh("--close", "--yes", "--json").stdout)
    assert (found["receipt"]["version"], found["closed"]) == (3, ["laplace"])
    assert note not in refresh("--yes").stdout, "no stream is left"


def test_refresh_that_closes_streams_needs_a_confirmation(driver: Driver) -> None:
    """A command that nobody can answer names ``--yes``; it needs none if it closes no stream."""
    refused = refresh("--close")
    assert isinstance(refused.exception, CommandError)
    assert str(refused.exception) == "refresh: closes 2 streams: histogram, laplace; add --yes to confirm that"
    assert str(refresh().exception) == "refresh: closes 1 stream: histogram; add --yes to confirm that"
    driver.close("visits", "histogram")
    assert "version 2 of its data; 0 streams are closed" in refresh().stdout


@pytest.mark.parametrize(("answer", "version"), [("n\n", 1), ("y\n", 2)])
def test_refresh_at_a_terminal_asks_first(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, answer: str, version: int
) -> None:
    """The question names the closed streams, and says that unchanged rows close them too."""
    monkeypatch.setattr(budget_commands, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    asked = refresh(answer=answer)
    assert "closes 1 stream: histogram, even if no row has changed" in asked.stderr
    assert (driver.grant("visits", "histogram").state == "open") == (version == 1)
    assert ("nothing has changed" in str(asked.exception)) == (version == 1)


def test_refresh_names_the_other_open_sources_of_the_file(driver: Driver) -> None:
    assert "also the data" not in refresh("--yes").stderr
    driver.register({**SOURCE, "source": "nights"}, {"sex": ["F", "M"]})
    assert "this is also the data of 'nights'" in refresh("--yes").stderr
    driver.halt("nights")
    assert "also the data" not in refresh("--yes").stderr


@pytest.mark.usefixtures("driver")
def test_refresh_of_a_live_topic_is_refused_before_a_confirmation(driver: Driver) -> None:
    driver.register(flights())
    driver.open(standing(), acknowledge=True)
    refused = CliRunner().invoke(app, ["source", "refresh", "flights", "--close"])
    assert "only tables can be refreshed" in str(refused.exception)
