"""Defines an installation's topics and groups, and compares topics with their layout."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aiokafka import TopicPartition, errors
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from schemas import EventsSource
from stream.kafka.client.adapter import KAFKA
from stream.kafka.client.broker_connections import ask_any_broker, connection_options
from stream.processing.protocol import PROGRESS_KEY, topic_ids_of
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics
from stream.settings import Settings, variable_of

_MEGABYTE = 1024 * 1024
BROKER_TIMESTAMPS = {"message.timestamp.type": "LogAppendTime"}
"""The broker sets timestamps, so that they do not depend on writers' clocks."""
_PRODUCER_COMPRESSION = {"compression.type": "producer"}
"""Brokers keep the producers' compression. With any other setting they decompress batches of any size: a
batch of 38 KB with 900 MB of content crashes a broker that has 1 GB of heap."""
_COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2", "segment.ms": "3600000"}
_KEPT_FOREVER = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(4 * _MEGABYTE),
}
"""Settings of the trail, whose beginning must be kept; Kafka's default retention is one week."""
_KEPT_FOUR_WEEKS = {"cleanup.policy": "delete", "retention.ms": str(28 * 24 * 3_600_000), "retention.bytes": "-1"}
"""Settings of requests and charges: they are kept for four weeks, so that an outage of a week loses none."""
_CHANGELOG = {**_COMPACTED, "max.message.bytes": str(4 * _MEGABYTE)}


@dataclass(frozen=True)
class TopicLayout:
    """The required settings of a topic."""

    name: str
    partitions: int
    configuration: dict[str, str] = field(default_factory=dict)

    has_broker_timestamps: bool = True
    """True if the broker sets the records' timestamps."""
    must_keep_records: bool = False
    """True if Kafka must keep all records: a loss would repeat grants or answers, or break the trail."""

    def configuration_with(self, replication: int) -> dict[str, str]:
        """Returns the full configuration for a number of replicas."""
        return {
            **self.configuration,
            **_PRODUCER_COMPRESSION,
            **(BROKER_TIMESTAMPS if self.has_broker_timestamps else {}),
            **durability_settings(replication),
        }


