"""``sotto source refresh`` prints the new version, and the streams that it has closed."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sotto import Driver
from stream.cli.app import app
from tests.commands import connect_commands

SOURCE = {
    "kind": "table",
    "source": "visits",
    "neighbors": "add-remove",
    "epsilon": 9.0,
    "path": "-",
    "attributes": {"sex": ["F", "M"]},
}


def test_refresh_command_prints_the_fate_of_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(bytes(32))
    driver.register(SOURCE, {"sex": ["F", "M"]})
    for kind in ("histogram", "laplace"):
        mechanism = {"kind": kind, **({"attributes": ["sex"]} if kind == "histogram" else {})}
        driver.open({"stream": kind, "source": "visits", "mechanism": mechanism, "epsilon": 1.0})
    connect_commands(monkeypatch, driver)
    said = CliRunner().invoke(app, ["source", "refresh", "visits"], env={"COLUMNS": "200"})
    assert "source visits has version 2 of its data; 1 stream is closed: histogram" in said.stdout
    result = CliRunner().invoke(app, ["source", "refresh", "visits", "--close", "--json"])
    found = json.loads(result.stdout)
    assert (found["receipt"]["version"], found["closed"]) == (3, ["laplace"])
