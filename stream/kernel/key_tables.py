"""Hash tables that number 16-byte keys in order of appearance, at about 16 bytes a key.

Python's dictionaries would take ten times as much, and a step for each event.
"""

from __future__ import annotations

import ctypes
import secrets
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stream.kernel.byte_columns import Column, address
from stream.kernel.library import compiled

Words = npt.NDArray[np.uint64]

_FEWEST: Final = 16
_GROWTH: Final = 4
"""Tables grow by 1/_GROWTH, so that the unused part stays small."""


class Keys:
    """Numbers keys of two words from 0 in order of first appearance.

    A secret multiplier of the first word hides the slots from clients that choose keys.
    """

    def __init__(self) -> None:
        self._count = 0
        self._seed = np.uint64(secrets.randbits(64) | 1)
        self._known: Words = np.zeros((_FEWEST, 2), dtype=np.uint64)
        self._bits = 0
        self._index: npt.NDArray[np.uint32] = np.zeros(0, dtype=np.uint32)
        self._make_index()

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return self._known.nbytes + self._index.nbytes

    def of(self, numbers: Column) -> Words:
        """Return the keys with some numbers."""
        return self._known[numbers]

    def numbers(self, keys: Words) -> Column:
        """Return the number of each key; new keys are added."""
        if (library := compiled()) is None:
            return self._numbers(keys)
        keys = np.ascontiguousarray(keys)
        found: Column = np.empty(len(keys), dtype=np.int64)
        count, done = ctypes.c_int64(self._count), 0
        while True:
            done += library.sotto_number(
                len(keys) - done,
                address(keys[done:]),
                address(self._index),
                self._bits,
                int(self._seed),
                address(self._known),
                len(self._known),
                ctypes.addressof(count),
                address(found[done:]),
            )
            self._count = count.value
            if done == len(keys):
                return found
            self._reserve(self._count + 1)

    def _reserve(self, count: int) -> None:
        if count <= len(self._known):
            return
        # In place: mapped memory grows without a copy.
        self._known.resize((with_share(count, len(self._known)), 2), refcheck=False)
        if 2 * len(self._known) > len(self._index):
            self._make_index()

    def _make_index(self) -> None:
        self._bits = (2 * len(self._known) - 1).bit_length()
        self._index = np.zeros(1 << self._bits, dtype=np.uint32)
        if (library := compiled()) is None:
            self._enter(np.arange(self._count))
        else:
            library.sotto_index(
                self._count, address(self._known), address(self._index), self._bits, int(self._seed)
            )

    def _numbers(self, keys: Words) -> Column:
        order = np.lexsort((keys[:, 1], keys[:, 0]))
        ordered = keys[order]
        begins = np.ones(len(keys), dtype=np.bool_)
        begins[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
        heads = order[begins]
        found = self._find_numbers(keys[heads])
        new = np.flatnonzero(found < 0)
        new = new[np.argsort(heads[new])]
        if len(new):
            self._reserve(self._count + len(new))
            found[new] = np.arange(self._count, self._count + len(new))
            self._known[found[new]] = keys[heads[new]]
            self._count += len(new)
            self._enter(found[new])
        numbers: Column = np.empty(len(keys), dtype=np.int64)
        numbers[order] = found[np.cumsum(begins) - 1]
        return numbers

    def _find_numbers(self, keys: Words) -> Column:
        """Return the number of each key, -1 for new keys."""
        found: Column = np.full(len(keys), -1, dtype=np.int64)
        rows, places = np.arange(len(keys)), self._homes(keys)
        while len(rows):
            numbers = self._index[places].astype(np.int64) - 1
            taken = numbers >= 0
            rows, places, numbers = rows[taken], places[taken], numbers[taken]
            alike = (self._known[numbers] == keys[rows]).all(axis=1)
            found[rows[alike]] = numbers[alike]
            rows, places = rows[~alike], self._next(places[~alike])
        return found

    def _enter(self, numbers: Column) -> None:
        """Add known keys to the index."""
        places = self._homes(self._known[numbers])
        while len(numbers):
            free = self._index[places] == 0
            self._index[places[free]] = numbers[free] + 1
            # If several keys collide in one slot, the last written keeps it.
            lost = self._index[places] != numbers + 1
            numbers, places = numbers[lost], self._next(places[lost])

    def _homes(self, keys: Words) -> Column:
        with np.errstate(over="ignore"):
            return ((keys[:, 0] * self._seed) >> np.uint64(64 - self._bits)).astype(np.int64)

    def _next(self, places: Column) -> Column:
        return (places + 1) & (len(self._index) - 1)


def with_share(count: int, room: int) -> int:
    """Return the new number of rows for at least ``count``, from ``room`` rows."""
    return max(count, room + room // _GROWTH, _FEWEST)


def with_rows(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Grow an array in place to at least ``count`` rows; new rows are zero."""
    if count > len(array):
        array.resize((with_share(count, len(array)), *array.shape[1:]), refcheck=False)
    return array


Marks = npt.NDArray[np.int32]


class Bounded(NamedTuple):
    """Columns in which each row counted, and counted first, and the changed numbers."""

    let: Words
    first: Words
    changed: Column


def bounded(
    numbers: Column,
    wanted: Words,
    counts: npt.NDArray[np.unsignedinteger[Any]],
    most: int,
    marks: Marks,
    mark: int,
) -> Bounded:
    """Count each row's number in the columns of its ``wanted`` bits, at most ``most`` times.

    ``counts`` has a row per number. ``marks`` has an entry per number, set to the new value
    ``mark`` by a change.
    """
    if (library := compiled()) is None:
        return _bounded(numbers, wanted, counts, most, marks, mark)
    rows = len(numbers)
    let, first = np.empty(rows, dtype=np.uint64), np.empty(rows, dtype=np.uint64)
    changed = np.empty(rows, dtype=np.int64)
    found = library.sotto_bound(
        rows,
        address(numbers),
        address(wanted),
        address(counts),
        counts.itemsize,
        counts.shape[1],
        most,
        address(marks),
        mark,
        address(let),
        address(first),
        address(changed),
    )
    return Bounded(let, first, changed[:found])


def _bounded(
    numbers: Column,
    wanted: Words,
    counts: npt.NDArray[np.unsignedinteger[Any]],
    most: int,
    marks: Marks,
    mark: int,
) -> Bounded:
    let, first = np.zeros(len(numbers), dtype=np.uint64), np.zeros(len(numbers), dtype=np.uint64)
    for column in range(counts.shape[1]):
        bit = np.uint64(1 << column)
        rows = np.flatnonzero(wanted & bit)
        if not len(rows):
            continue
        rows = rows[np.argsort(numbers[rows], kind="stable")]
        whose, begins, lengths = np.unique(numbers[rows], return_index=True, return_counts=True)
        before = counts[whose, column].astype(np.int64)
        rank = np.arange(len(rows)) + np.repeat(before - begins, lengths)
        counts[whose, column] = np.minimum(before + lengths, most)
        let[rows[rank < most]] |= bit
        first[rows[rank == 0]] |= bit
    _, places = np.unique(numbers[let != 0], return_index=True)
    changed = numbers[let != 0][np.sort(places)]
    marks[changed] = mark
    return Bounded(let, first, changed)


class Added(NamedTuple):
    """The changed places, how many of them had no mark, and the number of rows counted."""

    changed: Column
    fresh: int
    rows: int


def added(
    places: Column,
    bits: Words,
    bit: int,
    codes: Column | None,
    counts: Column,
    sums: Column,
    marks: Marks,
    mark: int,
) -> Added:
    """Count the rows with a bit at their places, and add up their codes, if any.

    ``marks`` is as for ``bounded``; a negative mark is none.
    """
    if (library := compiled()) is None:
        rows = np.flatnonzero(bits >> np.uint64(bit) & np.uint64(1))
        _, begins, times = np.unique(places[rows], return_index=True, return_counts=True)
        order = np.argsort(begins)
        changed = places[rows][begins[order]]
        counts[changed] += times[order]
        if codes is not None:
            np.add.at(sums, places[rows], codes[rows])
        fresh = int(np.count_nonzero(marks[changed] < 0))
        marks[changed] = mark
        return Added(changed, fresh, len(rows))
    if codes is not None:
        codes = np.ascontiguousarray(codes, dtype=np.int64)
    changed, totals = np.empty(min(len(places), len(counts)), dtype=np.int64), np.zeros(2, dtype=np.int64)
    found = library.sotto_add(
        len(places),
        address(places),
        address(bits),
        bit,
        None if codes is None else address(codes),
        address(counts),
        address(sums),
        address(marks),
        mark,
        address(changed),
        address(totals),
    )
    return Added(changed[:found], int(totals[1]), int(totals[0]))
