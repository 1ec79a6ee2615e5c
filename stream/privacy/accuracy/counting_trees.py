"""Trees over the windows of a running count: which sums get noise of their own, and how many of them an answer adds up.

A tree has one leaf for each number of windows t = 0 … T. Every branching has a left part and a right one, and the sum of
the windows that begin in the left part is a *node*: it is in the answer of each t in the right part. So an answer adds up as many nodes
as the way to its leaf turns right, and a window is in as many nodes as the way to its own turns left.

Of all trees in which no window is in more than z nodes and no answer adds up more than m, the largest counts
T = C(z + m, z) − 1 windows, for its left part is the largest with z − 1 and m, its right part that with z and m − 1. The dyadic
tree of Dwork, Naor, Pitassi and Rothblum (2010) and of Chan, Shi and Song (2011) has z = m = ⌊log₂ T⌋ + 1. Proof: docs/proofs/running-count.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """The tree of a horizon of ``steps`` windows in which no window is in more than ``levels`` nodes.

    The ``balanced`` one adds up as few nodes as any of so many levels, at most and on average; the number of ``levels``
    of the ``dyadic`` one follows from its horizon.
    """

    steps: int
    levels: int
    shape: Shape = "balanced"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.levels < 1:
            raise ValueError("a tree has at least one window and one level")
        if self.shape == "dyadic" and self.levels != self.steps.bit_length():
            raise ValueError(f"the dyadic tree of {self.steps} windows has {self.steps.bit_length()} levels")

    @property
    def most(self) -> int:
        """How many nodes one answer adds up at most."""
        return max(self.answers_by_nodes)

    @property
    def answers_by_nodes(self) -> Mapping[int, int]:
        """Of the answers 1 … T, how many add up so many nodes."""
        return _by_nodes(self)

    def nodes(self, windows: int) -> tuple[Node, ...]:
        """The nodes that the sum of the first ``windows`` windows consists of, in the order of their windows."""
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
        """How many of the nodes of ``windows - 1`` windows are nodes of ``windows`` too; one more, the last, holds the rest."""
        return len(self.nodes(windows)) - 1

    def _left(self, size: int, levels: int, most: int) -> int:
        """How many of ``size`` leaves are in the left part."""
        if self.shape == "dyadic":
            return 1 << ((size - 1).bit_length() - 1)
        # The right part then needs all the nodes that an answer may add up only if the left part does.
        return min(_leaves(levels - 1, most), size - max(1, _leaves(levels, most - 2)))


def dyadic(steps: int) -> CountingTree:
    """The dyadic tree of a horizon: the nodes of t windows are the ones among the binary digits of t."""
    return CountingTree(steps, steps.bit_length(), "dyadic")


def _leaves(levels: int, most: int) -> int:
    """The largest number of leaves with at most so many turns to the left and to the right."""
    return math.comb(levels + most, levels) if most >= 0 else 0


@lru_cache(maxsize=4096)
def _least_most(tree: CountingTree) -> int:
    """The least number of turns to the right that is enough for a balanced tree."""
    if tree.shape == "dyadic":
        return tree.levels
    low, high = 0, tree.steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _leaves(tree.levels, middle) > tree.steps else (middle, high)
    return high


@lru_cache(maxsize=4096)
def _by_nodes(tree: CountingTree) -> Mapping[int, int]:
    if tree.shape == "dyadic":
        found: Counter[int] = Counter()
        before = 0
        # Below 2ⁱ·(odd) the lower i digits are free.
        for digit in reversed(range(tree.steps.bit_length())):
            if tree.steps >> digit & 1:
                for ones in range(digit + 1):
                    found[before + ones] += math.comb(digit, ones)
                before += 1
        found[before] += 1
        del found[0]
        return dict(sorted(found.items()))
    most = _least_most(tree)
    full = {nodes: _leaves(tree.levels, nodes) - _leaves(tree.levels, nodes - 1) for nodes in range(1, most)}
    return {**full, most: tree.steps - sum(full.values())}


def following(sums: Sequence[int], kept: int, count: int) -> list[int]:
    """The sums of the nodes of t windows, from those of t − 1 and the count of the t-th; ``kept`` is ``tree.kept(t)``.

    They are all that there is to remember of the windows before.
    """
    if len(sums) < kept:
        raise ValueError(f"{kept} sums should stay, and there are {len(sums)}")
    return [*sums[:kept], sum(sums[kept:]) + count]


def window_number(start_ms: int, first_ms: int, every_ms: int) -> int:
    """How many windows there are up to the one that begins at ``start_ms``, itself included; 0 if it is none of them.

    ``first_ms`` is the beginning of the first.
    """
    number, rest = divmod(start_ms - first_ms, every_ms)
    return number + 1 if rest == 0 and number >= 0 else 0


def node_name(group: int, node: Node) -> bytes:
    """The canonical bytes of a group's node: all that its noise hangs on beside the stream."""
    return b"".join(number.to_bytes(8, "big") for number in (group, node.start, node.end))
