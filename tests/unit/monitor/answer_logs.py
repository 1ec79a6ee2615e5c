"""A consumer of answers in memory, for ``AnswerLog``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Self

from stream.processing.protocol import Record


class InMemoryConsumer:
    """Reads the records that ``records`` returns; ``fetched`` counts the bytes that it has given out."""

    def __init__(self, topic: str, records: Callable[[], Sequence[Record]]) -> None:
        self._topic = topic
        self._records = records
        self._position = 0
        self._partition = -1
        self.fetched = 0

    def __call__(self, *_: Any, **__: Any) -> Self:
        """Return the consumer, like ``reader``."""
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop."""

    async def topics(self) -> set[str]:
        return {self._topic}

    def assign(self, partitions: list[Any]) -> None:
        [one] = partitions
        self._partition = one.partition

    def seek(self, _: Any, offset: int) -> None:
        self._position = offset

    async def seek_to_beginning(self, _: Any) -> None:
        self._position = 0

    async def position(self, _: Any) -> int:
        return self._position

    async def beginning_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    async def end_offsets(self, partitions: list[Any]) -> dict[Any, int]:
        return dict.fromkeys(partitions, len(self._of_partition()))

    async def offsets_for_times(self, times: dict[Any, int]) -> dict[Any, Any]:
        [(partition, time)] = times.items()
        found = next((one.offset for one in self._of_partition() if one.timestamp >= time), None)
        return {partition: None if found is None else SimpleNamespace(offset=found)}

    async def getmany(self, partition: Any, *, timeout_ms: int, max_records: int) -> dict[Any, list[Record]]:
        del timeout_ms
        records = list(self._of_partition()[self._position : self._position + max_records])
        self._position += len(records)
        self.fetched += sum(len(one.value or b"") for one in records)
        return {partition: records}

    def _of_partition(self) -> list[Record]:
        return [one for one in self._records() if one.partition == self._partition]
