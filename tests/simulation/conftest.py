"""Limits that the short histories of the simulation reach."""

from __future__ import annotations

import pytest

from stream.processing import digest_table


@pytest.fixture(autouse=True)
def few_recent_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests of retired streams are in files after the first two."""
    monkeypatch.setattr(digest_table, "MAX_RECENT_ROWS", 2)
