"""Reading counts of rows within a range of each attribute, as most are: many of them in the time of one that says more."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import chain

from schemas import MAX_UNIVERSE, TableSource
from stream.accounting.hypotheses import WEIGHT_STEPS
from stream.data import TableStore
from stream.mechanisms.estimate_questions import Box
from stream.mechanisms.tensor_sums import can_cumulate


@dataclass(frozen=True, slots=True)
class _Frame:
    """What boxes of the same attributes share. ``order`` has the place of each axis among these by name, ``key`` the canonical
    text without the ends of the ranges.
    """

    axes: tuple[int, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...]
    key: str


class BoxReader:
    """Reads the boxes of one stream; what is none is left to whoever reads questions of any form."""

    def __init__(self, source: TableSource, tables: TableStore, sizes: Mapping[str, int]) -> None:
        """Take the sizes of the stream's attributes, in their order."""
        self._source = source
        self._tables = tables
        self._sizes = sizes
        self._frames: dict[tuple[str, ...], _Frame | None] = {}

    def read(self, where: str) -> Box | None:
        """A count, if the predicate is known to say a range of each attribute that it names."""
        ranges = self._tables.ranges(self._source, where)
        if not ranges:
            return None
        names, _, lows, highs = zip(*ranges, strict=True)
        if names not in self._frames:
            self._frames[names] = self._frame(names)
        if (frame := self._frames[names]) is None:
            return None
        key = frame.key % tuple(chain.from_iterable(zip(lows, highs, strict=True)))
        low, high = [lows[place] for place in frame.order], [highs[place] for place in frame.order]
        return Box(frame.axes, key.encode(), low, high, frame.shape)

    def _frame(self, names: tuple[str, ...]) -> _Frame | None:
        """What boxes of attributes, in the order of their names, share; None where they are none of the stream's, or too many."""
        sizes = {name: (axis, size) for axis, (name, size) in enumerate(self._sizes.items()) if name in names}
        shape = tuple(size for _, size in sizes.values())
        if len(sizes) < len(names) or math.prod(shape) > MAX_UNIVERSE or not can_cumulate(shape):
            return None
        leaves = [f"[{json.dumps(name)}, ".replace("%", "%%") + "%d, %d]" for name in names]
        return _Frame(
            axes=tuple(axis for axis, _ in sizes.values()),
            shape=shape,
            order=tuple(names.index(name) for name in sizes),
            key=json.dumps([[reduce(lambda left, right: f"({left}&{right})", leaves), WEIGHT_STEPS]]),
        )
