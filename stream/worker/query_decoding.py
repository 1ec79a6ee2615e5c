"""Decodes queries, first in the form of the previous query, then in full."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from schemas import MAX_EVENT_BYTES, Query
from schemas.json_limits import REPEATED, may_repeat_a_field, repeats_a_field
from schemas.wire import UNREADABLE, Codec, MalformedEventError, struct
from stream.processing.dead_letters import Rejection, Unread
from stream.processing.exact_decimals import replace_extreme_numbers
from stream.worker.families.question_columns import Row
from stream.worker.stream_terms import quotes_of


class QueryForm(NamedTuple):
    """The struct that holds the queries of one sort of stream, and its decoder."""

    kind: Any
    decode: Callable[[bytes], Any]


def _form(kind: Any) -> QueryForm:
    return QueryForm(kind, msgspec.json.Decoder(kind).decode)


_PLAIN_FIELDS = frozenset({"id", "stream", "value", "threshold"})
_FULL_FORM: Final = _form(struct(Query))
PLAIN_FORM: Final = _form(struct(Query, only=_PLAIN_FIELDS))
"""The form of a query with a trusted value and no other fields."""
_WINDOW_FORM: Final = _form(struct(Query, only=_PLAIN_FIELDS | {"window", "group"}))
QUERY_FORMS: Final = (_FULL_FORM, PLAIN_FORM, _FULL_FORM, _WINDOW_FORM)
"""Query forms by a stream's sort, a combination of ``PLAIN`` and ``STANDING``."""

_query_codec: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)

_REPEATED = Rejection("malformed", REPEATED)


def decode_as(like: QueryForm, value: bytes, query: Any) -> Any:
    """Decode a query in the form of its stream; unchanged if it has other fields."""
    if like is _FULL_FORM:
        return in_full(value)
    try:
        return like.decode(value)
    except UNREADABLE:
        return query


def in_full(value: bytes) -> Any:
    """Decode a query of any form, with numbers of any size."""
    try:
        return _FULL_FORM.decode(value)
    except msgspec.ValidationError:
        return _FULL_FORM.decode(replace_extreme_numbers(value))


def each_once(value: bytes, query: Any) -> Any:
    """Return the query in full form; Rejection if the text repeats a field."""
    if query.__class__ is not _FULL_FORM.kind:
        query = in_full(value)
    # Only candidates may be written with defaults, which the cheap check does not count.
    unsure = query.candidates is not None or may_repeat_a_field(value, query)
    if unsure and repeats_a_field(value):
        raise _REPEATED
    return query


def unfit(value: bytes | None) -> Rejection:
    """Return the rejection of a missing, oversized or unreadable event."""
    return value.rejection if isinstance(value, Unread) else malformed(value)


def malformed(value: bytes | None) -> Rejection:
    """Return the model's rejection of an event that the fast decoder refused."""
    try:
        _query_codec.decode(
            replace_extreme_numbers(value) if value is not None and len(value) <= MAX_EVENT_BYTES else value
        )
    except MalformedEventError as error:
        code = "too-large" if value is not None and len(value) > MAX_EVENT_BYTES else "malformed"
        return Rejection(code, str(error))
    return Rejection("malformed", "event: the text is not UTF-8; send UTF-8")


def _quotes_of_plain(row: Row) -> int:
    """Count the quotation marks of a plain query without repeated fields or escapes."""
    about = row[7]
    return (10 if row[4] is None else 12) + (0 if about is None else quotes_of(about.group))


def without_repeats(rows: list[Row], rejected: list[tuple[int, Rejection]]) -> list[Row]:
    """Reject plain queries that repeat a field, and return the others.

    Repeated fields are rare, so quotation marks are first counted over the whole batch: no query can
    have fewer than its fields require.
    """
    joined = np.frombuffer(b"".join([row[6] for row in rows]), dtype=np.uint8)
    least = 12 * len(rows) - 2 * [row[4] for row in rows].count(None)
    found = int(np.count_nonzero(joined == ord('"')))
    if found == least or found == least + sum(quotes_of(row[7].group) for row in rows if row[7] is not None):
        return rows
    kept = []
    for row in rows:
        if row[6].count(b'"') != _quotes_of_plain(row) and repeats_a_field(row[6]):
            rejected.append((row[0], _REPEATED))
        else:
            kept.append(row)
    rejected.sort(key=itemgetter(0))
    return kept
