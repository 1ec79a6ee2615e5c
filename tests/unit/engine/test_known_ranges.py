"""Partitions that not all topics have do not separate inputs from their tables, and are refused by the member that gets them."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.coordinator.assignors.range import RangePartitionAssignor

from stream.engine.group_engine import Engine, KnownRanges
from stream.engine.session import EngineRole
from stream.kafka.topic_layouts import PARTITIONS_REMEDY
from stream.settings import Settings

TOPICS = ["control", "queries"]


class Cluster(ClusterMetadata):  # type: ignore[misc]  # aiokafka is not typed
    """The metadata of topics with so many partitions."""

    def __init__(self, **partitions: int) -> None:
        super().__init__()
        self.counts = partitions

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.counts[topic])) if topic in self.counts else None


def assign_partitions(assignor: Any, cluster: Cluster, members: int) -> list[dict[str, list[int]]]:
    of = {f"m{number}": RangePartitionAssignor.metadata(TOPICS) for number in range(members)}
    found = assignor.assign(cluster, of)
    return [dict(found[member].assignment) for member in of]


def test_known_ranges_equal_kafkas_ranges_for_equal_topics() -> None:
    for members in range(1, 7):
        cluster = Cluster(control=4, queries=4)
        ours, own = (assign_partitions(one, cluster, members) for one in (KnownRanges(4), RangePartitionAssignor))
        assert [{topic: numbers for topic, numbers in one.items() if numbers} for one in ours] == [
            {topic: numbers for topic, numbers in one.items() if numbers} for one in own
        ]


def test_known_ranges_assign_surplus_partitions_separately() -> None:
    """Inputs keep their tables' partitions, and one member gets each surplus partition."""
    found = assign_partitions(KnownRanges(4), Cluster(control=4, queries=6), 2)
    assert found == [{"control": [0, 1], "queries": [0, 1, 4]}, {"control": [2, 3], "queries": [2, 3, 5]}]


def test_known_ranges_leave_unknown_topic_unassigned() -> None:
    assert assign_partitions(KnownRanges(4), Cluster(queries=4), 1) == [{"queries": [0, 1, 2, 3]}]


def engine(**options: Any) -> Engine:
    role = EngineRole("worker", "group", "status", lambda _: None)  # type: ignore[arg-type, return-value]  # nothing begins
    return Engine(role, Settings(), TOPICS, partitions=4, **options)


def test_engine_refuses_surplus_partitions_with_remedy() -> None:
    one = engine()
    known = [TopicPartition("control", 3), TopicPartition("queries", 3)]
    assert one.refuse_unknown([*known, TopicPartition("queries", 5)]) == {3}
    assert one.refused == {5}
    assert one.refusal.startswith(
        "this worker's topics all had 4 partitions when it began; it refuses later ones: 5 of queries; "
    )
    assert "another prefix" in one.refusal
    assert one.refuse_unknown(known) == {3}
    assert (one.refused, one.refusal) == (set(), "")


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("options", [{}, {"remedy": "register another source"}])
def test_engine_of_a_feed_stops_if_a_topic_grows(*, stops: bool, options: dict[str, Any]) -> None:
    """A feed would count too few events of the topic; a worker answers the other streams."""
    one = engine(**options, stops_if_topics_grow=stops)
    one.refuse_unknown([TopicPartition("queries", 4)])
    assert one._stopping.is_set() == stops
    assert one.refusal.endswith(options.get("remedy", PARTITIONS_REMEDY))
