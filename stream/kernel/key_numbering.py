"""Assigns consecutive numbers to 16-byte keys, and counts rows by these numbers.

A key takes 24 to 40 bytes in these hash tables, and 150 bytes in a Python dictionary, where each event would also need
a step in Python.
"""

from __future__ import annotations

import ctypes
import secrets
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from stream.kernel import compiled_kernel
from stream.kernel.byte_columns import Column, address, addresses

Words = npt.NDArray[np.uint64]
"""64-bit words: two words are a key, and one word is a set of up to 64 columns, with a bit for each column."""

_MIN_ROWS: Final = 16
_DICTIONARY_ENTRY_BYTES: Final = 150
"""Bytes of a dictionary's entry with its key."""
_GROWTH_DIVISOR: Final = 4
"""Arrays grow by 1/_GROWTH_DIVISOR of their size, so that their unused part stays small."""


class KeyNumbering:
    """Assigns 0, 1, 2, … to keys of two words, in the order of their first appearance.

    The hash has a secret multiplier, so that nobody can choose keys that collide.
    """

    def __init__(self) -> None:
        self._count = 0
        self._hash_multiplier = np.uint64(secrets.randbits(64) | 1)
        self._keys: Words = np.zeros((_MIN_ROWS, 2), dtype=np.uint64)
        self._index_bits = 0
        self._index: npt.NDArray[np.uint32] = np.zeros(0, dtype=np.uint32)
        self._numbers_of: dict[bytes, int] = {}
        """Each key's number; used instead of the index if there is no compiled kernel."""
        self._make_index()

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use."""
        return self._keys.nbytes + self._index.nbytes + _DICTIONARY_ENTRY_BYTES * len(self._numbers_of)

    def keys_of(self, numbers: Column) -> Words:
        """Return the keys with these numbers."""
        return self._keys[numbers]

    def number_keys(self, keys: Words) -> Column:
        """Return the number of each key; new keys are added."""
        keys = np.ascontiguousarray(keys)
        if (library := compiled_kernel()) is None:
            return self._number_keys_in_python(keys)
        if self._numbers_of:
            self._numbers_of = {}
            self._make_index()
        found: Column = np.empty(len(keys), dtype=np.int64)
        count, done = ctypes.c_int64(self._count), 0
        while True:
            done += library.sotto_number(
                len(keys) - done,
                address(keys[done:]),
                address(self._index),
                self._index_bits,
                int(self._hash_multiplier),
                address(self._keys),
                len(self._keys),
                ctypes.addressof(count),
                address(found[done:]),
            )
            self._count = count.value
            if done == len(keys):
                return found
            self._reserve(self._count + 1)

    def _reserve(self, count: int) -> None:
        if count <= len(self._keys):
            return
        # The array is resized in place, because the system extends a large array without a copy.
        self._keys.resize((size_after_growth(count, len(self._keys)), 2), refcheck=False)
        if 2 * len(self._keys) > len(self._index):
            self._make_index()

    def _make_index(self) -> None:
        self._index_bits = (2 * len(self._keys) - 1).bit_length()
        self._index = np.zeros(1 << self._index_bits, dtype=np.uint32)
        if (library := compiled_kernel()) is not None:
            library.sotto_index(
                self._count,
                address(self._keys),
                address(self._index),
                self._index_bits,
                int(self._hash_multiplier),
            )

    def _number_keys_in_python(self, keys: Words) -> Column:
        if len(self._numbers_of) < self._count:
            known = _keys_as_bytes(self._keys[: self._count])
            self._numbers_of = {key: number for number, key in enumerate(known)}
        numbers = [self._numbers_of.setdefault(key, len(self._numbers_of)) for key in _keys_as_bytes(keys)]
        found: Column = np.array(numbers, dtype=np.int64)
        self._reserve(len(self._numbers_of))
        self._keys[found] = keys
        self._count = len(self._numbers_of)
        return found


def _keys_as_bytes(keys: Words) -> list[bytes]:
    data = keys.tobytes()
    return [data[start : start + 16] for start in range(0, len(data), 16)]


def size_after_growth(count: int, size: int) -> int:
    """Return the new size of an array of ``size`` rows that must hold ``count`` rows."""
    return max(count, size + size // _GROWTH_DIVISOR, _MIN_ROWS)


def grow_in_place(array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Grow an array in place to at least ``count`` rows; new rows are zero."""
    if count > len(array):
        array.resize((size_after_growth(count, len(array)), *array.shape[1:]), refcheck=False)
    return array


