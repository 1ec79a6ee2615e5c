"""``sotto source refresh`` prints the new version, and the streams that it has closed."""

from __future__ import annotations

import json
from typing import Any, Self

import pytest
from typer.testing import CliRunner

from sotto import Driver
from stream.cli.app import app
from stream.cli.manage import record_rows

SOURCE = {
    "kind": "table",
    "source": "visits",
    "neighbors": "add-remove",
    "epsilon": 9.0,
    "path": "-",
    "attributes": {"sex": ["F", "M"]},
}


class InMemory:
    """The client's calls, carried out by a driver."""

    driver: Driver

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def list_streams(self, source: str | None = None, **page: Any) -> list[Any]:
        return self.driver.list_streams(source, **page)

    async def refresh(self, source: str, *, close: bool = False) -> Any:
        return self.driver.refresh(source, close=close)


def test_refresh_command_prints_the_fate_of_each_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    InMemory.driver = Driver(bytes(32))
    InMemory.driver.register(SOURCE, {"sex": ["F", "M"]})
    for kind in ("histogram", "laplace"):
        mechanism = {"kind": kind, **({"attributes": ["sex"]} if kind == "histogram" else {})}
        InMemory.driver.open({"stream": kind, "source": "visits", "mechanism": mechanism, "epsilon": 1.0})
    monkeypatch.setattr(record_rows, "AsyncClient", InMemory)
    said = CliRunner().invoke(app, ["source", "refresh", "visits"], env={"COLUMNS": "200"})
    assert "source visits has version 2 of its data; 1 stream is closed: histogram" in said.stdout
    result = CliRunner().invoke(app, ["source", "refresh", "visits", "--close", "--json"])
    found = json.loads(result.stdout)
    assert (found["receipt"]["version"], found["closed"]) == (3, ["laplace"])
