"""Reads fields of plain JSON objects in batches, with the compiled kernel."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stream.kernel import compiled_kernel
from stream.kernel.byte_columns import (
    Buffer,
    ByteStrings,
    Column,
    Sizes,
    Spans,
    address,
    addresses,
    empty_rows,
    spans_of,
)
from stream.kernel.key_numbering import Words

_INITIAL_ENTRIES: Final = 256
_ENTRY_BYTES: Final = 16


class ScannedQueries(NamedTuple):
    """Columns of scanned events; only rows in the mask ``is_read`` have a meaning.

    ``ids`` are the raw texts between quotation marks. A missing threshold is NaN.
    """

    is_read: npt.NDArray[np.bool_]
    ids: Spans
    slots: Column
    values: npt.NDArray[np.float64]
    thresholds: npt.NDArray[np.float64]


class SlotNames:
    """The names of slots, and a hash table with a secret seed in which the kernel finds the slot of a name."""

    def __init__(self) -> None:
        self.texts = ByteStrings()
        self._seed = secrets.randbits(64)
        self._table = _empty_table(_INITIAL_ENTRIES)
        self._added_count = 0
        self._used_entries = 0

    def replace(self, slot: int, name: bytes) -> None:
        """Give a slot another name; ``scan`` may still find the slot by its earlier name."""
        self.texts.replace(slot, name)
        if slot < self._added_count:
            if 2 * (self._used_entries + 1) > len(self._table):
                self._table = _empty_table(1 << (3 * len(self.texts)).bit_length())
                self._added_count = self._used_entries = 0
            else:
                self._add_to_table(slot, slot + 1)

    def table_with_names(self) -> tuple[npt.NDArray[np.uint64], int, int, Spans]:
        """Return the hash table from names to slots, its size, its seed, and the names."""
        self._add_new_names()
        return self._table, len(self._table), self._seed, self.texts.spans

    def scan(self, events: Spans, limit: int) -> ScannedQueries | None:
        """Read plain queries to known streams; None without a kernel.

        A plain query is a JSON object with ``id``, ``stream``, ``value`` and optionally ``threshold``, each once and
        within the limits of ``schemas.Query``. It is printable ASCII without escapes, and its numbers convert to a double in one
        rounding. ``limit`` is the size of the largest event.
        """
        if (library := compiled_kernel()) is None:
            return None
        self._add_new_names()
        count, names = len(events), self.texts.spans
        read, slots = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64)
        ids = Spans(events.data, np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int32))
        values, thresholds = np.zeros(count), np.full(count, np.nan)
        library.sotto_scan(
            count,
            *addresses(events.data, events.at, events.size),
            limit,
            address(self._table),
            len(self._table),
            self._seed,
            *addresses(names.data, read, ids.at, ids.size, slots, values, thresholds),
        )
        return ScannedQueries(read, ids, slots, values, thresholds)

    def _add_new_names(self) -> None:
        """Add new names to the table."""
        count = len(self.texts)
        if self._added_count == count or compiled_kernel() is None:
            return
        if 2 * (self._used_entries + count - self._added_count) > len(self._table):
            self._table = _empty_table(1 << (2 * count).bit_length())
            self._added_count = self._used_entries = 0
        self._add_to_table(self._added_count, count)
        self._added_count = count

    def _add_to_table(self, first: int, end: int) -> None:
        if (library := compiled_kernel()) is None:
            return
        names = self.texts.spans
        library.sotto_enter(
            address(self._table),
            len(self._table),
            self._seed,
            *addresses(names.data, names.at, names.size),
            first,
            end,
        )
        self._used_entries += end - first


def _empty_table(entries: int) -> npt.NDArray[np.uint64]:
    return empty_rows(entries, _ENTRY_BYTES).view(np.uint64)


_NUMBER: Final = 2
"""The kernel's kind of a field with a number."""
_MAX_NODES: Final = 64
"""Maximum number of nodes in a tree of field names; the kernel has one bit of a word for each node."""


