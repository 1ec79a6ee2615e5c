"""Records that a client library or a processor could stumble over are refused alone, and the records around them are answered."""

from __future__ import annotations

import json

import pytest
from aiokafka import AIOKafkaProducer

from sotto import AsyncClient
from stream.processing.topic_names import partition_of
from stream.settings import Settings
from tests import bombs
from tests.chaos.checker import committed
from tests.conftest import StartService
from tests.kafka.wards import FEED, ask_low, ward

pytestmark = pytest.mark.kafka


async def test_event_with_invalid_header_name_is_refused_alone(
    settings: Settings, client: AsyncClient, start: StartService
) -> None:
    """The events after it in its producer's batch are answered."""
    start("budget")
    start("worker")
    await client.register(FEED)
    await client.open(ward())
    await ask_low(client, "warm")
    partition = partition_of(b"ward", client.topics.partitions)
    before = await committed(settings, client.topics.answers, partition)
    events = [json.dumps({"id": f"{number}", "stream": "ward", "value": 1.0}).encode() for number in range(5)]
    built = bombs.batch(
        [
            bombs.record(number, b"ward", value, [(b"\xff\xfe", b"x")] if number == 2 else [])
            for number, value in enumerate(events)
        ],
        5,
        "none",
    )
    await bombs.send(settings.bootstrap, client.topics.queries, partition, built)
    await ask_low(client, "last")
    answered = (await committed(settings, client.topics.answers, partition))[len(before) :]
    outcomes = [(one["id"], one["outcome"]) for one in (json.loads(record.value or b"") for record in answered)]
    assert outcomes == [
        ("0", "below"),
        ("1", "below"),
        ("2", "rejected"),
        ("3", "below"),
        ("4", "below"),
        ("last", "below"),
    ]
    [letter] = await committed(settings, client.topics.rejected, partition)
    assert (letter.key, letter.value) == (b"ward", events[2])
    assert dict(letter.headers)["__connect.errors.offset"] == b"3"
    assert b"UTF-8" in dict(letter.headers)["__connect.errors.exception.message"]


@pytest.mark.parametrize("topic", ["queries", "requests"])
async def test_header_without_value_is_accepted(
    topic: str, settings: Settings, client: AsyncClient, start: StartService
) -> None:
    services = [start("budget"), start("worker")]
    await client.register(FEED)
    await client.open(ward())
    partition = partition_of(b"ward", client.topics.partitions) if topic == "queries" else 0
    event = json.dumps({"id": "headed", "stream": "ward", "value": 1.0}).encode()
    async with AIOKafkaProducer(bootstrap_servers=settings.bootstrap) as producer:
        place = getattr(client.topics, topic)
        await producer.send_and_wait(place, event, key=b"ward", partition=partition, headers=[("name", None)])
    await ask_low(client, "last")
    assert (await client.open(ward("later"))).outcome == "opened"
    if topic == "queries":
        answered = await committed(settings, client.topics.answers, partition)
        assert [json.loads(one.value or b"")["id"] for one in answered] == ["headed", "last"]
    assert not [service for service in services if "partition starts over" in service.log.read_text()]


async def test_offset_beyond_its_batch_is_refused_without_moving_position(
    settings: Settings, client: AsyncClient, start: StartService
) -> None:
    """Otherwise the next question would lie before the worker's position, and the worker would halt streams for good."""
    start("budget")
    worker = start("worker")
    await client.register(FEED)
    await client.open(ward())
    partition = partition_of(b"ward", client.topics.partitions)
    event = json.dumps({"id": "far", "stream": "ward", "value": 1.0}).encode()
    built = bombs.batch([bombs.record(1_000_000, b"ward", event)], 1, "none")
    for number in range(2):
        await ask_low(client, f"{number}")
        await bombs.send(settings.bootstrap, client.topics.queries, partition, built)
    await ask_low(client, "last")
    assert len(await committed(settings, client.topics.rejected, partition)) == 2
    assert "went back" not in worker.log.read_text()
