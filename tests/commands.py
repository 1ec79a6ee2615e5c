"""Runs the command line for tests, as a process or within this one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner

from sotto import Driver
from stream.cli.app import app
from stream.cli.manage import (
    budget_commands,
    estimate_command,
    event_commands,
    ledger_commands,
    record_rows,
    stream_commands,
    watch_warnings,
)
from stream.kafka.topic_creation import LiveTopicReport
from stream.settings import Settings
from tests.preloaded import PROGRAM_SECONDS, command


def run_sotto(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process whose environment has no other variables of Sotto than these."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SOTTO_")}
    return command(arguments, {**inherited, **environment})


def run_installed(settings: Settings, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a process that finds the installation of these settings."""
    address = {"SOTTO_BOOTSTRAP": settings.bootstrap, "SOTTO_PREFIX": settings.prefix}
    return command(arguments, {**os.environ, **address})


def run_in(
    *arguments: str, environment: Mapping[str, str], timeout: float = PROGRAM_SECONDS, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command as a process in a folder, with these variables in addition to those of the tests."""
    return command(arguments, {**os.environ, **environment}, timeout, folder)


class Connected:
    """Replaces the asynchronous client: a driver carries out each call."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call(*args: Any, **fields: Any) -> Any:
            return getattr(self._driver, name)(*args, **fields)

        return call


def connect_commands(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """Let a driver carry out the calls of commands, in place of a client of Kafka."""
    for module in (budget_commands, estimate_command, event_commands, ledger_commands, stream_commands):
        monkeypatch.setattr(module, "Client", lambda: nullcontext(driver))
    set_live_topic_report(monkeypatch, LiveTopicReport())


def set_live_topic_report(monkeypatch: pytest.MonkeyPatch, report: LiveTopicReport) -> None:
    """Let commands find this report about each live topic, in place of Kafka's."""

    async def inspect(*_: object) -> LiveTopicReport:
        return report

    for module in (budget_commands, event_commands, record_rows, stream_commands, watch_warnings):
        monkeypatch.setattr(module, "inspect_live_topic", inspect)


def run_connected(*arguments: str) -> str:
    """Run a command in this process and return its output."""
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
