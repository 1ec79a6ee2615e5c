"""The monitor on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from stream.cli.app import app
from stream.cli.output import CommandError
from stream.monitor.tokens import TokenError


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A service's log goes to the standard error of its command, which is closed when the command ends."""
    yield
    structlog.reset_defaults()


def run(*arguments: str, environment: Mapping[str, str | None] | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), env=environment)


@pytest.mark.parametrize("role", ["worker", "budget"])
def test_only_the_monitor_has_an_address_to_be_given(role: str) -> None:
    for option, value in (("--host", "127.0.0.1"), ("--port", "9000")):
        result = run("serve", role, option, value)
        assert isinstance(result.exception, CommandError)
        assert "SOTTO_METRICS_" in str(result.exception)


def test_a_port_that_is_none_is_refused_by_name() -> None:
    result = run("serve", "monitor", "--port", "70000")
    assert "monitor_port" in str(result.exception)


def test_without_names_the_monitor_does_not_start_and_names_the_variable(tmp_path: Path) -> None:
    for given, told in (
        (None, "SOTTO_MONITOR_NAMES_FILE"),
        (str(tmp_path / "nowhere.json"), "cannot read file"),
    ):
        result = run("serve", "monitor", environment={"SOTTO_MONITOR_NAMES_FILE": given})
        assert isinstance(result.exception, TokenError)
        assert told in str(result.exception)
