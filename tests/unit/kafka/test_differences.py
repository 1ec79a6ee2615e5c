"""Settings of topics that would lose records, and the messages about topics that differ from the layout."""

from __future__ import annotations

import pytest

from stream.kafka.topic_layouts import (
    Difference,
    feed_layout,
    format_differences,
    layout,
    partition_differences,
    retention_differences,
    usual_partition_count,
)
from stream.processing.topic_names import Topics

TOPICS = Topics("q", 2)
LAYOUT = {one.name.removeprefix("q."): one for one in layout(TOPICS)}
COMPACTED = ("control", "state", "merges", "ledger")


def test_the_topics_that_must_be_kept_are_the_ledger_its_trail_and_what_services_go_on_from() -> None:
    assert {name for name, one in LAYOUT.items() if one.must_keep_records} == {*COMPACTED, "trail"}
    assert feed_layout(TOPICS, "visits", 2).must_keep_records


@pytest.mark.parametrize("name", LAYOUT)
def test_no_topic_that_is_as_it_should_be_loses_anything(name: str) -> None:
    assert retention_differences(LAYOUT[name], LAYOUT[name].configuration_with(3)) == []


@pytest.mark.parametrize("name", COMPACTED)
@pytest.mark.parametrize("policy", ["delete", "compact,delete", "delete, compact"])
def test_a_compacted_topic_from_which_old_records_are_deleted_loses_them(name: str, policy: str) -> None:
    lost = retention_differences(LAYOUT[name], {**LAYOUT[name].configuration, "cleanup.policy": policy})
    assert lost == [Difference(f"q.{name}", "cleanup.policy", "compact", policy, deletes_records=True)]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("retention.ms", "604800000"), ("retention.bytes", "1000000"), ("cleanup.policy", "compact")],
)
def test_a_trail_that_is_not_kept_for_ever_loses_its_beginning(setting: str, value: str) -> None:
    trail = LAYOUT["trail"]
    lost = retention_differences(trail, {**trail.configuration, setting: value})
    assert lost == [Difference("q.trail", setting, trail.configuration[setting], value, deletes_records=True)]


def test_what_may_expire_is_no_loss_whatever_it_is_set_to() -> None:
    for name in LAYOUT.keys() - {*COMPACTED, "trail"}:
        assert retention_differences(LAYOUT[name], {"cleanup.policy": "delete", "retention.ms": "1"}) == []


def test_the_partitions_of_most_topics_are_the_ones_that_the_others_should_have() -> None:
    counts = {name: one.partitions for name, one in ((one.name, one) for one in layout(TOPICS))}
    assert usual_partition_count("q", {**counts, "q.merges": 3}) == 2
    assert usual_partition_count("q", {**counts, "q.queries": 3}) == 2
    assert usual_partition_count("q", {"q.queries": 3, "q.state": 2, "q.ledger": 1, "q.trail": 1}) == 2
    assert usual_partition_count("q", {"q.ledger": 1}) is None


def test_every_topic_with_other_partitions_is_named_with_its_numbers() -> None:
    counts = {one.name: one.partitions for one in layout(TOPICS)} | {"q.merges": 3, "q.ledger": 2}
    assert partition_differences(layout(TOPICS), counts) == [
        Difference("q.merges", "partitions", "2", "3"),
        Difference("q.ledger", "partitions", "1", "2"),
    ]


def test_each_kind_of_difference_has_its_own_remedy_and_none_is_to_recreate_a_topic() -> None:
    partitions = format_differences([Difference("q.merges", "partitions", "2", "3")])
    assert partitions.startswith("q.merges has partitions=3, not 2; partitions cannot be removed")
    assert "these topics must not be recreated" in partitions
    assert "another prefix" in partitions
    assert "kafka-configs.sh" not in partitions
    setting = format_differences([Difference("q.ledger", "cleanup.policy", "compact", "delete")])
    assert "kafka-configs.sh --alter" in setting
    assert "prefix" not in setting
    assert "kafka-reassign-partitions.sh" in format_differences([Difference("q.ledger", "replication", "3", "1")])
