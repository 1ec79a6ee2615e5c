"""Who in a group gets which partitions: the same numbers of all topics go to the same member, whatever one topic has beyond the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment


class KnownRanges(RangePartitionAssignor):  # type: ignore[misc]  # aiokafka is not typed
    """Kafka's ranges over the first so many partitions of each topic, and over what is beyond them by itself.

    By ranges over all of it a topic that was given more partitions would part with its tables: one member had a partition of the
    one, and another that of the other. It goes by Kafka's own name, for members of an earlier version know that alone.
    """

    def __init__(self, known: int) -> None:
        """Take how many partitions all topics have."""
        self._known = known

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        """The partitions of each member."""
        parts = [
            RangePartitionAssignor.assign(_View(cluster, numbers), members)
            for numbers in (range(self._known), range(self._known, 1 << 31))
        ]
        assigned = {}
        for member in members:
            topics: dict[str, list[int]] = {}
            for part in parts:
                for topic, numbers in part[member].assignment:
                    topics.setdefault(topic, []).extend(numbers)
            assigned[member] = ConsumerProtocolMemberAssignment(self.version, sorted(topics.items()), b"")
        return assigned


class _View:
    """A cluster of which some partitions are seen."""

    def __init__(self, cluster: Any, numbers: range) -> None:
        self._cluster = cluster
        self._numbers = numbers

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The numbers of a topic's partitions."""
        found = self._cluster.partitions_for_topic(topic)
        return None if found is None else {number for number in found if number in self._numbers}
