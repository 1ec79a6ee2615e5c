"""The transactional writer of one partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Self

from aiokafka import TopicPartition
from aiokafka.errors import InvalidTimestampError, InvalidTransactionTimeout

from stream.kafka.clients import KAFKA, Clients, Producer
from stream.kafka.filling import batches_of
from stream.kafka.refused_times import refused_transaction
from stream.kafka.security import connection
from stream.kafka.stamps import Stamps
from stream.processors.base import Outputs
from stream.settings import Settings

CLOSE_TIMEOUT = 5.0
"""Seconds that connections get to end in good order; they are told to at once."""


class Writer:
    """Writes outputs and input positions in one transaction.

    The transactional id belongs to the input partition, not to the process: opening a writer fences whoever wrote for
    that partition before and aborts what it left open. (No group metadata goes with offsets, KIP-447, so
    the id is the only fence there is.) After any error a writer is good for nothing but ``close``.
    """

    def __init__(self, producer: Producer, group: str, stamps: Stamps, batch_bytes: int) -> None:
        self._producer = producer
        self._batch_bytes = batch_bytes
        self._group = group
        self._stamps = stamps
        self.confirm: Callable[[], Awaitable[None]] | None = None
        """Awaited before anything is written; what it raises keeps it from being written."""

    @classmethod
    async def fence(
        cls,
        settings: Settings,
        transactional_id: str,
        group: str,
        clients: Clients = KAFKA,
        stamps: Stamps | None = None,
    ) -> Self:
        """Open the writer of a partition; when this returns, the predecessor's last transaction has ended.

        Raises:
            RefusedTimeError: transactions may last longer than the broker allows.
            KafkaError: Kafka cannot be reached, or refuses.
        """
        producer = clients.producer(
            **connection(settings),
            transactional_id=transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            max_batch_size=settings.batch_bytes,
        )
        writer = cls(producer, group, stamps or Stamps(), settings.batch_bytes)
        try:
            await producer.start()
        except InvalidTransactionTimeout:
            await writer.close()
            raise refused_transaction(settings.transaction_timeout_ms) from None
        except BaseException:
            await writer.close()
            raise
        return writer

    async def commit(self, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
        """Write everything or nothing, in batches that every reader of ours takes; returns once the transaction is committed."""
        if self.confirm is not None and outputs:
            await self.confirm()
        try:
            await self._write(outputs)
        except InvalidTimestampError:
            # The next writer of this process does without.
            self._stamps.refuse()
            raise
        if positions:
            await self._producer.add_offsets(positions, self._group)
        await self._producer.commit()

    async def commit_parts(self, parts: Iterable[Outputs]) -> None:
        """Write all parts or none, one after another: for more than memory should hold at once."""
        for outputs in parts:
            await self._write(outputs)
        await self._producer.commit()

    async def close(self) -> None:
        """Let go of the connections; an open transaction is left for the successor's fence to abort."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._producer.stop()

    async def _write(self, outputs: Outputs) -> None:
        timestamp, size = self._stamps.now(), self._batch_bytes
        # Filled as they are sent: what a step writes is in memory once, and of its batches those under way.
        batches = {
            TopicPartition(topic, partition): batches_of(self._producer, messages, timestamp, size)
            for topic, partition, messages in outputs
        }
        if batches:
            await self._producer.write(batches)
