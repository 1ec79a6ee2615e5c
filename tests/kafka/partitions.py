"""Adds partitions to topics of an installation."""

from __future__ import annotations

import asyncio

from aiokafka.admin import NewPartitions

from stream.kafka.client.broker_connections import admin_client
from stream.kafka.topic_layouts import describe_topics
from stream.settings import Settings
from tests.patience import SECONDS


async def add_partitions(settings: Settings, topic: str, partitions: int) -> None:
    """Raise the number of a topic's partitions and wait until the broker reports it."""
    async with admin_client(settings) as admin, asyncio.timeout(SECONDS):
        await admin.create_partitions({topic: NewPartitions(partitions)})
        while len((await describe_topics(admin, [topic]))[topic]) != partitions:
            await asyncio.sleep(0.1)
