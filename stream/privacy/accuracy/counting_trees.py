"""Trees over the windows of a running count, which determine the noisy sums of each answer.

A tree has one leaf for each number of windows t = 0 … T. Every branching has a left and a right
part, and the sum of the windows that begin in the left part is a *node*, which is in the answer
of each t in the right part. So an answer sums as many nodes as the path to its leaf turns right,
and a window is in as many nodes as the path to its leaf turns left.

Of all trees in which no window is in more than z nodes and no answer sums more than m, the
largest has T = C(z + m, z) − 1 windows: its left part is the largest with z − 1 and m, its right
part that with z and m − 1. The dyadic tree of Dwork, Naor, Pitassi and Rothblum (2010) and of
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

    A ``balanced`` tree has the fewest nodes per answer, at most and on average, for its
    ``levels``; a ``dyadic`` tree's ``levels`` follow from its horizon.
    """

    steps: int
    levels: int
    shape: Shape = "balanced"

    @property
    def most(self) -> int:
        """Largest number of nodes in one answer."""
        # Of the numbers up to T, one with all its binary digits has the most of them.
        return (self.steps + 1).bit_length() - 1 if self.shape == "dyadic" else _least_most(self)

    def nodes(self, windows: int) -> tuple[Node, ...]:
        """Return the nodes of the sum of the first ``windows`` windows, in order."""
        if not 0 <= windows <= self.steps:
            raise ValueError(f"the horizon is {self.steps} windows, not {windows}")
        found = []
        start, size, levels, most = 0, self.steps + 1, self.levels, _least_most(self)
        while size > 1:
            left = self._left(size, levels, most)
            if windows - start < left:
                size, levels = left, levels - 1
            else:
                found.append(Node(start, start + left))
                start, size, most = start + left, size - left, most - 1
        return tuple(found)

    def kept(self, windows: int) -> int:
        """Count the nodes shared with ``windows - 1``; one more node holds the rest."""
        return len(self.nodes(windows)) - 1

    def _left(self, size: int, levels: int, most: int) -> int:
        if self.shape == "dyadic":
            return 1 << ((size - 1).bit_length() - 1)
        # The right part then needs all ``most`` nodes only if the left part does.
        return min(_leaves(levels - 1, most), size - max(1, _leaves(levels, most - 2)))


def dyadic(steps: int) -> CountingTree:
    """Return the dyadic tree; the nodes of t windows are the ones among t's binary digits."""
    return CountingTree(steps, steps.bit_length(), "dyadic")


def _leaves(levels: int, most: int) -> int:
    """Return the most leaves with at most these turns to the left and to the right."""
    return math.comb(levels + most, levels) if most >= 0 else 0


@lru_cache(maxsize=4096)
def _least_most(tree: CountingTree) -> int:
    """Return the least number of right turns that suffices for a balanced tree."""
    if tree.shape == "dyadic":
        return tree.levels
    low, high = 0, tree.steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _leaves(tree.levels, middle) > tree.steps else (middle, high)
    return high


def following(sums: Sequence[int], kept: int, count: int) -> list[int]:
    """Return the node sums for t windows from those for t − 1 and the t-th count.

    ``kept`` is ``tree.kept(t)``; no other state of earlier windows is needed.
    """
    if len(sums) < kept:
        raise ValueError(f"{kept} sums should stay, and there are {len(sums)}")
    return [*sums[:kept], sum(sums[kept:]) + count]


def window_number(start_ms: int, first_ms: int, every_ms: int) -> int:
    """Return the number of the window that begins at ``start_ms``, from 1; 0 if none does."""
    number, rest = divmod(start_ms - first_ms, every_ms)
    return number + 1 if rest == 0 and number >= 0 else 0


def node_name(group: int, node: Node) -> bytes:
    """Return the canonical bytes of a group's node, from which its noise is derived."""
    return b"".join(number.to_bytes(8, "big") for number in (group, node.start, node.end))
