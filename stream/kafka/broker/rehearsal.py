"""Exercises a new broker for the startup cache."""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

__all__ = ["serve"]

_SECONDS: Final = 60.0
_TRANSACTIONS: Final = 200
_TOPIC: Final = "warm-up"
_PARTITIONS: Final = 2


async def serve(bootstrap: str) -> None:
    """Creates a topic, writes transactions and reads them in a group, within a minute."""
    async with asyncio.timeout(_SECONDS):
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(_TOPIC, _PARTITIONS, 1)])
        finally:
            await admin.close()
        reader = AIOKafkaConsumer(
            _TOPIC,
            bootstrap_servers=bootstrap,
            group_id=_TOPIC,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=_TOPIC) as writer, reader:
            for number in range(_TRANSACTIONS):
                async with writer.transaction():
                    await writer.send_and_wait(_TOPIC, b"warm", partition=number % _PARTITIONS)
            for _ in range(_TRANSACTIONS):
                await reader.getone()
            async with writer.transaction():
                read = {one: await reader.position(one) for one in reader.assignment()}
                await writer.send_offsets_to_transaction(read, _TOPIC)
