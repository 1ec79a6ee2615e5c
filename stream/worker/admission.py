"""Admits queries: decodes them, finds their streams, reads private numbers, and rejects invalid queries.

A ``place`` is the index of a record in its batch; a ``slot`` is the number of a stream in its
partition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from schemas import MAX_EVENT_BYTES, Query, query_codec
from schemas.base import REPEATED_FIELD, may_repeat_a_field, repeats_a_field
from schemas.wire import DECODE_ERRORS, MalformedEventError, struct
from stream.kernel.byte_columns import Column, spans_of
from stream.privacy.mechanisms.private_values import MAX_ENCODED, replace_extreme_numbers
from stream.processing.dead_letters import Rejection, UnreadableValue, malformed_rejection
from stream.processing.protocol import Batch, RecordLike
from stream.processing.record_columns import RecordColumns, select_records
from stream.processing.topic_names import Topics, partition_of
from stream.worker.fair_shares import Shares, WorkEstimator
from stream.worker.families import Families
from stream.worker.families.context import AdmittedQuestion, Context, TableFreedError
from stream.worker.families.sparse_vector_family import QuestionRows, Row
from stream.worker.hosted_streams import CONTROL_UNREAD, PLAIN_FLAG, STANDING_FLAG
from stream.worker.stream_records import HaltedAnswer
from stream.worker.stream_terms import count_quotes, window_and_group_of


class _UndefinedStreamRejection(Rejection):
    """The refusal of a question to a stream that no control event has defined yet."""


class QueryForm(NamedTuple):
    """A struct for queries with certain fields, and its decoder."""

    struct_type: Any
    decode: Callable[[bytes], Any]


def _make_form(kind: Any) -> QueryForm:
    return QueryForm(kind, msgspec.json.Decoder(kind).decode)


_PLAIN_FIELDS = frozenset({"id", "stream", "value", "threshold"})
_FULL_FORM: Final = _make_form(struct(Query))
PLAIN_FORM: Final = _make_form(struct(Query, only=_PLAIN_FIELDS))
"""The form of a query with a value and no other fields."""
_WINDOW_FORM: Final = _make_form(struct(Query, only=_PLAIN_FIELDS | {"window", "group"}))
QUERY_FORMS: Final = (_FULL_FORM, PLAIN_FORM, _FULL_FORM, _WINDOW_FORM)
"""Query forms, indexed by the stream's flags: a combination of ``PLAIN_FLAG`` and ``STANDING_FLAG``."""

_REPEATED_FIELD = malformed_rejection(REPEATED_FIELD)


def decode_in_form(form: QueryForm, value: bytes, query: Any) -> Any:
    """Decode an event in its stream's form; if it has further fields, return ``query``, which is decoded already."""
    if form is _FULL_FORM:
        return decode_in_full_form(value)
    try:
        return form.decode(value)
    except DECODE_ERRORS:
        return query


def decode_in_full_form(value: bytes) -> Any:
    """Decode a query of any form, with numbers of any size."""
    try:
        return _FULL_FORM.decode(value)
    except msgspec.ValidationError:
        return _FULL_FORM.decode(replace_extreme_numbers(value))


def require_unique_fields(value: bytes, query: Any) -> Any:
    """Return a query, decoded in full form; Rejection if its JSON repeats a field."""
    if query.__class__ is not _FULL_FORM.struct_type:
        query = decode_in_full_form(value)
    # The cheap check encodes the query without defaults, but candidates are encoded with theirs.
    unsure = query.candidates is not None or may_repeat_a_field(value, query)
    if unsure and repeats_a_field(value):
        raise _REPEATED_FIELD.with_traceback(None)
    return query


def _has_readable_size(value: bytes) -> bool:
    """Return True if an event is not too large to decode; the limit is higher with the texts of a window."""
    size = len(value)
    return size <= MAX_EVENT_BYTES or (size <= MAX_EVENT_BYTES + MAX_ENCODED and b'"texts":"' in value)


def _require_size(query: Any, value: bytes) -> Any:
    """Return the query; Rejection if the event exceeds the size limit even without its window's texts."""
    if len(value) > MAX_EVENT_BYTES and len(value) > MAX_EVENT_BYTES + len(getattr(query, "texts", None) or ""):
        raise rejection_of_malformed(value)
    return query


def rejection_of_malformed(value: bytes | None) -> Rejection:
    """Return the pydantic model's rejection of an event that the fast decoder refused."""
    try:
        query_codec.decode(
            replace_extreme_numbers(value) if value is not None and len(value) <= MAX_EVENT_BYTES else value
        )
    except MalformedEventError as error:
        code = "too-large" if value is not None and len(value) > MAX_EVENT_BYTES else "malformed"
        return Rejection(code, str(error))
    return malformed_rejection("event: the text is not UTF-8; send UTF-8")


