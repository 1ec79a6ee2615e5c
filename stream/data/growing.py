"""Columns that grow batch by batch, and are one array at the end."""

from __future__ import annotations

from mmap import mmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_FIRST_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 1 << 23


class GrowingColumn:
    """Items of one type, kept in blocks of memory that go back to the operating system as soon as they are let go of.

    What the allocator has for small arrays stays with the process, so that a column would be held twice for good.
    """

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._kind = kind
        self._blocks: list[npt.NDArray[Any]] = []
        self._filled = 0

    def extend(self, items: npt.NDArray[Any]) -> None:
        """Add items at the end."""
        taken = 0
        while taken < len(items):
            if not self._blocks or self._filled == len(self._blocks[-1]):
                size = min(_FIRST_BYTES << len(self._blocks), _MOST_BYTES)
                self._blocks.append(np.frombuffer(mmap(-1, size), dtype=self._kind))
                self._filled = 0
            block = self._blocks[-1]
            count = min(len(items) - taken, len(block) - self._filled)
            block[self._filled : self._filled + count] = items[taken : taken + count]
            self._filled += count
            taken += count

    def joined(self) -> npt.NDArray[Any]:
        """All items, once; each block is released when it was copied, so that no more than one is held twice."""
        blocks, self._blocks = self._blocks, []
        if not blocks:
            return np.empty(0, self._kind)
        items = sum(map(len, blocks[:-1])) + self._filled
        found = np.frombuffer(mmap(-1, items * self._kind.itemsize), dtype=self._kind)
        filled = 0
        blocks.reverse()
        while blocks:
            block = blocks.pop()[: items - filled]
            found[filled : filled + len(block)] = block
            filled += len(block)
            del block
        return found
