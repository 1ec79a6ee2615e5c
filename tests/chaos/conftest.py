"""Reports of faults at the end of the run; all tests here start preloaded services."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.loaded_installation import REPORTS


@pytest.fixture(scope="module", autouse=True)
def _start_preloaded(preloaded: None) -> None:
    """Use the fixture `preloaded` in every module."""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Give the reports of this process to the process that prints them."""
    output: dict[str, list[str]] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["faults"] = REPORTS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the reports of a process that has ended."""
    REPORTS.extend(getattr(node, "workeroutput", {}).get("faults", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the injected faults and the findings."""
    if REPORTS:
        terminalreporter.section("faults injected, and what was found")
        for line in REPORTS:
            terminalreporter.line(line)