def reject_repeated_fields(rows: list[Row], rejected: list[tuple[int, Rejection]]) -> list[Row]:
    """Reject plain queries that repeat a field, and return the others.

    A query that repeats a field has more quotation marks than its fields need. Repeated fields are
    rare, so the quotation marks of the whole batch are counted first.
    """
    joined = np.frombuffer(b"".join([row[6] for row in rows]), dtype=np.uint8)
    least = 12 * len(rows) - 2 * [row[4] for row in rows].count(None)
    found = int(np.count_nonzero(joined == ord('"')))
    if found == least or found == least + sum(count_quotes(row[7].group) for row in rows if row[7] is not None):
        return rows
    kept = []
    for row in rows:
        expected = (10 if row[4] is None else 12) + (0 if row[7] is None else count_quotes(row[7].group))
        if row[6].count(b'"') != expected and repeats_a_field(row[6]):
            rejected.append((row[0], _REPEATED_FIELD))
        else:
            kept.append(row)
    rejected.sort(key=itemgetter(0))
    return kept


@dataclass(frozen=True)
class QueryBatch(Batch):
    """Decoded records, assigned to streams.

    - ``rejected``: place and refusal of each invalid query.
    - ``rows``: the questions that need no table.
    - ``unresolved``: place, slot and query of each other question.
    - ``retired``: place, query and fields of the answer of each question to a retired stream.
    - ``shares``: the fair shares after this batch.
    """

    rejected: list[tuple[int, Rejection]] = field(kw_only=True)
    rows: QuestionRows = field(kw_only=True)
    unresolved: list[tuple[int, int, Any]] = field(kw_only=True)
    retired: list[tuple[int, Any, HaltedAnswer]] = field(kw_only=True)
    shares: Shares = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class AdmittedBatch:
    """Rejections and admitted questions: ``questions`` are answered one by one, ``rows`` together."""

    rejected: list[tuple[int, Rejection]]
    questions: Sequence[AdmittedQuestion]
    rows: QuestionRows


