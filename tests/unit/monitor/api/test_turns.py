"""Long work is done in turns: one piece at a time, fairly between names, and not for requesters who have gone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable

import pytest

from schemas import StreamSpec
from stream.errors import Refused
from stream.monitor.api import forms
from stream.monitor.api.http_requests import ClientGoneError, ProblemError, RequestTurns
from tests.unit.monitor.installation import ANALYST, VIEWER, bearer, post, spec
from tests.unit.monitor.survey import surveyed

WAIT = 20.0


def here() -> bool:
    return False


class Queue:
    """Waiters that note their turns, and end them when a test says so."""

    def __init__(self, turns: RequestTurns) -> None:
        self.turns = turns
        self.had: list[str] = []

    async def wait(self, name: str, note: str, gone: Callable[[], bool] = here) -> asyncio.Task[None]:
        async def work() -> None:
            async with self.turns.turn(name, gone):
                self.had.append(note)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        return task


async def test_turns_alternate_between_users() -> None:
    """The number of requests that wait for one user does not matter."""
    queue = Queue(RequestTurns(max_waiting=9, max_waiting_per_user=5))
    async with queue.turns.turn("ana", here):
        tasks = [await queue.wait("vera", f"v{number}") for number in range(5)]
        tasks += [await queue.wait("ana", "a"), await queue.wait("olga", "o1"), await queue.wait("olga", "o2")]
        assert queue.had == []
    await asyncio.gather(*tasks)
    assert queue.had == ["v0", "a", "o1", "v1", "o2", "v2", "v3", "v4"]


async def test_waiting_requests_are_limited_per_user_and_in_total() -> None:
    queue = Queue(RequestTurns(max_waiting=3, max_waiting_per_user=2))
    async with queue.turns.turn("ana", here):
        tasks = [await queue.wait("vera", "v") for _ in range(2)]
        with pytest.raises(ProblemError) as refused:
            await (await queue.wait("vera", "too many of one"))
        assert (refused.value.problem.status, refused.value.headers) == (429, {"Retry-After": "10"})
        tasks.append(await queue.wait("olga", "o"))
        with pytest.raises(ProblemError, match="3 in total"):
            await (await queue.wait("ana", "too many of all"))
    await asyncio.gather(*tasks)
    assert queue.had == ["v", "o", "v"]


async def test_disconnected_or_cancelled_request_loses_turn_and_place() -> None:
    queue = Queue(RequestTurns(max_waiting=2, max_waiting_per_user=2))
    left = asyncio.Event()
    async with queue.turns.turn("ana", here):
        gone = [await queue.wait("vera", "gone", left.is_set) for _ in range(2)]
        left.set()
        stays, stopped = await queue.wait("vera", "stays"), await queue.wait("vera", "stopped")
        stopped.cancel()
        after = await queue.wait("olga", "after")
    for one in gone:
        with pytest.raises(ClientGoneError):
            await one
    await asyncio.gather(stays, after)
    assert queue.had == ["stays", "after"]


async def test_cancelled_request_passes_its_turn_on() -> None:
    queue = Queue(RequestTurns(max_waiting=2, max_waiting_per_user=2))
    async with queue.turns.turn("ana", here):
        stopped, after = await queue.wait("vera", "stopped"), await queue.wait("olga", "after")
    stopped.cancel()
    await after
    assert queue.had == ["after"]


async def test_turn_is_followed_by_a_pause_of_a_multiple_of_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 100.25])
    pauses: list[float] = []

    def later(pause: float, _: Callable[[], None]) -> None:
        pauses.append(pause)

    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", later)
    async with RequestTurns(
        max_waiting=1, max_waiting_per_user=1, pause_factor=3.0, clock=lambda: next(times)
    ).turn("ana", here):
        assert pauses == []
    assert pauses == [0.75]


async def test_plan_requests_are_limited_and_dropped_after_a_disconnect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def plan_stream(wanted: StreamSpec, _: object) -> None:
        made.append(wanted.stream)
        begun.set()
        go_on.wait(WAIT)
        raise Refused("as planned")

    monkeypatch.setattr(forms, "plan_stream", plan_stream)
    installation = surveyed()
    async with asyncio.timeout(WAIT), installation.web() as client:

        def ask(stream: str, token: str) -> asyncio.Task[object]:
            body = spec(stream, source="people")
            return asyncio.create_task(post(client, "/api/plan", body, token, status=409))

        first = ask("first", ANALYST)
        await asyncio.to_thread(begun.wait)
        waiting = installation.monitor.planning_turns._waiting
        gone = [ask("gone", VIEWER) for _ in range(4)]
        while len(waiting.get("vera", ())) < 4:
            await asyncio.sleep(0.01)
        headers = {**bearer(VIEWER), "Content-Type": "application/json"}
        async with client.post("/api/plan", data=json.dumps(spec("x", source="people")), headers=headers) as one:
            assert (one.status, one.headers["Retry-After"]) == (429, "10")
        for task in gone:
            task.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        while not all(waiter.is_disconnected() for waiter in waiting["vera"]):
            await asyncio.sleep(0.01)
        stays = ask("stays", VIEWER)
        while len(waiting["vera"]) > 1:
            await asyncio.sleep(0.01)
        go_on.set()
        await asyncio.gather(first, stays)
    assert made == ["first", "stays"]
