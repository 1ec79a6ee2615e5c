"""The first windows of a partition's streams, by which events that can count nowhere are refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from schemas import FirstWindow
from schemas.wire import struct
from stream.processors.feeds.batch import Column
from stream.processors.feeds.clocks import NOT_BEGUN

NO_WINDOW: Final = -1

_Kept: Any = struct(FirstWindow)


class FirstWindows:
    """The beginning of the earliest window that any stream asks, for each stamp from which on that stream counts.

    A stream that has ended stays: so what is refused depends on an event, its stamp and which streams have begun, and not on when
    the partition reads that one ends.
    """

    def __init__(self) -> None:
        self.kept: tuple[Any, ...] = ()
        """For the changelog: the windows that no open stream's definition implies."""
        self._all: tuple[tuple[int, int], ...] = ()
        self._implied: dict[tuple[str, int], tuple[int, int]] = {}
        """Windows of streams that ask and whose definitions name them: a restore adds them again."""

    def restore(self, kept: Iterable[Any]) -> None:
        """Take in what the changelog has; streams that ask come by ``add``."""
        self._take((NOT_BEGUN if one.since is None else one.since, one.start) for one in kept)

    def add(self, epoch: tuple[str, int], since: int, start: int, *, is_declared: bool) -> None:
        """Take in an epoch of a stream that counts events from a stamp on, by the beginning of its first window.

        A window that the stream's definition does not declare is kept: after a restart such a stream begins at its next window.
        """
        if is_declared:
            self._implied[epoch] = since, start
        self._take([(since, start)])

    def end(self, epoch: tuple[str, int]) -> None:
        """Take in that an epoch of a stream is over."""
        self._implied.pop(epoch, None)
        self._take(())

    def at(self, stamps: Column) -> Column:
        """Give the earliest beginning among the streams that count at each stamp; ``NO_WINDOW`` if none does."""
        sinces = np.array([since for since, _ in self._all], dtype=np.int64)
        starts = np.array([NO_WINDOW, *(start for _, start in self._all)], dtype=np.int64)
        return starts[np.searchsorted(sinces, stamps, side="right")]

    def _take(self, windows: Iterable[tuple[int, int]]) -> None:
        """Keep each window that begins before all windows with an earlier stamp."""
        found: list[tuple[int, int]] = []
        for since, start in sorted({*self._all, *windows}):
            if not found or start < found[-1][1]:
                found.append((since, start))
        self._all, implied = tuple(found), set(self._implied.values())
        self.kept = tuple(
            _Kept(start, None if since == NOT_BEGUN else since)
            for since, start in found
            if (since, start) not in implied
        )
