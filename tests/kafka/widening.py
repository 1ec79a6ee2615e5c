"""Adds partitions to topics of an installation."""

from __future__ import annotations

import asyncio

from aiokafka.admin import NewPartitions

from stream.kafka.security import admin_client
from stream.kafka.topics import describe_topics
from stream.settings import Settings

SOURCE = {"source": "vitals", "kind": "values", "neighbors": "add-remove", "epsilon": 4.0, "sensitivity": 1.0}
SPEC = {
    "stream": "ward-7",
    "source": "vitals",
    "epsilon": 1.0,
    "mechanism": {"kind": "above_threshold", "threshold": 0.0, "cutoff": 3},
}


async def add_partitions(settings: Settings, topic: str, partitions: int) -> None:
    """Give a topic more partitions, and return once the broker tells of them."""
    async with admin_client(settings) as admin, asyncio.timeout(60):
        await admin.create_partitions({topic: NewPartitions(partitions)})
        while len((await describe_topics(admin, [topic]))[topic]) != partitions:
            await asyncio.sleep(0.1)
