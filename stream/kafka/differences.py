"""What of the topics that are there is not as it should be, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError, for_code

from stream.kafka.layouts import TopicLayout
from stream.kafka.starting import from_any_broker
from stream.settings import variable

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
