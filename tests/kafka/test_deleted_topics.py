"""Readers and writers of deleted topics ask for them now and then, not in a tight loop, and continue once they are back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from aiokafka import TopicPartition
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaError

from stream.engine.restore import create_reader
from stream.kafka.client.client_patches import MAX_EMPTY_FETCHES, MAX_METADATA_REQUESTS, KafkaProducer
from stream.kafka.topic_creation import create_topics, delete_topics
from stream.processing.topic_names import Topics
from stream.settings import Settings

pytestmark = pytest.mark.kafka

SECONDS = 3


async def test_deleted_topic_is_requested_at_limited_rate(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = 0
    send = AIOKafkaConnection.send

    def count_send(connection: AIOKafkaConnection, *arguments: object, **named: object) -> object:
        nonlocal sent
        sent += 1
        return send(connection, *arguments, **named)

    topic = Topics(settings.prefix).answers
    reading, writing = create_reader(settings), KafkaProducer(bootstrap_servers=settings.bootstrap)
    async with reading, writing:
        await writing.send_and_wait(topic, b"before", partition=0)
        reading.assign([TopicPartition(topic, 0)])
        assert (await reading.getone()).value == b"before"
        await delete_topics(settings)
        waiting = await writing.send(topic, b"meanwhile", partition=0)
        monkeypatch.setattr(AIOKafkaConnection, "send", count_send)
        await asyncio.sleep(SECONDS)
        # Each of two clients may send some requests at once, and the producer retries too.
        assert 2 <= sent <= 2 * (SECONDS + 2) * (MAX_METADATA_REQUESTS + MAX_EMPTY_FETCHES)
        await create_topics(settings)
        with suppress(KafkaError):
            await waiting
        await reading.seek_to_beginning()
        await writing.send_and_wait(topic, b"after", partition=0)
        async with asyncio.timeout(120):
            while (await reading.getone()).value != b"after":
                pass
