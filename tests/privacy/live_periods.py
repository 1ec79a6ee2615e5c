"""Small live topics with periods: shipped feeds and merging turn bytes of events into questions to each period's account."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from schemas import BeginPeriod, EventsSource, format_moment, moment_ms
from sotto import Driver
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.feed_definitions import FeedDefinitions, parse_definition
from stream.feeds.merge_processor import MergeProcessor
from stream.privacy.mechanisms.private_values import decode_text_counts
from stream.processing.protocol import Outputs, Record
from tests import builders
from tests.privacy.live_topics import MINUTE, PARTITIONS, TEXTS, BoundedQuery, Counted, Person, records_of_people
from tests.processing import process_records

HOUR = 60 * MINUTE

Asked = dict[tuple[str, int], tuple[int, ...]]
"""The question of each window: a number for each group, by the stream of a period and the window's beginning."""


@dataclass(frozen=True)
class World:
    """A source with periods of an hour, its open models, and the periods that have begun."""

    source: EventsSource
    queries: Mapping[str, BoundedQuery]
    periods: int

    @cached_property
    def control(self) -> list[Record]:
        """The control records of the models, and of the streams that the ledger opened in each period."""
        driver = Driver(bytes(32), partitions=1)
        driver.register(self.source)
        for name, query in self.queries.items():
            answers = {"answers": 100} if query.mechanism["kind"] == "laplace" else {}
            standing = {**query.standing, "begins": format_moment(0)}
            mechanism = {**query.mechanism, **answers}
            delta = 1e-4 if query.standing.get("by") == ["name"] else 0.0
            driver.open(
                builders.stream(name, self.source.source, mechanism=mechanism, standing=standing, delta=delta)
            )
        driver.wait(self.periods * HOUR // 1000)
        for number in range(self.periods):
            start = format_moment(number * HOUR)
            driver.request(BeginPeriod(request=f"begin-{number}", source=self.source.source, start=start))
        self.__dict__["topics"] = driver.topics
        records = driver.records(driver.topics.control)
        return [record for record in records if json.loads(record.value or b"")["kind"] == "opened"]

    def asked(
        self, people: Mapping[str, Person], end: int, step: int = 3, counted: Counted | None = None
    ) -> Asked:
        """Return the questions that windows have asked when the clock of all partitions reaches an end, in minutes.

        ``counted`` has partitions of earlier calls with other people and the same end and step.
        """
        counted = {} if counted is None else counted
        control, topics = self.control, self.__dict__["topics"]
        definitions = FeedDefinitions()
        definitions.apply_control(control)
        merging = MergeProcessor(topics, 0, definitions)
        merging.restore(control)
        merging.end_restore()
        partials: list[Record] = []
        records = records_of_people(people)
        for partition in range(PARTITIONS):
            own = tuple(record for record in records if record.partition == partition)
            if (partition, own) not in counted:
                feed = FeedProcessor(topics, self.source, partition, PARTITIONS, definitions)
                counted[partition, own] = _publish_partials(feed, own, end, step, topics.partials)
            partials += counted[partition, own]
        partials = [record._replace(offset=offset) for offset, record in enumerate(partials)]
        outputs = process_records(merging, partials)
        return self._numbers(_written_to(outputs, topics.queries))

    def _numbers(self, questions: Sequence[Record]) -> Asked:
        """Return the questions as numbers of windows; for a running count, they are its increases."""
        running = {name for name, query in self.queries.items() if query.mechanism["kind"] == "running_count"}
        groups: dict[tuple[str, int], list[int]] = defaultdict(list)
        so_far: dict[tuple[str, int], int] = defaultdict(int)
        for record in questions:
            question = json.loads(record.value or b"")
            stream, start = question["stream"], _minute(question["window"]["start"])
            numbers = [question.get("value")]
            if "texts" in question:
                counts = decode_text_counts(question["texts"]) or {}
                numbers = [counts.get(text, 0) for text in TEXTS]
            elif "values" in question:
                numbers = [sum(question["values"])]
            for number in numbers:
                group = len(groups[stream, start])
                before = so_far[stream, group] if stream.partition("@")[0] in running else 0
                so_far[stream, group] = number
                groups[stream, start].append(number - before)
        return {key: tuple(numbers) for key, numbers in groups.items()}

    @property
    def definitions(self) -> Mapping[str, Any]:
        """The definition of each stream, by its name."""
        found = ((record, parse_definition(record)) for record in self.control)
        return {(record.key or b"").decode(): definition for record, definition in found if definition is not None}


@dataclass
class MovedInPeriod:
    """The largest moves by one person's events in one period, over all tried pairs, by model."""

    window: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The largest move of one window, over all groups together."""
    period: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """The largest move of all windows of the period together."""
    elsewhere: set[str] = field(default_factory=set)
    """Streams of other periods whose numbers were moved."""
    same_questions: bool = True

    def compare(self, ours: Asked, theirs: Asked, period: int) -> None:
        """Compare two topics that differ in one person's events of a period."""
        self.same_questions &= ours.keys() == theirs.keys()
        here = "@" + format_moment(period * HOUR)
        over: dict[str, int] = defaultdict(int)
        for stream, start in ours.keys() & theirs.keys():
            steps = [abs(a - b) for a, b in zip(ours[stream, start], theirs[stream, start], strict=True)]
            if not any(steps):
                continue
            if not stream.endswith(here):
                self.elsewhere.add(stream)
            name = stream.partition("@")[0]
            self.window[name] = max(self.window[name], sum(steps))
            over[stream] += sum(steps)
        for stream, moved in over.items():
            name = stream.partition("@")[0]
            self.period[name] = max(self.period[name], moved)


def in_period(person: Person, period: int, *, inside: bool = True) -> Person:
    """Return a person's events inside of a period, or outside of it, by the events' own times."""
    return tuple(one for one in person if ((one.comes - one.ago) * MINUTE // HOUR == period) is inside)


def find_neighbors(
    others: Mapping[str, Person], own: Sequence[Person], period: int, *, replaced: bool
) -> Iterator[tuple[Mapping[str, Person], Mapping[str, Person]]]:
    """Yield pairs of topics that differ in one person's events of a period, which are missing in one or, with ``replaced``, another person's."""
    if replaced:
        days = list(dict.fromkeys(in_period(life, period) for life in own))
        for rest in dict.fromkeys(in_period(life, period, inside=False) for life in own):
            for one in days:
                for other in days:
                    yield {**others, "me": (*rest, *one)}, {**others, "me": rest, "she": other}
        return
    for life in own:
        yield {**others, "me": in_period(life, period, inside=False)}, {**others, "me": life}


def _minute(moment: str) -> int:
    return moment_ms(moment) // MINUTE


def _publish_partials(
    feed: FeedProcessor, events: Sequence[Record], end: int, step: int, topic: str
) -> list[Record]:
    """Return the partial counts that a partition's feed publishes."""
    partials: list[Record] = []
    feed.end_restore()
    own = [record._replace(offset=offset) for offset, record in enumerate(events)]
    for start in range(0, len(own), step):
        partials += _written_to(process_records(feed, own[start : start + step]), topic)
    feed.note_end_of_input(end * 60)
    while outputs := feed.collect_due_outputs(0.0):
        partials += _written_to(outputs, topic)
    return partials


def _written_to(outputs: Outputs, topic: str) -> list[Record]:
    return [
        Record(topic, 0, 0, 0, key, value)
        for to, _, messages in outputs
        if to == topic
        for key, value, _ in messages
    ]
