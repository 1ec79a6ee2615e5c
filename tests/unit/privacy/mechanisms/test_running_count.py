from __future__ import annotations

import random

import pytest

from stream.privacy.planning.release_plans import CountingTree, dyadic_tree, next_node_sums, window_number


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 33, 200])
def test_next_node_sums_are_sums_of_nodes(steps: int) -> None:
    draw = random.Random(steps)
    for tree in (dyadic_tree(steps), *(CountingTree(steps, levels) for levels in range(1, 8))):
        counts = [draw.randrange(-3, 9) for _ in range(steps)]
        sums: list[int] = []
        for windows in range(1, steps + 1):
            sums = next_node_sums(sums, tree.count_kept_nodes(windows), counts[windows - 1])
            assert sums == [sum(counts[node.start : node.end]) for node in tree.nodes(windows)]


def test_next_node_sums_refuses_missing_sums() -> None:
    with pytest.raises(ValueError, match="2 node sums are needed, and there are 1"):
        next_node_sums([3], 2, 1)


@pytest.mark.parametrize(("start", "number"), [(1000, 1), (1250, 2), (2000, 5), (1100, 0), (750, 0)])
def test_window_number_starts_at_first_window(start: int, number: int) -> None:
    assert window_number(start, 1000, 250) == number
