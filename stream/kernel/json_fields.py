"""The fields of plain JSON objects, by the thousand, where the kernel is compiled."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stream.kernel.byte_columns import Buffer, Column, Sizes, Spans, Texts, address, empty_rows, spans_of
from stream.kernel.key_tables import Words
from stream.kernel.library import compiled

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


class SlotNames:
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


_MOST_NODES: Final = 64
"""As many as a word has bits."""

Read = npt.NDArray[np.bool_]


class Values:
    """What stands in each field of some texts; ``read`` says which of them are plain, and every column that is asked for may rule out more.

    What a column has for texts that are not read stands for nothing.
    """

    def __init__(self, data: Buffer, columns: int, rows: int) -> None:
        self.read: Read = np.zeros(rows, dtype=np.bool_)
        self.data = data
        self.at: Column = np.zeros((columns, rows), dtype=np.int64)
        self.size: Sizes = np.zeros((columns, rows), dtype=np.int32)
        self.kind: Buffer = np.zeros((columns, rows), dtype=np.uint8)

    def numbers(self, column: int) -> npt.NDArray[np.float64]:
        """Numbers that fit a double after one rounding."""
        found = np.full(len(self.read), np.nan)
        compiled().sotto_numbers(*self._column(column), address(found))
        return found

    def slots(self, column: int, names: SlotNames, other: int) -> Column:
        """The slot of each name: of a text, or of a whole number by its digits. ``other`` has what is no name, nothing if that is below 0."""
        found: Column = np.full(len(self.read), -1, dtype=np.int64)
        table, entries, seed, texts = names.entered()
        compiled().sotto_find(
            *self._column(column),
            address(table),
            entries,
            seed,
            address(texts.data),
            other,
            address(found),
        )
        return found

    def moments(self, column: int, end: int) -> Column:
        """Milliseconds since 1970 below ``end``: as a whole number, or as ``2013-01-01T05:00:00Z`` with or without milliseconds."""
        found: Column = np.full(len(self.read), -1, dtype=np.int64)
        compiled().sotto_moments(*self._column(column), end, address(found))
        return found

    def people(self, column: int) -> None:
        """Have names there: texts that are not blank, of at most 256 bytes, or whole numbers."""
        compiled().sotto_names(*self._column(column))

    def texts(self, column: int, rows: Column) -> Spans:
        """What stands there in some rows, as bytes."""
        return Spans(self.data, self.at[column, rows], self.size[column, rows])

    def _column(self, column: int) -> tuple[int, ...]:
        columns = (self.at[column], self.size[column], self.kind[column], self.read)
        return len(self.read), address(self.data), *(address(one) for one in columns)


class Fields:
    """Reads the values at some paths, each a way through objects by their names."""

    def __init__(self, paths: Sequence[tuple[str, ...]]) -> None:
        """Take paths none of which leads on from where another ends."""
        tree: dict[str, Any] = {}
        for path in paths:
            at = tree
            for step in path:
                at = at.setdefault(step, {})
        names, first, count, leaf = [b""], [0], [0], [-1]
        ways: list[tuple[int, tuple[str, ...], dict[str, Any]]] = [(0, (), tree)]
        self.columns: dict[tuple[str, ...], int] = {}
        """Where each path's values are."""
        for node, way, below in ways:
            first[node], count[node] = len(names), len(below)
            for step, further in below.items():
                path = (*way, step)
                leaf.append(-1 if further else self.columns.setdefault(path, len(self.columns)))
                ways.append((len(names), path, further))
                names.append(step.encode(errors="replace"))
                first.append(0)
                count.append(0)
        self.is_plain = len(names) <= _MOST_NODES and all(map(_is_plain, names))
        """Whether plain events can have these names, and few enough."""
        self._names = spans_of(names)
        self._places = self._names.at.astype(np.int32)
        self._tree = [np.array(column, dtype=np.int32) for column in (first, count, leaf)]

    def scan(self, texts: Spans, limit: int) -> Values | None:
        """Where the values stand in the plain ones among some texts of at most so many bytes; None without a kernel.

        A plain text is a JSON object of printable ASCII without escapes, with every field once, each a text or a number.
        """
        if (library := compiled()) is None or not self.is_plain:
            return None
        found = Values(texts.data, len(self.columns), len(texts))
        at, size = np.ascontiguousarray(texts.at), np.ascontiguousarray(texts.size)
        library.sotto_fields(
            len(texts),
            address(texts.data),
            address(at),
            address(size),
            limit,
            len(self._places),
            address(self._names.data),
            address(self._places),
            address(self._names.size),
            *map(address, self._tree),
            *map(address, (found.read, found.at, found.size, found.kind)),
        )
        return found


def digests(texts: Spans, partitions: int) -> tuple[Words, Column] | None:
    """BLAKE2b of 16 bytes of each text, and the partition that Kafka's default partitioner gives it; None without a kernel."""
    if (library := compiled()) is None:
        return None
    found, homes = np.empty((len(texts), 2), dtype=np.uint64), np.empty(len(texts), dtype=np.int64)
    library.sotto_digests(
        len(texts),
        address(texts.data),
        address(texts.at),
        address(texts.size),
        partitions,
        address(found),
        address(homes),
    )
    return found, homes


def _is_plain(name: bytes) -> bool:
    return all(0x20 <= letter < 0x7F and letter not in b'"\\' for letter in name)
