"""A ground per test, and the faults' reports at the end of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from stream.noise import NoiseKey
from stream.settings import Settings
from tests.chaos.ground import REPORTS, Ground, installation
from tests.preloaded import preloaded_services


@pytest.fixture(scope="module", autouse=True)
def preloaded() -> Iterator[None]:
    """Services start in a third of the processor's time."""
    with preloaded_services():
        yield


@pytest.fixture
async def ground(settings: Settings, key: NoiseKey, tmp_path: Path) -> AsyncIterator[Ground]:
    """An installation of its own on the shared broker."""
    async with installation(settings, key, tmp_path) as made:
        yield made


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