Marks = npt.NDArray[np.int32]
"""For each number, the mark of the last call that changed a count of it; negative before the first call."""


class BoundedCounts(NamedTuple):
    """The result of ``count_up_to_bound``: two sets of columns for each row, and the changed numbers.

    - ``within_bound`` has the columns in which the row was counted.
    - ``first`` has the columns in which it was the first row that was counted for its number.
    - ``changed`` has the numbers with a changed count.
    """

    within_bound: Words
    first: Words
    changed: Column


def count_up_to_bound(
    numbers: Column,
    columns: Words,
    counts: npt.NDArray[np.unsignedinteger[Any]],
    bound: int,
    marks: Marks,
    mark: int,
) -> BoundedCounts:
    """Count each row for its number, in each column of its set ``columns``, up to ``bound``.

    ``counts`` has a row for each number. ``marks`` has an entry for each number, which becomes ``mark`` if a count of the
    number changes.
    """
    if (library := compiled_kernel()) is None:
        within_bound, first = np.zeros(len(numbers), dtype=np.uint64), np.zeros(len(numbers), dtype=np.uint64)
        for column in range(counts.shape[1]):
            bit = np.uint64(1 << column)
            rows = np.flatnonzero(columns & bit)
            if not len(rows):
                continue
            rows = rows[np.argsort(numbers[rows], kind="stable")]
            counted_numbers, begins, lengths = np.unique(numbers[rows], return_index=True, return_counts=True)
            before = counts[counted_numbers, column].astype(np.int64)
            rank = np.arange(len(rows)) + np.repeat(before - begins, lengths)
            counts[counted_numbers, column] = np.minimum(before + lengths, bound)
            within_bound[rows[rank < bound]] |= bit
            first[rows[rank == 0]] |= bit
        _, indexes = np.unique(numbers[within_bound != 0], return_index=True)
        changed = numbers[within_bound != 0][np.sort(indexes)]
        marks[changed] = mark
        return BoundedCounts(within_bound, first, changed)
    count = len(numbers)
    within_bound, first = np.empty((2, count), dtype=np.uint64)
    changed = np.empty(count, dtype=np.int64)
    shape = (counts.itemsize, counts.shape[1])
    outputs = addresses(within_bound, first, changed)
    inputs = addresses(numbers, columns, counts)
    found = library.sotto_bound(count, *inputs, *shape, bound, address(marks), mark, *outputs)
    return BoundedCounts(within_bound, first, changed[:found])


class AddedCounts(NamedTuple):
    """The result of ``add_counts``.

    - ``changed`` has the indexes with a changed count.
    - ``newly_marked`` is the number of changed indexes that had no mark before.
    - ``row_count`` is the number of counted rows.
    """

    changed: Column
    newly_marked: int
    row_count: int


def add_counts(
    indexes: Column,
    bits: Words,
    bit: int,
    codes: Column | None,
    counts: Column,
    sums: Column,
    marks: Marks,
    mark: int,
) -> AddedCounts:
    """Add the rows whose set ``bits`` has the bit number ``bit`` to counts, and their codes to sums.

    Such a row i adds 1 to ``counts[indexes[i]]`` and ``codes[i]`` to ``sums[indexes[i]]``, and sets
    ``marks[indexes[i]]`` to ``mark``.
    """
    if (library := compiled_kernel()) is None:
        rows = np.flatnonzero(bits >> np.uint64(bit) & np.uint64(1))
        _, begins, times = np.unique(indexes[rows], return_index=True, return_counts=True)
        order = np.argsort(begins)
        changed = indexes[rows][begins[order]]
        counts[changed] += times[order]
        if codes is not None:
            np.add.at(sums, indexes[rows], codes[rows])
        newly_marked = int(np.count_nonzero(marks[changed] < 0))
        marks[changed] = mark
        return AddedCounts(changed, newly_marked, len(rows))
    if codes is not None:
        codes = np.ascontiguousarray(codes, dtype=np.int64)
    changed, totals = np.empty(min(len(indexes), len(counts)), dtype=np.int64), np.zeros(2, dtype=np.int64)
    found = library.sotto_add(
        len(indexes),
        *addresses(indexes, bits),
        bit,
        None if codes is None else address(codes),
        *addresses(counts, sums, marks),
        mark,
        *addresses(changed, totals),
    )
    return AddedCounts(changed[:found], int(totals[1]), int(totals[0]))
