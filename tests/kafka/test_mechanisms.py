"""On real Kafka, a stream of every mechanism keeps its promise, even after a worker is killed."""

from __future__ import annotations

import pytest

from schemas import Answer, Query
from sotto import AsyncClient
from stream.dev.mechanism_tour import run_tour, tour_sources, tour_stops
from tests.conftest import StartService

pytestmark = pytest.mark.kafka


async def test_mechanisms_keep_their_promises(client: AsyncClient, start: StartService) -> None:
    start("budget")
    start("worker")
    for check in await run_tour(client, seed=7):
        assert check.held, f"{check.claim}: {check.seen}"


async def test_releases_and_estimates_are_equal_after_kill(client: AsyncClient, start: StartService) -> None:
    """Releases and hypotheses are derived again from the key and the updates, so the same question has the same answer."""
    start("budget")
    worker = start("worker")
    for source in tour_sources():
        await client.register(source)
    chosen = [
        stop
        for stop in tour_stops(seed=7)
        if stop.spec.mechanism.kind in {"histogram", "lazy_histogram", "sparse_project", "pmw", "sparse_pmw"}
    ]
    for stop in chosen:
        await client.open(stop.spec)

    async def ask(part: str) -> list[Answer]:
        queries = [
            Query.model_validate({"id": f"{part}/{number}", "stream": stop.spec.stream, **question})
            for stop in chosen
            for number, question in enumerate(stop.questions[:60])
        ]
        return list(await client.ask_many(queries))

    before = await ask("before the kill")
    worker.kill()
    start("worker")
    after = await ask("after the kill")
    released = [(one, other) for one, other in zip(before, after, strict=True) if one.tops_left is None]
    assert len(released) >= 9
    assert all((one.estimate, one.spent) == (other.estimate, other.spent) for one, other in released)
    # Hypotheses may have been updated again, but no update is lost: no later answer shows less spent.
    for one, other in zip(before, after, strict=True):
        assert one.spent is not None
        assert other.spent is not None
        assert other.spent.epsilon >= one.spent.epsilon
