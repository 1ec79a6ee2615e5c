"""How an installation's topics are to be: partitions, configuration, and which of them must lose nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError, for_code

from stream.kafka.client.availability import from_any_broker
from stream.processing.topic_names import LEDGER_PARTITIONS, Topics
from stream.settings import Settings, variable

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
_CHANGELOG = {**_COMPACTED, "max.message.bytes": str(4 * _MEGABYTE)}


@dataclass(frozen=True)
class TopicLayout:
    """How one topic must be."""

    name: str
    partitions: int
    configuration: dict[str, str] = field(default_factory=dict)

    stamped: bool = True
    """Whether the broker's clock gives its records their time."""

    kept: bool = False
    """Whether all that it holds must stay: what is lost of it is granted or answered a second time, or can be proved no more."""

    def configuration_with(self, replication: int) -> dict[str, str]:
        """All that is set of it when it is kept so many times."""
        return {**self.configuration, **_AS_SENT, **(STAMPED if self.stamped else {}), **durability(replication)}


def durability(replication: int) -> dict[str, str]:
    """What keeps a committed record: a majority of the replicas has it, and no other replica may lead."""
    return {"min.insync.replicas": str(replication // 2 + 1), "unclean.leader.election.enable": "false"}


def layout(topics: Topics) -> list[TopicLayout]:
    """Every topic of an installation, with its partitions and configuration."""
    wide, serial = topics.partitions, LEDGER_PARTITIONS
    return [
        TopicLayout(topics.queries, wide, {"cleanup.policy": "delete", "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.control, wide, _CHANGELOG, kept=True),
        TopicLayout(topics.answers, wide, {"cleanup.policy": "delete", "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.state, wide, _CHANGELOG, kept=True),
        TopicLayout(topics.partials, wide, {"cleanup.policy": "delete", "max.message.bytes": str(4 * _MEGABYTE)}),
        TopicLayout(topics.merges, wide, _CHANGELOG, kept=True),
        TopicLayout(topics.requests, serial, {**_OUTLASTING, "max.message.bytes": str(_MEGABYTE)}),
        TopicLayout(topics.charges, serial, _OUTLASTING),
        TopicLayout(topics.ledger, serial, _CHANGELOG, kept=True),
        TopicLayout(topics.trail, serial, _FOR_EVER, kept=True),
        TopicLayout(topics.rejected, wide, {"cleanup.policy": "delete", "max.message.bytes": str(8 * _MEGABYTE)}),
        TopicLayout(topics.status, wide, _COMPACTED),
    ]


def feed_layout(topics: Topics, source: str, partitions: int) -> TopicLayout:
    """The changelog of a live topic's tasks, which the feeds make themselves."""
    return TopicLayout(topics.feed_state(source), partitions, _CHANGELOG, kept=True)


def is_there(prefix: str, listed: Collection[str]) -> bool:
    """Whether an installation's topics are among those listed, or most of them: a live source may have the name of one."""
    names = [one.name for one in layout(Topics(prefix))]
    return 2 * len(set(names).intersection(listed)) > len(names)


def prefixes_of(topic: str) -> list[str]:
    """List the prefixes under which a topic would be an installation's own."""
    beginnings = [topic[:place] for place, character in enumerate(topic) if character == "."]
    return [
        prefix
        for prefix in beginnings
        if topic.startswith(Topics(prefix).feed_states()) or topic in {one.name for one in layout(Topics(prefix))}
    ]


def shared_partitions(prefix: str, counts: Mapping[str, int]) -> int | None:
    """How many partitions the co-partitioned ones of some topics have: as most of them; None if there is none among them.

    Where as many have one number as another, the fewer: partitions are added, and never taken away.
    """
    serial = {
        one.name for one in layout(Topics(prefix, LEDGER_PARTITIONS + 1)) if one.partitions == LEDGER_PARTITIONS
    }
    numbers = Counter(count for name, count in counts.items() if name not in serial)
    return min(numbers, key=lambda number: (-numbers[number], number), default=None)


def worker_group(settings: Settings) -> str:
    """The workers' consumer group."""
    return f"{settings.prefix}-workers"


def budget_group(settings: Settings) -> str:
    """The budget service's consumer group."""
    return f"{settings.prefix}-budget"


def feed_groups(settings: Settings) -> str:
    """How the names of the feeds' consumer groups begin: each live topic's source has one of its own."""
    return f"{settings.prefix}-feed-"


def merging_group(settings: Settings) -> str:
    """The feeds' consumer group for what their tasks leave to be merged."""
    return f"{settings.prefix}-merging"


def monitor_group(settings: Settings) -> str:
    """The beginning of the monitors' consumer groups: each monitor has one of its own."""
    return f"{settings.prefix}-monitor"


def alerts_group(settings: Settings, target: str = "") -> str:
    """The consumer group of a target of alerts: each has one of its own."""
    return f"{settings.prefix}-alerts-{target}"


PARTITIONS, REPLICATION = "partitions", "replication"
"""What is no setting of a topic's configuration, and differs all the same."""
PARTITIONS_REMEDY = (
    "partitions cannot be taken back and none of these may be recreated: halt the streams, which needs requests alone, and go on "
    "under another prefix, or bring a backup back (docs/operations.md, 'Topics that differ')"
)
_HIDDEN = (TopicAuthorizationFailedError, ClusterAuthorizationFailedError)


class TopicsError(RuntimeError):
    """Topics are missing or laid out otherwise; the message says which and what to do."""


@dataclass(frozen=True)
class Difference:
    """A topic's setting that is not as it should be; ``losing`` where Kafka deletes by it what must be kept."""

    topic: str
    setting: str
    wanted: str
    actual: str
    losing: bool = False

    @property
    def serves(self) -> bool:
        """Whether services can work with it as it is."""
        return not self.losing and self.setting not in {PARTITIONS, REPLICATION}


def uneven(wanted: Iterable[TopicLayout], counts: Mapping[str, int]) -> list[Difference]:
    """Which of the topics that are there have another number of partitions than they should."""
    return [
        Difference(one.name, PARTITIONS, str(one.partitions), str(count))
        for one in wanted
        if (count := counts.get(one.name, one.partitions)) != one.partitions
    ]


def unlike(one: TopicLayout, replicas: Sequence[int], actual: Mapping[str, str]) -> list[Difference]:
    """What of a topic's configuration is otherwise than it should be."""
    lost = {different.setting for different in losses(one, actual)}
    return [
        Difference(one.name, setting, value, actual.get(setting, ""), losing=setting in lost)
        for setting, value in one.configuration_with(min(replicas)).items()
        if actual.get(setting) != value
    ]


def losses(one: TopicLayout, actual: Mapping[str, str]) -> list[Difference]:
    """By which settings Kafka deletes records of a topic that must be kept."""
    if not one.kept:
        return []
    policies = {policy.strip() for policy in actual.get("cleanup.policy", "").split(",")}
    if one.configuration["cleanup.policy"] == "compact":
        losing = ["cleanup.policy"] if "delete" in policies else []
    else:
        losing = ["cleanup.policy"] if "compact" in policies else []
        if "delete" in policies:
            losing += [name for name in ("retention.ms", "retention.bytes") if actual.get(name) != "-1"]
    return [
        Difference(one.name, name, one.configuration[name], actual.get(name, ""), losing=True) for name in losing
    ]


def told(differences: Iterable[Difference]) -> str:
    """The differences, and behind them what to do about each kind."""
    listed = list(differences)
    settings = {one.setting for one in listed}
    remedies = []
    if PARTITIONS in settings:
        remedies.append(PARTITIONS_REMEDY)
    if REPLICATION in settings:
        remedies.append(
            "change replicas with kafka-reassign-partitions.sh, or leave --replication "
            f"({variable('replication')}) out"
        )
    if settings - {PARTITIONS, REPLICATION}:
        remedies.append(
            "set the configuration with kafka-configs.sh --alter --entity-type topics --entity-name TOPIC --add-config SETTING=VALUE"
        )
    found = "; ".join(f"{one.topic} has {one.setting}={one.actual}, not {one.wanted}" for one in listed)
    return f"{found}; {'; '.join(remedies)}"


async def configurations(admin: AIOKafkaAdminClient, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The settings of each topic; no entry for one whose settings this principal may not read.

    Raises:
        KafkaError: a broker does not answer, or does not know a topic.
    """
    asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
    responses = await from_any_broker(lambda: admin.describe_configs(asked))
    actual: dict[str, dict[str, str]] = {}
    for code, _, _, name, entries in (resource for response in responses for resource in response.resources):
        error = for_code(code)
        if code and error not in _HIDDEN:
            raise error(f"the configuration of topic {name} cannot be read")
        if not code:
            actual[name] = {entry[0]: entry[1] for entry in entries}
    return actual


async def configuration(admin: AIOKafkaAdminClient, name: str) -> dict[str, str]:
    """One topic's settings.

    Raises:
        TopicsError: this principal may not read them.
        KafkaError: as ``configurations``.
    """
    found = await configurations(admin, [name])
    require_read({name}, found)
    return found[name]


def require_read(names: Iterable[str], found: Mapping[str, object]) -> None:
    """Raise a TopicsError where the configuration of some topics was hidden."""
    if hidden := sorted(set(names) - found.keys()):
        raise TopicsError(
            f"cannot read the configuration of topic {', '.join(hidden)}: give this principal DescribeConfigs on it, see 'sotto topics acl'"
        )
