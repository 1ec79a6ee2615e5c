"""Creates, finds, checks and deletes an installation's topics, and live topics with their changelogs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError, for_code

from schemas import EventsSource
from stream.kafka.acls import AclRole, Resource, role_access
from stream.kafka.broker_addresses import default_replicas
from stream.kafka.client.broker_connections import admin_client, ask_any_broker
from stream.kafka.topic_layouts import (
    KAFKA_TOPICS,
    REPLICATION,
    Difference,
    TopicLayout,
    TopicsError,
    compaction_problem,
    configuration_differences,
    create_missing,
    describe_topics,
    feed_layout,
    format_differences,
    installation_exists,
    layout,
    missing_topic_problem,
    partition_differences,
    partitions_problem,
    prefixes_of,
    read_configurations,
    recreation_problem,
    require_readable,
    retention_differences,
    retention_warning,
    timestamps_problem,
    usual_partition_count,
)
from stream.processing.topic_names import Topics, conflicting_prefixes
from stream.settings import Settings, variable_of

DELETION_SECONDS = 60.0
"""Longest time that brokers may still list a deleted topic."""
_ATTEMPTS: Final = 20
"""Number of attempts to find a created topic."""
_ATTEMPT_PAUSE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class CreatedTopics:
    """The created topics, their partitions and replicas, and the number of brokers."""

    names: list[str]
    partitions: int
    replication: int
    brokers: int
    differences: list[Difference]
    """Settings of existing topics that differ from their layout."""


async def create_topics(settings: Settings) -> CreatedTopics:
    """Creates the missing topics; checks the existing topics but does not change them.

    Without settings, a topic gets three replicas (or one per broker, if fewer) and as many partitions as existing
    topics. TopicsError if the settings ask for another number of partitions than existing topics have (then
    nothing is created), or as for `read_topics`.
    """
    async with admin_client(settings) as admin:
        brokers, replication = await brokers_and_replication(admin, settings)
        listed = set(await ask_any_broker(admin.list_topics))
        present = [one.name for one in layout(Topics(settings.prefix)) if one.name in listed]
        described = await describe_topics(admin, present) if present else {}
        existing = {name: described[name] for name in present if described.get(name)}
        topics = Topics(settings.prefix, _choose_partition_count(settings, existing))
        missing = [wanted for wanted in layout(topics) if wanted.name not in listed]
        _require_no_name_conflict(settings.prefix, listed)
        if (others := conflicting_prefixes(settings.prefix)) and not installation_exists(settings.prefix, listed):
            raise TopicsError(
                f"{variable_of('prefix')}: '{settings.prefix}' could share names of topics or groups with an installation '{others[-1]}'; "
                "choose a prefix that does not contain '.feed', '-feed' or '-alerts'"
            )
        await create_missing(admin, missing, replication)
        differences = await _find_differences(admin, settings, topics, existing)
    await read_topics(settings, attempts=_ATTEMPTS)
    return CreatedTopics([wanted.name for wanted in missing], topics.partitions, replication, brokers, differences)


def _require_no_name_conflict(prefix: str, listed: Collection[str]) -> None:
    """Raises a TopicsError if an installation exists that may share names with this prefix."""
    for other in conflicting_prefixes(prefix):
        if installation_exists(other, listed):
            raise TopicsError(
                f"{variable_of('prefix')}: '{prefix}' may share names of topics or groups with the existing installation '{other}'; "
                "end one of them: 'sotto ledger export' takes its backup, then delete its topics"
            )


async def _find_differences(
    admin: AIOKafkaAdminClient, settings: Settings, topics: Topics, existing: Mapping[str, Sequence[int]]
) -> list[Difference]:
    wanted = [one for one in layout(topics) if one.name in existing]
    actual = await read_configurations(admin, existing) if existing else {}
    require_readable(existing, actual)
    return [
        *partition_differences(wanted, {name: len(replicas) for name, replicas in existing.items()}),
        *(
            Difference(name, REPLICATION, str(settings.replication), str(min(replicas)))
            for name, replicas in existing.items()
            if "replication" in settings.model_fields_set and set(replicas) != {settings.replication}
        ),
        *(
            different
            for one in wanted
            for different in configuration_differences(one, existing[one.name], actual[one.name])
        ),
    ]


def _choose_partition_count(settings: Settings, existing: Mapping[str, Sequence[int]]) -> int:
    """Returns the number of partitions of existing topics, or of the settings if no topics exist."""
    counts = {name: len(replicas) for name, replicas in existing.items()}
    if (shared := usual_partition_count(settings.prefix, counts)) is None:
        return settings.partitions
    if "partitions" in settings.model_fields_set and shared != settings.partitions:
        name = next(one.name for one in layout(Topics(settings.prefix, shared)) if counts.get(one.name) == shared)
        raise TopicsError(
            f"{variable_of('partitions')} (--partitions): topic {name} has {shared} partitions, not {settings.partitions}, "
            "and the number is fixed at creation; leave the setting out, or use another prefix"
        )
    return shared


async def brokers_and_replication(admin: AIOKafkaAdminClient, settings: Settings) -> tuple[int, int]:
    """Returns the number of brokers, and the number of replicas for a new topic."""
    brokers = len((await ask_any_broker(admin.describe_cluster))["brokers"])
    is_set = "replication" in settings.model_fields_set
    return brokers, settings.replication if is_set else default_replicas(brokers)


@dataclass(frozen=True)
class FoundTopics:
    """The topics that this principal may see; ``topics`` has their most frequent number of partitions."""

    topics: Topics
    replicas: Mapping[str, Sequence[int]]
    """The number of replicas of each partition, by topic."""
    partition_differences: Sequence[Difference] = ()
    """Topics whose number of partitions differs from their layout."""

    def require_partition_counts(self, names: Iterable[str]) -> None:
        """Raises a TopicsError if one of these topics has a wrong number of partitions."""
        named = set(names)
        if differing := [one for one in self.partition_differences if one.topic in named]:
            raise TopicsError(format_differences(differing))


async def require_topics(settings: Settings, *, attempts: int = 1, role: AclRole | None = None) -> Topics:
    """Finds the topics; checks the number of partitions of all topics, or of a role's topics.

    TopicsError as for `read_topics`, or if a topic has a wrong number of partitions.
    """
    found = await read_topics(settings, attempts=attempts, role=role)
    found.require_partition_counts(found.replicas if role is None else _topics_of_role(settings, role))
    return found.topics


async def read_topics(settings: Settings, *, attempts: int = 1, role: AclRole | None = None) -> FoundTopics:
    """Reads the partitions and replicas of the topics that this principal may see.

    TopicsError if topics are missing. With a ``role``, also if they are hidden, or may belong to another installation.
    """
    names = [one.name for one in layout(Topics(settings.prefix))]
    role_topics = _topics_of_role(settings, role) if role is not None else set(names)
    others = conflicting_prefixes(settings.prefix) if role is not None else []
    other_names = [one.name for other in others for one in layout(Topics(other))]
    async with admin_client(settings) as admin:
        for attempt in range(attempts):
            found = await describe_topics(admin, [*names, *other_names])
            missing = [name for name in names if name in role_topics and found.get(name) == []]
            if not missing:
                break
            if attempt + 1 < attempts:
                await asyncio.sleep(_ATTEMPT_PAUSE_SECONDS)
    _require_no_name_conflict(settings.prefix, [name for name in other_names if found.pop(name, None)])
    if missing:
        raise TopicsError(
            f"topics are missing: {', '.join(missing)}; check {variable_of('prefix')}, or run 'sotto topics create'"
        )
    if role is not None and (hidden := sorted(role_topics - found.keys())):
        raise TopicsError(
            f"Kafka hides from this principal: {', '.join(hidden)}; check {variable_of('prefix')}, or grant it the access of 'sotto topics acl --role {role}'"
        )
    counts = {name: len(replicas) for name, replicas in found.items() if replicas}
    if (shared := usual_partition_count(settings.prefix, counts)) is None:
        raise TopicsError(
            f"Kafka shows this principal no topic of '{settings.prefix}'; check {variable_of('prefix')}, or give the principal a role, see 'sotto topics acl'"
        )
    topics = Topics(settings.prefix, shared)
    return FoundTopics(
        topics, {name: found[name] for name in counts}, partition_differences(layout(topics), counts)
    )


def _topics_of_role(settings: Settings, role: AclRole) -> set[str]:
    """Returns the names of the topics that a role must read or write."""
    return {
        one.name
        for one in role_access(settings)[role]
        if one.resource is Resource.TOPIC and not one.prefixed and not one.optional
    }


@dataclass(frozen=True)
class Inspection:
    """The result of a comparison of topics with their layout."""

    differences: list[Difference]
    retention_differences: list[Difference]
    """The differences that let Kafka delete records that must be kept."""
    hidden: list[str]
    """Topics whose configuration this principal may not read."""


async def inspect_topics(settings: Settings, *, attempts: int = 1, role: AclRole | None = None) -> Inspection:
    """Compares all topics, or the topics of a role, with their layout and replicas; TopicsError as for `read_topics`.

    Kafka's own topics must have as many replicas, if the principal may see them.
    """
    found = await read_topics(settings, attempts=attempts, role=role)
    names = None if role is None else _topics_of_role(settings, role)
    wanted = [one for one in layout(found.topics) if names is None or one.name in names]
    seen = [one for one in wanted if one.name in found.replicas]
    async with admin_client(settings) as admin:
        actual = await read_configurations(admin, [one.name for one in seen])
        least = (await brokers_and_replication(admin, settings))[1]
        replicas = {one.name: found.replicas[one.name] for one in seen}
        replicas |= await describe_topics(admin, list(KAFKA_TOPICS))
    read = [one for one in seen if one.name in actual]
    fewer = ((name, min(each)) for name, each in replicas.items() if each and min(each) < least)
    differences = [
        *(Difference(name, REPLICATION, str(least), str(count)) for name, count in fewer),
        *(one for one in found.partition_differences if names is None or one.topic in names),
        *(
            different
            for one in read
            for different in configuration_differences(one, found.replicas[one.name], actual[one.name])
        ),
    ]
    deleting = [lost for one in read for lost in retention_differences(one, actual[one.name])]
    return Inspection(differences, deleting, [one.name for one in wanted if one not in read])


async def check_topics(settings: Settings) -> list[Difference]:
    """Compares all topics as `inspect_topics` does; TopicsError also if a configuration may not be read."""
    inspected = await inspect_topics(settings)
    require_readable(inspected.hidden, {})
    return inspected.differences


async def delete_topics(settings: Settings) -> None:
    """Deletes all topics of an installation, and waits until none is listed.

    TopicsError if Kafka does not delete a topic, or still lists it after `DELETION_SECONDS`.
    """
    names = {wanted.name for wanted in layout(Topics(settings.prefix))}
    async with admin_client(settings) as admin:
        response = await admin.delete_topics(sorted(names))
        for name, code in response.topic_error_codes:
            if code and for_code(code) is not UnknownTopicOrPartitionError:
                raise TopicsError(f"cannot delete topic {name}: {for_code(code).__name__}")
        deadline = monotonic() + DELETION_SECONDS
        while left := names.intersection(await ask_any_broker(admin.list_topics)):
            if monotonic() > deadline:
                raise TopicsError(f"Kafka still lists deleted topics: {', '.join(sorted(left))}")
            await asyncio.sleep(0.1)


async def create_live_topic(settings: Settings, source: EventsSource, partitions: int) -> tuple[int, bool]:
    """Creates a missing live topic; returns its number of partitions, and whether it is new.

    If the source has the broker's clock, the broker stamps the records. TopicsError if the topic exists with
    writers' timestamps or is compacted, or is hidden or cannot be created.
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
            raise TopicsError(f"topic {source.topic} was created and is not listed; see the broker's log")
        configurations = await read_configurations(admin, [source.topic])
        require_readable([source.topic], configurations)
        actual = configurations[source.topic]
    if problem := compaction_problem(source, actual) or timestamps_problem(source, actual):
        raise TopicsError(problem)
    return len(found), is_new