def durability_settings(replication: int) -> dict[str, str]:
    """Returns settings by which a write needs a majority of replicas, and only a replica in sync becomes leader."""
    return {"min.insync.replicas": str(replication // 2 + 1), "unclean.leader.election.enable": "false"}


def layout(topics: Topics) -> list[TopicLayout]:
    """Returns the layout of every topic of an installation."""
    many = topics.partitions
    return [
        TopicLayout(topics.queries, many, {"cleanup.policy": "delete", "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.control, many, _CHANGELOG, must_keep_records=True),
        TopicLayout(topics.answers, many, {"cleanup.policy": "delete", "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.state, many, _CHANGELOG, must_keep_records=True),
        TopicLayout(topics.partials, many, {"cleanup.policy": "delete", "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.merges, many, _CHANGELOG, must_keep_records=True),
        TopicLayout(topics.requests, LEDGER_PARTITIONS, {**_KEPT_FOUR_WEEKS, "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.charges, LEDGER_PARTITIONS, _KEPT_FOUR_WEEKS),
        TopicLayout(topics.ledger, LEDGER_PARTITIONS, _CHANGELOG, must_keep_records=True),
        TopicLayout(topics.trail, LEDGER_PARTITIONS, _KEPT_FOREVER, must_keep_records=True),
        TopicLayout(topics.rejected, many, {"cleanup.policy": "delete", "max.message.bytes": str(8 * _MEGABYTE)}),
        TopicLayout(topics.status, many, _COMPACTED),
    ]


def feed_layout(topics: Topics, source: str, partitions: int) -> TopicLayout:
    """Returns the layout of a live topic's changelog, which the feeds create."""
    return TopicLayout(topics.feed_state(source), partitions, _CHANGELOG, must_keep_records=True)


def installation_exists(prefix: str, listed: Collection[str]) -> bool:
    """Returns whether an installation exists, that is, whether most of its topics are listed."""
    names = [one.name for one in layout(Topics(prefix))]
    return 2 * len(set(names).intersection(listed)) > len(names)


def prefixes_of(topic: str) -> list[str]:
    """Lists the prefixes of all installations that a topic's name could belong to."""
    beginnings = [topic[:place] for place, character in enumerate(topic) if character == "."]
    return [
        prefix
        for prefix in beginnings
        if topic.startswith(Topics(prefix).feed_changelog_prefix())
        or topic in {one.name for one in layout(Topics(prefix))}
    ]


def usual_partition_count(prefix: str, counts: Mapping[str, int]) -> int | None:
    """Returns the number of partitions that most topics keyed by stream have; None if there are no topics.

    If two numbers are equally frequent, the smaller one is returned, because partitions can be added
    but not removed.
    """
    ledger_topics = {
        one.name for one in layout(Topics(prefix, LEDGER_PARTITIONS + 1)) if one.partitions == LEDGER_PARTITIONS
    }
    numbers = Counter(count for name, count in counts.items() if name not in ledger_topics)
    return min(numbers, key=lambda number: (-numbers[number], number), default=None)


def worker_group(settings: Settings) -> str:
    """Returns the workers' consumer group."""
    return f"{settings.prefix}-workers"


def budget_group(settings: Settings) -> str:
    """Returns the budget service's consumer group."""
    return f"{settings.prefix}-budget"


def feed_group_prefix(settings: Settings) -> str:
    """Returns the prefix of the feeds' consumer groups, one per live topic."""
    return f"{settings.prefix}-feed-"


def feed_group(settings: Settings, topics: Topics, source: str) -> str:
    """Returns the consumer group of the feeds of one live topic."""
    return f"{feed_group_prefix(settings)}{topics.feed_state(source).removeprefix(topics.feed_changelog_prefix())}"


def merging_group(settings: Settings) -> str:
    """Returns the feeds' consumer group for merging partials."""
    return f"{settings.prefix}-merging"


def alerts_group(settings: Settings, target: str = "") -> str:
    """Returns the consumer group of an alert target; without a target, the groups' prefix."""
    return f"{settings.prefix}-alerts-{target}"


KAFKA_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
"""Kafka's own topics: without a partition of these, services cannot commit."""
PARTITIONS, REPLICATION = "partitions", "replication"
"""Settings of a ``Difference`` that are not in a topic's configuration."""
PARTITIONS_REMEDY = (
    "partitions cannot be removed, and these topics must not be recreated: halt the streams (possible even now, because it "
    "needs only the topic of requests) and continue under another prefix, or restore a backup (docs/operations.md, 'Topics that differ')"
)
_HIDDEN_ERRORS = (errors.TopicAuthorizationFailedError, errors.ClusterAuthorizationFailedError)


class TopicsError(RuntimeError):
    """Topics are missing or differ from their layout; the message has a remedy."""


@dataclass(frozen=True)
class Difference:
    """A wrong setting of a topic; ``deletes_records`` if it lets Kafka delete records that must be kept."""

    topic: str
    setting: str
    wanted: str
    actual: str
    deletes_records: bool = False

    @property
    def is_tolerable(self) -> bool:
        """True if services can work despite the difference."""
        return not self.deletes_records and self.setting not in {PARTITIONS, REPLICATION}


def partition_differences(wanted: Iterable[TopicLayout], counts: Mapping[str, int]) -> list[Difference]:
    """Returns existing topics with a wrong number of partitions."""
    return [
        Difference(one.name, PARTITIONS, str(one.partitions), str(count))
        for one in wanted
        if (count := counts.get(one.name, one.partitions)) != one.partitions
    ]


def configuration_differences(
    wanted: TopicLayout, replicas: Sequence[int], actual: Mapping[str, str]
) -> list[Difference]:
    """Returns the differences between a topic's configuration and its layout."""
    deleting = {different.setting for different in retention_differences(wanted, actual)}
    return [
        Difference(wanted.name, setting, value, actual.get(setting, ""), deletes_records=setting in deleting)
        for setting, value in wanted.configuration_with(min(replicas)).items()
        if actual.get(setting) != value
    ]


def retention_differences(wanted: TopicLayout, actual: Mapping[str, str]) -> list[Difference]:
    """Returns the wrong settings that let Kafka delete records that must be kept."""
    if not wanted.must_keep_records:
        return []
    policies = {policy.strip() for policy in actual.get("cleanup.policy", "").split(",")}
    if wanted.configuration["cleanup.policy"] == "compact":
        deleting = ["cleanup.policy"] if "delete" in policies else []
    else:
        deleting = ["cleanup.policy"] if "compact" in policies else []
        if "delete" in policies:
            deleting += [name for name in ("retention.ms", "retention.bytes") if actual.get(name) != "-1"]
    return [
        Difference(wanted.name, name, wanted.configuration[name], actual.get(name, ""), deletes_records=True)
        for name in deleting
    ]


def format_differences(differences: Iterable[Difference]) -> str:
    """Formats the differences, with a remedy for each kind of setting."""
    listed = list(differences)
    settings = {one.setting for one in listed}
    remedies = []
    if PARTITIONS in settings:
        remedies.append(PARTITIONS_REMEDY)
    if REPLICATION in settings:
        remedies.append(
            "change replicas with kafka-reassign-partitions.sh, or give the present number as --replication "
            f"({variable_of('replication')})"
        )
    if settings - {PARTITIONS, REPLICATION}:
        remedies.append(
            "set the configuration with kafka-configs.sh --alter --entity-type topics --entity-name TOPIC --add-config SETTING=VALUE"
        )
    found = "; ".join(f"{one.topic} has {one.setting}={one.actual}, not {one.wanted}" for one in listed)
    return f"{found}; {'; '.join(remedies)}"


async def create_missing(admin: AIOKafkaAdminClient, missing: list[TopicLayout], replication: int) -> None:
    """Creates topics; raises a TopicsError if Kafka refuses one that does not exist."""
    if not missing:
        return
    response = await admin.create_topics(
        [
            NewTopic(
                wanted.name, wanted.partitions, replication, topic_configs=wanted.configuration_with(replication)
            )
            for wanted in missing
        ]
    )
    for name, code, *message in response.topic_errors:
        if code and errors.for_code(code) is not errors.TopicAlreadyExistsError:
            remedy = ""
            if errors.for_code(code) is errors.InvalidReplicationFactorError:
                remedy = (
                    f"; start more brokers, or give fewer replicas by --replication ({variable_of('replication')})"
                )
            reason = (message[0] if message else None) or errors.for_code(code).__name__
            raise TopicsError(f"cannot create topic {name}: {reason.rstrip('.')}{remedy}")


async def describe_topics(admin: AIOKafkaAdminClient, names: list[str]) -> dict[str, list[int]]:
    """Returns the number of replicas of each partition by topic: [] if it is missing, no entry if it is hidden."""
    described = await ask_any_broker(lambda: admin.describe_topics(names))
    return {
        one["topic"]: [] if one["error_code"] else [len(part["replicas"]) for part in one["partitions"]]
        for one in described
        if errors.for_code(one["error_code"]) is not errors.TopicAuthorizationFailedError
    }


async def read_configurations(admin: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Reads the configuration of each topic; no entry if it is hidden.

    KafkaError if a broker does not answer or does not know a topic.
    """
    asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    responses = await ask_any_broker(lambda: admin.describe_configs(asked))
    actual: dict[str, dict[str, str]] = {}
    for code, _, _, name, entries in (resource for response in responses for resource in response.resources):
        error = errors.for_code(code)
        if code and error not in _HIDDEN_ERRORS:
            raise error(f"the configuration of topic {name} cannot be read")
        if not code:
            actual[name] = {entry[0]: entry[1] for entry in entries}
    return actual


def require_readable(names: Iterable[str], configurations: Mapping[str, object]) -> None:
    """Raises a TopicsError if the configuration of a topic is hidden."""
    if hidden := sorted(set(names) - configurations.keys()):
        raise TopicsError(
            f"cannot read the configuration of topic {', '.join(hidden)}: give this principal DescribeConfigs on it, see 'sotto topics acl'"
        )


LEAST_RETENTION_MS: Final = 24 * 3_600_000
"""The least retention of live topics without a warning, so that feeds may stand still for a day."""


def compaction_problem(source: EventsSource, actual: Mapping[str, str]) -> str | None:
    """Returns a remedy if Kafka compacts a live topic: of a person's events it would keep only the latest."""
    if "compact" not in (policy := actual.get("cleanup.policy", "")):
        return None
    return (
        f"topic {source.topic} has cleanup.policy={policy}, so Kafka deletes all but the latest event of a person; set "
        "cleanup.policy=delete with kafka-configs.sh, or write the events to another topic"
    )


def retention_warning(source: EventsSource, actual: Mapping[str, str], needed_ms: int) -> str | None:
    """Returns a warning if Kafka keeps events for less than a day, or for less than ``needed_ms``."""
    kept, needed = int(actual.get("retention.ms", "-1")), max(LEAST_RETENTION_MS, needed_ms)
    if not 0 <= kept < needed:
        return None
    return (
        f"topic {source.topic} has retention.ms={kept}, and {needed} or more are needed: events that Kafka deletes while no feed "
        "reads them are not counted; set it with kafka-configs.sh"
    )


def timestamps_problem(source: EventsSource, actual: Mapping[str, str]) -> str | None:
    """Returns why a topic's timestamps do not fit the source's clock, with a remedy; None if they fit or are hidden."""
    [(setting, expected)] = BROKER_TIMESTAMPS.items()
    if source.clock == "marks" or actual.get(setting, expected) == expected:
        return None
    return (
        f"topic {source.topic} exists with {setting}={actual.get(setting)}, but windows of source '{source.source}' close by the "
        f"broker's timestamps; set {expected} with kafka-configs.sh before any event is written"
    )


def partitions_problem(source: str, topic: str, partitions: int, former: int) -> str | None:
    """Returns why feeds refuse a live topic whose number of partitions has changed; None if it has not."""
    if partitions == former:
        return None
    remedy = changed_topic_remedy(source)
    return f"topic {topic} has {partitions} partitions, and had {former} when its first stream began; {remedy}"


_CHANGELOG_SECONDS: Final = 10.0
_PROGRESS_OFFSETS: Final = 1000
"""Number of latest offsets of a changelog in which its progress is searched; each commit writes it."""


async def recreation_problem(settings: Settings, topic: str, changelog: str, partitions: int) -> str | None:
    """Returns that the feeds read records of an earlier topic of this name; None if not, or if the changelog is hidden."""
    if not partitions:
        return None
    places = [TopicPartition(changelog, number) for number in range(partitions)]
    former = dict[TopicPartition, str]()
    options = {"isolation_level": "read_committed", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    try:
        async with (
            asyncio.timeout(_CHANGELOG_SECONDS),
            KAFKA.consumer(**connection_options(settings), **options) as reader,
        ):
            now = await reader.topic_id(TopicPartition(topic, 0))
            reader.assign(places)
            begins, ends = await reader.beginning_offsets(places), await reader.end_offsets(places)
            for place in places:
                reader.seek(place, max(begins[place], ends[place] - _PROGRESS_OFFSETS))
            while any([await reader.position(place) < ends[place] for place in places]):
                for place, records in (await reader.getmany(timeout_ms=50)).items():
                    for record in (one for one in records if one.key == PROGRESS_KEY):
                        if json.loads(record.value).get("offset"):  # feeds replace a topic without records
                            former[place] = topic_ids_of(record).get(topic, now)
    except (errors.KafkaError, OSError, ValueError):
        return None
    if all(before == now for before in former.values()):
        return None
    from stream.feeds.event_intake import TopicRecreatedError  # noqa: PLC0415  (commands start sooner without feeds)

    return str(TopicRecreatedError(topic))


def missing_topic_problem(source: str, topic: str) -> str:
    """Returns that a source's topic does not exist, with the command that creates it."""
    return f"topic {topic} of source '{source}' does not exist; 'sotto events topic {source}' creates it"


def changed_topic_remedy(source: str) -> str:
    """Returns the remedy for a topic whose number of partitions has changed."""
    return (
        f"close the streams of source '{source}', and register another source for the topic as it is; let its streams begin after "
        "the change, because a person's earlier events may be in another partition"
    )
