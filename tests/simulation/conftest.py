"""Lowers limits, so that the short histories of the simulation reach them."""

from __future__ import annotations

import pytest

from stream.processing import digest_table


@pytest.fixture(autouse=True)
def few_recent_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep only two digests of retired streams in memory; further ones are in files."""
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", 2)
