"""Feeds and workers with one possible mistake about periods each; the simulation must find all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from aiokafka import TopicPartition

from schemas import format_moment, period_name
from stream.engine.writer import Writer
from stream.feeds import merge_processor, merge_state
from stream.feeds.feed_definitions import FeedDefinitions, StandingDefinition
from stream.feeds.merge_state import PeriodRequests, RunningSums, is_asked, period_of
from stream.processing.protocol import Outputs
from stream.processing.topic_names import Topics
from stream.worker.stream_control import StreamControl
from tests.simulation.replacements import Mutation, replacing


@contextmanager
def asked_before_the_account_is_there() -> Iterator[None]:
    """A window asks the stream of its period while the period is only requested."""
    is_ready, asked_by = PeriodRequests.is_ready, PeriodRequests.stream_asked_by

    def hasty(self: PeriodRequests, outputs: Outputs, definition: StandingDefinition, start: int) -> bool:
        is_ready(self, outputs, definition, start)
        return True

    def expected(self: PeriodRequests, definition: StandingDefinition, start: int) -> StandingDefinition | None:
        found = asked_by(self, definition, start)
        if found is not None or not is_asked(definition, start):
            return found
        begins = period_of(definition, start)
        standing = definition.standing.model_copy(update={"begins": format_moment(begins)})
        names = {
            "stream": period_name(definition.spec.stream, begins),
            "source": period_name(definition.source.source, begins),
        }
        spec = definition.spec.model_copy(update={**names, "standing": standing})
        return replace(definition, spec=spec, standing=standing)

    with (
        patch.object(PeriodRequests, "is_ready", hasty),
        patch.object(PeriodRequests, "stream_asked_by", expected),
    ):
        yield


@contextmanager
def requests_outside_of_the_transaction() -> Iterator[None]:
    """Merging writes its requests to the ledger after the step's transaction, and treats them as written even if the write fails."""
    begin, commit = PeriodRequests.__init__, Writer.commit
    asked = WeakKeyDictionary[FeedDefinitions, tuple[dict[str, str], dict[str, set[str]]]]()

    def remembering(self: PeriodRequests, topics: Topics, definitions: FeedDefinitions) -> None:
        begin(self, topics, definitions)
        self._requesting_streams, self._closing_streams = asked.setdefault(definitions, ({}, {}))

    async def apart(self: Writer, outputs: Outputs, positions: Mapping[TopicPartition, int]) -> None:
        late, rest = Outputs(), Outputs(busy=outputs.busy)
        for topic, partition, messages in outputs:
            (late if topic.endswith(".requests") else rest).extend(topic, partition, messages)
        await commit(self, rest, positions)
        if late:
            await commit(self, late, {})

    with patch.object(PeriodRequests, "__init__", remembering), patch.object(Writer, "commit", apart):
        yield


@replacing(merge_processor, "period_of")
def running_counts_stop_at_an_edge(*_: Any) -> int:
    """A running count's number of windows continues to grow when its period ends, although it must start again."""
    return 0


@contextmanager
def running_counts_go_on_over_an_edge() -> Iterator[None]:
    """A running count's windows are numbered from 1 in each period, but the last period's sums are kept."""
    add, before = RunningSums.add, dict[str, Any]()

    def going_on(self: RunningSums, definition: StandingDefinition, start: int, counts: Sequence[int]) -> range:
        model = definition.spec.stream.partition("@")[0]
        if not self.windows:
            self.groups = before.get(model, [])
        changed = add(self, definition, start, counts)
        before[model] = self.groups
        return changed

    with patch.object(RunningSums, "add", going_on):
        yield


@replacing(PeriodRequests, "close_past_streams")
def periods_never_end(*_: Any) -> None:
    """The closing of a period's streams is never requested."""


@replacing(PeriodRequests, "close_past_streams")
def periods_end_early(
    passed: Any, self: PeriodRequests, outputs: Outputs, definition: StandingDefinition, before: int, reached: int
) -> None:
    """A period's streams are closed at its own end."""
    length = definition.source.period_ms if definition.source.has_periods else 0
    passed(self, outputs, definition, before + length, reached + length)


@replacing(StreamControl, "_awaits_questions")
def closed_before_all_is_answered(*_: Any) -> bool:
    """A worker with unanswered queries closes a period's stream as soon as it reads the period's end."""
    return False


@replacing(merge_state, "lies_in_one_period")
def windows_over_an_edge_asked(*_: Any) -> bool:
    """A window that spans two periods asks the period in which it begins."""
    return True


@contextmanager
def windows_that_waited_stream_by_stream() -> Iterator[None]:
    """When a period has begun, all waiting windows of one stream are asked first, and then those of the next stream."""
    with patch.object(merge_state, "merge", chain):
        yield


MUTATIONS: tuple[Mutation, ...] = (
    asked_before_the_account_is_there,
    requests_outside_of_the_transaction,
    running_counts_stop_at_an_edge,
    running_counts_go_on_over_an_edge,
    periods_never_end,
    periods_end_early,
    closed_before_all_is_answered,
    windows_over_an_edge_asked,
    windows_that_waited_stream_by_stream,
)
