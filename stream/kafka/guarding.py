"""A service's look at its topics before it begins: on topics that lose what must be kept, nothing may be granted or answered."""

from __future__ import annotations

import asyncio

from stream.kafka.acls import Role
from stream.kafka.differences import TopicsError, told
from stream.kafka.topics import inspect_topics
from stream.log import get_logger
from stream.settings import Settings

CHECK_SECONDS = 10.0
"""Longest that one look may take before it is begun anew."""

log = get_logger("topics")


async def guard_topics(settings: Settings, role: Role) -> None:
    """Refuse topics of a role from which Kafka deletes what must be kept; log what else is otherwise, and what may not be read.

    Raises:
        TopicsError: records that must be kept are deleted, by the settings that the message names.
        KafkaError, TimeoutError: Kafka does not answer.
    """
    async with asyncio.timeout(CHECK_SECONDS):
        found = await inspect_topics(settings, attempts=20, role=role)
    if found.losses:
        raise TopicsError(
            f"Kafka deletes records that must be kept: {told(found.losses)}; run 'sotto ledger verify' before this {role} is started again "
            "(docs/operations.md, 'Topics that differ')"
        )
    if found.hidden:
        log.warning(
            "topics not checked; give this principal DescribeConfigs on them, see 'sotto topics acl', or run 'sotto topics check'",
            topics=found.hidden,
        )
    for one in found.differences:
        log.warning("topic differs", topic=one.topic, setting=one.setting, actual=one.actual, wanted=one.wanted)