class Admission:
    """Reads the queries of one partition and resolves them to private numbers.

    Admission changes no state: the processor stores the ``shares`` of a batch when it answers the batch.
    """

    def __init__(self, topics: Topics, context: Context, families: Families, shares: Shares) -> None:
        self._topics = topics
        self._context = context
        self._families = families
        self.shares = shares
        self._work_estimator = WorkEstimator(context)

    def read_queries(self, records: Sequence[RecordLike], work_limit: float = math.inf) -> QueryBatch:
        """Read records until their estimated work reaches ``work_limit``."""
        rows: list[Row] = []
        unresolved: list[tuple[int, int, Any]] = []
        retired: list[tuple[int, Any, HaltedAnswer]] = []
        shares = self.shares.copy()
        rejected: list[tuple[int, Rejection]] = []
        streams = self._context.streams
        slot_of, flags = streams.slots.get, streams.flags
        unknown, form = False, PLAIN_FORM
        scanned, places = self._scan_plain(records)
        for place, record in zip(places.tolist(), select_records(records, places), strict=True):
            value = record.value
            if value.__class__ is not bytes or not _has_readable_size(value):
                rejected.append(
                    (
                        place,
                        value.rejection if isinstance(value, UnreadableValue) else rejection_of_malformed(value),
                    )
                )
                continue
            try:
                query = form.decode(value)
            except DECODE_ERRORS:
                query = None
            try:
                query = _require_size(query or decode_in_full_form(value), value)
                slot = slot_of(query.stream)
                if slot is None:
                    retired.append((place, *self._read_retired(query, value)))
                    continue
                # The next query probably goes to a stream with the same flags.
                stream_flags = flags[slot]
                form = QUERY_FORMS[stream_flags]
                if query.__class__ is not form.struct_type:
                    query = decode_in_form(form, value, query)
                window_and_group = (
                    window_and_group_of(query, streams.terms_at(slot).groups)
                    if stream_flags & STANDING_FLAG
                    else None
                )
                if stream_flags & PLAIN_FLAG and query.__class__ is form.struct_type and query.value is not None:
                    row = (
                        place,
                        query.id,
                        slot,
                        query.value,
                        query.threshold,
                        record.offset,
                        value,
                        window_and_group,
                    )
                    rows.append(row)
                    continue
                query = require_unique_fields(value, query)
                work = self._admit_work(slot, query, shares, record.timestamp)
            except DECODE_ERRORS:
                rejected.append((place, rejection_of_malformed(value)))
                continue
            except Rejection as rejection:
                unknown = unknown or isinstance(rejection, _UndefinedStreamRejection)
                rejected.append((place, rejection))
                continue
            unresolved.append((place, slot, query))
            work_limit -= work
            if work_limit <= 0:
                records = records[: place + 1]
                break
        found = scanned.before_record(len(records)).merge(
            QuestionRows.from_rows(reject_repeated_fields(rows, rejected))
        )
        return QueryBatch(
            records, unknown, rejected=rejected, rows=found, unresolved=unresolved, retired=retired, shares=shares
        )

    def _read_retired(self, query: Any, value: bytes) -> tuple[Any, HaltedAnswer]:
        """Return a question to a retired stream and the fields of its answer; Rejection for other streams."""
        if (answer := self._context.streams.retired.find(query.stream)) is None:
            raise self._rejection_of_unknown(query.stream)
        return require_unique_fields(value, query), answer

    def _admit_work(self, slot: int, query: Any, shares: Shares, timestamp: int) -> int:
        """Add a question's ``Work.share`` to its stream's share; Rejection above the limit. Return its ``Work.batch``."""
        work = self._work_estimator.estimate(slot, query)
        # A feed asks about a window only once, so its question must not be refused as busy.
        if not self._context.streams.flags[slot] & STANDING_FLAG:
            shares.admit(slot, work.share, timestamp)
        return work.batch

    def _scan_plain(self, records: Sequence[RecordLike]) -> tuple[QuestionRows, Column]:
        """Read plain queries in one pass, and return the places of the other records."""
        streams = self._context.streams
        if isinstance(records, RecordColumns):
            events = records.values
        else:
            # A missing or unreadable value is empty here, and refused later.
            events = spans_of([value if (value := one.value).__class__ is bytes else b"" for one in records])
        if (scanned := streams.encoded_names.scan(events, MAX_EVENT_BYTES)) is None:
            return QuestionRows.from_rows(()), np.arange(len(records))
        taken = scanned.is_read
        if not streams.all_are_plain:
            taken &= streams.columns.is_plain[scanned.slots]
        if streams.retired_slots:
            taken &= streams.columns.start_number[scanned.slots] != 0
        offsets = (
            records.offsets
            if isinstance(records, RecordColumns)
            else np.array([record.offset for record in records], dtype=np.int64)
        )
        everything = np.arange(len(records))
        _, ids, slots, values, thresholds = scanned
        rows = QuestionRows(everything, ids, slots, values, thresholds, offsets, events)
        return (rows if taken.all() else rows.gather(everything[taken])), everything[~taken]

    def admit(self, batch: QueryBatch) -> AdmittedBatch:
        """Resolve the batch's unresolved questions to private numbers, in order."""
        streams, one_by_one = self._context.streams, self._families.one_by_one
        kinds, flags, refused = streams.kinds, streams.flags, streams.columns.refused
        self._context.count_together(
            (slot, query)
            for _, slot, query in batch.unresolved
            if not refused[slot] and self._families.family(kinds[slot]).counts_rows
        )
        rejected = batch.rejected.copy()
        questions: list[AdmittedQuestion] = []
        resolved: list[Row] = []
        for place, slot, query in batch.unresolved:
            record = batch.records[place]
            payload = record.value or b""
            try:
                content = self._resolve(slot, query)
            except Rejection as rejection:
                rejected.append((place, rejection))
                continue
            window_and_group = (
                window_and_group_of(query, streams.terms_at(slot).groups) if flags[slot] & STANDING_FLAG else None
            )
            if kinds[slot] in one_by_one:
                questions.append(
                    AdmittedQuestion(place, query.id, slot, record.offset, payload, content, window_and_group)
                )
            else:
                resolved.append(
                    (place, query.id, slot, content, query.threshold, record.offset, payload, window_and_group)
                )
        if batch.unresolved:
            rejected.sort(key=itemgetter(0))
        return AdmittedBatch(rejected, questions, batch.rows.merge(QuestionRows.from_rows(resolved)))

    def _resolve(self, slot: int, query: Any) -> Any:
        """Make the stream's family read a question's private numbers.

        No table is read for a stream that this worker refuses or that ended: the table may be wrong or freed.
        """
        streams = self._context.streams
        if not streams.flags[slot] & STANDING_FLAG and (query.window is not None or query.group is not None):
            raise malformed_rejection("window, group: only queries to standing streams have them; remove both")
        if streams.columns.refused[slot]:
            return 0.0
        if query.threshold is not None and not streams.terms_at(slot).is_sparse_vector:
            raise malformed_rejection("threshold: this stream's mechanism has no threshold; remove the field")
        try:
            return self._families.family(streams.kinds[slot]).admit(slot, query)
        except TableFreedError:
            return 0.0

    def _rejection_of_unknown(self, stream: str) -> Rejection:
        home = partition_of(stream.encode(), self._topics.partitions)
        if home != self._context.partition:
            return Rejection(
                "wrong-partition",
                f"stream: belongs in partition {home}, but the event is in partition {self._context.partition}; "
                "key events by stream with the murmur2 partitioner (librdkafka: partitioner=murmur2_random)",
            )
        if stream in self._context.streams.unreadable_streams:
            return Rejection("unknown-stream", f"stream: {CONTROL_UNREAD}")
        return _UndefinedStreamRejection("unknown-stream", "stream: no such stream is open; open it first")
