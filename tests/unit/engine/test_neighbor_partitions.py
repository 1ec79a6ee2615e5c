"""The partitions of which a worker keeps warm copies."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from hypothesis import given
from hypothesis import strategies as st

from stream.engine.restore import neighbor_partitions


@given(st.sets(st.integers(0, 11)), st.integers(0, 12), st.integers(0, 12))
def test_neighbor_partitions_are_others_up_to_limit(owned: Collection[int], partitions: int, limit: int) -> None:
    copied = neighbor_partitions(owned, partitions, limit)
    assert copied <= set(range(partitions)) - set(owned)
    assert len(copied) == min(limit, len(set(range(partitions)) - set(owned)))


class Metadata:
    """The metadata of a cluster with one topic."""

    def __init__(self, partitions: int) -> None:
        self._partitions = set(range(partitions))

    def partitions_for_topic(self, topic: str) -> set[int]:
        del topic
        return self._partitions


def assign_partitions(members: Collection[str], partitions: int) -> dict[str, set[int]]:
    """Return the partitions that the group's assignor gives to each member."""
    metadata = {name: RangePartitionAssignor.metadata({"queries"}) for name in members}
    given_out = RangePartitionAssignor.assign(Metadata(partitions), metadata)
    return {
        name: {number for _, numbers in assignment.assignment for number in numbers}
        for name, assignment in given_out.items()
    }


@pytest.mark.parametrize("partitions", [4, 6, 12])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_neighbor_partitions_cover_inheritance_after_any_failure(partitions: int, workers: int) -> None:
    """A worker keeps copies of twice as many partitions as it owns, because its range may move in both directions."""
    names = [f"worker-{number}" for number in range(workers)]
    before = assign_partitions(names, partitions)
    for dead in names:
        after = assign_partitions([name for name in names if name != dead], partitions)
        for name, owned in after.items():
            assert owned - before[name] <= neighbor_partitions(
                before[name], partitions, 2 * -(-partitions // workers)
            )
