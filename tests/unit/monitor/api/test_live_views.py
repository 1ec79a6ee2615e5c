"""A watched view is made once for all its watchers; views are made one at a time, and fairly between names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stream.monitor.api import live_events_stream, routes
from stream.monitor.api.budget_models import TrailPage, TrailQuery
from stream.monitor.api.budget_views import list_trail
from stream.monitor.api.live_events_stream import LiveView, LiveViews
from stream.monitor.api.models import Health
from stream.monitor.budget_history import TrailState
from tests.unit.monitor.installation import VIEWER, Installation, bearer

WAIT = 20.0


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent that views are made again because of the time, even on a busy machine."""
    monkeypatch.setattr(live_events_stream, "MIN_INTERVAL_SECONDS", 3600.0)
    monkeypatch.setattr(live_events_stream, "MAX_INTERVAL_SECONDS", 3600.0)


class Watched:
    """Views that note when they are made."""

    def __init__(self) -> None:
        self.installation = Installation()
        self.live = LiveViews(self.installation.monitor)
        self.made: list[str] = []
        self.then: Callable[[], None] = lambda: None

    def watch(self, query: str) -> LiveView:
        def make() -> Health:
            self.made.append(query)
            self.then()
            return Health()

        return self.live.watch("trail", query, make)

    def change(self) -> None:
        self.installation.tables.changes["trail"] += 1


async def test_live_view_is_built_once_for_all_watchers_per_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched()
    views = [watched.watch("a") for _ in range(64)]
    assert len(set(map(id, views))) == 1
    for _ in range(3):
        await asyncio.gather(*(watched.live.refresh([view], "vera") for view in views))
        watched.change()
    assert watched.made == ["a"]
    monkeypatch.setattr(live_events_stream, "MIN_INTERVAL_SECONDS", 0.0)
    view = views[0]
    while len(watched.made) < 2:
        await asyncio.gather(*(watched.live.refresh([view], who) for who in ("vera", "olga")))
    while view.tasks:
        await asyncio.sleep(0)
    await watched.live.refresh([view], "vera")
    assert watched.made == ["a", "a"]
    assert view.edition == 1


async def test_live_views_let_other_tasks_run_between_them() -> None:
    watched = Watched()
    turns, seen = 0, []
    watched.then = lambda: seen.append(turns)

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    views = [watched.watch(f"{number}") for number in range(64)]
    async with asyncio.timeout(WAIT):
        while len(seen) < 64:
            await watched.live.refresh(views, "vera")
    other.cancel()
    assert len(set(seen)) == 64


async def test_live_views_take_turns_between_names() -> None:
    watched = Watched()
    many = [watched.watch(f"{number}") for number in range(8)]
    async with asyncio.timeout(WAIT):
        await asyncio.gather(
            watched.live.refresh(many, "vera"), watched.live.refresh([watched.watch("7")], "olga")
        )
        while len(watched.made) < 8:
            await watched.live.refresh(many, "vera")
    assert watched.made == ["0", "1", "7", "2", "3", "4", "5", "6"]


async def test_unwatched_live_view_is_not_built() -> None:
    watched = Watched()
    left, stays = watched.watch("left"), watched.watch("stays")
    async with asyncio.timeout(WAIT):
        async with watched.live._turns.turn("ana", lambda: False):
            refreshing = asyncio.create_task(watched.live.refresh([left, stays], "vera"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            watched.live.stop_watching(left)
        await refreshing
        while not watched.made:
            await watched.live.refresh([stays], "vera")
    assert watched.made == ["stays"]


async def test_failed_live_view_ends_its_watchers_and_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched()
    view = watched.watch("a")

    def fail() -> None:
        raise LookupError("a fault of ours")

    watched.then = fail
    await watched.live.refresh([view], "vera")
    with pytest.raises(LookupError):
        await watched.live.refresh([view], "vera")
    watched.then = lambda: None
    watched.change()
    monkeypatch.setattr(live_events_stream, "MIN_INTERVAL_SECONDS", 0.0)
    assert watched.watch("a") is view
    async with asyncio.timeout(WAIT):
        while not view.text:
            await watched.live.refresh([view], "vera")


async def test_connections_with_equal_query_share_live_view(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def count_lists(trail: TrailState, query: TrailQuery) -> TrailPage:
        made.append(query.search)
        return list_trail(trail, query)

    monkeypatch.setattr(routes, "list_trail", count_lists)
    installation = Installation()
    installation.open()
    async with asyncio.timeout(WAIT), installation.web() as client:
        for search in ("feed", "feed", "nobody", "feed"):
            path = f"/api/events?views=trail&search={search}"
            response = await client.get(path, headers=bearer(VIEWER))
            while b"event: trail" not in await response.content.readuntil(b"\n\n"):
                pass
    assert made == ["feed", "nobody"]