@dataclass(frozen=True, slots=True)
class LiveTopicReport:
    """Kafka's information about the topic of a source; each text has a remedy."""

    is_missing: bool = False
    is_compacted: bool = False
    problem: str | None = None
    """Why feeds cannot count the topic; None if they can, or if this principal cannot see the topic."""
    warning: str | None = None
    """Why feeds may miss events of the topic."""


async def inspect_live_topic(settings: Settings, source: EventsSource, needed_ms: int = 0) -> LiveTopicReport:
    """Reports whether feeds can count a source's topic; an empty report if Kafka hides this from the principal.

    ``needed_ms`` is the time for which the topic must have kept its events.
    """
    try:
        async with admin_client(settings) as admin:
            changelog = Topics(settings.prefix).feed_state(source.source)
            found = await describe_topics(admin, [source.topic, changelog])
            if (replicas := found.get(source.topic)) is None:
                return LiveTopicReport()
            if not replicas:
                return LiveTopicReport(is_missing=True, problem=missing_topic_problem(source.source, source.topic))
            actual = (await read_configurations(admin, [source.topic])).get(source.topic, {})
    except (KafkaError, OSError):
        return LiveTopicReport()
    compaction, known = compaction_problem(source, actual), found.get(changelog, [])
    return LiveTopicReport(
        is_compacted=compaction is not None,
        problem=compaction
        or timestamps_problem(source, actual)
        or partitions_problem(source.source, source.topic, len(replicas), len(known or replicas))
        or await recreation_problem(settings, source.topic, changelog, len(known)),
        warning=None if compaction else retention_warning(source, actual, needed_ms),
    )


