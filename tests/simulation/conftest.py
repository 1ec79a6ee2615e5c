"""Lowers limits, so that the short histories of the simulation reach them, and builds the beginnings of all schedules."""

from __future__ import annotations

import pytest

from stream.processing import digest_table
from tests.simulation import cast, live, periods


@pytest.fixture(autouse=True)
def few_recent_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep only two digests of retired streams in memory; further ones are in files."""
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", 2)


@pytest.fixture(scope="session", autouse=True)
def built_beginnings() -> None:
    """Build what the schedules begin with. It is cached, so it must not be built by an engine with a mistake."""
    for number in range(cast.CASTS):
        cast.installed(number)
    live.stream_control_records()
    periods.begun()
