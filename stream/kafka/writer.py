"""The transactional writer of one partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, Self

from aiokafka import TopicPartition
from aiokafka.errors import InvalidTimestampError

from stream.kafka.clients import KAFKA, Clients, Producer
from stream.kafka.filling import batches_of
from stream.kafka.security import connection
from stream.kafka.stamps import Stamps
from stream.processors.base import Messages, Outputs
from stream.settings import Settings

CLOSE_TIMEOUT = 5.0
"""Seconds that a producer gets to flush before its connections are cut."""


class Writer:
    """Writes outputs and input positions in one transaction.

    The transactional id belongs to the input partition, not to the process: opening a writer fences whoever wrote for
    that partition before and aborts what it left open. (aiokafka sends no group metadata with offsets, KIP-447, so
    the id is the only fence there is.) After any error a writer is good for nothing but ``close``.
    """

    def __init__(self, producer: Producer, group: str, stamps: Stamps, batch_bytes: int) -> None:
        self._producer = producer
        self._batch_bytes = batch_bytes
        self._group = group
        self._stamps = stamps

    @classmethod
    async def fence(
        cls,
        settings: Settings,
        transactional_id: str,
        group: str,
        clients: Clients = KAFKA,
        stamps: Stamps | None = None,
    ) -> Self:
        """Open the writer of a partition; when this returns, the predecessor's last transaction has ended."""
        producer = clients.producer(
            **connection(settings),
            transactional_id=transactional_id,
            transaction_timeout_ms=settings.transaction_timeout_ms,
            acks="all",
            max_batch_size=settings.batch_bytes,
            max_request_size=16 * settings.batch_bytes,
        )
        writer = cls(producer, group, stamps or Stamps(), settings.batch_bytes)
        try:
            await producer.start()
        except BaseException:
            await writer.close()
            raise
        return writer

    async def commit(self, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
        """Write everything or nothing, in batches that every reader of ours takes; returns once the transaction is committed."""
        producer = self._producer
        await producer.begin_transaction()
        try:
            await _all(self._send(topic, partition, messages) for topic, partition, messages in outputs)
        except InvalidTimestampError:
            # The next writer of this process does without.
            self._stamps.refuse()
            raise
        if positions:
            await producer.send_offsets_to_transaction(dict(positions), self._group)
        await producer.commit_transaction()

    async def commit_parts(self, parts: Iterable[Outputs]) -> None:
        """Write all parts or none, one after another: for more than memory should hold at once."""
        await self._producer.begin_transaction()
        for outputs in parts:
            await _all(self._send(topic, partition, messages) for topic, partition, messages in outputs)
        await self._producer.commit_transaction()

    async def close(self) -> None:
        """Let go of the connections; an open transaction is left for the successor's fence to abort."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._producer.stop()
        except TimeoutError:
            await self._producer.client.close()

    async def _send(self, topic: str, partition: int, messages: Messages) -> None:
        batches = batches_of(self._producer, messages, self._stamps.now(), self._batch_bytes)
        await _all([await self._producer.send_batch(batch, topic, partition=partition) for batch in batches])


async def _all(awaitables: Iterable[Awaitable[Any]]) -> None:
    """Await all of them, then raise the first error: none is left to fail unseen."""
    for result in await asyncio.gather(*awaitables, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
