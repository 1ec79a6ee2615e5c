"""Empty fetches and metadata requests are rate-limited; rare requests are not delayed."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from stream.kafka.client import client_patches
from stream.kafka.client.adapter import KAFKA
from stream.kafka.client.client_patches import RateLimit
from tests.simulation.clock import VirtualLoop


@given(most=st.integers(1, 5), seconds=st.sampled_from((0.5, 1.0)), after=st.lists(st.floats(0, 1.5), max_size=40))
def test_rate_limit_holds_in_every_interval_without_needless_wait(
    most: int, seconds: float, after: list[float]
) -> None:
    begun: list[float] = []

    async def ask() -> None:
        loop, pace = asyncio.get_running_loop(), RateLimit(most, seconds)
        for pause in after:
            await asyncio.sleep(pause)
            came, waited = loop.time(), sum(one > loop.time() - seconds for one in begun)
            await pace.wait_for_turn()
            begun.append(loop.time())
            assert waited >= most or loop.time() == came

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(ask())
    assert len(begun) == len(after)
    for first, later in zip(begun, begun[most:], strict=False):
        assert later - first >= seconds - 1e-9


def test_rate_limit_serves_concurrent_callers_in_turn() -> None:
    async def ask() -> list[float]:
        loop, pace = asyncio.get_running_loop(), RateLimit(2, 1.0)

        async def one() -> float:
            await pace.wait_for_turn()
            return loop.time()

        return await asyncio.gather(*(one() for _ in range(6)))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        begun = runner.run(ask())
    assert [round(one - begun[0], 6) for one in begun] == [0, 0, 1, 1, 2, 2]


def test_consumers_and_producers_use_rate_limits() -> None:
    assert issubclass(KAFKA.consumer, client_patches.KafkaConsumer)  # type: ignore[arg-type]
    for made in (client_patches.consumer, client_patches.producer, client_patches.admin):
        assert made.AIOKafkaClient is client_patches.BrokerClient
    assert client_patches.consumer.Fetcher is client_patches.PacedFetcher


def test_fetcher_close_cancels_no_caller() -> None:
    """A consumer can be stopped without CancelledError while its fetches pause after errors, as in an outage."""

    async def stop() -> str:
        fetcher = object.__new__(client_patches.PacedFetcher)
        pausing = [asyncio.create_task(asyncio.sleep(60)) for _ in range(3)]
        fetcher._pending_tasks, fetcher._fetch_task = set(pausing), asyncio.create_task(asyncio.sleep(60))
        fetcher._fetch_waiters = {waiter := asyncio.get_running_loop().create_future()}
        await asyncio.sleep(0)
        await fetcher.close()
        assert all(task.cancelled() for task in pausing)
        assert waiter.done()
        return "stopped"

    assert asyncio.run(stop()) == "stopped"
