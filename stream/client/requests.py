"""Requests to the budget service, and their receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiokafka import TopicPartition

from schemas import MAX_DEFINITION_BYTES, MAX_RECORD_BYTES, LedgerRecord, Receipt, Request, subject_of
from schemas.wire import Codec
from stream.client.connection import Connection
from stream.errors import Invalid, Timeout
from stream.kafka.unread import readable
from stream.processors.receipts import RECEIPT_PREFIX, request_digest
from stream.processors.topics import LEDGER_PARTITIONS

_requests: Codec[Request] = Codec(Request, limit=MAX_DEFINITION_BYTES)
_ledger: Codec[LedgerRecord] = Codec(LedgerRecord, limit=MAX_RECORD_BYTES)


async def send_requests(connection: Connection, requests: Sequence[Request], timeout: float) -> list[Receipt]:  # noqa: ASYNC109
    """Send requests at once and give their receipts in the same order, refusals among them.

    A receipt is taken for a request if it has its id and its digest: whoever else uses the id gets another.

    Raises:
        Timeout: not all have come ``timeout`` seconds from now; what was sent may still be done.
    """
    wanted = [(request.request, request_digest(request)) for request in requests]
    missing = set(wanted)
    receipts: dict[tuple[str, str], Receipt] = {}
    try:
        async with asyncio.timeout(timeout):
            await _send_and_read(connection, requests, missing, receipts)
    except TimeoutError:
        raise Timeout(
            f"{len(missing)} requests without receipt; are Kafka and 'sotto serve budget' running?"
        ) from None
    return [receipts[one] for one in wanted]


async def _send_and_read(
    connection: Connection,
    requests: Sequence[Request],
    missing: set[tuple[str, str]],
    receipts: dict[tuple[str, str], Receipt],
) -> None:
    async with connection.reader(connection.topics.ledger) as consumer:
        partitions = [TopicPartition(connection.topics.ledger, number) for number in range(LEDGER_PARTITIONS)]
        consumer.assign(partitions)
        await consumer.seek_to_end(*partitions)
        for partition in partitions:
            await consumer.position(partition)
        sent = []
        for request in requests:
            value = _requests.encode(request)
            if len(value) > MAX_DEFINITION_BYTES:
                raise Invalid(
                    f"request: {len(value)} bytes; send at most {MAX_DEFINITION_BYTES}: declare fewer categories"
                )
            sent.append(await connection.send(connection.topics.requests, subject_of(request)[0], value))
        for future in sent:
            # The producer goes by whether it fails, whoever waits for it.
            await asyncio.shield(future)
        while missing:
            fetched = await consumer.getmany(timeout_ms=200, max_records=connection.settings.batch_events)
            for record in (record for records in fetched.values() for record in readable(records)):
                if record.key is None or not record.key.startswith(RECEIPT_PREFIX) or record.value is None:
                    continue
                entry = _ledger.decode(record.value)
                if isinstance(entry, Receipt) and (key := (entry.request, entry.digest)) in missing:
                    receipts[key] = entry
                    missing.discard(key)