async def find_live_topic(settings: Settings, topics: Topics, declared: EventsSource) -> int:
    """Returns the number of partitions of a live topic; creates its changelog if it is missing.

    TopicsError if the topic is missing, hidden or has writers' timestamps (an empty one would be asked and charged
    until its first event), or if the changelog does not fit, belongs to another installation or loses records.
    """
    source, topic = declared.source, declared.topic
    async with admin_client(settings) as admin:
        found = await describe_topics(admin, [topic])
        if not found.get(topic):
            raise TopicsError(
                missing_topic_problem(source, topic)
                if topic in found
                else f"Kafka hides topic {topic} of source '{source}'; see 'sotto topics acl --role feed --live {topic}'"
            )
        wanted = feed_layout(topics, source, len(found[topic]))
        await _require_unused_name(admin, topics, source, wanted.name)
        kept, is_new = await _ensure_topic(admin, settings, wanted)
        if not kept:
            raise TopicsError(f"topic {wanted.name} was not created; see 'sotto topics acl --role feed'")
        actual = await read_configurations(admin, [topic] if is_new else [topic, wanted.name])
    changed = partitions_problem(source, topic, wanted.partitions, len(kept))
    if problem := changed or timestamps_problem(declared, actual.get(topic, {})):
        raise TopicsError(problem)
    if deleting := retention_differences(wanted, actual.get(wanted.name, {})):
        raise TopicsError(f"Kafka deletes records that must be kept: {format_differences(deleting)}")
    return wanted.partitions


async def _require_unused_name(admin: AIOKafkaAdminClient, topics: Topics, source: str, changelog: str) -> None:
    """Refuses a changelog if its name is a topic of another installation.

    For example, source `ledger` in installation `sotto` has the changelog `sotto.feed.ledger`, which is also the
    ledger of the installation `sotto.feed`. TopicsError if such an installation exists.
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
        await asyncio.sleep(_ATTEMPT_PAUSE_SECONDS)
    return [], True
