"""Finds out when started services have restored their partitions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from typing import Self

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from schemas import PartitionStatus
from schemas.wire import parse_or_none
from stream.engine.health import ServiceName
from stream.engine.restore import reader
from stream.processing.topic_names import Topics
from stream.settings import Settings


class ReadinessReader:
    """Reads the services' reports of restored partitions in a thread, within a ``with`` block.

    Enter the block before the services start: reports from before it do not count.
    """

    def __init__(self, settings: Settings, partitions: Collection[tuple[ServiceName, int]]) -> None:
        """``partitions`` are the roles and partitions to wait for."""
        self._settings = settings
        self._missing = set(partitions)
        self._is_positioned = threading.Event()
        self._is_ready = threading.Event()
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._read()), name="readiness", daemon=True)

    @property
    def is_ready(self) -> bool:
        """True once each partition has been reported; also if Kafka stops answering."""
        return self._is_ready.is_set()

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_positioned.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped.set()
        self._thread.join()

    async def _read(self) -> None:
        topics = Topics(self._settings.prefix, self._settings.partitions)
        consumer = reader(self._settings, auto_offset_reset="latest")
        try:
            await consumer.start()
            assigned = [TopicPartition(topics.status, number) for number in range(topics.partitions)]
            consumer.assign(assigned)
            await consumer.seek_to_end(*assigned)
            for one in assigned:
                await consumer.position(one)
            self._is_positioned.set()
            while self._missing and not self._is_stopped.is_set():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        self._note_report(record.value)
        except KafkaError:
            pass  # the services report what is wrong with Kafka
        finally:
            self._is_positioned.set()
            self._is_ready.set()
            await consumer.stop()

    def _note_report(self, value: bytes | None) -> None:
        report = None if value is None else parse_or_none(value)
        if isinstance(report, dict) and report.get("phase") == "ready":
            status = PartitionStatus.model_validate(report)
            self._missing.discard((status.role, status.partition))
