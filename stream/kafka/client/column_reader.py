"""Reads fetched records into columns (arrays), without a Python object for each record."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
from aiokafka import ConsumerRecord
from aiokafka.errors import CorruptRecordException

from stream.kafka.client.batch_frames import (
    APPEND_TIME,
    ATTRIBUTES,
    FIRST_TIMESTAMP,
    HEADER_BYTES,
    LAST_DELTA,
    MAX_TIMESTAMP,
)
from stream.kafka.client.batch_reader import BoundedBatch
from stream.kafka.client.client_patches import fetcher
from stream.kernel import RecordReader, compiled
from stream.processing.record_columns import RecordColumns

_PartitionRecords: Final[Any] = fetcher.PartitionRecords
_FetchResult: Final[Any] = fetcher.FetchResult


class ColumnRecords(_PartitionRecords):  # type: ignore[misc]  # aiokafka is not typed
    """The fetched records of a partition, which are returned in columns if possible."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        # aiokafka's own iterator would keep the fetched data in memory until a garbage collection.
        self._records_iterator = iter(())
        self._batches = self._readable_batches()
        self._ahead: Any = None
        self._rest: RecordColumns | Iterator[ConsumerRecord] | None = None
        self._following = self.next_fetch_offset
        """The next offset to fetch after ``_rest``, the records that are read but not yet taken."""

    def take(self, most: int) -> list[ConsumerRecord] | RecordColumns:
        """Returns the next records, at most ``most``: all in columns, or all as aiokafka's records."""
        found: list[ConsumerRecord] = []
        while len(found) < most and self._has_rest(most):
            if isinstance(rest := self._rest, RecordColumns):
                if found:
                    break
                taken = rest[:most]
                self.next_fetch_offset = int(taken.offsets[-1]) + 1
                self._rest = rest[most:]
                if len(rest) <= most:
                    self._end_rest()
                return taken
            room = most - len(found)
            some = list(islice(rest or (), room))
            if some:
                self.next_fetch_offset = some[-1].offset + 1
            if len(some) < room:
                self._end_rest()
            found += some
        return found

    @property
    def is_over(self) -> bool:
        """Whether all records have been taken."""
        if self._rest is None and self._ahead is None and (ahead := self._next()) is not None:
            self._ahead = ahead
        return self._rest is None and self._ahead is None

    def _end_rest(self) -> None:
        self._rest, self.next_fetch_offset = None, self._following

    def _has_rest(self, most: int) -> bool:
        if self._rest is None and (batch := self._next()) is not None:
            # A batch keeps its last offset even if compaction has removed the last record.
            self._following = batch.next_offset
            self._rest = self._in_columns(batch, most) or self._one_by_one(batch)
        return self._rest is not None

    def _next(self) -> Any:
        """Returns the next readable batch; None if there is none."""
        if self._ahead is not None:
            batch, self._ahead = self._ahead, None
            return batch
        for batch, is_read in self._batches:
            if is_read:
                return batch
            self._following = batch.next_offset
            if self._rest is None:
                self.next_fetch_offset = batch.next_offset
        return None

    def _readable_batches(self) -> Iterator[tuple[Any, bool]]:
        """Yields each batch, and whether it has committed records (not aborted, no control batch)."""
        while self._records.has_next():
            batch = self._records.next_batch()
            if self._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"Invalid CRC - {self._tp}")
            aborted = False
            if self._isolation_level == fetcher.READ_COMMITTED and batch.producer_id is not None:
                self._consume_aborted_up_to(batch.base_offset)
                if batch.is_control_batch and self._contains_abort_marker(batch):
                    self._aborted_producers.discard(batch.producer_id)
                aborted = batch.is_transactional and batch.producer_id in self._aborted_producers
            yield batch, not (aborted or batch.is_control_batch)

    def _one_by_one(self, batch: Any) -> Iterator[ConsumerRecord]:
        following = self.next_fetch_offset
        for record in batch:
            if record.offset >= following:
                following = record.offset + 1
                yield self._consumer_record(self._tp, record)

    def _in_columns(self, first: Any, most: int) -> RecordColumns | None:
        """Reads a batch and the next ones in its buffer into columns; None if that is impossible."""
        if not isinstance(first, BoundedBatch) or (found := first.unfolded()) is None:
            return None
        buffer, place = found
        reader = RecordReader(buffer, max(most, first.count))
        if not _read(reader, first, buffer, place):
            return None
        self._rest = iter(())  # so that `_next` skips no offset: this batch is not taken yet
        while reader.rows < most and (batch := self._next()) is not None:
            fits = (
                isinstance(batch, BoundedBatch)
                and batch.data is buffer
                and reader.rows + batch.count <= most
                and batch.timestamp_type == first.timestamp_type
            )
            if not fits or (found := batch.unfolded()) is None or found[0] is not buffer:
                self._ahead = batch
                break
            if not _read(reader, batch, buffer, found[1]):
                self._ahead = batch
                break
            self._following = batch.next_offset
        offsets, times, keys, values = reader.columns()
        records = RecordColumns(
            self._tp.topic,
            self._tp.partition,
            offsets=offsets,
            timestamps=times,
            keys=keys,
            values=values,
            timestamp_type=first.timestamp_type,
        )
        return records[int(np.searchsorted(offsets, self.next_fetch_offset)) :]


def _read(reader: RecordReader, batch: BoundedBatch, buffer: memoryview, place: slice) -> bool:
    head = buffer[place.start : place.start + HEADER_BYTES]
    appended = int.from_bytes(head[MAX_TIMESTAMP], "big", signed=True)
    return reader.read(
        place.start + HEADER_BYTES,
        place.stop,
        count=batch.count,
        last_delta=int.from_bytes(head[LAST_DELTA], "big", signed=True),
        base=batch.base_offset,
        first_time=int.from_bytes(head[FIRST_TIMESTAMP], "big", signed=True),
        appended=appended if head[ATTRIBUTES] & APPEND_TIME else -1,
    )


class ColumnResult(_FetchResult):  # type: ignore[misc]  # aiokafka is not typed
    """The result of a fetch from one partition, which returns columns."""

    _partition_records: Any

    def getall(self, max_records: int | None = None) -> Sequence[Any]:
        """Returns up to ``max_records`` of the next records."""
        records = self._partition_records
        if not self.check_assignment(self._topic_partition) or not self.has_more():
            return []
        taken: Sequence[Any] = records.take(sys.maxsize if max_records is None else max_records)
        self._update_position()
        if records.is_over:
            self._update_position()
            self._partition_records = None
        return taken


def install() -> None:
    """Makes Sotto's consumers return columns if the kernel is compiled.

    Raises:
        RuntimeError: aiokafka has another version.
    """
    if compiled() is None:
        return
    if fetcher.PartitionRecords not in {_PartitionRecords, ColumnRecords}:
        raise RuntimeError(
            "aiokafka.consumer.fetcher has other PartitionRecords; install the version that Sotto requires"
        )
    fetcher.PartitionRecords, fetcher.FetchResult = ColumnRecords, ColumnResult
