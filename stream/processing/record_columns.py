"""Records and messages in columns; a single record or message is created on access."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, overload

import numpy as np
import numpy.typing as npt

from stream.kernel import Column, Spans, concatenate_spans
from stream.processing.protocol import Message, Record, RecordLike

_NO_HEADERS: Final = ()


@dataclass(slots=True, eq=False, kw_only=True)
class RecordColumns(Sequence[Record]):
    """Records of one partition without headers, in order of their offsets.

    ``timestamp_type`` says who set the timestamps: 0 for the producers, 1 for the broker, and None
    outside Kafka.
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
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> RecordColumns: ...
    def __getitem__(self, place: int | slice) -> Record | RecordColumns:
        if isinstance(place, slice):
            return replace(
                self,
                offsets=self.offsets[place],
                timestamps=self.timestamps[place],
                keys=self.keys[place],
                values=self.values[place],
            )
        return Record(
            self.topic,
            self.partition,
            int(self.offsets[place]),
            int(self.timestamps[place]),
            _text(self.keys, place),
            _text(self.values, place),
        )

    def __iter__(self) -> Iterator[Record]:
        topic, partition = self.topic, self.partition
        columns = (self.offsets.tolist(), self.timestamps.tolist(), _texts(self.keys), _texts(self.values))
        for offset, timestamp, key, value in zip(*columns, strict=True):
            yield Record(topic, partition, offset, timestamp, key, value)

    def gather(self, places: npt.NDArray[Any]) -> RecordColumns:
        """Return the records at some places."""
        return replace(
            self,
            offsets=self.offsets[places],
            timestamps=self.timestamps[places],
            keys=self.keys.gather(places),
            values=self.values.gather(places),
        )


def picked(records: Sequence[RecordLike], places: npt.NDArray[Any]) -> Iterable[RecordLike]:
    """Return the records at some places."""
    if isinstance(records, RecordColumns):
        return records.gather(places)
    return [records[place] for place in places.tolist()]


def size_of(records: Sequence[Any]) -> int:
    """Return the bytes of keys, values and headers."""
    if isinstance(records, RecordColumns):
        return int(records.keys.size.sum() + records.values.size.sum())
    return sum(
        len(one.key or b"")
        + len(one.value or b"")
        + sum(len(name) + len(text or b"") for name, text in one.headers)  # a header may have no value
        for one in records
    )


def are_alike(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return True if two fetches of a partition can form one batch."""
    if isinstance(some, RecordColumns):
        return isinstance(others, RecordColumns) and some.timestamp_type == others.timestamp_type
    return not isinstance(others, RecordColumns)


def concatenate(parts: Sequence[Sequence[Any]]) -> Sequence[Any]:
    """Concatenate compatible fetches of a partition."""
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
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> MessageColumns: ...
    def __getitem__(self, place: int | slice) -> Message | MessageColumns:
        if isinstance(place, slice):
            return MessageColumns(self.keys[place], self.values[place])
        return (self.keys[place], self.values[place], _NO_HEADERS)

    def __iter__(self) -> Iterator[Message]:
        return ((key, value, _NO_HEADERS) for key, value in zip(self.keys, self.values, strict=True))


def _text(texts: Spans, place: int) -> bytes | None:
    return None if texts.size[place] < 0 else texts[place]


def _texts(texts: Spans) -> Iterator[bytes | None]:
    return (None if size < 0 else text for text, size in zip(texts, texts.size.tolist(), strict=True))
