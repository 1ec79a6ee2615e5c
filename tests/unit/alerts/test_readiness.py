"""The alerts service is ready while Kafka answers and all targets' groups are joined."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka.errors import KafkaConnectionError

from stream.alerts import alert_service
from stream.settings import Settings


class Observer:
    """An observer of a group whose broker is down after its first answer."""

    def __init__(self, **_: Any) -> None:
        self.answers = 1

    async def members(self, group: str) -> frozenset[str]:
        assert group == "sotto-alerts-oncall"
        self.answers -= 1
        if self.answers < 0:
            raise KafkaConnectionError
        return frozenset()

    async def close(self) -> None:
        """Do nothing."""


async def test_alerts_service_is_not_ready_while_kafka_is_silent() -> None:
    """The consumer of a target does not fail while no broker answers, and stays joined."""
    reasons: list[str] = []
    probes: Any = SimpleNamespace(set_not_ready_reason=reasons.append)
    follower: Any = SimpleNamespace(
        settings=Settings().model_copy(update={"session_timeout_ms": 300}), target="oncall", is_joined=True
    )
    with patch.object(alert_service, "GroupObserver", Observer):
        task = asyncio.create_task(alert_service.report_readiness([follower], probes))
        async with asyncio.timeout(30):
            while "Kafka does not answer" not in reasons:
                await asyncio.sleep(0.01)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    assert reasons[0] == ""


async def test_alerts_service_asks_the_coordinator_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks after each third of the session timeout, however often it looks whether the targets have joined."""
    asked, now, is_over = Observer(), 0.0, asyncio.Event()
    asked.answers = 100

    async def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 20.0:
            is_over.set()
            await asyncio.Event().wait()

    follower: Any = SimpleNamespace(settings=Settings(), target="oncall", is_joined=True)
    probes: Any = SimpleNamespace(set_not_ready_reason=lambda _: None)
    monkeypatch.setattr(alert_service, "GroupObserver", lambda **_: asked)
    monkeypatch.setattr(alert_service, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(alert_service, "asyncio", SimpleNamespace(sleep=pass_time, wait_for=asyncio.wait_for))
    task = asyncio.create_task(alert_service.report_readiness([follower], probes))
    await is_over.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert 100 - asked.answers == 8, "every 2.5 s of 20 s"
