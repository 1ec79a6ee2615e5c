"""Taking queries in: decoding, finding their streams, counting their rows; refusing what is wrong, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from schemas import MAX_EVENT_BYTES, Query
from schemas.repeats import REPEATED, may_repeat_a_field, repeats_a_field
from schemas.wire import Codec, MalformedEventError, struct
from stream.kernel import Spans, spans_of
from stream.processors.base import RecordLike
from stream.processors.columns import RecordColumns
from stream.processors.queries.families import Families
from stream.processors.queries.families.base import Asked, Context
from stream.processors.queries.families.rows import Row, Rows
from stream.processors.queries.hosted import CONTROL_UNREAD
from stream.processors.queries.shares import Shares
from stream.processors.queries.work import Workload
from stream.processors.rejections import Rejection
from stream.processors.topics import Topics, partition_of
from stream.processors.unread import Unread
from stream.processors.written import readable

_PLAIN_FIELDS = frozenset({"id", "stream", "value", "threshold"})
_PlainQuery: Any = struct(Query, only=_PLAIN_FIELDS)
_decode_plain: Any = msgspec.json.Decoder(_PlainQuery).decode
_decode_query: Any = msgspec.json.Decoder(struct(Query)).decode
_query_codec: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_REPEATED = Rejection("malformed", REPEATED)


@dataclass(frozen=True, slots=True)
class Reading:
    """Some records, read and found to belong to streams.

    Values for plain streams are ready as ``rows``; ``waiting`` has place, slot and content of the other questions that
    are taken on, and ``shares`` are as they will be then.
    """

    records: Sequence[RecordLike]
    rejected: list[tuple[int, Rejection]]
    unknown: bool
    rows: Rows
    waiting: list[tuple[int, int, Any]]
    shares: Shares

    def is_of(self, records: Sequence[RecordLike]) -> bool:
        """Whether these are the records that were read."""
        mine = self.records
        if isinstance(mine, RecordColumns):
            return mine.are(records)
        return len(mine) == len(records) and (not mine or (mine[0] is records[0] and mine[-1] is records[-1]))


@dataclass(frozen=True, slots=True)
class Batch:
    """The admitted queries of some records, those to answer in columns and those to answer one by one, and the rejections."""

    rejected: list[tuple[int, Rejection]]
    asked: Sequence[Asked]
    rows: Rows


class Admission:
    """Admits the queries of one partition: reads them, and then does the work they ask for. It changes nothing.

    ``shares`` are those that the next records are read with.
    """

    def __init__(self, topics: Topics, context: Context, families: Families, shares: Shares) -> None:
        self._topics = topics
        self._context = context
        self._families = families
        self.shares = shares
        self._workload = Workload(context)

    def read(self, records: Sequence[RecordLike], budget: float = math.inf) -> Reading:
        """Read records, up to the one whose work uses the budget up."""
        rows: list[Row] = []
        waiting: list[tuple[int, int, Any]] = []
        shares = self.shares.copy()
        rejected: list[tuple[int, Rejection]] = []
        streams = self._context.streams
        slot_of, plain = streams.slots.get, streams.columns.plain
        unknown, decode = False, _decode_plain
        scanned, places = self._scan(records)
        for place in places:
            record = records[place]
            value = record.value
            if value.__class__ is not bytes or len(value) > MAX_EVENT_BYTES:
                rejected.append((place, _unfit(value)))
                continue
            try:
                query = decode(value)
            except _UNREADABLE:
                query = None
            try:
                query = query or _decoded(value)
                slot = slot_of(query.stream)
                if slot is None:
                    unknown = unknown or query.stream not in streams.unread
                    raise self._unknown(query.stream)
                if query.__class__ is not _PlainQuery and plain[slot]:
                    query = _plainly(value) or query
                if query.__class__ is _PlainQuery and plain[slot] and query.value is not None:
                    decode = _decode_plain
                    rows.append((place, query.id, slot, query.value, query.threshold, record.offset, value))
                    continue
                # The next query is probably to a stream of the same sort.
                decode = _decode_plain if plain[slot] else _decode_query
                query = _each_once(value, query)
                work = self._workload.of(slot, query)
                shares.take(slot, work, record.timestamp)
            except _UNREADABLE:
                rejected.append((place, _malformed(value)))
                continue
            except Rejection as rejection:
                rejected.append((place, rejection))
                continue
            waiting.append((place, slot, query))
            budget -= work
            if budget <= 0:
                records = records[: place + 1]
                break
        found = scanned.before(len(records)).and_also(Rows.of(_without_repeats(rows, rejected)))
        return Reading(records, rejected, unknown, found, waiting, shares)

    def _scan(self, records: Sequence[RecordLike]) -> tuple[Rows, Iterable[int]]:
        """The plain queries that can be read all at once, and the places of the other records."""
        streams = self._context.streams
        events = _events(records)
        if (scanned := streams.texts.scan(events, MAX_EVENT_BYTES)) is None:
            return Rows.of(()), range(len(records))
        taken = scanned.read
        taken[taken] = streams.columns.plain[scanned.slots[taken]]
        offsets = (
            records.offsets
            if isinstance(records, RecordColumns)
            else np.array([record.offset for record in records], dtype=np.int64)
        )
        everything = np.arange(len(records))
        _, ids, slots, values, thresholds = scanned
        rows = Rows(everything, ids, slots, values, thresholds, offsets, events)
        return (rows, ()) if taken.all() else (rows.picked(everything[taken]), everything[~taken].tolist())

    def admit(self, reading: Reading) -> Batch:
        """Do the work that questions ask for, in order."""
        rejected = reading.rejected.copy()
        asked: list[Asked] = []
        resolved: list[Row] = []
        kinds, one_by_one = self._context.streams.kinds, self._families.one_by_one
        for place, slot, query in reading.waiting:
            record = reading.records[place]
            payload = record.value or b""
            try:
                content = self._resolve(slot, query)
            except Rejection as rejection:
                rejected.append((place, rejection))
                continue
            if kinds[slot] in one_by_one:
                asked.append(Asked(place, query.id, slot, record.offset, payload, content))
            else:
                resolved.append((place, query.id, slot, content, query.threshold, record.offset, payload))
        if reading.waiting:
            rejected.sort(key=itemgetter(0))
        return Batch(rejected, asked, reading.rows.and_also(Rows.of(resolved)))

    def _resolve(self, slot: int, query: Any) -> Any:
        """What the stream's family makes of a question; every private number comes from here.

        A stream that this worker must not answer for is not looked up: its table may not be the right one.
        """
        streams = self._context.streams
        if streams.columns.refused[slot]:
            return 0.0
        if query.threshold is not None and not streams.terms_at(slot).is_sparse_vector:
            raise Rejection("malformed", "threshold: this stream's mechanism compares with none; remove it")
        return self._families.of(streams.kinds[slot]).admit(slot, query)

    def _unknown(self, stream: str) -> Rejection:
        home = partition_of(stream.encode(), self._topics.partitions)
        if home != self._context.partition:
            return Rejection(
                "wrong-partition",
                f"stream: belongs in partition {home}, came in {self._context.partition}; "
                "key events by stream with the murmur2 partitioner (librdkafka: partitioner=murmur2_random)",
            )
        if stream in self._context.streams.unread:
            return Rejection("unknown-stream", f"stream: {CONTROL_UNREAD}")
        return Rejection("unknown-stream", "stream: no such stream is open; open it first")


def _events(records: Sequence[RecordLike]) -> Spans:
    """The bytes of records; nothing where there are none, or none that could be read."""
    if isinstance(records, RecordColumns):
        return records.values
    return spans_of([value if (value := one.value).__class__ is bytes else b"" for one in records])


def _decoded(value: bytes) -> Any:
    """A query of any form, whose numbers may be of any size."""
    try:
        return _decode_query(value)
    except msgspec.ValidationError:
        return _decode_query(readable(value))


def _plainly(value: bytes) -> Any:
    """A query with a trusted value and nothing else that there may be; None if it is another, or none."""
    try:
        return _decode_plain(value)
    except _UNREADABLE:
        return None


def read_query(value: bytes) -> Any:
    """A query of any form, which gives each field once."""
    return _each_once(value, _decoded(value))


def _each_once(value: bytes, query: Any) -> Any:
    """The query of any form that was read, if only plainly, from a text that gives each field once."""
    if query.__class__ is _PlainQuery:
        query = _decoded(value)
    # Candidates are the one part of a query that is not written without its defaults.
    unsure = query.candidates is not None or may_repeat_a_field(value, query)
    if unsure and repeats_a_field(value):
        raise _REPEATED
    return query


def _unfit(value: bytes | None) -> Rejection:
    """What is wrong with what is no event: nothing, more than an event may hold, or what could not be read."""
    return value.rejection if isinstance(value, Unread) else _malformed(value)


def _malformed(value: bytes | None) -> Rejection:
    """What the contract's own model says is wrong with an event that the fast path refused."""
    try:
        _query_codec.decode(readable(value) if value is not None and len(value) <= MAX_EVENT_BYTES else value)
    except MalformedEventError as error:
        code = "too-large" if value is not None and len(value) > MAX_EVENT_BYTES else "malformed"
        return Rejection(code, str(error))
    return Rejection("malformed", "event: the text is not UTF-8; send UTF-8")


def _quotes_of_plain(threshold: float | None) -> int:
    """Quotation marks in a plain query that has each field once, and none in its id: two a name and two a text."""
    return 10 if threshold is None else 12


def _without_repeats(rows: list[Row], rejected: list[tuple[int, Rejection]]) -> list[Row]:
    """Plain queries without those that give a field twice.

    Few batches have any, so that quotation marks are counted over all of a batch at once: none of its plain queries can
    have fewer than it must.
    """
    joined = np.frombuffer(b"".join([row[6] for row in rows]), dtype=np.uint8)
    least = 12 * len(rows) - 2 * [row[4] for row in rows].count(None)
    if np.count_nonzero(joined == ord('"')) == least:
        return rows
    kept = []
    for row in rows:
        if row[6].count(b'"') != _quotes_of_plain(row[4]) and repeats_a_field(row[6]):
            rejected.append((row[0], _REPEATED))
        else:
            kept.append(row)
    rejected.sort(key=itemgetter(0))
    return kept
