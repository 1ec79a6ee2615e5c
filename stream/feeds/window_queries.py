"""Builds the query events of a window, and writes and reads partials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heapreplace
from itertools import pairwise
from typing import Any, Final

import msgspec

from schemas import Decimals, EventsSource, Partial, SumOf
from schemas.domains import Domain
from schemas.queries import MAX_VALUE_COUNT
from schemas.windows import format_moment
from schemas.wire import DECODE_ERRORS, encode, struct
from stream.feeds.counted_streams import Key, StandingStreams, StreamEpoch
from stream.feeds.feed_definitions import StandingDefinition
from stream.feeds.tally import cell_count
from stream.formatting import cells_of
from stream.privacy.mechanisms.private_values import (
    TextCounts,
    decode_text_counts,
    encode_text_counts,
    window_text_size,
)
from stream.processing.dead_letters import Rejection, UnreadableValue
from stream.processing.protocol import Outputs, RecordLike
from stream.processing.topic_names import Topics, partition_of
from stream.tables.expressions import TRUE
from stream.tables.predicates import PredicateParser
from stream.tables.sensitivity import codes_within

_encode = msgspec.json.Encoder().encode

_Domains = tuple[tuple[str, Domain], ...]

_SINGLE_QUESTION_KINDS = {"histogram"}
"""Kinds of mechanisms that get one question with the numbers of all groups."""

TEXT_WINDOWS_PER_STEP: Final = 8
"""Maximum number of windows with texts in one step of a processor; their sizes are private, and may be large."""


def count_groups(definition: StandingDefinition) -> int:
    """Return the number of groups in a stream's windows; 1 for a stream without declared groups."""
    by = () if definition.has_texts else definition.standing.by
    return cell_count(definition.source.attributes, by)


def count_cells(definition: StandingDefinition) -> int:
    """Return the number of counts of a window; a quantile has a count for each value in each group."""
    quantile, groups = definition.standing.quantile, count_groups(definition)
    return groups if quantile is None else groups * definition.source.attributes[quantile].size


def window_load(definition: StandingDefinition, limit: int) -> int:
    """Return the number by which a window counts towards a step's limit of ``limit`` cells."""
    return limit // TEXT_WINDOWS_PER_STEP if definition.has_texts else count_cells(definition)


def numbers_of_groups(definition: StandingDefinition, counts: list[int]) -> list[Any]:
    """Return the numbers in a window's questions: one for each group, or the counts of its values.

    Only values that the stream's predicate allows have counts. If one question covers all groups, their
    counts are one list. A count is at most ``MAX_VALUE_COUNT``, so that the size of the question is
    bounded.
    """
    standing, attributes = definition.standing, definition.source.attributes
    if (quantile := standing.quantile) is None:
        return counts
    size = attributes[quantile].size
    first, end = _allowed_codes(tuple(attributes.items()), quantile, standing.where)
    groups = [
        [min(number, MAX_VALUE_COUNT) for number in counts[start + first : start + end]]
        for start in range(0, len(counts), size)
    ]
    if definition.spec.mechanism.kind in _SINGLE_QUESTION_KINDS:
        return [number for group in groups for number in group]
    return groups


@lru_cache(maxsize=64)
def _allowed_codes(domains: _Domains, attribute: str, where: str | None) -> tuple[int, int]:
    attributes = dict(domains)
    predicate = TRUE if where is None else PredicateParser(attributes).parse(where)
    return codes_within(attributes[attribute].size, attribute, predicate)


def build_questions(definition: StandingDefinition, start: int, numbers: Sequence[Any]) -> Iterator[bytes]:
    """Yield the questions of a window: one for each group in row-major order, or one for all.

    ``numbers`` has each group's count or, for a running count, its list of node sums, or the counts
    of a quantile's values. Sums of decimals are in steps, and are written as decimals.
    """
    write = _number_writer(definition)
    begun, stream, window = _window_fields(definition, start)
    if definition.spec.mechanism.kind in _SINGLE_QUESTION_KINDS:
        yield b'{"id":"%s","stream":%s,"values":%s,%s}' % (begun, stream, write(numbers), window)
        return
    beginning = b'{"id":"%s/' % begun
    field = b"values" if isinstance(numbers[0], list) else b"value"
    middle = b'","stream":%s,"%s":' % (stream, field)
    attributes = definition.source.attributes
    endings = _question_endings(tuple((name, attributes[name]) for name in definition.standing.by))
    for place, (number, ending) in enumerate(zip(numbers, endings, strict=True)):
        yield b"%s%d%s%s,%s%s" % (beginning, place, middle, write(number), window, ending)


def build_texts_question(definition: StandingDefinition, start: int, counts: TextCounts | None) -> bytes:
    """Return the question of a window with the counts of texts; ``counts`` is None if they are too large."""
    texts = encode_text_counts(counts).encode()
    return b'{"id":"%s","stream":%s,%s,"texts":"%s"}' % (*_window_fields(definition, start), texts)


def _window_fields(definition: StandingDefinition, start: int) -> tuple[bytes, bytes, bytes]:
    """Return the start of a window, the stream's name as JSON, and the field ``window`` of its questions."""
    begun, end = (format_moment(at).encode() for at in (start, start + definition.standing.window.size_ms))
    return begun, _encode(definition.spec.stream), b'"window":{"start":"%s","end":"%s"}' % (begun, end)


def merge_texts(definition: StandingDefinition, partials: Iterable[Any]) -> TextCounts | None:
    """Return the sum of the text counts of some partials; None if they are too large."""
    counts: Counter[bytes] = Counter()
    for partial in partials:
        if (own := decode_text_counts(partial.texts)) is None:
            return None
        counts.update(own)
    return None if window_text_size(counts) > definition.most_bytes else counts


