"""A service's process gets the given options, and no default value as an option."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from stream.services.processes import Service
from stream.settings import Settings


class _Started:
    """A process that has ended."""

    stdin = None

    def __init__(self, arguments: list[str], *, env: dict[str, str], **_: Any) -> None:
        self.arguments, self.env = arguments, env

    def poll(self) -> int:
        return 0


def test_service_environment_has_given_settings_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a feed would not choose the number of its changelog's replicas by the number of brokers."""
    environments: list[dict[str, str]] = []

    def start(arguments: list[str], *, env: dict[str, str], **_: Any) -> _Started:
        environments.append(env)
        return _Started(arguments, env=env)

    monkeypatch.delenv("SOTTO_REPLICATION", raising=False)
    monkeypatch.setattr(subprocess, "Popen", start)
    for settings in (Settings(prefix="mine"), Settings(prefix="mine", replication=2)):
        with Service("feed", settings, None, tmp_path / "log"):
            pass
    assert [one["SOTTO_PREFIX"] for one in environments] == ["mine", "mine"]
    assert [one.get("SOTTO_REPLICATION") for one in environments] == [None, "2"]
