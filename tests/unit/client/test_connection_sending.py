"""A query that Kafka refuses fails alone, and no call waits for ever for an unreachable Kafka."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError

from schemas import CloseStream
from sotto import AsyncClient, Settings, Timeout
from stream.client import kafka_connection
from stream.client.kafka_connection import KafkaConnection
from tests.unit.client.broker import Broker
from tests.unit.client.readers import Nothing

LARGE = b"x" * 3000


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


@pytest.fixture
def connection() -> KafkaConnection:
    made = KafkaConnection(Settings())
    made.is_open = True
    return made


async def send(connection: KafkaConnection, value: bytes = b"x", topic: str = "queries") -> Any:
    return await (await connection.send(topic, "ward", value))


async def test_connection_accepts_records_after_refused_record(
    broker: Broker, connection: KafkaConnection
) -> None:
    await send(connection)
    with pytest.raises(MessageSizeTooLargeError):
        await send(connection, LARGE)
    for _ in range(3):
        await send(connection)
    assert broker.taken == [("queries", 1)] * 4
    assert broker.producers == 2
    await connection.close()


async def test_connection_sends_queued_records_before_next_producer(
    broker: Broker, connection: KafkaConnection
) -> None:
    """Records behind a refused one come before those of the next producer."""
    await send(connection)
    refused = await connection.send("queries", "ward", LARGE)
    await asyncio.wait([refused])
    behind = await connection._sender.send("events", b"p", b"x", ())  # type: ignore[union-attr]
    assert not behind.done()
    after = await connection.send("marks", "p", b"x")
    assert behind.done()
    await after
    assert [topic for topic, _ in broker.taken] == ["queries", "events", "marks"]
    await connection.close()


async def test_connection_closes_without_kafka_and_fails_unsent_records(
    broker: Broker, connection: KafkaConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_connection, "END_TIMEOUT", 0.05)
    loop, said = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: said.append(context["message"]))
    await send(connection)
    others = asyncio.all_tasks()
    broker.up = False
    under_way = await connection.send("queries", "ward", b"x")
    await asyncio.sleep(0.01)
    queued = await connection.send("queries", "ward", b"x")
    flushed = asyncio.create_task(connection.flush())
    await asyncio.wait_for(connection.close(), 5)
    for lost in (under_way, queued):
        with pytest.raises(KafkaTimeoutError):
            await lost
    await flushed
    broker.up = True
    await asyncio.sleep(0.3)
    assert broker.taken == [("queries", 1)]
    assert asyncio.all_tasks() <= others
    gc.collect()
    await asyncio.sleep(0)
    assert said == []


@pytest.mark.parametrize("up", [True, False])
async def test_request_times_out_with_or_without_kafka(
    broker: Broker, connection: KafkaConnection, monkeypatch: pytest.MonkeyPatch, up: bool
) -> None:
    @asynccontextmanager
    async def reader(*_: Any) -> AsyncIterator[Nothing]:
        yield Nothing()

    monkeypatch.setattr(KafkaConnection, "reader", reader)
    monkeypatch.setattr(kafka_connection, "END_TIMEOUT", 0.05)
    client = AsyncClient()
    client._connection = connection
    await send(connection)
    broker.up = up
    request = CloseStream(request="r", source="feed", stream="ward", reason="enough")
    with pytest.raises(Timeout, match="1 request has no receipt after"):
        await asyncio.wait_for(client.request(request, timeout=0.1), 5)
    assert [topic for topic, _ in broker.taken[1:]] == [connection.topics.requests] * up
    await client.disconnect()
