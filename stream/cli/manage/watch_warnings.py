"""Warnings of ``sotto watch`` beside the alerts: names without open streams or alerts, overdue answers, and refused events."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from schemas import EventsSource, GrantRecord, SparseVectorCalibration, StreamSpec, registered_name
from stream.cli.output import say_progress
from stream.client.async_client import AsyncClient
from stream.engine.restore import create_reader, require_visible, select_readable
from stream.errors import SottoError
from stream.formatting import did_you_mean
from stream.kafka.broker_addresses import local_settings
from stream.kafka.topic_creation import inspect_live_topic
from stream.processing.dead_letters import RefusedShare, TopicRefusals, read_dead_letter
from stream.processing.protocol import RecordLike
from stream.processing.topic_names import Topics
from stream.questions.alert_states import matches_patterns
from stream.questions.stream_watch import describe_overdue

WARNING_SECONDS: Final = 60.0
"""Seconds between two warnings about one source."""
RETRY_SECONDS: Final = 5.0
LOOKUP_SECONDS: Final = 30.0
"""Seconds between two reads of the ledger for the sources of unknown topics."""

RECENT_SECONDS: Final = 600.0
"""``watch`` reads refused events from this many seconds before its start."""

FindSources = Callable[[], Awaitable[list[EventsSource]]]
ShowRefusal = Callable[[list[str], RefusedShare], None]


class RefusalWarnings:
    """Collects dead letters of live topics, and selects the warnings that are due."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicRefusals] = {}
        self._warned: dict[str, float] = {}
        self._unreported: set[str] = set()

    def add(self, records: Iterable[RecordLike]) -> None:
        """Add records of the topic ``rejected``; records of other programs are skipped."""
        for record in records:
            try:
                letter = read_dead_letter(record)
            except SottoError:
                continue
            topic = self._topics.setdefault(letter.topic, TopicRefusals())
            if topic.add(letter.partition, letter.offset, letter.reason, letter.time):
                self._unreported.add(letter.topic)

    def is_due(self, now: float) -> bool:
        """Return True if a topic has dead letters that no recent warning reported."""
        return bool(self._due_topics(now))

    def _due_topics(self, now: float) -> list[str]:
        return sorted(one for one in self._unreported if now - self._warned.get(one, 0.0) >= WARNING_SECONDS)

    def take_due(self, sources: Iterable[EventsSource], now: float) -> list[tuple[list[str], RefusedShare]]:
        """Return the due warnings: sources and refused share of each topic; topics of no source are left out."""
        found: list[tuple[list[str], RefusedShare]] = []
        for topic in self._due_topics(now):
            self._unreported.discard(topic)
            names, share = [one.source for one in sources if one.topic == topic], self._topics[topic].share(now)
            if names and share is not None:
                self._warned[topic] = now
                found.append((names, share))
        return found


async def report_idle_patterns(
    client: AsyncClient, patterns: tuple[str, ...], source: str | None, *, show_all: bool
) -> None:
    """Print each pattern for which nothing can be shown at present; nothing if the ledger cannot be read."""
    with suppress(SottoError, KafkaError, OSError):
        grants = await client.list_streams(source, periods=True)
        for line in describe_idle_patterns(patterns, source, grants, show_all=show_all):
            say_progress(line)


def describe_idle_patterns(
    patterns: tuple[str, ...], source: str | None, grants: Iterable[GrantRecord], *, show_all: bool = False
) -> Iterator[str]:
    """Describe each pattern that no open stream matches, with the most similar name if there is one.

    Without ``show_all``, also each pattern that matches only streams whose mechanisms raise no alerts.
    """
    opened = [one for one in grants if one.state == "open" and one.ending is None]
    of_source = f" of source {source}" if source else ""
    if not opened:
        yield f"no stream{of_source} is open yet; waiting for one"
        return
    for pattern in patterns or ("*",):
        matching = [one for one in opened if matches_patterns(one.spec.stream, (pattern,))]
        if not matching:
            if set(pattern) & set("*?["):  # the client itself refuses an unknown name without wildcards
                names = {registered_name(one.spec.stream) for one in opened}
                hint = did_you_mean(re.sub(r"[*?\[\]]", "", pattern), names)
                yield f"no open stream{of_source} matches '{pattern}' yet; waiting for one{hint}"
        elif not show_all and not any(isinstance(one.calibration, SparseVectorCalibration) for one in matching):
            kinds = " or ".join(sorted({one.spec.mechanism.kind for one in matching}))
            matches = f" that match '{pattern}'" if patterns else ""
            yield (
                f"the open streams{of_source}{matches} raise no alerts, because their mechanism is {kinds}; give --all to see every answer"
            )


