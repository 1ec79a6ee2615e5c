"""Reading queries: first as queries of the sort that came last are written, then in full; and what is wrong with those that are none."""

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
from stream.processing.exact_decimals import readable
from stream.worker.families.question_columns import Row
from stream.worker.stream_terms import quotes_of


class Taken(NamedTuple):
    """How streams of one sort take queries: the struct that holds them, and what reads it."""

    kind: Any
    decode: Callable[[bytes], Any]


def _taken(kind: Any) -> Taken:
    return Taken(kind, msgspec.json.Decoder(kind).decode)


_PLAIN_FIELDS = frozenset({"id", "stream", "value", "threshold"})
_any: Final = _taken(struct(Query))
FIRST: Final = _taken(struct(Query, only=_PLAIN_FIELDS))
"""A query with a trusted value, and nothing else that there may be."""
_of_a_window: Final = _taken(struct(Query, only=_PLAIN_FIELDS | {"window", "group"}))
TAKEN: Final = (_any, FIRST, _any, _of_a_window)
"""How a stream takes its queries, by its sort: ``PLAIN`` ones are trusted values alone, those of ``STANDING`` streams name their window."""

_query_codec: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)

_REPEATED = Rejection("malformed", REPEATED)


def as_taken(like: Taken, value: bytes, query: Any) -> Any:
    """A query that was read otherwise as such streams take it; as it is if it has more fields."""
    if like is _any:
        return in_full(value)
    try:
        return like.decode(value)
    except UNREADABLE:
        return query


def in_full(value: bytes) -> Any:
    """A query of any form, whose numbers may be of any size."""
    try:
        return _any.decode(value)
    except msgspec.ValidationError:
        return _any.decode(readable(value))


def each_once(value: bytes, query: Any) -> Any:
    """The query of any form that was read, if only plainly, from a text that gives each field once."""
    if query.__class__ is not _any.kind:
        query = in_full(value)
    # Candidates are the one part of a query that is not written without its defaults.
    unsure = query.candidates is not None or may_repeat_a_field(value, query)
    if unsure and repeats_a_field(value):
        raise _REPEATED
    return query


def unfit(value: bytes | None) -> Rejection:
    """What is wrong with what is no event: nothing, more than an event may hold, or what could not be read."""
    return value.rejection if isinstance(value, Unread) else malformed(value)


def malformed(value: bytes | None) -> Rejection:
    """What the contract's own model says is wrong with an event that the fast path refused."""
    try:
        _query_codec.decode(readable(value) if value is not None and len(value) <= MAX_EVENT_BYTES else value)
    except MalformedEventError as error:
        code = "too-large" if value is not None and len(value) > MAX_EVENT_BYTES else "malformed"
        return Rejection(code, str(error))
    return Rejection("malformed", "event: the text is not UTF-8; send UTF-8")


def _quotes_of_plain(row: Row) -> int:
    """Quotation marks in a plain query that has each field once, and none in its texts: two a name and two a text."""
    about = row[7]
    return (10 if row[4] is None else 12) + (0 if about is None else quotes_of(about.group))


def without_repeats(rows: list[Row], rejected: list[tuple[int, Rejection]]) -> list[Row]:
    """Plain queries without those that give a field twice.

    Few batches have any, so that quotation marks are counted over all of a batch at once: none of its plain queries can
    have fewer than it must.
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
