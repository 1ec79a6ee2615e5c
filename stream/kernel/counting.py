"""Counts that end at a bound, and sums by place, for many rows at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stream.kernel.columns import Column, address
from stream.kernel.keys import Words
from stream.kernel.library import compiled

Marks = npt.NDArray[np.int32]


class Bounded(NamedTuple):
    """In which columns each row counted, in which of them for the first time, and the numbers with a change, each once."""

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
    """Count each row's number in the columns that the row wants, one a bit, where it has been counted fewer than ``most`` times.

    ``counts`` has a row for each number, ``marks`` an entry, which gets ``mark`` with a change; no number has it before.
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
    """The places with a change, each once, how many of them had no mark yet, and how many rows were counted."""

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
    """Count the rows that have a bit at their places, with their codes' sum if there are codes.

    ``marks`` is as for ``bounded``; below 0 stands for none.
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
    changed, told = np.empty(min(len(places), len(counts)), dtype=np.int64), np.zeros(2, dtype=np.int64)
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
        address(told),
    )
    return Added(changed[:found], int(told[1]), int(told[0]))
