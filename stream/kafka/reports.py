"""Telling the status topic how far a partition's restore is."""

from __future__ import annotations

import time
from typing import Literal

from schemas import PartitionStatus
from stream.kafka.roles import ServiceName
from stream.kafka.writer import Writer
from stream.processors.base import Outputs

INTERVAL = 2.0
"""Seconds between two reports of one restore."""


class RestoreReport:
    """One restore: ``records`` read so far, of at most ``total`` offsets.

    Reports go out by the partition's own writer, in transactions of their own: whoever has been fenced cannot report.
    """

    def __init__(self, topic: str, role: ServiceName, partition: int, member: str) -> None:
        self.records = 0
        self.total = 0
        self._topic = topic
        self._role = role
        self._partition = partition
        self._member = member
        self._began = self._reported = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._began

    async def progress(self, writer: Writer) -> None:
        """Say how far it is, if it is time to."""
        if time.monotonic() - self._reported >= INTERVAL:
            self._reported = time.monotonic()
            await self._write(writer, "restoring")

    async def ready(self, writer: Writer) -> None:
        """Say that it is over."""
        await self._write(writer, "ready")

    async def _write(self, writer: Writer, phase: Literal["restoring", "ready"]) -> None:
        status = PartitionStatus(
            role=self._role,
            partition=self._partition,
            member=self._member,
            phase=phase,
            records=self.records,
            total=self.total,
            seconds=round(self.seconds, 3),
        )
        outputs = Outputs()
        key = f"@{self._role}|{self._partition}".encode()
        outputs.add(self._topic, self._partition, (key, status.model_dump_json().encode(), ()))
        await writer.commit(outputs, {})
