"""Warnings of ``sotto watch`` about refused events of live topics, for principals that may read dead letters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError

from schemas import EventsSource, registered_as
from stream.client.async_client import AsyncClient
from stream.engine.restore import readable, reader, require_visible
from stream.errors import SottoError
from stream.kafka.broker.broker_addresses import local_settings
from stream.processing.dead_letters import read_dead_letter
from stream.processing.protocol import RecordLike
from stream.processing.refused_events import RECENT_SECONDS, RefusedShare, TopicRefusals
from stream.processing.topic_names import Topics
from stream.questions.alert_states import matches_patterns

WARNING_SECONDS: Final = 60.0
"""Seconds between two warnings about one source."""
RETRY_SECONDS: Final = 5.0
LOOKUP_SECONDS: Final = 30.0
"""Seconds between two reads of the ledger for the sources of unknown topics."""

SourcesOfTopics = Callable[[], Awaitable[Mapping[str, str]]]


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
            topic.add(letter.partition, letter.offset, letter.reason, letter.time)
            self._unreported.add(letter.topic)

    def is_due(self, now: float) -> bool:
        """Return True if a topic has dead letters that no recent warning reported."""
        return any(now - self._warned.get(one, 0.0) >= WARNING_SECONDS for one in self._unreported)

    def take_due(self, sources: Mapping[str, str], now: float) -> list[tuple[str, RefusedShare]]:
        """Return the due warnings as source and share; topics without a source in ``sources`` have none."""
        due = [one for one in sorted(self._unreported) if now - self._warned.get(one, 0.0) >= WARNING_SECONDS]
        found = []
        for topic in due:
            self._unreported.discard(topic)
            if (source := sources.get(topic)) is not None and (
                share := self._topics[topic].share(now)
            ) is not None:
                self._warned[topic] = now
                found.append((source, share))
        return found


async def watched_topics(client: AsyncClient, patterns: tuple[str, ...], source: str | None) -> dict[str, str]:
    """Return the sources of the live topics whose streams are watched, by topic."""
    names: set[str] | None = None
    if patterns:
        streams = [one.spec for one in await client.list_streams(source)]
        names = {
            registered_as(one.source) for one in streams if matches_patterns(registered_as(one.stream), patterns)
        }
    elif source is not None:
        names = {source}
    declared = [one.source for one in await client.list_sources()]
    return {
        one.topic: one.source
        for one in declared
        if isinstance(one, EventsSource) and one.period_of is None and (names is None or one.source in names)
    }


async def follow_refusals(
    topics: Topics, sources_of_topics: SourcesOfTopics, show: Callable[[str, RefusedShare], None]
) -> None:
    """Call ``show`` with source and share while events are refused; return if the topic may not be read."""
    while True:
        try:
            await _follow(topics, sources_of_topics, show)
        except TopicAuthorizationFailedError:
            return
        except (KafkaError, SottoError, OSError):
            await asyncio.sleep(RETRY_SECONDS)


async def _follow(
    topics: Topics, sources_of_topics: SourcesOfTopics, show: Callable[[str, RefusedShare], None]
) -> None:
    warnings, sources, looked_up = RefusalWarnings(), {}, -LOOKUP_SECONDS
    async with reader(local_settings()) as consumer:
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
                warnings.add(readable(records))
            if not warnings.is_due(time.time()):
                continue
            if time.monotonic() - looked_up >= LOOKUP_SECONDS:
                sources, looked_up = dict(await sources_of_topics()), time.monotonic()
            for source, share in warnings.take_due(sources, time.time()):
                show(source, share)
