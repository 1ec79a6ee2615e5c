"""Defines and creates Kafka's access control lists (ACLs) for each role.

In Kafka, Read or Write on a topic implies Describe, and (from 3.0 on) Write on any topic implies
IdempotentWrite. Therefore Describe and IdempotentWrite are not granted separately.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    KafkaConnectionError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka.protocol.admin import CreateAclsRequest

from stream.kafka.client.broker_connections import SecurityError, connection_options, raise_if_refused
from stream.kafka.client.client_patches import BrokerClient
from stream.kafka.client.wire_requests import TopicId, build_topic_ids_request
from stream.kafka.topic_layouts import (
    alerts_group,
    budget_group,
    feed_group_prefix,
    layout,
    merging_group,
    worker_group,
)
from stream.processing.topic_names import Topics
from stream.settings import Settings

ANY_HOST: Final = "*"
_ALLOW: Final = 3
_UNKNOWN: Final = -1 << 31
"""The sign bit of a set of operations that Kafka does not know."""


class AclRole(StrEnum):
    """A role in an installation; a principal may have several roles."""

    PRODUCER = "producer"
    ANALYST = "analyst"
    OPERATOR = "operator"
    WORKER = "worker"
    BUDGET = "budget"
    FEED = "feed"
    MONITOR = "monitor"
    ALERTS = "alerts"
    BACKUP = "backup"


class Operation(StrEnum):
    """An operation, in the words of ``kafka-acls.sh``."""

    READ = "Read"
    WRITE = "Write"
    DESCRIBE = "Describe"
    CREATE = "Create"
    DESCRIBE_CONFIGS = "DescribeConfigs"


class Resource(StrEnum):
    """A type of resource, in the options of ``kafka-acls.sh``."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional-id"


_OPERATION_CODES: Final = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DESCRIBE: 8,
    Operation.DESCRIBE_CONFIGS: 10,
}
_RESOURCE_CODES: Final = {Resource.TOPIC: 2, Resource.GROUP: 3, Resource.TRANSACTIONAL_ID: 5}
_PATTERN_CODES: Final = {"literal": 3, "prefixed": 4}


@dataclass(frozen=True)
class AclEntry:
    """Allows an operation on a resource, or on all resources whose name begins with ``name``."""

    operation: Operation
    resource: Resource
    name: str
    prefixed: bool = False
    optional: bool = False
    """True if a service works without this access, with fewer checks."""

    @property
    def pattern(self) -> str:
        """Kafka's pattern type for ``name``, in the words of ``kafka-acls.sh``."""
        return "prefixed" if self.prefixed else "literal"

    @classmethod
    def read(cls, *topics: str) -> tuple[Self, ...]:
        """Returns the entries that allow Read on these topics."""
        return tuple(cls(Operation.READ, Resource.TOPIC, topic) for topic in topics)

    @classmethod
    def write(cls, *topics: str) -> tuple[Self, ...]:
        """Returns the entries that allow Write on these topics."""
        return tuple(cls(Operation.WRITE, Resource.TOPIC, topic) for topic in topics)

    @classmethod
    def check(cls, *topics: str) -> tuple[Self, ...]:
        """Returns the optional entries that allow DescribeConfigs on these topics."""
        return tuple(cls(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, topic, optional=True) for topic in topics)

    @classmethod
    def groups_with_prefix(cls, prefix: str) -> Self:
        """Returns the entry that allows Read on all consumer groups with a prefix."""
        return cls(Operation.READ, Resource.GROUP, f"{prefix}-", prefixed=True)


