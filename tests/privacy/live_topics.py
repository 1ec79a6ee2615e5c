"""Small live topics with and without a whole person: from the bytes of events to the numbers in questions."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

import msgspec

from schemas import EventsSource, Partial, span_ms
from schemas.windows import YEAR_10000_MS
from schemas.wire import struct
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.feed_definitions import StandingDefinition
from stream.feeds.merge_state import MergedStreamState
from stream.feeds.window_queries import count_cells
from stream.privacy.mechanisms.private_values import decode_text_counts
from stream.processing.protocol import Outputs, Record
from stream.processing.topic_names import Topics, partition_of
from tests.builders import parse_source, source
from tests.processing import process_records
from tests.unit.feeds.streams import texts_calibration
from tests.unit.feeds.topic import FixedDefinitions, as_of, ended, extended, standing_definition

MINUTE = 60_000
PARTITIONS = 2
MARKED = 32
"""The minute up to which the topic has a mark in every minute; one more mark comes at the end."""
TOPICS = Topics("t", 1)
TEXTS = (b"a", b"b")
"""The groups as private texts."""
MOST_BYTES = 1000
"""Most bytes of a window's texts."""

_decode = msgspec.json.Decoder(struct(Partial)).decode


@dataclass(frozen=True)
class Moment:
    """One event of a person: when it comes, in minutes, how long ago it was, its group and its amount."""

    comes: int
    ago: int = 0
    group: str = "a"
    amount: int = 1


Person = tuple[Moment, ...]
Numbers = dict[tuple[str, int], tuple[int, ...]]
"""The numbers of all groups, by stream and the beginning of the window."""


@dataclass(frozen=True)
class BoundedQuery:
    """A standing query, and how far one person may move each of its numbers, and all of them together.

    ``opened_at`` is the time of its control event, in milliseconds; 0 for a stream that exists before feeds begin. ``gaps`` has pairs of
    times: when control has its end, and when control has its extension, if there is one.
    """

    standing: Mapping[str, Any]
    each: int
    all: int
    mechanism: Mapping[str, Any] = field(default_factory=lambda: {"kind": "laplace"})
    opened_at: int = 0
    gaps: tuple[tuple[int, int | None], ...] = ()


def about(**other: Any) -> EventsSource:
    fields = {
        "topic": "ops",
        "epsilon": 1.0,
        "person": "who.id",
        "texts": {"name": {"kind": "text"}},
        "fields": {"name": "group"},
        "attributes": {"group": ["a", "b"], "amount": {"kind": "integers", "minimum": -2, "maximum": 3}},
        "contribution": 2,
        "ahead": "5m",
        "idle": "0s",
        **other,
    }
    found: EventsSource = parse_source(source("live", "events", **fields))
    return found


def records_of_people(people: Mapping[str, Person]) -> list[Record]:
    """Return the topic's records in order of arrival, each in its person's partition."""
    events = sorted(
        ((moment.comes, who, place) for who, moments in people.items() for place, moment in enumerate(moments)),
        key=lambda one: (one[0], one[2], one[1]),
    )
    records = []
    for comes, who, place in events:
        moment = people[who][place]
        at = max(0, comes - moment.ago) * MINUTE
        fields = {"who": {"id": who}, "at": at, "group": moment.group, "amount": moment.amount}
        home = partition_of(who.encode(), PARTITIONS)
        # These are a person's own offsets; other people's offsets make no difference.
        records.append(Record("ops", home, 0, comes * MINUTE, who.encode(), json.dumps(fields).encode()))
    return records


Counted = dict[tuple[int, tuple[Record, ...]], list[Any]]
"""The output of feeds by partition and its events: a person changes one partition only, so each of the other partitions is counted once."""
Schedule = Callable[[int, int], int]
"""Returns the moment up to which a feed has read control, from a step's number and its last stamp less ``idle``; both moments are in milliseconds."""


def punctual(step: int, due: int) -> int:
    """Let a feed read only the control records that it must have read by then."""
    del step
    return due


def behind(step: int, due: int) -> int:
    """Let a feed lag so far that it reads all control records after one step."""
    return YEAR_10000_MS if step else due


def asked_questions(
    source: EventsSource,
    streams: Sequence[StandingDefinition],
    records: Sequence[Record],
    end: int,
    step: int = 3,
    schedule: Schedule = punctual,
    counted: Counted | None = None,
) -> Numbers:
    """Return the questions of the shipped feeds and merging when the clock of all partitions reaches an end, in minutes.

    Feeds read control between steps. Marks come every other minute, whatever events do. ``counted`` has partitions of earlier calls
    with the same arguments but other people.
    """
    counted = {} if counted is None else counted
    partials: list[Any] = []
    for partition in range(PARTITIONS):
        own = tuple(record for record in records if record.partition == partition)
        if (partition, own) not in counted:
            counted[partition, own] = _publish_partials(source, streams, partition, own, end, step, schedule)
        partials += counted[partition, own]
    return _merge_partials(streams, partials)


