"""Making the topics, and checking those that exist."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from stream.processors.topics import LEDGER_PARTITIONS, Topics
from stream.settings import Settings

_MEGABYTE = 1024 * 1024
_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2", "segment.ms": "3600000"}
_DEFINITIONS = {**_COMPACTED, "max.message.bytes": str(4 * _MEGABYTE)}


class TopicsError(RuntimeError):
    """Topics are missing or laid out otherwise; the message says which and what to do."""


@dataclass(frozen=True)
class TopicLayout:
    """How one topic must be."""

    name: str
    partitions: int
    configuration: dict[str, str] = field(default_factory=dict)


def layout(topics: Topics) -> list[TopicLayout]:
    """Every topic of an installation, with its partitions and configuration."""
    wide, serial = topics.partitions, LEDGER_PARTITIONS
    return [
        TopicLayout(topics.queries, wide, {"cleanup.policy": "delete", "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.control, wide, _DEFINITIONS),
        TopicLayout(topics.answers, wide, {"cleanup.policy": "delete", "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.state, wide, {**_COMPACTED, "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.requests, serial, {"cleanup.policy": "delete", "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.charges, serial, {"cleanup.policy": "delete"}),
        TopicLayout(topics.ledger, serial, _DEFINITIONS),
        TopicLayout(topics.rejected, wide, {"cleanup.policy": "delete", "max.message.bytes": str(8 * _MEGABYTE)}),
        TopicLayout(topics.status, wide, _COMPACTED),
    ]


async def create_topics(settings: Settings) -> list[str]:
    """Create what is missing and give the names created; what exists is left alone, then checked."""
    topics = Topics(settings.prefix, settings.partitions)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        existing = set(await admin.list_topics())
        missing = [wanted for wanted in layout(topics) if wanted.name not in existing]
        if missing:
            response = await admin.create_topics(
                [
                    NewTopic(
                        wanted.name,
                        wanted.partitions,
                        settings.replication,
                        topic_configs=dict(wanted.configuration),
                    )
                    for wanted in missing
                ],
            )
            for name, code, *_ in response.topic_errors:
                if code and for_code(code) is not TopicAlreadyExistsError:
                    raise TopicsError(f"cannot create topic {name}: {for_code(code).__name__}")
    finally:
        await admin.close()
    await find_topics(settings, attempts=20)
    return [wanted.name for wanted in missing]


async def find_topics(settings: Settings, *, attempts: int = 1) -> Topics:
    """Read the layout of the existing topics.

    Raises:
        TopicsError: topics are missing, or partition counts differ between co-partitioned ones.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        for attempt in range(attempts):
            names = [wanted.name for wanted in layout(Topics(settings.prefix))]
            described = await admin.describe_topics(names)
            counts = {d["topic"]: len(d["partitions"]) for d in described if not d["error_code"]}
            missing = [name for name in names if not counts.get(name)]
            if not missing:
                break
            if attempt + 1 < attempts:
                await asyncio.sleep(0.2)
    finally:
        await admin.close()
    if missing:
        raise TopicsError(f"topics are missing: {', '.join(missing)}; run 'sotto topics create'")
    topics = Topics(settings.prefix, counts[f"{settings.prefix}.queries"])
    for wanted in layout(topics):
        if counts[wanted.name] != wanted.partitions:
            raise TopicsError(
                f"topic {wanted.name} has {counts[wanted.name]} partitions and needs {wanted.partitions}; "
                "co-partitioned topics must agree: recreate it, or use another prefix",
            )
    return topics


async def delete_topics(settings: Settings) -> None:
    """Delete every topic of an installation, for good."""
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.bootstrap)
    await admin.start()
    try:
        await admin.delete_topics([wanted.name for wanted in layout(Topics(settings.prefix))])
    finally:
        await admin.close()