def role_access(settings: Settings, live: Iterable[str] = ()) -> Mapping[AclRole, tuple[AclEntry, ...]]:
    """Returns the minimal access of each role in an installation.

    ``live`` names the live topics, which the feeds read.
    """
    topics = Topics(settings.prefix)
    return {
        AclRole.PRODUCER: AclEntry.write(topics.queries),
        AclRole.ANALYST: (
            # The ledger has the public attributes, plan and remaining budget of a stream.
            *AclEntry.read(topics.answers, topics.ledger),
            AclEntry.groups_with_prefix(f"{settings.prefix}-{AclRole.ANALYST}"),
        ),
        AclRole.OPERATOR: (
            *AclEntry.write(topics.requests),
            *AclEntry.read(topics.ledger, topics.trail, topics.rejected, topics.status),
            AclEntry.groups_with_prefix(f"{settings.prefix}-{AclRole.OPERATOR}"),
        ),
        AclRole.WORKER: _service_access(
            worker_group(settings),
            reads=(topics.queries, topics.control, topics.state),
            writes=(topics.answers, topics.state, topics.charges, topics.rejected, topics.status),
        ),
        AclRole.BUDGET: (
            *_service_access(
                budget_group(settings),
                reads=(topics.requests, topics.charges, topics.ledger),
                writes=(topics.control, topics.ledger, topics.trail, topics.rejected, topics.status),
            ),
            # Without witnesses, the budget service neither compares the trail nor anchors the ends of topics.
            AclEntry(Operation.READ, Resource.TOPIC, topics.trail, optional=not settings.witnesses),
            AclEntry(Operation.DESCRIBE, Resource.TOPIC, topics.state, optional=not settings.witnesses),
            *AclEntry.check(topics.state),
        ),
        AclRole.FEED: (
            *AclEntry.read(*live),
            *AclEntry.check(*live),
            *_service_access(
                merging_group(settings),
                reads=(topics.control, topics.partials, topics.merges),
                # Feeds request the begin and end of periods.
                writes=(
                    *(topics.partials, topics.merges, topics.queries),
                    *(topics.requests, topics.rejected, topics.status),
                ),
            ),
            # A feed creates the changelog of a live topic when it first serves the topic.
            *(
                AclEntry(operation, Resource.TOPIC, topics.feed_changelog_prefix(), prefixed=True)
                for operation in (Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE_CONFIGS)
            ),
            AclEntry(Operation.READ, Resource.GROUP, feed_group_prefix(settings), prefixed=True),
            AclEntry(Operation.WRITE, Resource.TRANSACTIONAL_ID, feed_group_prefix(settings), prefixed=True),
        ),
        AclRole.MONITOR: (
            *AclEntry.read(
                topics.control, topics.charges, topics.ledger, topics.trail, topics.rejected, topics.status
            ),
            *AclEntry.write(topics.requests),
            *(AclEntry.write(topics.queries) if settings.monitor_asks else ()),
            *(AclEntry.read(topics.answers) if settings.monitor_asks or settings.monitor_alerts else ()),
            *(AclEntry(Operation.DESCRIBE, Resource.TOPIC, topic) for topic in (topics.queries, topics.partials)),
            # The monitor checks the settings of every topic.
            *(
                AclEntry(Operation.DESCRIBE, Resource.TOPIC, topic, optional=True)
                for topic in (topics.answers, topics.state, topics.merges)
            ),
            *AclEntry.check(*(one.name for one in layout(topics))),
            *(
                AclEntry(Operation.DESCRIBE, Resource.GROUP, group)
                for group in (worker_group(settings), budget_group(settings), merging_group(settings))
            ),
        ),
        AclRole.ALERTS: (
            *AclEntry.read(topics.answers, topics.ledger),
            AclEntry(Operation.READ, Resource.GROUP, alerts_group(settings), prefixed=True),
        ),
        # 'sotto ledger export' reads these topics.
        AclRole.BACKUP: AclEntry.read(topics.ledger, topics.trail, topics.state),
    }


def default_principal(role: AclRole, settings: Settings) -> str:
    """Returns the default name of the principal that has a role."""
    return f"User:{settings.prefix}-{role}"


def acl_commands(principal: str, access: Iterable[AclEntry], bootstrap: str) -> list[str]:
    """Returns the ``kafka-acls.sh`` commands for this access, one per resource."""
    operations: dict[tuple[Resource, str, str], list[Operation]] = {}
    for one in access:
        operations.setdefault((one.resource, one.name, one.pattern), []).append(one.operation)
    return [
        shlex.join(
            [
                *("kafka-acls.sh", "--bootstrap-server", bootstrap, "--command-config", "admin.properties"),
                *("--add", "--allow-principal", principal),
                *(word for operation in wanted for word in ("--operation", operation.value)),
                *(f"--{resource}", name, "--resource-pattern-type", pattern),
            ]
        )
        for (resource, name, pattern), wanted in operations.items()
    ]


async def create_acls(settings: Settings, principal: str, access: Iterable[AclEntry]) -> None:
    """Creates the ACLs and keeps existing ones; the caller needs Alter on the cluster.

    SecurityError if Kafka refuses; the message says why.
    """
    async with _broker_client(settings) as client:
        for one in access:
            response = await client.send(client.get_random_node(), _request(principal, one))
            for code, message in response.creation_responses:
                if code:
                    error = for_code(code)
                    refused = error is ClusterAuthorizationFailedError  # Kafka's message is a dump of the request
                    reason = "this principal lacks Alter on the cluster" if refused else message or error.__name__
                    raise SecurityError(f"Kafka did not create the access control list: {reason}")


async def unwritable_topics(settings: Settings, role: AclRole) -> list[str]:
    """Return a role's topics that this principal may not write; none if the brokers do not say."""
    names = [
        one.name
        for one in role_access(settings)[role]
        if (one.operation, one.resource, one.prefixed) == (Operation.WRITE, Resource.TOPIC, False)
    ]
    async with _broker_client(settings) as client:
        try:
            answer = await client.send(client.get_random_node(), build_topic_ids_request(names, operations=True))
        except UnsupportedVersionError:
            return []
    found: Mapping[str, TopicId] = answer
    may = 1 << _OPERATION_CODES[Operation.WRITE]
    return sorted(name for name in names if name in found and not found[name].operations & (may | _UNKNOWN))


@asynccontextmanager
async def _broker_client(settings: Settings) -> AsyncIterator[Any]:
    client = BrokerClient(**connection_options(settings))
    try:
        try:
            await client.bootstrap()
        except KafkaConnectionError:
            await raise_if_refused(settings)
            raise
        yield client
    finally:
        await client.close()


def _request(principal: str, access: AclEntry) -> CreateAclsRequest:
    return CreateAclsRequest(
        _RESOURCE_CODES[access.resource],
        access.name,
        _PATTERN_CODES[access.pattern],
        principal,
        ANY_HOST,
        _OPERATION_CODES[access.operation],
        _ALLOW,
    )


def _service_access(group: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> tuple[AclEntry, ...]:
    return (
        *AclEntry.read(*reads),
        *AclEntry.write(*writes),
        *AclEntry.check(*dict.fromkeys((*reads, *writes))),
        AclEntry(Operation.READ, Resource.GROUP, group),
        AclEntry(Operation.WRITE, Resource.TRANSACTIONAL_ID, f"{group}-", prefixed=True),
    )