def _publish_partials(
    source: EventsSource,
    streams: Sequence[StandingDefinition],
    partition: int,
    events: Sequence[Record],
    end: int,
    step: int,
    schedule: Schedule,
) -> list[Any]:
    """Return the partial counts that a partition's feed publishes."""
    partials: list[Any] = []
    marks = range(0, MARKED * MINUTE, 2 * MINUTE)
    idle = span_ms(source.idle)
    known = FixedDefinitions()
    read_to = _read_control(known, streams, 0)
    feed = FeedProcessor(TOPICS, source, partition, PARTITIONS, known)
    feed.end_restore()
    feed.collect_due_outputs(0.0)
    own = list(events)
    if source.clock == "marks":
        marked = [Record("ops", partition, 0, mark, None, None, [("sotto-mark", b"%d" % mark)]) for mark in marks]
        own = sorted([*marked, *own], key=lambda record: (record.timestamp, record.value is not None))
        last = Record("ops", partition, 0, end * MINUTE, None, None, [("sotto-mark", b"%d" % (end * MINUTE))])
        own.append(last)
    own = [record._replace(offset=offset) for offset, record in enumerate(own)]
    for number, start in enumerate(range(0, len(own), step)):
        chunk = own[start : start + step]
        read_to = _read_control(known, streams, schedule(number, chunk[-1].timestamp - idle), read_to)
        partials += _partials(process_records(feed, chunk))
    _read_control(known, streams, YEAR_10000_MS, read_to)
    feed.note_end_of_input(end * 60)
    while outputs := feed.collect_due_outputs(0.0):
        partials += _partials(outputs)
    return partials


def _read_control(
    known: FixedDefinitions, streams: Sequence[StandingDefinition], moment: int, before: int = -1
) -> int:
    """Let the feed read control up to a moment; nothing is read twice."""
    if moment > before:
        news = [one for stream in streams if (one := as_of(stream, moment)) is not None]
        if any(known.find_latest(one) != one for one in news):
            known.tell(*news)
    return max(moment, before)


def _partials(outputs: Outputs) -> Iterator[Any]:
    for topic, _, messages in outputs:
        if topic == TOPICS.partials:
            yield from (_decode(value or b"") for _, value, _ in messages)


def _merge_partials(streams: Sequence[StandingDefinition], partials: Sequence[Any]) -> Numbers:
    found: Numbers = {}
    for stream in streams:
        merged = MergedStreamState(stream.incarnation, PARTITIONS)
        for partial in (one for one in partials if one.stream == stream.spec.stream):
            merged.add_partial(partial)
        for start, parts in merged.close_complete_windows():
            if len(parts) < PARTITIONS:
                continue
            numbers = [0] * (len(TEXTS) if stream.has_texts else count_cells(stream))
            for part in parts.values():
                if part.texts is not None:
                    counts = decode_text_counts(part.texts) or {}
                    numbers = [number + counts.pop(text, 0) for number, text in zip(numbers, TEXTS, strict=True)]
                    assert not counts
                for cell, count in zip(part.cells, part.counts, strict=True):
                    numbers[cell] += count
            found[stream.spec.stream, start] = tuple(numbers)
    return found


def opened(source: EventsSource, queries: Mapping[str, BoundedQuery]) -> list[StandingDefinition]:
    return [_control_records(source, name, query) for name, query in queries.items()]


def _control_records(source: EventsSource, name: str, query: BoundedQuery) -> StandingDefinition:
    """Return all control records of a stream."""
    known = standing_definition(source, name, mechanism=query.mechanism, moment=query.opened_at, **query.standing)
    if query.standing.get("by") == ["name"]:
        known = replace(known, calibration=texts_calibration(MOST_BYTES))
    for end, again in query.gaps:
        known = ended(known, end)
        known = known if again is None else extended(known, again)
    return known


@dataclass
class LargestMoves:
    """The largest moves of each stream's numbers by one person, over all tried neighbors."""

    each: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    all: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    all_windows: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    same_questions: bool = True

    def compare(self, ours: Numbers, theirs: Numbers) -> None:
        self.same_questions &= ours.keys() == theirs.keys()
        over: dict[str, int] = defaultdict(int)
        for stream, start in ours.keys() & theirs.keys():
            steps = [abs(a - b) for a, b in zip(ours[stream, start], theirs[stream, start], strict=True)]
            self.each[stream] = max([self.each[stream], *steps])
            self.all[stream] = max(self.all[stream], sum(steps))
            over[stream] += sum(steps)
        for stream, moved in over.items():
            self.all_windows[stream] = max(self.all_windows[stream], moved)


def lives(moments: Sequence[Moment], most: int) -> list[Person]:
    """Return all sequences of at most so many of these events, in their order."""
    return [chosen for size in range(1, most + 1) for chosen in combinations(moments, size)]


def find_neighbors(
    source: EventsSource, others: Mapping[str, Person], own: Sequence[Person], who: str = "me"
) -> Iterator[tuple[Mapping[str, Person], Mapping[str, Person]]]:
    """Yield pairs of topics that differ in all events of one person, which are missing in one or, under replacement, another person's."""
    if source.neighbors == "add-remove":
        for life in own:
            yield others, {**others, who: life}
    else:
        for one, other in product(own, repeat=2):
            yield {**others, who: one}, {**others, "she": other}
