"""A partition's records are fetched while it works, within bounds, and none is skipped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException

from stream.engine import partition_input as module
from stream.engine.partition_input import Prefetch
from stream.kafka.client.adapter import Consumer
from stream.kafka.client.broker_connections import Stopped
from stream.processing.protocol import Record
from stream.settings import Settings

QUERIES, CONTROL = TopicPartition("queries", 0), TopicPartition("control", 0)
MOST = 40
BYTES = 65_536
SETTINGS = Settings(batch_events=MOST, fetch_bytes=BYTES)
TURNS = 1000


def records(first: int, count: int, source: TopicPartition = QUERIES, value: bytes = b"value") -> list[Record]:
    return [Record(source.topic, 0, offset, 0, b"key", value) for offset in range(first, first + count)]


class Client:
    """Returns given records fetch by fetch, and then waits for ever."""

    def __init__(self, *fetches: dict[TopicPartition, list[Record]] | Exception) -> None:
        self.left = list(fetches)
        self.positions = {QUERIES: 0, CONTROL: 0}
        self.cancelled = False

    async def getmany(self, *sources: TopicPartition, timeout_ms: int, max_records: int) -> dict[Any, Any]:
        assert (set(sources), max_records) == ({QUERIES, CONTROL}, MOST)
        assert timeout_ms > 0
        if not self.left:
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True
        if isinstance(fetched := self.left.pop(0), Exception):
            raise fetched
        for source, found in fetched.items():
            self.positions[source] = found[-1].offset + 1
        await asyncio.sleep(0)
        return fetched

    async def position(self, source: TopicPartition) -> int:
        return self.positions[source]


@asynccontextmanager
async def filled_prefetch(
    client: Client, stopping: asyncio.Event | None = None, *, ahead: bool = True
) -> AsyncIterator[Prefetch]:
    """Yield a prefetch that has had time for all records of its client."""
    arrivals = Prefetch(
        cast("Consumer", client), [CONTROL, QUERIES], SETTINGS, stopping or asyncio.Event(), ahead=ahead
    )
    async with arrivals:
        for _ in range(TURNS):
            await asyncio.sleep(0)
        yield arrivals


def offsets(found: Sequence[Any]) -> list[int]:
    return [record.offset for record in found]


async def test_prefetch_collects_records_while_task_works() -> None:
    client = Client(*({QUERIES: records(2 * number, 2)} for number in range(4)))
    async with filled_prefetch(client) as arrivals:
        assert client.left == []
        found = await arrivals.take([CONTROL, QUERIES], 0)
        assert {source: offsets(some) for source, some in found.items()} == {QUERIES: list(range(8))}
        assert await arrivals.take([CONTROL, QUERIES], 0) == {}


async def test_prefetch_batch_is_limited_and_rest_follows() -> None:
    async with filled_prefetch(Client({QUERIES: records(0, 30)}, {QUERIES: records(30, 30)})) as arrivals:
        assert offsets((await arrivals.take([QUERIES], 0))[QUERIES]) == list(range(30))
        assert offsets((await arrivals.take([QUERIES], 0))[QUERIES]) == list(range(30, 60))


async def test_prefetch_takes_one_topic_and_keeps_the_other() -> None:
    client = Client({QUERIES: records(0, 1)}, {CONTROL: records(5, 1, CONTROL)})
    async with filled_prefetch(client) as arrivals:
        assert list(await arrivals.take([CONTROL], 0)) == [CONTROL]
        assert not await arrivals.has_reached(QUERIES, 1)
        assert await arrivals.has_reached(CONTROL, 6)
        assert list(await arrivals.take([QUERIES], 0)) == [QUERIES]
        assert await arrivals.has_reached(QUERIES, 1)
        assert not await arrivals.has_reached(QUERIES, 2)


@pytest.mark.parametrize(
    ("size", "value", "kept"),
    [(1, b"", MOST), (MOST, b"", 1), (7, b"", 6), (1, bytes(BYTES), 1), (1, bytes(BYTES // 2 - 3), 2)],
)
async def test_prefetch_limits_buffered_records(size: int, value: bytes, kept: int) -> None:
    fetches = 3 * MOST
    client = Client(*({QUERIES: records(size * number, size, value=value)} for number in range(fetches)))
    seen: list[int] = []
    async with filled_prefetch(client) as arrivals:
        assert len(client.left) == fetches - kept
        while found := await arrivals.take([QUERIES], 50):
            seen += offsets(found[QUERIES])
    assert seen == list(range(fetches * size))


async def test_prefetch_raises_client_error_after_earlier_records() -> None:
    async with filled_prefetch(Client({QUERIES: records(0, 1)}, CorruptRecordException("bad"))) as arrivals:
        assert offsets((await arrivals.take([QUERIES], 1000))[QUERIES]) == [0]
        with pytest.raises(CorruptRecordException):
            await arrivals.take([QUERIES], 1000)


async def test_prefetch_stop_ends_wait_of_client() -> None:
    stopping, client = asyncio.Event(), Client()
    async with filled_prefetch(client, stopping) as arrivals:
        waiting = asyncio.create_task(arrivals.take([QUERIES], 3_600_000))
        await asyncio.sleep(0)
        stopping.set()
        with pytest.raises(Stopped):
            await waiting
    assert client.cancelled


async def test_prefetch_take_waits_for_hanging_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's supervision sees a wait that never ends."""
    monkeypatch.setattr(module, "OVERDUE_SECONDS", -1.0)
    stopping = asyncio.Event()
    async with filled_prefetch(Client(), stopping) as arrivals:
        waiting = asyncio.create_task(arrivals.take([QUERIES], 1))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        stopping.set()
        with pytest.raises(Stopped):
            await waiting


async def test_prefetch_drops_untaken_records_after_seek() -> None:
    client = Client({QUERIES: records(0, 3)})
    async with filled_prefetch(client) as arrivals:
        pass
    client.left = [{QUERIES: records(1, 1)}]
    async with arrivals:
        assert offsets((await arrivals.take([QUERIES], 1000))[QUERIES]) == [1]


async def test_prefetch_without_read_ahead_fetches_on_demand() -> None:
    client = Client({QUERIES: records(0, 1)}, {QUERIES: records(1, 1)})
    async with filled_prefetch(client, ahead=False) as arrivals:
        assert len(client.left) == 2
        for number in range(2):
            assert offsets((await arrivals.take([QUERIES], 1000))[QUERIES]) == [number]
            for _ in range(TURNS):
                await asyncio.sleep(0)
            assert len(client.left) == 1 - number
        assert await arrivals.take([QUERIES], 1) == {}
