"""The topic of rejected events, as clients read it."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from aiokafka import TopicPartition

from stream.asking.dead_letters import DeadLetter, read_dead_letter
from stream.client.connection import Connection
from stream.kafka.restore import read_to_end


async def read_dead_letters(connection: Connection) -> AsyncGenerator[DeadLetter, None]:
    """Give all dead letters that are committed now, partition by partition."""
    topic = connection.topics.rejected
    async with connection.reader(topic) as consumer:
        for number in range(connection.topics.partitions):
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                for record in records:
                    yield read_dead_letter(record)
