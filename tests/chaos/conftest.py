"""Reports of faults at the end of the run; all tests here start preloaded services."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.loaded_installation import REPORTS


@pytest.fixture(scope="module", autouse=True)
def _start_preloaded(preloaded: None) -> None:
    """Use the fixture `preloaded` in every module."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what one process of several found to the one that reports."""
    output: dict[str, list[str]] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["faults"] = REPORTS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take it."""
    REPORTS.extend(getattr(node, "workeroutput", {}).get("faults", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was injected and found."""
    if REPORTS:
        terminalreporter.section("faults injected, and what was found")
        for line in REPORTS:
            terminalreporter.line(line)
