"""Trees over the windows of a running count, which determine the noisy sums of each answer.

A tree has one leaf for each number of windows t = 0 … T. A branching with left part a … b − 1 and
right part b … c − 1 has a *node*: the sum of the windows a … b − 1, numbered from 0. The answer for
each t in the right part uses it. So the nodes in the answer for t are the right turns on the path to
leaf t, and the nodes that contain window w are the left turns on the path to leaf w.

Of all trees in which no window is in more than z nodes and no answer sums more than m, the largest
has T = C(z + m, z) − 1 windows: its left part is the largest tree for z − 1 and m, its right part
the largest tree for z and m − 1. The dyadic tree of Dwork, Naor, Pitassi and Rothblum (2010) and of
Chan, Shi and Song (2011) has z = m = ⌊log₂ T⌋ + 1. Proof: docs/proofs/running-count.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Shape = Literal["dyadic", "balanced"]


@dataclass(frozen=True, slots=True)
class Node:
    """The sum of the windows ``start`` … ``end`` − 1, numbered from 0."""

    start: int
    end: int


@dataclass(frozen=True)
class CountingTree:
    """The tree of a horizon of ``steps`` windows, each in at most ``levels`` nodes.

    Among trees with the same ``levels``, a ``balanced`` tree has the fewest nodes per answer, at most
    and on average. A ``dyadic`` tree's ``levels`` follow from its horizon.
    """

    steps: int
    levels: int
    shape: Shape = "balanced"

    @property
    def max_nodes(self) -> int:
        """Largest number of nodes in one answer."""
        # The answer for t has a node for each binary digit 1 of t: of t ≤ T, the largest 2^k − 1 has the most.
        return (self.steps + 1).bit_length() - 1 if self.shape == "dyadic" else _min_nodes_per_answer(self)

    def nodes(self, windows: int) -> tuple[Node, ...]:
        """Return the nodes that add up to the first ``windows`` windows, in order."""
        if not 0 <= windows <= self.steps:
            raise ValueError(f"the horizon is {self.steps} windows, not {windows}")
        found = []
        start, size, levels, most = 0, self.steps + 1, self.levels, _min_nodes_per_answer(self)
        while size > 1:
            left = self._left_leaves(size, levels, most)
            if windows - start < left:
                size, levels = left, levels - 1
            else:
                found.append(Node(start, start + left))
                start, size, most = start + left, size - left, most - 1
        return tuple(found)

    def count_kept_nodes(self, windows: int) -> int:
        """Count the nodes that the answer for ``windows - 1`` also has; the last node is new."""
        return len(self.nodes(windows)) - 1

    def _left_leaves(self, size: int, levels: int, most: int) -> int:
        if self.shape == "dyadic":
            return 1 << ((size - 1).bit_length() - 1)
        # The left part is filled before an answer in the right part needs all ``most`` nodes.
        return min(_leaves(levels - 1, most), size - max(1, _leaves(levels, most - 2)))


def dyadic_tree(steps: int) -> CountingTree:
    """Return the dyadic tree, in which t windows have one node for each binary digit 1 of t."""
    return CountingTree(steps, steps.bit_length(), "dyadic")


def _leaves(levels: int, most: int) -> int:
    """Return the most leaves of a tree with ``levels`` left and ``most`` right turns per path."""
    return math.comb(levels + most, levels) if most >= 0 else 0


@lru_cache(maxsize=4096)
def _min_nodes_per_answer(tree: CountingTree) -> int:
    """Return the fewest nodes per answer (right turns) with which a tree has enough leaves."""
    if tree.shape == "dyadic":
        return tree.levels
    low, high = 0, tree.steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _leaves(tree.levels, middle) > tree.steps else (middle, high)
    return high


def next_node_sums(sums: Sequence[int], kept: int, count: int) -> list[int]:
    """Return the node sums of t windows from the node sums of t − 1 windows and the t-th count.

    ``kept`` is ``tree.count_kept_nodes(t)``. The node sums are the only state that a running count needs.
    """
    if len(sums) < kept:
        raise ValueError(f"{kept} node sums are needed, and there are {len(sums)}")
    return [*sums[:kept], sum(sums[kept:]) + count]


def window_number(start_ms: int, first_ms: int, every_ms: int) -> int:
    """Return the number (from 1) of the window that begins at ``start_ms``; 0 if there is none."""
    number, rest = divmod(start_ms - first_ms, every_ms)
    return number + 1 if rest == 0 and number >= 0 else 0


def node_name(group: int, node: Node) -> bytes:
    """Return the canonical bytes of a group's node, from which its noise is derived."""
    return b"".join(number.to_bytes(8, "big") for number in (group, node.start, node.end))


def text_node_names(text: bytes, nodes: Sequence[Node]) -> list[bytes]:
    """Return the canonical bytes of a text's nodes, from which their noise is derived."""
    return [node.start.to_bytes(8, "big") + node.end.to_bytes(8, "big") + text for node in nodes]
