"""The monitor on the command line."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stream.cli.app import app
from stream.cli.monitor_commands import create_names_file
from stream.cli.output import CommandError
from stream.monitor.api.tokens import TokenError
from tests.commands import run_sotto


def run(*arguments: str, environment: Mapping[str, str | None] | None = None) -> Any:
    return CliRunner().invoke(app, list(arguments), env=environment)


@pytest.mark.parametrize("role", ["worker", "budget"])
def test_serve_takes_address_for_monitor_only(role: str) -> None:
    for option, value in (("--host", "127.0.0.1"), ("--port", "9000")):
        result = run("serve", role, option, value)
        assert isinstance(result.exception, CommandError)
        assert "SOTTO_METRICS_" in str(result.exception)


@pytest.mark.parametrize("command", [("serve", "monitor", "--port"), ("up", "--port"), ("demo", "--port")])
@pytest.mark.parametrize(("port", "bound"), [("0", "1"), ("70000", "65535")])
def test_serve_refuses_invalid_port_by_name(command: tuple[str, ...], port: str, bound: str) -> None:
    result = run(*command, port)
    assert result.exit_code == 2
    assert "'--port'" in result.stderr
    assert bound in result.stderr


def test_serve_with_port_in_use_ends_with_one_line(tmp_path: Path) -> None:
    names = tmp_path / "names.json"
    create_names_file(names, {"viewer": tmp_path / "viewer.token"})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        monitor = run_sotto("serve", "monitor", "--port", port, SOTTO_MONITOR_NAMES_FILE=str(names))
        feed = run_sotto("serve", "feed", SOTTO_METRICS_PORT=port)
    message = f"port {port} of 127.0.0.1 is in use; give another one, or stop the process that listens there\n"
    assert (monitor.returncode, monitor.stderr) == (1, f"error: SOTTO_MONITOR_PORT (--port): {message}")
    assert (feed.returncode, feed.stderr) == (1, f"error: SOTTO_METRICS_PORT: {message}")


def test_serve_monitor_without_names_file_names_variable(tmp_path: Path) -> None:
    for given, message in (
        (None, "SOTTO_MONITOR_NAMES_FILE"),
        (str(tmp_path / "nowhere.json"), "cannot read file"),
    ):
        result = run("serve", "monitor", environment={"SOTTO_MONITOR_NAMES_FILE": given})
        assert isinstance(result.exception, TokenError)
        assert message in str(result.exception)
