"""Records and messages in columns; single records and messages are created on access."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, overload

import numpy as np
import numpy.typing as npt

from stream.kernel.byte_columns import Column, Spans, concatenate_spans
from stream.processing.protocol import Message, Record, RecordLike

_NO_HEADERS: Final = ()


@dataclass(slots=True, eq=False, kw_only=True)
class RecordColumns(Sequence[Record]):
    """Records of one partition without headers, in the order of their offsets.

    ``timestamp_type`` is 0 if producers set the timestamps, 1 if the broker did, and None outside Kafka.
    """

    all_are_read: ClassVar = True

    topic: str = field(kw_only=False)
    partition: int = field(kw_only=False)
    offsets: Column
    timestamps: Column
    keys: Spans
    values: Spans
    timestamp_type: int | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> RecordColumns: ...
    def __getitem__(self, index: int | slice) -> Record | RecordColumns:
        if isinstance(index, slice):
            return self.gather(index)
        return Record(
            self.topic,
            self.partition,
            int(self.offsets[index]),
            int(self.timestamps[index]),
            _text_or_none(self.keys, index),
            _text_or_none(self.values, index),
        )

    def __iter__(self) -> Iterator[Record]:
        topic, partition = self.topic, self.partition
        columns = (
            self.offsets.tolist(),
            self.timestamps.tolist(),
            _texts_or_none(self.keys),
            _texts_or_none(self.values),
        )
        for offset, timestamp, key, value in zip(*columns, strict=True):
            yield Record(topic, partition, offset, timestamp, key, value)

    def gather(self, indexes: npt.NDArray[Any] | slice) -> RecordColumns:
        """Return the records at these indexes."""
        return replace(
            self,
            offsets=self.offsets[indexes],
            timestamps=self.timestamps[indexes],
            keys=self.keys.gather(indexes),
            values=self.values.gather(indexes),
        )


def select_records(records: Sequence[RecordLike], indexes: npt.NDArray[Any]) -> Iterable[RecordLike]:
    """Return the records at these indexes."""
    if isinstance(records, RecordColumns):
        return records.gather(indexes)
    return [records[index] for index in indexes.tolist()]


def count_bytes(records: Sequence[Any]) -> int:
    """Return the number of bytes in keys, values and headers."""
    if isinstance(records, RecordColumns):
        return int(records.keys.size.sum() + records.values.size.sum())
    return sum(
        len(record.key or b"")
        + len(record.value or b"")
        + sum(len(name) + len(text or b"") for name, text in record.headers)  # a header may have no value
        for record in records
    )


def can_be_concatenated(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Return True if two fetches of a partition can form one batch."""
    if isinstance(first, RecordColumns):
        return isinstance(second, RecordColumns) and first.timestamp_type == second.timestamp_type
    return not isinstance(second, RecordColumns)


def concatenate(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Concatenate fetches of a partition for which ``can_be_concatenated`` is True."""
    columns = [part for part in parts if isinstance(part, RecordColumns)]
    if not columns:
        return [record for part in parts for record in part]
    return replace(
        columns[0],
        offsets=np.concatenate([part.offsets for part in columns]),
        timestamps=np.concatenate([part.timestamps for part in columns]),
        keys=concatenate_spans([part.keys for part in columns]),
        values=concatenate_spans([part.values for part in columns]),
    )


@dataclass(slots=True, eq=False)
class MessageColumns(Sequence[Message]):
    """Messages without headers, each with a key and a value."""

    keys: Spans
    values: Spans

    def __len__(self) -> int:
        return len(self.values)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> MessageColumns: ...
    def __getitem__(self, index: int | slice) -> Message | MessageColumns:
        if isinstance(index, slice):
            return MessageColumns(self.keys[index], self.values[index])
        return (self.keys[index], self.values[index], _NO_HEADERS)

    def __iter__(self) -> Iterator[Message]:
        return ((key, value, _NO_HEADERS) for key, value in zip(self.keys, self.values, strict=True))


def _text_or_none(texts: Spans, index: int) -> bytes | None:
    return None if texts.size[index] < 0 else texts[index]


def _texts_or_none(texts: Spans) -> Iterator[bytes | None]:
    return (None if size < 0 else text for text, size in zip(texts, texts.size.tolist(), strict=True))
