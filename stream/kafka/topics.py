"""Making the topics, and checking those that exist."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)

from stream.kafka.acls import Resource, Role, grants
from stream.kafka.broker_config import replicas_among
from stream.kafka.security import admin_client
from stream.kafka.starting import from_any_broker
from stream.log import get_logger
from stream.processors.topics import LEDGER_PARTITIONS, Topics
from stream.settings import Settings, variable

log = get_logger("topics")

CHECK_SECONDS = 10.0
"""Longest that a service's look at its topics may hold up its start."""
DELETION_SECONDS = 60.0
"""Longest that brokers may go on telling of a topic that was deleted."""
_MEGABYTE = 1024 * 1024
STAMPED = {"message.timestamp.type": "LogAppendTime"}
"""The broker's clock alone gives records their time: no writer's can be wrong, be refused, or gain a stream a share."""
_AS_SENT = {"compression.type": "producer"}
"""Brokers keep batches as they are sent. Any other setting has them unfold what others have compressed, without a bound, in
their own memory: a batch of 38 KB that holds 900 MB ends a broker with a heap of a gigabyte."""
_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2", "segment.ms": "3600000"}
_FOR_EVER = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(4 * _MEGABYTE),
}
"""Kafka deletes the oldest records of other topics after a week: a trail without its beginning proves little."""
_OUTLASTING = {"cleanup.policy": "delete", "retention.ms": str(28 * 24 * 3_600_000), "retention.bytes": "-1"}
"""What is asked of the budget service waits for it for four weeks: by Kafka's own week an opening would be lost in an outage."""
_DEFINITIONS = {**_COMPACTED, "max.message.bytes": str(4 * _MEGABYTE)}


class TopicsError(RuntimeError):
    """Topics are missing or laid out otherwise; the message says which and what to do."""


@dataclass(frozen=True)
class TopicLayout:
    """How one topic must be."""

    name: str
    partitions: int
    configuration: dict[str, str] = field(default_factory=dict)

    stamped: bool = True
    """Whether the broker's clock gives its records their time."""

    def configuration_with(self, replication: int) -> dict[str, str]:
        """All that is set of it when it is kept so many times."""
        return {**self.configuration, **_AS_SENT, **(STAMPED if self.stamped else {}), **durability(replication)}


@dataclass(frozen=True)
class Difference:
    """A topic's setting that is not as it should be."""

    topic: str
    setting: str
    wanted: str
    actual: str


