"""Running counts on their way to questions: the exact sums over the nodes of what has been so far, group by group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from schemas import RunningCountCalibration, moment_ms
from stream.accounting.counting_trees import CountingTree
from stream.accounting.running_counts import tree_of
from stream.mechanisms.running_count import following, window_number
from stream.processors.feeds.told import Told


@dataclass(slots=True)
class RunningSums:
    """What is remembered of ``windows`` windows. A window that was passed over counts nothing.

    ``lost`` says that what was remembered is gone, here or of people in a partition: the numbers so far would be other ones than
    were told, or one person would count for more than the total. Nothing is taken in any more.
    """

    windows: int = 0
    lost: bool = False
    groups: list[list[int]] = field(default_factory=list)
    """Of each group, the sum over each node."""
    kept: dict[int, Any] = field(default_factory=dict)
    """What a changelog has of nodes, by place, until it is needed."""

    def add(self, told: Told, start: int, counts: Sequence[int]) -> range:
        """Take in a window; gives the places of the nodes that have changed, none beyond the horizon."""
        calibration, standing = told.calibration, told.standing
        if not isinstance(calibration, RunningCountCalibration) or standing.begins is None:
            raise TypeError("a running count has a calibration of its own, and its first window is known")
        tree = tree_of(calibration)
        self._resume(tree)
        first = standing.window.first_from(moment_ms(standing.begins))
        number = window_number(start, first, standing.window.every_ms)
        self.lost = self.lost or (not self.windows and number > 1)
        if self.lost or not self.windows < number <= calibration.steps:
            return range(0)
        sums = self.groups or [[] for _ in counts]
        nothing, lowest = [0] * len(counts), tree.kept(number)
        for one in range(self.windows + 1, number + 1):
            kept, news = tree.kept(one), counts if one == number else nothing
            sums = [following(before, kept, count) for before, count in zip(sums, news, strict=True)]
            lowest = min(lowest, kept)
        self.windows, self.groups = number, sums
        return range(lowest, tree.kept(number) + 1)

    def node(self, place: int) -> tuple[int, ...]:
        """The sums over one node, one a group."""
        return tuple(sums[place] for sums in self.groups)

    def _resume(self, tree: CountingTree) -> None:
        """Take in what was kept; what is left of places that are no more is passed over."""
        kept, self.kept = self.kept, {}
        if kept and not self.groups:
            rows = [kept[place].sums for place in range(tree.kept(self.windows) + 1)]
            self.groups = [list(sums) for sums in zip(*rows, strict=True)]
