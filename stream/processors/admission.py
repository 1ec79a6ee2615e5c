"""Taking queries in: decoding, finding their streams, counting their rows; refusing what is wrong, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from schemas import MAX_EVENT_BYTES, Query, TableSource
from schemas.wire import Codec, MalformedEventError, struct
from stream.data import TableStore
from stream.processors.base import RecordLike
from stream.processors.hosted import HostedStreams
from stream.processors.rejections import Rejection
from stream.processors.topics import Topics, partition_of

_decode_query: Any = msgspec.json.Decoder(struct(Query)).decode
_query_codec: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Batch:
    """The admitted queries of some records, in parallel columns, and the rejections; ``places`` index the records."""

    records: Sequence[RecordLike]
    rejected: list[tuple[int, Rejection]]
    unknown: bool
    places: Sequence[int] = ()
    ids: Sequence[str] = ()
    slots: Sequence[int] = ()
    values: Sequence[float] = ()
    thresholds: Sequence[float | None] = ()
    offsets: Sequence[int] = ()
    payloads: Sequence[bytes] = ()


class Admission:
    """Admits the queries of one partition. It changes nothing: the same records can be admitted again."""

    def __init__(self, topics: Topics, partition: int, streams: HostedStreams, tables: TableStore) -> None:
        self._topics = topics
        self._partition = partition
        self._streams = streams
        self._tables = tables

    def admit(self, records: Sequence[RecordLike]) -> Batch:
        """Sort records into queries to be answered and rejections."""
        rows: list[tuple[int, str, int, float, float | None, int, bytes]] = []
        rejected: list[tuple[int, Rejection]] = []
        slot_of, over_values = self._streams.slots.get, self._streams.over_values
        unknown = False
        for place, record in enumerate(records):
            value = record.value
            if value is None or len(value) > MAX_EVENT_BYTES:
                rejected.append((place, _malformed(value)))
                continue
            try:
                query = _decode_query(value)
            except _UNREADABLE:
                rejected.append((place, _malformed(value)))
                continue
            name = query.stream
            slot = slot_of(name)
            number = query.value
            if slot is None:
                unknown = True
                rejected.append((place, self._unknown(name)))
                continue
            if number is None or query.where is not None or not over_values[slot]:
                try:
                    number = self._count(slot, number, query.where)
                except Rejection as rejection:
                    rejected.append((place, rejection))
                    continue
            rows.append((place, query.id, slot, number, query.threshold, record.offset, value))
        if not rows:
            return Batch(records, rejected, unknown)
        return Batch(records, rejected, unknown, *zip(*rows, strict=True))

    def _count(self, slot: int, number: float | None, where: str | None) -> float:
        """The true count of a predicate; every private number of a table comes from here."""
        source = self._streams.terms_at(slot).source
        if (number is None) == (where is None):
            raise Rejection("malformed", "value, where: give exactly one of them")
        if not isinstance(source, TableSource):
            raise Rejection("malformed", "where: this stream's source has no table; send a 'value' instead")
        if where is None:
            raise Rejection(
                "malformed", "value: this stream's source is a table; send a 'where' predicate instead"
            )
        if self._streams.refused[slot]:
            return 0.0
        try:
            table = self._tables.get(source, self._streams.terms_at(slot).fingerprint)
            return float(table.count(self._tables.predicate(source, where)))
        except ValueError as error:
            raise Rejection("predicate", f"where: {error}") from None

    def _unknown(self, stream: str) -> Rejection:
        home = partition_of(stream.encode(), self._topics.partitions)
        if home != self._partition:
            return Rejection(
                "wrong-partition",
                f"stream: belongs in partition {home}, came in {self._partition}; "
                "key events by stream with the murmur2 partitioner (librdkafka: partitioner=murmur2_random)",
            )
        return Rejection("unknown-stream", "stream: no such stream is open; open it first")


def _malformed(value: bytes | None) -> Rejection:
    """What the contract's own model says is wrong with an event that the fast path refused."""
    try:
        _query_codec.decode(value)
    except MalformedEventError as error:
        code = "too-large" if value is not None and len(value) > MAX_EVENT_BYTES else "malformed"
        return Rejection(code, str(error))
    return Rejection("malformed", "event: a field is given twice, or the text is not UTF-8; send each field once")
