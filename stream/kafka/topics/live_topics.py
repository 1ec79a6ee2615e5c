"""Creates and checks live topics and their changelogs."""

from __future__ import annotations

import asyncio
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient

from schemas import EventsSource
from stream.kafka.client.security import admin_client
from stream.kafka.topics.creation import brokers_and_replication, create_missing, describe_topics
from stream.kafka.topics.layouts import (
    BROKER_TIMESTAMPS,
    TopicLayout,
    TopicsError,
    configuration,
    configurations,
    feed_layout,
    format_differences,
    installation_exists,
    layout,
    prefixes_of,
    retention_differences,
)
from stream.processing.topic_names import Topics
from stream.settings import Settings

_ATTEMPTS: Final = 20
_PAUSE: Final = 0.2
"""Number of attempts to see a created topic, and seconds between them."""


async def create_live_topic(settings: Settings, source: EventsSource, partitions: int) -> tuple[int, bool]:
    """Creates a missing live topic; returns its number of partitions, and whether it is new.

    If the source has the broker's clock, the broker stamps the records.

    Raises:
        TopicsError: the topic exists with writers' timestamps, or is hidden or cannot be created.
    """
    by_broker = source.clock == "broker"
    wanted = TopicLayout(source.topic, partitions, has_broker_timestamps=by_broker)
    async with admin_client(settings) as admin:
        if not await describe_topics(admin, [source.topic]):
            raise TopicsError(
                f"Kafka hides topic {source.topic} from this principal; create it as an administrator"
            )
        found, is_new = await _ensure_topic(admin, settings, wanted)
        if not found:
            raise TopicsError(f"topic {source.topic} was made and is not there; see the broker's log")
        [(setting, expected)] = BROKER_TIMESTAMPS.items()
        actual = (await configuration(admin, source.topic)).get(setting)
    if by_broker and actual != expected:
        raise TopicsError(
            f"topic {source.topic} exists with {setting}={actual}, but windows of source '{source.source}' close by the "
            f"broker's stamps; set {expected} with kafka-configs.sh before any event is written"
        )
    return len(found), is_new


def other_source_remedy(source: str) -> str:
    """Returns the remedy for a topic whose number of partitions has changed."""
    return f"close the streams of source '{source}', and register another source for the topic as it is"


async def find_live_topic(settings: Settings, topics: Topics, source: str, topic: str) -> int:
    """Returns the number of partitions of a live topic; creates its changelog if it is missing.

    Raises:
        TopicsError: the topic is missing or hidden, or the changelog has another number of
            partitions, belongs to another installation or loses records.
    """
    async with admin_client(settings) as admin:
        found = await describe_topics(admin, [topic])
        if not found.get(topic):
            raise TopicsError(
                f"topic {topic} of source '{source}' does not exist; 'sotto events topic {source}' creates it"
                if topic in found
                else f"Kafka hides topic {topic} of source '{source}'; see 'sotto topics acl --role feed --live {topic}'"
            )
        wanted = feed_layout(topics, source, len(found[topic]))
        await _require_unused_name(admin, topics, source, wanted.name)
        kept, is_new = await _ensure_topic(admin, settings, wanted)
        if not kept:
            raise TopicsError(f"topic {wanted.name} was not created; see 'sotto topics acl --role feed'")
        actual = {} if is_new else await configurations(admin, [wanted.name])
    if len(kept) != wanted.partitions:
        raise TopicsError(
            f"topic {topic} has {wanted.partitions} partitions, and had {len(kept)} when its first stream began; "
            f"{other_source_remedy(source)}"
        )
    if deleting := retention_differences(wanted, actual.get(wanted.name, {})):
        raise TopicsError(f"Kafka deletes records that must be kept: {format_differences(deleting)}")
    return wanted.partitions


async def _require_unused_name(admin: AIOKafkaAdminClient, topics: Topics, source: str, changelog: str) -> None:
    """Refuses a changelog if its name is a topic of another installation.

    For example, source `ledger` in installation `sotto` has the changelog `sotto.feed.ledger`, which
    is also the ledger of the installation `sotto.feed`.

    Raises:
        TopicsError: such an installation exists.
    """
    for prefix in prefixes_of(changelog):
        if prefix == topics.prefix:
            continue
        found = await describe_topics(admin, [one.name for one in layout(Topics(prefix))])
        if installation_exists(prefix, [name for name, replicas in found.items() if replicas]):
            raise TopicsError(
                f"the changelog of source '{source}' would be topic {changelog}, which belongs to the installation '{prefix}'; close the "
                "streams of this source, and register its topic under another name"
            )


async def _ensure_topic(
    admin: AIOKafkaAdminClient, settings: Settings, wanted: TopicLayout
) -> tuple[list[int], bool]:
    """Creates a missing topic; returns the replicas of each partition, and whether it is new."""
    for attempt in range(_ATTEMPTS):
        if found := (await describe_topics(admin, [wanted.name])).get(wanted.name):
            return found, attempt > 0
        if attempt == 0:
            await create_missing(admin, [wanted], (await brokers_and_replication(admin, settings))[1])
        await asyncio.sleep(_PAUSE)
    return [], True
