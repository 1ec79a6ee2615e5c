"""The fields of plain JSON objects, by the thousand, where the kernel is compiled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from stream.kernel.columns import Buffer, Column, Sizes, Spans, address, spans_of
from stream.kernel.keys import Words
from stream.kernel.library import compiled
from stream.kernel.names import Names

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

    def slots(self, column: int, names: Names, other: int) -> Column:
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
