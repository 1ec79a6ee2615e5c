"""The audit trail, entry by entry, as it was written; and what of the ledger must follow from it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from aiokafka import TopicPartition

from schemas import MAX_RECORD_BYTES, LedgerRecord
from schemas.wire import Codec
from stream.client.connection import Connection
from stream.kafka.restore import read_to_end
from stream.processors.receipts import RECEIPT_PREFIX
from stream.processors.topics import LEDGER_PARTITIONS

_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


async def read_trail(connection: Connection) -> AsyncGenerator[Sequence[bytes], None]:
    """The bytes of all entries that are committed now, oldest first, some at a time."""
    topic = connection.topics.trail
    async with connection.reader(topic) as consumer:
        for number in range(LEDGER_PARTITIONS):
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                yield [record.value or b"" for record in records]


async def read_accounts(connection: Connection) -> list[LedgerRecord]:
    """What the ledger holds at one moment, its progress included, but for receipts."""
    latest: dict[bytes, bytes | None] = {}
    topic = connection.topics.ledger
    async with connection.reader(topic) as consumer:
        for number in range(LEDGER_PARTITIONS):
            partition = TopicPartition(topic, number)
            async for records in read_to_end(consumer, partition, connection.settings.batch_events):
                latest.update((record.key, record.value) for record in records if is_account(record.key or b""))
    return [_ledger.decode(value) for value in latest.values() if value is not None]


def is_account(key: bytes) -> bool:
    """Whether a record of the ledger tells of accounts or of its progress, and is no receipt."""
    return not key.startswith(RECEIPT_PREFIX)
