"""Assigns the standing streams of one partition to tallies, and finds the windows to publish.

A tally has the counts of events that satisfy one condition, in a range of windows. Several streams
may share a tally.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from schemas import EventsSource, FeedStream, SumOf
from schemas.windows import YEAR_10000_MS, moment_ms, span_ms
from stream.feeds.event_counts import CountedQuantity
from stream.feeds.event_intake import NOT_BEGUN, FirstWindows
from stream.feeds.feed_definitions import StandingDefinition
from stream.feeds.tally import NO_END, CountingRule, Tally
from stream.feeds.tally_groups import EventTotals, TallyGroup
from stream.privacy.accuracy.source_facts import covered_ms
from stream.tables.expressions import TRUE
from stream.tables.predicates import PredicateParser

Key = tuple[str, int]
"""A stream's name and the number of its epoch."""

EARLY_WINDOWS: Final = 10_000
"""Maximum number of windows of a stream that may have counts before the first mark."""


@dataclass(slots=True)
class StreamEpoch:
    """One epoch of a stream: its opening or an extension. It publishes the windows ``next`` to ``last``.

    ``own_tally`` counts the windows up to ``until``, and the shared ``tally`` counts later windows.
    ``awaits_first`` is true until the first window is known. ``is_ending`` is true once the epoch has
    ended and ``last`` is known.
    """

    definition: StandingDefinition
    offset: int
    next: int
    last: int
    quantity: CountedQuantity
    tally: Tally
    own_tally: Tally | None = None
    until: int = -1
    epoch: int = 0
    awaits_first: bool = False
    is_ending: bool = False

    @property
    def key(self) -> Key:
        """The stream's name and the number of the epoch."""
        return self.definition.spec.stream, self.epoch

    @property
    def since(self) -> int:
        """The timestamp from which events count in the epoch's next window."""
        return (self.own_tally or self.tally).since

    def begin_at(self, moment: int) -> None:
        """Begin with the first window at or after a moment."""
        self.awaits_first = False
        self.next = max(self.next, self.definition.standing.window.first_start_from(moment))

    def end_at(self, clock: int) -> None:
        """End with the last window that is closed at ``clock``."""
        self.is_ending = True
        every = self.definition.standing.window.every_ms
        self.last = min(self.last, (clock - self.definition.standing.open_ms) // every * every)

    @property
    def is_over(self) -> bool:
        """True if the epoch has ended and its last window is published."""
        return self.is_ending and not self.awaits_first and self.next > self.last

    @property
    def close_ms(self) -> int:
        """Time of the clock at which the epoch's next window closes."""
        return self.next + self.definition.standing.open_ms

    def is_due(self, clock: int) -> bool:
        """Return whether the epoch's next window is closed at ``clock``."""
        return self.is_open and self.close_ms <= clock

    @property
    def is_open(self) -> bool:
        """True if the epoch's next window is known and not after its last window."""
        return not self.awaits_first and self.next <= self.last

    def tally_of(self, start: int) -> Tally:
        """Return the tally of a window."""
        return self.own_tally if self.own_tally is not None and start <= self.until else self.tally

    @property
    def changelog_record(self) -> FeedStream:
        """The epoch's changelog record."""
        return FeedStream(
            incarnation=self.definition.incarnation,
            offset=self.offset,
            next=self.next,
            tally=self.tally.number,
            own=None if self.own_tally is None else self.own_tally.number,
            until=None if self.own_tally is None else self.until,
            since=_since_or_none(self.tally),
            own_since=None if self.own_tally is None else _since_or_none(self.own_tally),
            epoch=self.epoch,
            last=max(-1, self.last) if self.is_ending else None,
        )


@dataclass(frozen=True, slots=True)
class Beginning:
    """A new epoch, whose windows start at or after ``least_start`` and whose events have timestamps from ``since`` on.

    If ``awaits_first`` is true, the first window is not known yet and may start later than ``least_start``.
    """

    definition: StandingDefinition
    least_start: int
    since: int = NOT_BEGUN
    epoch: int = 0
    awaits_first: bool = False


class StandingStreams:
    """A source's streams in one partition: each epoch that still has windows to publish."""

    def __init__(self, source: EventsSource) -> None:
        self.next_tally = 0
        self.streams: dict[Key, StreamEpoch] = {}
        self.tallies: dict[int, Tally] = {}
        self.tally_groups: list[TallyGroup] = []
        self.event_totals = EventTotals()
        self.first_windows = FirstWindows()
        self._source = source
        self._ahead = span_ms(source.ahead)
        self._parser = PredicateParser(source.attributes)
        self._shared: dict[Any, Tally] = {}

    def begin(self, beginnings: Iterable[Beginning], offset: int) -> list[StreamEpoch]:
        """Begin to count streams from an offset on.

        Streams with equal keys of ``_counting_rule`` share a tally. A new stream counts its first
        windows in a separate tally if the shared one has counted events of these windows already, or
        counts from another timestamp.
        """
        begun_streams = []
        separate_tallies: dict[tuple[int, int], Tally] = {}
        for one in beginnings:
            definition = one.definition
            rule, key = self._counting_rule(definition, one.since)
            window = definition.standing.window
            first = window.first_start_from(one.least_start)
            if (tally := self._shared.get(key)) is None:
                tally = self._shared[key] = self._create_tally(rule, one.since)
            own, until = None, -1
            separate_until = tally.last_counted
            if one.since != tally.since:
                # After this time, both tallies would count the same events, so the shared tally suffices.
                separate_until = max(separate_until, max(one.since, tally.since) + self._ahead)
            if separate_until >= first:
                if (own := separate_tallies.get((tally.number, one.since))) is None:
                    own = separate_tallies[tally.number, one.since] = self._create_tally(
                        rule, one.since, separate_until - separate_until % rule.interval_ms
                    )
                until = own.last
            stream = StreamEpoch(
                definition,
                offset,
                first,
                self._last_window(definition, first),
                _counted_quantity(definition),
                tally,
                own,
                until,
                one.epoch,
                one.awaits_first,
            )
            begun_streams.append(self._add_stream(stream))
        self.drop_unused()
        return begun_streams

    def resume(
        self, definition: StandingDefinition, record: FeedStream, epoch: int, *, awaits_first: bool
    ) -> None:
        """Resume an epoch of a stream from the changelog."""
        since = _since_or_not_begun(record.since)
        rule, key = self._counting_rule(definition, since)
        tally = self.tallies.get(record.tally) or self._create_tally(rule, since, number=record.tally)
        # The changelog may have counts of earlier windows, which new streams must not share.
        tally.last_counted = max(tally.last_counted, record.next - rule.interval_ms)
        self._shared[key] = tally
        own = None
        if record.own is not None and record.until is not None:
            own = self.tallies.get(record.own) or self._create_tally(
                rule, _since_or_not_begun(record.own_since), record.until, record.own
            )
        self._add_stream(
            StreamEpoch(
                definition,
                record.offset,
                record.next,
                self._last_window(definition, record.next) if record.last is None else record.last,
                _counted_quantity(definition),
                tally,
                own,
                -1 if record.until is None else record.until,
                epoch,
                awaits_first,
                is_ending=record.last is not None,
            )
        )

    def end(self, key: Key) -> None:
        """Stop counting an epoch of a stream."""
        del self.streams[key]
        self.first_windows.end_epoch(key)
        self.drop_unused()

    def drop_unused(self) -> None:
        """Drop published windows, unused tallies and unused cells."""
        needed: dict[int, int] = {}
        counted: dict[int, set[CountedQuantity]] = {}
        for stream in self.streams.values():
            if stream.own_tally is not None and stream.next > stream.until:
                stream.own_tally = None
            for tally, start in (
                (stream.own_tally, stream.next),
                (stream.tally, max(stream.next, stream.until + 1)),
            ):
                if tally is not None:
                    needed[tally.number] = min(needed.get(tally.number, NO_END), start)
                    counted.setdefault(tally.number, set()).add(stream.quantity)
        for number, tally in list(self.tallies.items()):
            if number not in needed:
                group = next(group for group in self.tally_groups if group.tallies.get(number) is tally)
                group.remove_tally(number)
                del self.tallies[number]
                continue
            tally.first = needed[number]
            tally.begin = min(tally.begin, tally.first)
            tally.drop_unused(counted[number])
        for group in self.tally_groups:
            group.drop_ended_windows()
        self.tally_groups = [group for group in self.tally_groups if group.tallies]
        self._shared = {key: tally for key, tally in self._shared.items() if tally.number in self.tallies}

    @property
    def latest_time_before_marks(self) -> int:
        """Latest time that an event may have before the first mark; the limit keeps few windows open."""
        ends = (
            one.next + EARLY_WINDOWS * one.definition.standing.window.every_ms for one in self.streams.values()
        )
        return min(ends, default=YEAR_10000_MS)

    def __iter__(self) -> Iterator[StreamEpoch]:
        return iter(list(self.streams.values()))

    def _add_stream(self, stream: StreamEpoch) -> StreamEpoch:
        for tally in (stream.tally, stream.own_tally):
            if tally is not None:
                tally.ensure_cells(stream.quantity)
        if stream.tally.rule.total is not None:
            # No other stream shares this tally. Later events must not use up people's totals.
            stream.tally.last = stream.last
        self.streams[stream.key] = stream
        first = _first_window(stream.definition, stream.next)
        is_declared = stream.definition.standing.begins is not None
        self.first_windows.add_epoch(stream.key, stream.since, first, is_declared=is_declared)
        if not stream.epoch:  # events of windows that were published before a restart are late too
            tally = stream.own_tally or stream.tally
            tally.begin = min(tally.begin, first)
        return stream

    def _create_tally(
        self, rule: CountingRule, since: int, last: int = NO_END, number: int | None = None
    ) -> Tally:
        if number is None:
            number = self.next_tally
        self.next_tally = max(self.next_tally, number + 1)
        group = next((group for group in self.tally_groups if group.can_add(rule)), None)
        if group is None:
            group = TallyGroup(rule, self._source.attributes, self.event_totals)
            self.tally_groups = [*self.tally_groups, group]
        tally = self.tallies[number] = group.add_tally(number, rule, since, last)
        return tally

    def _counting_rule(self, definition: StandingDefinition, since: int) -> tuple[CountingRule, Any]:
        """Return the rule of a stream's tally, and a key; streams with equal keys may share the tally."""
        standing = definition.standing
        predicate = TRUE if standing.where is None else self._parser.parse(standing.where)
        horizon = _horizon(definition)
        total = self._source.total if horizon is not None else None
        period, reach = 0, 0
        if horizon is not None and self._source.has_periods:
            period = self._source.period_ms
            reach = covered_ms(self._source, definition.spec.mechanism, standing.window)
        rule = CountingRule(
            predicate,
            standing.window.size_ms,
            standing.window.every_ms,
            span_ms(standing.lateness),
            self._source.contribution,
            total,
            period,
            reach,
        )
        alone = (definition.spec.stream, definition.incarnation) if total is not None else None
        # With marks, the clock at ``since`` is unknown at first, so ``since`` must be equal to share a tally.
        begins = since if self._source.clock == "marks" else None
        return rule, (predicate, rule.size, rule.interval_ms, rule.lateness, alone, begins)

    def _last_window(self, definition: StandingDefinition, next_start: int) -> int:
        """Return a running count's last window; ``NO_END`` for other mechanisms or with periods."""
        if (horizon := _horizon(definition)) is None or self._source.has_periods:
            return NO_END
        return _first_window(definition, next_start) + (horizon - 1) * definition.standing.window.every_ms


def _since_or_none(tally: Tally) -> int | None:
    return None if tally.since == NOT_BEGUN else tally.since


def _since_or_not_begun(changelog_value: int | None) -> int:
    return NOT_BEGUN if changelog_value is None else changelog_value


def _counted_quantity(definition: StandingDefinition) -> CountedQuantity:
    count, quantile = definition.standing.count, definition.standing.quantile
    if quantile is not None:
        return CountedQuantity((*definition.standing.by, quantile))
    if isinstance(count, SumOf):
        return CountedQuantity(definition.standing.by, sum=count.sum)
    return CountedQuantity(
        definition.standing.by, counts_people=count == "people", most_bytes=definition.most_bytes
    )


def _horizon(definition: StandingDefinition) -> int | None:
    mechanism: Any = definition.spec.mechanism
    return mechanism.steps if mechanism.kind == "running_count" else None


def _first_window(definition: StandingDefinition, otherwise: int) -> int:
    """Return the first window from the declared beginning on, or from ``otherwise`` on."""
    return definition.standing.window.first_start_from(begins_at(definition, otherwise))


def begins_at(definition: StandingDefinition, otherwise: int) -> int:
    """Return the declared beginning of a stream's windows, or ``otherwise``."""
    begins = definition.standing.begins
    return otherwise if begins is None else moment_ms(begins)