class LocatedFields:
    """Locations of fields in texts; ``is_read`` is the mask of the rows with plain texts.

    A conversion clears ``is_read`` for the rows that it does not support; Python code reads these rows.
    """

    def __init__(self, data: Buffer, columns: int, rows: int) -> None:
        self.is_read: npt.NDArray[np.bool_] = np.zeros(rows, dtype=np.bool_)
        self.data = data
        self.at: Column = np.zeros((columns, rows), dtype=np.int64)
        self.size: Sizes = np.zeros((columns, rows), dtype=np.int32)
        self.kind: Buffer = np.zeros((columns, rows), dtype=np.uint8)

    def read_numbers(self, column: int) -> npt.NDArray[np.float64]:
        """Return the numbers of a column; rows whose number converts to a double in several roundings are excluded."""
        found = np.full(len(self.is_read), np.nan)
        compiled_kernel().sotto_numbers(*self._column_addresses(column), address(found))
        return found

    def read_slots(self, column: int, names: SlotNames, slot_if_unknown: int) -> Column:
        """Return the slot of each name, and ``slot_if_unknown`` for unknown names; if it is negative, their rows are excluded."""
        found: Column = np.full(len(self.is_read), -1, dtype=np.int64)
        table, entries, seed, texts = names.table_with_names()
        end = (address(table), entries, seed, address(texts.data), slot_if_unknown, address(found))
        compiled_kernel().sotto_find(*self._column_addresses(column), *end)
        return found

    def read_moments(self, column: int, end: int) -> Column:
        """Return times, given as whole numbers or ISO 8601, in milliseconds since 1970 and below ``end``."""
        found: Column = np.full(len(self.is_read), -1, dtype=np.int64)
        compiled_kernel().sotto_moments(*self._column_addresses(column), end, address(found))
        return found

    def exclude_numbers(self, column: int) -> None:
        """Exclude rows whose value is a number, so that Python code reads them.

        A number may be spelled in several ways (1, 1.0) but is one category.
        """
        np.logical_and(self.is_read, self.kind[column] != _NUMBER, out=self.is_read)

    def exclude_non_people(self, column: int) -> None:
        """Exclude rows whose person is neither a nonblank text of at most 256 bytes nor an integer."""
        compiled_kernel().sotto_names(*self._column_addresses(column))

    def texts(self, column: int, rows: Column) -> Spans:
        """Return the raw bytes of a column in the given rows."""
        return Spans(self.data, self.at[column, rows], self.size[column, rows])

    def _column_addresses(self, column: int) -> tuple[int, ...]:
        columns = (self.at[column], self.size[column], self.kind[column], self.is_read)
        return len(self.is_read), address(self.data), *(address(column_array) for column_array in columns)


class FieldLocator:
    """Locates the values of fields in JSON texts; the path of a field has the names of nested objects."""

    def __init__(self, paths: Sequence[tuple[str, ...]]) -> None:
        """Locate the fields at ``paths``; no path is a prefix of another."""
        tree: dict[str, Any] = {}
        for path in paths:
            node_children = tree
            for step in path:
                node_children = node_children.setdefault(step, {})
        names, first, count, leaf = [b""], [0], [0], [-1]
        pending: list[tuple[int, tuple[str, ...], dict[str, Any]]] = [(0, (), tree)]
        self.columns: dict[tuple[str, ...], int] = {}
        for node, path_to_node, children in pending:
            first[node], count[node] = len(names), len(children)
            for step, grandchildren in children.items():
                path = (*path_to_node, step)
                leaf.append(-1 if grandchildren else self.columns.setdefault(path, len(self.columns)))
                pending.append((len(names), path, grandchildren))
                names.append(step.encode(errors="replace"))
                first.append(0)
                count.append(0)
        plain = all(0x20 <= letter < 0x7F and letter not in b'"\\' for name in names for letter in name)
        self.is_plain = plain and len(names) <= _MAX_NODES
        """True if the kernel supports the names: all are plain, and there are at most ``_MAX_NODES``."""
        self._names = spans_of(names)
        self._name_starts = self._names.at.astype(np.int32)
        self._tree = [np.array(column, dtype=np.int32) for column in (first, count, leaf)]

    def scan(self, texts: Spans, limit: int) -> LocatedFields | None:
        """Locate the values in plain texts of at most ``limit`` bytes; None without a kernel.

        A plain text is a JSON object of printable ASCII without escapes, which has every field once, as a text or a
        number.
        """
        if (library := compiled_kernel()) is None or not self.is_plain:
            return None
        found = LocatedFields(texts.data, len(self.columns), len(texts))
        at, size = np.ascontiguousarray(texts.at), np.ascontiguousarray(texts.size)
        library.sotto_fields(
            len(texts),
            *addresses(texts.data, at, size),
            limit,
            len(self._name_starts),
            *addresses(self._names.data, self._name_starts, self._names.size, *self._tree),
            *addresses(found.is_read, found.at, found.size, found.kind),
        )
        return found


def digest_and_partition(texts: Spans, partitions: int) -> tuple[Words, Column] | None:
    """Return the texts' 16-byte BLAKE2b digests and Kafka partitions; None without a kernel."""
    if (library := compiled_kernel()) is None:
        return None
    found, target_partitions = np.empty((len(texts), 2), dtype=np.uint64), np.empty(len(texts), dtype=np.int64)
    columns = addresses(texts.data, texts.at, texts.size)
    library.sotto_digests(len(texts), *columns, partitions, address(found), address(target_partitions))
    return found, target_partitions
