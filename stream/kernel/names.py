"""Plain queries, read by the thousand, and the streams that they name."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stream.kernel.columns import Column, Spans, Texts, address
from stream.kernel.library import compiled
from stream.kernel.rows import empty_rows

_FIRST_ENTRIES: Final = 256
_ENTRY_BYTES: Final = 16


class Scanned(NamedTuple):
    """What was read of some events; nothing stands for those that were not ``read``.

    ``ids`` are texts as they stand between quotation marks in JSON; a threshold that is not given is NaN.
    """

    read: npt.NDArray[np.bool_]
    ids: Spans
    slots: Column
    values: npt.NDArray[np.float64]
    thresholds: npt.NDArray[np.float64]


class Names:
    """Names by slot, and where the kernel is compiled, slots by name.

    Whoever asks by name chooses among those that were entered; the table's order is secret all the same.
    """

    def __init__(self) -> None:
        self.texts = Texts()
        self._seed = secrets.randbits(64)
        self._table = _empty_table(_FIRST_ENTRIES)
        self._entered = 0

    def extend(self, names: Sequence[bytes]) -> None:
        """Give names the next slots."""
        self.texts.extend(names)

    def entered(self) -> tuple[npt.NDArray[np.uint64], int, int, Spans]:
        """The table of slots by name, its size and its seed, and the names; only where the kernel is compiled."""
        self._enter()
        return self._table, len(self._table), self._seed, self.texts.spans

    def scan(self, events: Spans, limit: int) -> Scanned | None:
        """Read plain queries to streams that are known, and leave other events as they are; None if there is no kernel.

        A plain query is a JSON object with ``id``, ``stream``, ``value`` and perhaps ``threshold``, each once, within the limits
        of the contract, and written so that nobody can doubt what it says: printable ASCII without escapes, numbers that fit a
        double after one rounding. ``limit`` is the size of the largest event.
        """
        if (library := compiled()) is None:
            return None
        self._enter()
        count, names = len(events), self.texts.spans
        read, slots = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
        ids = Spans(events.data, np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int32))
        values, thresholds = np.zeros(count), np.full(count, np.nan)
        library.sotto_scan(
            count,
            address(events.data),
            address(events.at),
            address(events.size),
            limit,
            address(self._table),
            len(self._table),
            self._seed,
            address(names.data),
            address(read),
            address(ids.at),
            address(ids.size),
            address(slots),
            address(values),
            address(thresholds),
        )
        return Scanned(read, ids, slots, values, thresholds)

    def _enter(self) -> None:
        """Bring the table up to all names."""
        count = len(self.texts)
        if self._entered == count or (library := compiled()) is None:
            return
        if 2 * count > len(self._table):
            self._table = _empty_table(1 << (2 * count).bit_length())
            self._entered = 0
        names = self.texts.spans
        library.sotto_enter(
            address(self._table),
            len(self._table),
            self._seed,
            address(names.data),
            address(names.at),
            address(names.size),
            self._entered,
            count,
        )
        self._entered = count


def _empty_table(entries: int) -> npt.NDArray[np.uint64]:
    """A table without names; as many entries as a line of the cache has lie in one."""
    return empty_rows(entries, _ENTRY_BYTES).view(np.uint64)