def durability(replication: int) -> dict[str, str]:
    """What keeps a committed record: a majority of the replicas has it, and no other replica may lead."""
    return {"min.insync.replicas": str(replication // 2 + 1), "unclean.leader.election.enable": "false"}


def layout(topics: Topics) -> list[TopicLayout]:
    """Every topic of an installation, with its partitions and configuration."""
    wide, serial = topics.partitions, LEDGER_PARTITIONS
    return [
        TopicLayout(topics.queries, wide, {"cleanup.policy": "delete", "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.control, wide, _DEFINITIONS),
        TopicLayout(topics.answers, wide, {"cleanup.policy": "delete", "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.state, wide, {**_COMPACTED, "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.partials, wide, {"cleanup.policy": "delete", "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.merges, wide, {**_COMPACTED, "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.requests, serial, {**_OUTLASTING, "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.charges, serial, _OUTLASTING),
        TopicLayout(topics.ledger, serial, _DEFINITIONS),
        TopicLayout(topics.trail, serial, _FOR_EVER),
        TopicLayout(topics.rejected, wide, {"cleanup.policy": "delete", "max.message.bytes": str(8 * _MEGABYTE)}),
        TopicLayout(topics.status, wide, _COMPACTED),
    ]


def feed_layout(topics: Topics, source: str, partitions: int) -> TopicLayout:
    """The changelog of a live topic's tasks, which the feeds make themselves."""
    return TopicLayout(
        topics.feed_state(source), partitions, {**_COMPACTED, "max.message.bytes": str(4 * _MEGABYTE)}
    )


@dataclass(frozen=True, slots=True)
class Created:
    """The names of the topics that were missing, how many replicas each has, and among how many brokers that was chosen."""

    names: list[str]
    replication: int
    brokers: int
    otherwise: list[Difference]
    """What those that were there have otherwise than the settings say."""


async def create_topics(settings: Settings) -> Created:
    """Create what is missing; what exists is left alone, then checked.

    Where the settings do not say how many replicas a topic has, it has three, or as many as there are brokers now; and as many
    partitions as those that are there.

    Raises:
        TopicsError: they say another number of partitions than there are, and nothing was created; or as `find_topics`.
    """
    async with admin_client(settings) as admin:
        brokers, replication = await replication_of(admin, settings)
        listed = set(await from_any_broker(admin.list_topics))
        there = [one.name for one in layout(Topics(settings.prefix)) if one.name in listed]
        described = await describe_topics(admin, there) if there else {}
        existing = {name: described[name] for name in there if described.get(name)}
        topics = Topics(settings.prefix, _partitions(settings, existing))
        missing = [wanted for wanted in layout(topics) if wanted.name not in listed]
        await create_missing(admin, missing, replication)
    await find_topics(settings, attempts=20)
    otherwise = [
        Difference(name, "replication", str(settings.replication), str(min(replicas)))
        for name, replicas in existing.items()
        if "replication" in settings.model_fields_set and set(replicas) != {settings.replication}
    ]
    return Created([wanted.name for wanted in missing], replication, brokers, otherwise)


def _partitions(settings: Settings, existing: Mapping[str, Sequence[int]]) -> int:
    """How many partitions co-partitioned topics have, or are to have where there are none."""
    shared = _shared(settings.prefix, {name: len(replicas) for name, replicas in existing.items()})
    if not shared:
        return settings.partitions
    if "partitions" in settings.model_fields_set:
        for name, count in shared.items():
            if count != settings.partitions:
                raise TopicsError(
                    f"{variable('partitions')} (--partitions): topic {name} has {count} partitions, not {settings.partitions}, "
                    "and that is fixed at creation; leave it out, or use another prefix"
                )
    return next(iter(shared.values()))


def _shared(prefix: str, counts: Mapping[str, int]) -> dict[str, int]:
    """The co-partitioned ones of some topics, with their partitions."""
    serial = {
        one.name for one in layout(Topics(prefix, LEDGER_PARTITIONS + 1)) if one.partitions == LEDGER_PARTITIONS
    }
    return {name: count for name, count in counts.items() if name not in serial}


async def replication_of(admin: AIOKafkaAdminClient, settings: Settings) -> tuple[int, int]:
    """How many brokers there are, and how many replicas a new topic gets."""
    brokers = len((await from_any_broker(admin.describe_cluster))["brokers"])
    told = "replication" in settings.model_fields_set
    return brokers, settings.replication if told else replicas_among(brokers)


async def create_missing(admin: AIOKafkaAdminClient, missing: list[TopicLayout], replication: int) -> None:
    """Create topics; TopicsError if Kafka does not, unless somebody else just has."""
    if not missing:
        return
    response = await admin.create_topics(
        [
            NewTopic(
                wanted.name, wanted.partitions, replication, topic_configs=wanted.configuration_with(replication)
            )
            for wanted in missing
        ],
    )
    for name, code, *_ in response.topic_errors:
        if code and for_code(code) is not TopicAlreadyExistsError:
            raise TopicsError(f"cannot create topic {name}: {for_code(code).__name__}")


async def find_topics(settings: Settings, *, attempts: int = 1, role: Role | None = None) -> Topics:
    """Read the layout of the existing topics, as far as this principal may see them: for a role, all that it touches must be there.

    Raises:
        TopicsError: topics are missing, partition counts differ between co-partitioned ones, or some are hidden.
    """
    wanted = layout(Topics(settings.prefix))
    touched = _touched(settings, role) if role is not None else {one.name for one in wanted}
    async with admin_client(settings) as admin:
        for attempt in range(attempts):
            found = await describe_topics(admin, [one.name for one in wanted])
            missing = [one.name for one in wanted if one.name in touched and found.get(one.name) == []]
            if not missing:
                break
            if attempt + 1 < attempts:
                await asyncio.sleep(0.2)
    if missing:
        raise TopicsError(f"topics are missing: {', '.join(missing)}; run 'sotto topics create'")
    if role is not None and (hidden := sorted(touched - found.keys())):
        raise TopicsError(
            f"Kafka hides from this principal: {', '.join(hidden)}; give it its role, see 'sotto topics acl --role {role}'"
        )
    counts = {name: len(replicas) for name, replicas in found.items() if replicas}
    shared = list(_shared(settings.prefix, counts).values())
    if not shared:
        raise TopicsError(
            f"Kafka shows this principal no topic of '{settings.prefix}'; give it a role, see 'sotto topics acl'"
        )
    topics = Topics(settings.prefix, shared[0])
    for one in layout(topics):
        if counts.get(one.name, one.partitions) != one.partitions:
            raise TopicsError(
                f"topic {one.name} has {counts[one.name]} partitions and needs {one.partitions}; "
                "co-partitioned topics must agree: recreate it, or use another prefix",
            )
    return topics


def _touched(settings: Settings, role: Role) -> set[str]:
    """The topics that a role reads or writes and finds there."""
    return {one.name for one in grants(settings)[role] if one.resource is Resource.TOPIC and not one.prefixed}


async def check_topics(settings: Settings, *, role: Role | None = None) -> list[Difference]:
    """Compare every topic's configuration with the wanted one, or that of those that a role touches.

    It needs a principal that may describe configurations.

    Raises:
        TopicsError: as `find_topics`, and where a configuration may not be read.
    """
    topics = await find_topics(settings)
    wanted = [one for one in layout(topics) if role is None or one.name in _touched(settings, role)]
    async with admin_client(settings) as admin:
        replicas = await describe_topics(admin, [one.name for one in wanted])
        actual = await configurations(admin, [one.name for one in wanted])
    return [
        Difference(one.name, setting, value, actual[one.name].get(setting, ""))
        for one in wanted
        for setting, value in one.configuration_with(min(replicas[one.name])).items()
        if actual[one.name].get(setting) != value
    ]


async def configurations(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    """The settings of each topic; TopicsError where they may not be read."""
    asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    responses = await from_any_broker(lambda: admin.describe_configs(asked))
    actual: dict[str, dict[str, str]] = {}
    for code, _, _, name, entries in (resource for response in responses for resource in response.resources):
        if code:
            raise TopicsError(f"cannot read the configuration of topic {name}: {for_code(code).__name__}")
        actual[name] = {entry[0]: entry[1] for entry in entries}
    return actual


async def warn_of_topics(settings: Settings, role: Role) -> None:
    """Log what is otherwise than it should be of the topics that a role touches, as far as this principal may ask."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            differences = await check_topics(settings, role=role)
    except (TopicsError, KafkaError, TimeoutError) as error:
        log.info("topics not checked; run 'sotto topics check'", error=type(error).__name__)
        return
    for one in differences:
        log.warning("topic differs", topic=one.topic, setting=one.setting, actual=one.actual, wanted=one.wanted)


async def delete_topics(settings: Settings) -> None:
    """Delete every topic of an installation, for good, and wait until the broker tells of none: until then, `create_topics` finds them.

    Raises:
        TopicsError: Kafka does not delete one, or still tells of it after `DELETION_SECONDS`.
    """
    names = {wanted.name for wanted in layout(Topics(settings.prefix))}
    async with admin_client(settings) as admin:
        response = await admin.delete_topics(sorted(names))
        for name, code in response.topic_error_codes:
            if code and for_code(code) is not UnknownTopicOrPartitionError:
                raise TopicsError(f"cannot delete topic {name}: {for_code(code).__name__}")
        until = monotonic() + DELETION_SECONDS
        while left := names.intersection(await from_any_broker(admin.list_topics)):
            if monotonic() > until:
                raise TopicsError(f"topics were deleted and are still there: {', '.join(sorted(left))}")
            await asyncio.sleep(0.1)


async def describe_topics(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, list[int]]:
    """How many replicas each partition of each topic has: none for a missing topic, no entry for one not to be seen."""
    described = await from_any_broker(lambda: admin.describe_topics(names))
    return {
        one["topic"]: [] if one["error_code"] else [len(part["replicas"]) for part in one["partitions"]]
        for one in described
        if for_code(one["error_code"]) is not TopicAuthorizationFailedError
    }
