"""Settings of topics that would lose records, and the messages about topics that differ from the layout."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from aiokafka.errors import InvalidReplicationFactorError

from stream.kafka.topic_layouts import (
    Difference,
    TopicsError,
    create_missing,
    feed_layout,
    format_differences,
    layout,
    partition_differences,
    retention_differences,
    usual_partition_count,
)
from stream.processing.topic_names import Topics

if TYPE_CHECKING:
    from aiokafka.admin import AIOKafkaAdminClient

TOPICS = Topics("q", 2)
LAYOUT = {one.name.removeprefix("q."): one for one in layout(TOPICS)}
COMPACTED = ("control", "state", "merges", "ledger")


def test_layout_keeps_records_of_compacted_topics_and_trail() -> None:
    assert {name for name, one in LAYOUT.items() if one.must_keep_records} == {*COMPACTED, "trail"}
    assert feed_layout(TOPICS, "visits", 2).must_keep_records


@pytest.mark.parametrize("name", LAYOUT)
def test_retention_differences_are_empty_for_layout(name: str) -> None:
    assert retention_differences(LAYOUT[name], LAYOUT[name].configuration_with(3)) == []


@pytest.mark.parametrize("name", COMPACTED)
@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete, compact"])
def test_retention_differences_find_deletion_in_compacted_topic(name: str, policy: str) -> None:
    lost = retention_differences(LAYOUT[name], {**LAYOUT[name].configuration, "cleanup.policy": policy})
    assert lost == [Difference(f"q.{name}", "cleanup.policy", "compact", policy, deletes_records=True)]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("retention.ms", "604800000"), ("retention.bytes", "1000000"), ("cleanup.policy", "compact")],
)
def test_retention_differences_find_expiry_of_trail(setting: str, value: str) -> None:
    trail = LAYOUT["trail"]
    lost = retention_differences(trail, {**trail.configuration, setting: value})
    assert lost == [Difference("q.trail", setting, trail.configuration[setting], value, deletes_records=True)]


def test_retention_differences_ignore_topics_that_may_expire() -> None:
    for name in LAYOUT.keys() - {*COMPACTED, "trail"}:
        assert retention_differences(LAYOUT[name], {"cleanup.policy": "delete", "retention.ms": "1"}) == []


def test_usual_partition_count_is_that_of_most_topics() -> None:
    counts = {name: one.partitions for name, one in ((one.name, one) for one in layout(TOPICS))}
    assert usual_partition_count("q", {**counts, "q.merges": 3}) == 2
    assert usual_partition_count("q", {**counts, "q.queries": 3}) == 2
    assert usual_partition_count("q", {"q.queries": 3, "q.state": 2, "q.ledger": 1, "q.trail": 1}) == 2
    assert usual_partition_count("q", {"q.ledger": 1}) is None


def test_partition_differences_name_topics_with_counts() -> None:
    counts = {one.name: one.partitions for one in layout(TOPICS)} | {"q.merges": 3, "q.ledger": 2}
    assert partition_differences(layout(TOPICS), counts) == [
        Difference("q.merges", "partitions", "2", "3"),
        Difference("q.ledger", "partitions", "1", "2"),
    ]


def test_format_differences_gives_remedy_without_recreation() -> None:
    partitions = format_differences([Difference("q.merges", "partitions", "2", "3")])
    assert partitions.startswith("q.merges has partitions=3, not 2; partitions cannot be removed")
    assert "these topics must not be recreated" in partitions
    assert "another prefix" in partitions
    assert "kafka-configs.sh" not in partitions
    setting = format_differences([Difference("q.ledger", "cleanup.policy", "compact", "delete")])
    assert "kafka-configs.sh --alter" in setting
    assert "prefix" not in setting
    assert "kafka-reassign-partitions.sh" in format_differences([Difference("q.ledger", "replication", "3", "1")])


def test_topic_creation_names_kafkas_reason_and_remedy() -> None:
    """Kafka's text has the number of brokers; too few brokers for the replicas have a remedy."""

    class Admin:
        async def create_topics(self, topics: list[Any]) -> Any:
            reason = (
                "The target replication factor of 3 cannot be reached because only 1 broker(s) are registered."
            )
            return SimpleNamespace(topic_errors=[(topics[0].name, InvalidReplicationFactorError.errno, reason)])

    with pytest.raises(TopicsError, match=r"only 1 broker\(s\) are registered; start more brokers, or give fewer"):
        asyncio.run(create_missing(cast("AIOKafkaAdminClient", Admin()), layout(Topics("sotto"))[:1], 3))
