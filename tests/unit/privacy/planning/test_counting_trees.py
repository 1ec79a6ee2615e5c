from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest

from stream.privacy.planning.release_plans import CountingTree, Node, dyadic_tree

HORIZONS = (1, 2, 3, 4, 5, 7, 8, 9, 20, 21, 63, 64, 65, 127, 200)


def trees(steps: int) -> list[CountingTree]:
    return [dyadic_tree(steps), *(CountingTree(steps, levels) for levels in range(1, 10))]


def windows_in_nodes(tree: CountingTree) -> Counter[int]:
    """Return how many different nodes each window is in, over all answers."""
    nodes = {node for windows in range(1, tree.steps + 1) for node in tree.nodes(windows)}
    return Counter(window for node in nodes for window in range(node.start, node.end))


@pytest.mark.parametrize("steps", HORIZONS)
def test_nodes_of_answer_contain_each_window_once(steps: int) -> None:
    for tree in trees(steps):
        for windows in range(1, steps + 1):
            nodes = tree.nodes(windows)
            assert nodes[0].start == 0
            assert nodes[-1].end == windows
            assert all(one.end == other.start for one, other in pairwise(nodes))
        assert tree.nodes(0) == ()


@pytest.mark.parametrize("steps", HORIZONS)
def test_nodes_contain_each_window_at_most_once_per_level(steps: int) -> None:
    for tree in trees(steps):
        assert max(windows_in_nodes(tree).values()) <= tree.levels
    assert max(windows_in_nodes(dyadic_tree(steps)).values()) == steps.bit_length()


@pytest.mark.parametrize("steps", HORIZONS)
def test_max_nodes_is_node_count_of_largest_answer(steps: int) -> None:
    for tree in trees(steps):
        assert tree.max_nodes == max(len(tree.nodes(windows)) for windows in range(1, steps + 1))


@pytest.mark.parametrize("steps", HORIZONS)
def test_count_kept_nodes_matches_nodes_of_previous_answer(steps: int) -> None:
    """All nodes of an answer but the last are nodes of the answer with one window fewer."""
    for tree in trees(steps):
        for windows in range(1, steps + 1):
            kept = tree.count_kept_nodes(windows)
            assert tree.nodes(windows)[:kept] == tree.nodes(windows - 1)[:kept]
            assert len(tree.nodes(windows)) == kept + 1


@pytest.mark.parametrize("windows", [1, 6, 7, 8, 200, 1000])
def test_dyadic_tree_has_nodes_of_binary_digits(windows: int) -> None:
    sizes = [node.end - node.start for node in dyadic_tree(1000).nodes(windows)]
    assert sizes == [1 << digit for digit in reversed(range(10)) if windows >> digit & 1]


def test_counting_tree_of_one_level_has_node_for_each_window() -> None:
    assert CountingTree(5, 1).nodes(3) == (Node(0, 1), Node(1, 2), Node(2, 3))


@pytest.mark.parametrize(("levels", "most"), [(1, 6), (2, 5), (3, 17), (6, 7)])
def test_full_counting_tree_has_binomial_number_of_windows(levels: int, most: int) -> None:
    full = math.comb(levels + most, levels) - 1
    assert CountingTree(full, levels).max_nodes == most
    assert CountingTree(full + 1, levels).max_nodes == most + 1


def test_counting_tree_of_million_windows_is_not_materialized() -> None:
    tree = CountingTree(1 << 20, 5)
    assert len(tree.nodes((1 << 20) - 1)) <= tree.max_nodes


def test_counting_tree_refuses_answers_beyond_horizon() -> None:
    with pytest.raises(ValueError, match="horizon is 8 windows, not 9"):
        dyadic_tree(8).nodes(9)