def _number_writer(definition: StandingDefinition) -> Callable[[Any], bytes]:
    """Return a function that writes a number, or a list of numbers, of the stream's questions."""
    count = definition.standing.count
    domain = definition.source.attributes[count.sum] if isinstance(count, SumOf) else None
    if not isinstance(domain, Decimals):
        return _encode

    def write(numbers: Any) -> bytes:
        if isinstance(numbers, list | tuple):
            return b"[%s]" % b",".join(map(write, numbers))
        return domain.format_steps(int(numbers)).encode()

    return write


@lru_cache(maxsize=64)
def _question_endings(domains: _Domains) -> tuple[bytes, ...]:
    """Return the end of each group's question."""
    if not domains:
        return (b"}",)
    return tuple(
        b',"group":%s}' % _encode(cell) for cell in cells_of(dict(domains), [name for name, _ in domains])
    )


decode_partial: Any = msgspec.json.Decoder(struct(Partial)).decode


def parse_partial(record: RecordLike) -> Any | None:
    """Parse a partial; None if this release of Sotto cannot read it."""
    if (value := record.value) is None or isinstance(value, UnreadableValue):
        return None
    try:
        partial = decode_partial(value)
    except DECODE_ERRORS:
        return None
    return partial if record.key == partial.stream.encode() else None


_MALFORMED = Rejection("malformed", "partial: the record is no partial; allow only feeds to write this topic")
_MISMATCHED = Rejection(
    "malformed", "partial: does not match its stream's windows or groups; allow only feeds to write this topic"
)
_UNKNOWN_STREAM = Rejection(
    "unknown-stream",
    "stream: no standing stream of this name and incarnation is defined; allow only feeds to write this topic",
)


def require_definition(
    record: RecordLike, partial: Any, definition: StandingDefinition | None
) -> StandingDefinition:
    """Return the definition of a partial's stream; Rejection if it is missing, or the partial is invalid."""
    if isinstance(record.value, UnreadableValue):
        raise record.value.rejection.with_traceback(None)
    if partial is None:
        raise _MALFORMED.with_traceback(None)
    if definition is None:
        raise _UNKNOWN_STREAM.with_traceback(None)
    if not matches_definition(partial, definition):
        raise _MISMATCHED.with_traceback(None)
    return definition


def matches_definition(partial: Any, definition: StandingDefinition) -> bool:
    """Return whether a partial matches the windows and groups of its stream."""
    cells = partial.cells
    return (
        _has_expected_texts(partial, definition)
        and partial.source == definition.source.source
        and partial.partition < partial.partitions
        and partial.start % definition.standing.window.every_ms == 0
        and len(cells) == len(partial.counts)
        and all(before < after for before, after in pairwise(cells))
        and (not cells or cells[-1] < count_cells(definition))
    )


def _has_expected_texts(partial: Any, definition: StandingDefinition) -> bool:
    if partial.texts is None or not definition.has_texts:
        return partial.texts is None and not definition.has_texts
    try:
        decode_text_counts(partial.texts)
    except ValueError:
        return False
    return not partial.cells


MAX_PARTIALS_PER_STEP: Final = 2_000
"""Maximum number of windows that one step publishes."""
MAX_CELLS_PER_STEP: Final = 200_000
"""Maximum number of cells in these windows, empty ones included; the number of nonempty ones is private."""

_WirePartial: Any = struct(Partial)


class PartialWriter:
    """Publishes the partials of one partition."""

    def __init__(self, topics: Topics, source: EventsSource, partition: int, partitions: int) -> None:
        self._topics = topics
        self._source = source.source
        self._partition = partition
        self._partitions = partitions

    def publish_due_windows(self, streams: StandingStreams, clock: int, outputs: Outputs) -> list[StreamEpoch]:
        """Publish due windows up to the limits of a step, and return their streams.

        Windows of all streams are in the order of their closing times, then of their names. Neither the
        order nor the limits depend on private counts.
        """
        waiting = [(one.close_ms, *one.key, one) for one in streams if one.is_due(clock)]
        heapify(waiting)
        facts: dict[Key, tuple[int, int, int]] = {}
        published: list[StreamEpoch] = []
        partials = cells = 0
        while waiting and partials < MAX_PARTIALS_PER_STEP and cells < MAX_CELLS_PER_STEP:
            closes, name, epoch, stream = waiting[0]
            if (found := facts.get(stream.key)) is None:
                definition = stream.definition
                found = facts[stream.key] = (
                    partition_of(name.encode(), self._topics.partitions),
                    window_load(definition, MAX_CELLS_PER_STEP),
                    definition.standing.window.every_ms,
                )
                published.append(stream)
            to, counts, every = found
            outputs.add(self._topics.partials, to, (name.encode(), self._encode_partial(stream), ()))
            partials += 1
            cells += counts
            stream.next += every
            if closes + every <= clock and stream.next <= stream.last:
                heapreplace(waiting, (closes + every, name, epoch, stream))
            else:
                heappop(waiting)
        return published

    def _encode_partial(self, stream: StreamEpoch) -> bytes:
        cells: Sequence[int] = ()
        counts: Sequence[int] = ()
        texts: str | None = None
        tally = stream.tally_of(stream.next)
        if stream.definition.has_texts:
            texts = encode_text_counts(tally.text_counts(stream.quantity, stream.next))
        else:
            cells, counts = tally.values(stream.quantity, stream.next)
        partial = _WirePartial(
            source=self._source,
            stream=stream.definition.spec.stream,
            incarnation=stream.definition.incarnation,
            partition=self._partition,
            partitions=self._partitions,
            start=stream.next,
            cells=tuple(cells),
            counts=tuple(counts),
            texts=texts,
        )
        return encode(partial)
