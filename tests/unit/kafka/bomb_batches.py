"""Batches that decompress to many bytes, and a reader for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from aiokafka import TopicPartition

from stream.kafka.client.client_patches import fetcher
from stream.processing.dead_letters import MAX_BATCH_RECORDS
from tests import bombs

PLACE = TopicPartition("queries", 0)


def read(data: bytes, *, position: int = 0) -> tuple[list[Any], int]:
    """Return the records that aiokafka's own fetcher reads from fetched bytes, and the next position."""
    records = fetcher.PartitionRecords(
        PLACE, fetcher.MemoryRecords(data), [], position, None, None, True, fetcher.READ_COMMITTED
    )
    return list(records), records.next_fetch_offset


BOMBS: dict[str, Callable[[], bytes]] = {
    "9 MB in a value": lambda: bombs.large_value(9),
    "400 MB in a value": lambda: bombs.large_value(400),
    "9 MB, gzip": lambda: bombs.large_value(9, "gzip"),
    "9 MB, lz4": lambda: bombs.large_value(9, "lz4"),
    "9 MB, snappy": lambda: bombs.large_value(9, "snappy"),
    "900 times 1 MB": lambda: bombs.large_values(900),
    "more than a million records": cache(lambda: bombs.tiny_records(MAX_BATCH_RECORDS + 1)),
}
