"""What a client knows of streams' sources: the ledger is read once, then only what is new, and never waited for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError

from stream.client import ledger_reader
from stream.client.ledger_reader import SourceLookup
from tests import builders
from tests.unit.client.outside import DOCUMENT, ROWS


class Ledger:
    """A ledger topic as a consumer reads it, and a connection to it."""

    def __init__(self) -> None:
        self.driver = builders.installation(sources=[DOCUMENT], rows={"people": ROWS}, partitions=4)
        self.topics = self.driver.topics
        self.settings = SimpleNamespace(batch_events=100)
        self.read: list[int] = []
        self.refusal: Exception | None = None
        self.slow = asyncio.Event()
        self.slow.set()
        self._at = 0

    def open(self, stream: str) -> None:
        self.driver.open(builders.stream(stream, "people", "laplace", mechanism={"answers": 2}))

    @property
    def records(self) -> list[Any]:
        return self.driver.records(self.topics.ledger)

    @asynccontextmanager
    async def reader(self, _topic: str) -> AsyncIterator[Ledger]:
        if self.refusal is not None:
            self.read.append(-1)
            raise self.refusal
        await self.slow.wait()
        yield self

    def assign(self, _partitions: list[TopicPartition]) -> None:
        return

    async def seek_to_beginning(self, _partition: TopicPartition) -> None:
        self._at = 0
        self.read.append(0)

    def seek(self, _partition: TopicPartition, offset: int) -> None:
        self._at = offset
        self.read.append(offset)

    async def end_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, len(self.records))

    async def position(self, _partition: TopicPartition) -> int:
        return self._at

    async def getmany(self, partition: TopicPartition, **_: Any) -> dict[TopicPartition, list[Any]]:
        found = self.records[self._at :]
        self._at += len(found)
        return {partition: found}


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger()
    made.open("first")
    made.open("second")
    return made


def definitions_of(ledger: Ledger) -> SourceLookup:
    connection: Any = ledger
    return SourceLookup(connection)


async def test_the_ledger_is_read_once_for_all_and_then_only_what_is_new(ledger: Ledger) -> None:
    known = definitions_of(ledger)
    found = await asyncio.gather(*(known.find_source(name) for name in ("first", "second", "first")))
    assert [one is not None and one.source for one in found] == ["people"] * 3
    assert ledger.read == [0]
    before = len(ledger.records)
    ledger.open("third")
    assert await known.find_source("third") is found[0]
    assert ledger.read == [0, before]


async def test_a_stream_that_is_not_there_is_not_looked_up_with_each_question(ledger: Ledger) -> None:
    known = definitions_of(ledger)
    assert [await known.find_source("nobody") for _ in range(5)] == [None] * 5
    assert len(ledger.read) == 1


async def test_whoever_may_not_read_the_ledger_is_told_nothing_and_asks_once(ledger: Ledger) -> None:
    ledger.refusal = TopicAuthorizationFailedError({"ledger"})
    known = definitions_of(ledger)
    assert [await known.find_source("first") for _ in range(3)] == [None] * 3
    assert len(ledger.read) == 1


async def test_a_ledger_that_cannot_be_read_now_is_read_later(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_reader, "_RETRY_ABSENT_SECONDS", 0.0)
    ledger.refusal = OSError("the network is gone")
    known = definitions_of(ledger)
    assert await known.find_source("first") is None
    ledger.refusal = None
    assert await known.find_source("first") is not None


async def test_a_long_ledger_holds_no_question_up(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_reader, "MAX_LEDGER_WAIT_SECONDS", 0.01)
    ledger.slow.clear()
    known = definitions_of(ledger)
    assert [await known.find_source("first") for _ in range(3)] == [None] * 3
    ledger.slow.set()
    reading = known._reading
    assert reading is not None
    await reading
    assert await known.find_source("first") is not None
    assert ledger.read == [0]
    await known.stop()


@pytest.fixture
def second_page(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The ledger is read in two pages, the source's record in the second, which comes when this is set."""
    come = asyncio.Event()

    async def pages(*_: Any) -> AsyncIterator[list[Any]]:
        sources = [record for record in ledger.records if record.key.startswith(b"source|")]
        yield [record for record in ledger.records if record not in sources]
        await come.wait()
        if ledger.refusal is not None:
            raise ledger.refusal
        yield sources

    monkeypatch.setattr(ledger_reader, "read_to_end", pages)
    monkeypatch.setattr(ledger_reader, "_RETRY_ABSENT_SECONDS", 0.0)
    return come


async def test_a_stream_is_known_once_its_grant_and_its_source_are_read(
    ledger: Ledger, second_page: asyncio.Event
) -> None:
    known = definitions_of(ledger)
    asked = [asyncio.create_task(known.find_source("first"))]
    await asyncio.sleep(0.01)
    asked.append(asyncio.create_task(known.find_source("first")))
    await asyncio.sleep(0.01)
    second_page.set()
    assert [one is not None and one.source for one in await asyncio.gather(*asked)] == ["people"] * 2


async def test_a_reading_that_broke_off_between_a_grant_and_its_source_is_begun_again(
    ledger: Ledger, second_page: asyncio.Event
) -> None:
    known = definitions_of(ledger)
    broken = asyncio.create_task(known.find_source("first"))
    await asyncio.sleep(0.01)
    ledger.refusal = KafkaConnectionError("gone for a moment")
    second_page.set()
    assert await broken is None
    ledger.refusal = None
    assert await known.find_source("first") is not None
