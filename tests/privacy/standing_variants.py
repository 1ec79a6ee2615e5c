"""Wrong counts of a live topic: each variant replaces one part of the real feeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from schemas.windows import parse_event_time
from stream.feeds.count_processor import FeedProcessor
from stream.feeds.event_intake import NOT_BEGUN, ClockValues, EventClock
from stream.feeds.feed_definitions import StandingDefinition
from stream.feeds.tally import Tally
from stream.feeds.tally_groups import TallyGroup
from stream.tables.predicates import parse
from tests.privacy.audit_variants import Surgery, Variant
from tests.unit.feeds.topic import FixedDefinitions, tables_of


def bound_for_each_batch(surgery: Surgery) -> None:
    """Each batch starts each person's count again."""
    count = TallyGroup.count

    def anew(group: TallyGroup, batch: Any, piece: int) -> Any:
        found = count(group, batch, piece)
        for visits in tables_of(group):
            visits._counts[:] = 0
        return found

    surgery.patch.setattr(TallyGroup, "count", anew)


def bound_after_the_filter_of_another_stream(surgery: Surgery) -> None:
    """The bound applies only to events with an amount above 0, which another stream counts; all other events count without bound."""
    bound = TallyGroup._count_people

    def of_another(group: TallyGroup, window: Any, rows: Any, wanted: Any, step: Any) -> Any:
        found = bound(group, window, rows, wanted, step)
        theirs = step.batch.mask(parse("amount > 0", group._domains))[rows]
        return found._replace(
            within_bound=np.where(theirs, found.within_bound, wanted), first=np.where(theirs, found.first, wanted)
        )

    surgery.patch.setattr(TallyGroup, "_count_people", of_another)


def empty_windows_left_out(surgery: Surgery) -> None:
    """A window without counted events is not published."""
    process = FeedProcessor.process

    def sparing(feed: FeedProcessor, batch: Any) -> Any:
        outputs = process(feed, batch)
        for (topic, _), messages in outputs.messages.items():
            if topic.endswith(".partials"):
                messages.parts = [[message for message in messages if b'"cells":[]' not in (message[1] or b"")]]
        return outputs

    surgery.patch.setattr(FeedProcessor, "process", sparing)


def groups_only_when_seen(surgery: Surgery) -> None:
    """A window publishes only the groups that have events, in order."""
    values = Tally.values

    def seen(tally: Tally, quantity: Any, start: int) -> Any:
        cells, numbers = values(tally, quantity, start)
        return list(range(len(cells))), numbers

    surgery.patch.setattr(Tally, "values", seen)


def watermark_of_event_times(surgery: Surgery) -> None:
    """The clock is the largest time of any event, so a person who is ahead makes other people's events late."""

    shipped = EventClock.advance

    def time_of(record: Any) -> int:
        return parse_event_time(msgspec.json.decode(record.value)["at"]) if record.value else -1

    def read(clock: EventClock, records: Any) -> Any:
        before = clock.now
        clocks, _, marks = shipped(clock, records)
        times = np.array([time_of(record) for record in records], dtype=np.int64)
        clocks = np.maximum.accumulate(np.maximum(clocks, np.maximum(times, before)))
        clock.now = int(clocks[-1])
        return ClockValues(clocks, clocks, marks)

    surgery.patch.setattr(EventClock, "advance", read)


def late_events_counted(surgery: Surgery) -> None:
    """An event counts in every unpublished window, although it is late by its timestamp."""
    count = TallyGroup.count

    def whenever(group: TallyGroup, batch: Any, piece: int) -> Any:
        batch.clocks = np.full(len(batch), -1, dtype=np.int64)
        return count(group, batch, piece)

    surgery.patch.setattr(TallyGroup, "count", whenever)


def counted_from_where_a_feed_hears_of_it(surgery: Surgery) -> None:
    """A stream counts events from the step in which a feed reads its definition."""
    surgery.patch.setattr(EventClock, "first_timestamp_of", lambda *_: NOT_BEGUN)


def counted_from_when_control_told(surgery: Surgery) -> None:
    """A stream counts events with timestamps from its control event on, even if the feed reads that event later."""
    since = EventClock.first_timestamp_of
    surgery.patch.setattr(
        EventClock, "first_timestamp_of", lambda clock, definition: since(clock, definition) - clock._idle
    )


def the_latest_definition_alone(surgery: Surgery) -> None:
    """A feed uses only the latest definition: it continues to count an open stream, even if the stream had ended in between."""
    of = FixedDefinitions.streams_of

    def latest(known: FixedDefinitions, source: str) -> tuple[StandingDefinition, ...]:
        return tuple(replace(one, epochs=(replace(one.epochs[-1], number=0),)) for one in of(known, source))

    surgery.patch.setattr(FixedDefinitions, "streams_of", latest)


def ended_in_the_step_that_reads_of_it(surgery: Surgery) -> None:
    """A stream ends and resumes in the step in which a feed reads the control event."""
    effect = EventClock.effective_timestamp
    surgery.patch.setattr(
        EventClock, "effective_timestamp", lambda clock, definition: max(clock.now, effect(clock, definition))
    )


LATER: tuple[Variant, ...] = (counted_from_where_a_feed_hears_of_it, counted_from_when_control_told)
"""The variants that only streams opened in the middle of a topic reveal."""

EXTENDED: tuple[Variant, ...] = (the_latest_definition_alone, ended_in_the_step_that_reads_of_it)
"""The variants that only streams that end and are extended reveal."""

VARIANTS: tuple[Variant, ...] = (
    bound_for_each_batch,
    bound_after_the_filter_of_another_stream,
    empty_windows_left_out,
    groups_only_when_seen,
    watermark_of_event_times,
    late_events_counted,
    *LATER,
    *EXTENDED,
)