async def watched_sources(
    client: AsyncClient, patterns: tuple[str, ...], source: str | None, *, whole_topics: bool = False
) -> list[EventsSource]:
    """Return the live sources whose streams are watched, or all sources of their topics."""
    names: set[str] | None = None
    if patterns:
        streams = [one.spec for one in await client.list_streams(source)]
        watched = [one for one in streams if matches_patterns(registered_name(one.stream), patterns)]
        names = {registered_name(one.source) for one in watched}
    elif source is not None:
        names = {source}
    declared = [one.source for one in await client.list_sources()]
    live = [one for one in declared if isinstance(one, EventsSource) and one.period_of is None]
    found = [one for one in live if names is None or one.source in names]
    topics = {one.topic for one in found}
    return [one for one in live if one.topic in topics] if whole_topics else found


async def follow_topics(
    client: AsyncClient,
    find_sources: FindSources,
    show: Callable[[str, str], None],
    patterns: tuple[str, ...] = (),
) -> None:
    """Call ``show`` with a source and the reason if feeds refuse its topic, or a watched stream lacks answers."""
    shown, seen = dict[str, str | None](), dict[str, dict[str, float]]()
    while True:
        with suppress(SottoError, KafkaError, OSError):
            for one in await find_sources():
                grants = await client.list_streams(one.source, periods=True)
                asked = [grant.spec for grant in grants if grant.state == "open"]
                problem = (await inspect_live_topic(local_settings(), one)).problem if asked else None
                watched = [spec for spec in asked if not patterns or matches_patterns(spec.stream, patterns)]
                seen[one.source] = {
                    spec.stream: seen.get(one.source, {}).get(spec.stream, time.time()) for spec in watched
                }
                problem = problem or await _find_stuck(client, one, watched, seen[one.source])
                if problem is not None and problem != shown.get(one.source):
                    show(one.source, problem)
                shown[one.source] = problem
        await asyncio.sleep(WARNING_SECONDS)


async def _find_stuck(
    client: AsyncClient, one: EventsSource, asked: list[StreamSpec], seen: dict[str, float]
) -> str | None:
    if asked and one.clock != "marks" and not one.has_periods:  # else others decide when answers are due
        with suppress(SottoError, KafkaError, OSError):  # analysts may not read statuses
            statuses = await asyncio.wait_for(client.statuses([spec.stream for spec in asked]), LOOKUP_SECONDS)
            return describe_overdue(asked, one, statuses, time.time(), seen)
    return None


async def follow_refusals(topics: Topics, find_sources: FindSources, show: ShowRefusal) -> None:
    """Call ``show`` with the sources and share of refused events; return if dead letters may not be read."""
    while True:
        try:
            await _read_refusals(topics, find_sources, show)
        except TopicAuthorizationFailedError:
            return
        except (KafkaError, SottoError, OSError):
            await asyncio.sleep(RETRY_SECONDS)


async def _read_refusals(topics: Topics, find_sources: FindSources, show: ShowRefusal) -> None:
    warnings, sources, looked_up = RefusalWarnings(), list[EventsSource](), -LOOKUP_SECONDS
    async with create_reader(local_settings()) as consumer:
        await require_visible(consumer, topics.rejected)
        places = [TopicPartition(topics.rejected, one) for one in range(topics.partitions)]
        consumer.assign(places)
        since = int((time.time() - RECENT_SECONDS) * 1000)
        begins = await consumer.offsets_for_times(dict.fromkeys(places, since))
        for place, begin in begins.items():
            if begin is None:
                await consumer.seek_to_end(place)
            else:
                consumer.seek(place, begin.offset)
        while True:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                warnings.add(select_readable(records))
            if not warnings.is_due(time.time()):
                continue
            if time.monotonic() - looked_up >= LOOKUP_SECONDS:
                sources, looked_up = await find_sources(), time.monotonic()
            for due in warnings.take_due(sources, time.time()):
                show(*due)
