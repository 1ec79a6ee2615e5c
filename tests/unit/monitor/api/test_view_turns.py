"""The monitor formats one response at a time, and lets other tasks run between them."""

from __future__ import annotations

import asyncio

import pytest

from stream.monitor.api import routes, server
from stream.monitor.api.budget_models import TrailPage, TrailQuery
from stream.monitor.api.budget_views import list_trail
from stream.monitor.api.monitor_state import Monitor, metrics_text
from stream.monitor.budget_history import TrailState
from tests.unit.monitor.installation import OPERATOR, VIEWER, Installation, bearer, get

WAIT = 20.0


async def test_burst_of_searches_takes_turns_with_other_tasks_and_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    turns = 0
    seen: list[tuple[str, int]] = []

    def listed(trail: TrailState, query: TrailQuery) -> TrailPage:
        seen.append((query.search, turns))
        return list_trail(trail, query)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(routes, "list_trail", listed)
    installation = Installation()
    installation.open()
    async with asyncio.timeout(WAIT), installation.web() as client:
        waiting = installation.monitor.view_turns._waiting
        async with installation.monitor.view_turns.turn("ana", lambda: False):
            burst = [asyncio.create_task(get(client, "/api/trail", search="vera")) for _ in range(20)]
            while len(waiting.get("vera", ())) < 20:
                await asyncio.sleep(0.01)
            burst.append(asyncio.create_task(get(client, "/api/trail", OPERATOR, search="olga")))
            while "olga" not in waiting:
                await asyncio.sleep(0.01)
            assert seen == []
        other = asyncio.create_task(others())
        await asyncio.gather(*burst)
        other.cancel()
    assert [search for search, _ in seen[:3]] == ["vera", "olga", "vera"]
    assert len({turn for _, turn in seen}) == len(seen) == 21


async def test_metrics_take_turns_with_views(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Monitor] = []

    def noted(monitor: Monitor) -> bytes:
        made.append(monitor)
        return metrics_text(monitor)

    monkeypatch.setattr(server, "metrics_text", noted)
    installation = Installation()
    async with asyncio.timeout(WAIT), installation.web() as client:
        waiting = installation.monitor.view_turns._waiting
        async with installation.monitor.view_turns.turn("ana", lambda: False):
            asked = [asyncio.create_task(client.get("/metrics", headers=bearer(VIEWER))) for _ in range(2)]
            while len(waiting.get("vera", ())) < 2:
                await asyncio.sleep(0.01)
            assert made == []
        assert [response.status for response in await asyncio.gather(*asked)] == [200, 200]
    assert made == [installation.monitor] * 2
