"""Applies contribution bounds: chooses the rows of each person that count.

The rows of a person with the smallest keyed hashes count. A row's hash depends on the person, the row's codes, and a
number that distinguishes the person's equal rows. So the choice depends only on the rows of this person, not on their
order or on other people. Every row is hashed and sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from stream.optional_packages import pl
from stream.tables.encoding import CodeArray, Mask, Words, as_text, siphash

Numbers = npt.NDArray[np.uint32]

PERSON: Final = "\0person"
"""The name of the column with the person's number of each row; no attribute can have this name."""

NAME_BYTES: Final = 16

_INTEGER_WRITTEN_AS_FLOAT: Final = r"^(-?[0-9]+)\.0+$"
_WORD_BYTES: Final = 8
_MAX_ROWS_AT_ONCE: Final = 1 << 22
"""Maximum number of rows that are processed at a time; each takes about a hundred bytes."""
_HASH_ROWS: Final = 1 << 16
_NAME_CONTEXT: Final = "sotto 2026 person v1"
_KEY_PURPOSE: Final = b"sotto contribution v1"


@dataclass(frozen=True, slots=True)
class RowOwners:
    """The number of each row's person, and a digest (two 64-bit words) of each person's name.

    ``private_unnamed`` counts the file's rows without a person, which are not in the table.
    """

    private_numbers: Numbers
    private_names: Words
    private_unnamed: int = 0

    @property
    def count(self) -> int:
        """Number of people in the file, including people without a row in the table."""
        return len(self.private_names)

    @property
    def public_size(self) -> int:
        """Number of people plus number of rows without a person; it does not depend on the attributes of a row."""
        return self.count + self.private_unnamed


def person_names(name: str, column: pl.Series) -> tuple[pl.Series, Mask]:
    """Return each row's person as text, and a mask of the rows with a missing or blank name.

    Names are stripped of spaces at both ends, and 1.0 becomes 1, because some programs write a column of integers as floats if
    a cell is missing. ColumnError if the column's type cannot be read as text.
    """
    texts = as_text(name, column)
    if not column.dtype.is_integer():
        texts = texts.str.strip_chars().str.replace(_INTEGER_WRITTEN_AS_FLOAT, "${1}")
    is_unnamed = texts.is_null() | (texts == "").fill_null(value=True)
    if column.dtype.is_float():
        is_unnamed |= column.is_nan().fill_null(value=True)
    return texts, is_unnamed.to_numpy()


class PersonNumbering:
    """Assigns a number to each name in a person column, over all batches; the order of the numbers means nothing."""

    def __init__(self, column: str) -> None:
        self.column: Final = column
        self._texts = pl.Categories.random()
        # Polars keeps the mapping as long as a series of its type exists.
        self._kept_series = pl.Series([], dtype=pl.Categorical(self._texts))

    def add(self, column: pl.Series) -> tuple[Numbers, Mask]:
        """Return the number of each row's person, and a mask of the rows with a person."""
        texts, is_unnamed = person_names(self.column, column)
        is_named = ~is_unnamed
        asked = (
            texts if is_named.all() else texts.zip_with(pl.Series(is_named), pl.Series([None], dtype=pl.String))
        )
        numbers = asked.cast(self._kept_series.dtype).to_physical()
        return numbers.fill_null(0).to_numpy().astype(np.uint32), is_named

    def names(self) -> Words:
        """Return the digest of each person's name, by number."""
        digests = b"".join(
            [
                blake3(text.encode(), derive_key_context=_NAME_CONTEXT).digest(NAME_BYTES)
                for text in self._texts.to_series()
            ]
        )
        return np.frombuffer(digests, dtype="<u8").reshape(-1, 2).astype(np.uint64)


def contribution_key(key: bytes, source: str) -> bytes:
    """Derive from a deployment's key the key that determines which rows of a source count."""
    return blake3(source.encode(), key=blake3(_KEY_PURPOSE, key=key).digest()).digest(NAME_BYTES)


@dataclass(frozen=True, slots=True)
class RowChoice:
    """An order of all rows in which the counted rows come first.

    ``private_order`` has the rows' indexes, ``private_counted`` is the number of counted rows, and ``people`` has the
    rows' people in this order.
    """

    private_order: Numbers
    private_counted: int
    people: RowOwners


def choose_rows(codes: Mapping[str, CodeArray], people: RowOwners, bound: int, key: bytes) -> RowChoice:
    """Choose at most ``bound`` rows of each person.

    Neither the choice nor the order of the result depends on the rows' order or on the numbers of people.
    """
    by_name = np.lexsort((people.private_names[:, 1], people.private_names[:, 0]))
    rank_of_number = np.empty(people.count, dtype=np.uint32)
    rank_of_number[by_name] = np.arange(people.count, dtype=np.uint32)
    person_of_row, names = rank_of_number[people.private_numbers], people.private_names[by_name]
    counted, others = [], []
    for low, high in person_ranges(np.bincount(person_of_row, minlength=people.count)):
        rows = np.flatnonzero((person_of_row >= low) & (person_of_row < high)).astype(np.uint32)
        for order, counts in _choose_by_hash(
            codes, rows, person_of_row[rows] - np.uint32(low), names[low:high], bound, key
        ):
            counted.append(rows[order[counts]])
            others.append(rows[order[~counts]])
    private_order = np.concatenate([np.empty(0, dtype=np.uint32), *counted, *others])
    return RowChoice(
        private_order,
        sum(map(len, counted)),
        RowOwners(person_of_row[private_order], names, people.private_unnamed),
    )


def person_ranges(rows_of_people: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield ranges of people who have at most ``_MAX_ROWS_AT_ONCE`` rows together, or of a single person."""
    ends = np.cumsum(rows_of_people)
    low = done = 0
    while low < len(ends):
        high = max(low + 1, int(np.searchsorted(ends, done + _MAX_ROWS_AT_ONCE, side="right")))
        yield low, high
        low, done = high, int(ends[high - 1])


def _choose_by_hash(
    codes: Mapping[str, CodeArray], rows: Numbers, person_of_row: Numbers, names: Words, bound: int, key: bytes
) -> Iterator[tuple[npt.NDArray[np.intp], Mask]]:
    """Yield the order of the rows by person and hash, in parts, each with a mask of its counted rows."""
    person_keys = siphash(
        np.frombuffer(key, dtype="<u8").reshape(1, 2).astype(np.uint64), _append_zero_and_one(names)
    ).reshape(-1, 2)
    hashes = np.empty(len(person_of_row), dtype=np.uint64)
    for block in _row_blocks(len(person_of_row), _HASH_ROWS):
        own_codes = {name: column[rows[block]] for name, column in codes.items()}
        hashes[block] = siphash(
            person_keys[person_of_row[block]], pack_codes(own_codes, len(person_of_row[block]))
        )
    ranks = _number_equal_rows(person_of_row, hashes, len(names))
    for block in _row_blocks(len(person_of_row), _HASH_ROWS):
        hashes[block] = siphash(
            person_keys[person_of_row[block]], np.stack([hashes[block], ranks[block].astype(np.uint64)], axis=1)
        )
    done = 0
    for order in _sorted_parts(person_of_row, hashes, len(names)):
        # There are several parts only if all rows belong to one person.
        yield order, _count_equal_rows_before(person_of_row[order]) + done < bound
        done += len(order)


def _row_blocks(rows: int, size: int) -> Iterator[slice]:
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _hash_ranges(rows: int) -> Iterator[tuple[np.uint64, np.uint64]]:
    """Divide all possible hashes into equal ranges, one for each ``_MAX_ROWS_AT_ONCE`` rows."""
    parts = -(-rows // _MAX_ROWS_AT_ONCE)
    for part in range(parts):
        yield np.uint64((part << 64) // parts), np.uint64(((part + 1 << 64) // parts) - 1)


def _sorted_parts(person_of_row: Numbers, hashes: Words, people: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the order by person and hash; in parts if one person has more than ``_MAX_ROWS_AT_ONCE`` rows."""
    if len(person_of_row) <= _MAX_ROWS_AT_ONCE:
        yield _sort_rows(person_of_row, hashes, people)
        return
    for first, last in _hash_ranges(len(person_of_row)):
        part = np.flatnonzero((hashes >= first) & (hashes <= last))
        yield part[_sort_rows(person_of_row[part], hashes[part], people)]


def _number_equal_rows(person_of_row: Numbers, hashes: Words, people: int) -> Numbers:
    """Number the equal rows of each person 0, 1, 2, …, in any order."""
    ranks = np.empty(len(person_of_row), dtype=np.uint32)
    if len(person_of_row) <= _MAX_ROWS_AT_ONCE:
        order = _sort_rows(person_of_row, hashes, people)
        ranks[order] = _count_equal_rows_before(person_of_row[order], hashes[order])
        return ranks
    # All rows belong to one person. To bound memory, each pass over them handles one range of hashes.
    for first, last in _hash_ranges(len(person_of_row)):
        known, counts = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
        for block in _row_blocks(len(person_of_row), _MAX_ROWS_AT_ONCE):
            inside = np.flatnonzero((hashes[block] >= first) & (hashes[block] <= last))
            order = inside[np.argsort(hashes[block][inside])]
            ordered = hashes[block][order]
            found, number = np.unique(ordered, return_counts=True)
            places = np.searchsorted(known, found)
            is_known = np.zeros(len(found), dtype=np.bool_)
            is_known[places < len(known)] = known[places[places < len(known)]] == found[places < len(known)]
            before = np.zeros(len(found), dtype=np.int64)
            before[is_known] = counts[places[is_known]]
            ranks[block][order] = _count_equal_rows_before(ordered) + np.repeat(before, number)
            counts[places[is_known]] += number[is_known]
            known = np.insert(known, places[~is_known], found[~is_known])
            counts = np.insert(counts, places[~is_known], number[~is_known])
    return ranks


def _append_zero_and_one(names: Words) -> Words:
    """Return each name with 0 and with 1 appended; the two hashes are the words of the person's key."""
    doubled = np.repeat(names, 2, axis=0)
    return np.concatenate([doubled, np.tile(np.arange(2, dtype=np.uint64), len(names))[:, None]], axis=1)


def pack_codes(codes: Mapping[str, CodeArray], rows: int) -> Words:
    """Pack each row's codes into 64-bit words, in the order of attribute names."""
    width = sum(column.dtype.itemsize for column in codes.values())
    found = np.zeros((rows, -(-width // _WORD_BYTES) * _WORD_BYTES), dtype=np.uint8)
    at = 0
    for name in sorted(codes):
        size = codes[name].dtype.itemsize
        found[:, at : at + size] = np.ascontiguousarray(codes[name]).view(np.uint8).reshape(rows, size)
        at += size
    return found.view("<u8").astype(np.uint64)


def _sort_rows(person_of_row: Numbers, hashes: Words, people: int) -> npt.NDArray[np.intp]:
    """Return the order of rows by person and hash; equal rows are in any order.

    The person and the truncated hash are packed into one word, because words sort much faster. If two different rows
    have the same word, the full values are sorted.
    """
    bits = np.uint64(max(1, (people - 1).bit_length()))
    key = (person_of_row.astype(np.uint64) << (np.uint64(64) - bits)) | (hashes >> bits)
    order = np.argsort(key)
    key, sorted_hashes = key[order], hashes[order]
    if ((key[1:] == key[:-1]) & (sorted_hashes[1:] != sorted_hashes[:-1])).any():
        return np.lexsort((hashes, person_of_row))
    return order


def _count_equal_rows_before(*columns: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.int64]:
    """Return the number of equal rows before each row of sorted columns."""
    rows = np.arange(len(columns[0]))
    first = np.zeros(len(rows), dtype=np.bool_)
    first[:1] = True
    for column in columns:
        first[1:] |= column[1:] != column[:-1]
    starts: npt.NDArray[np.int64] = np.maximum.accumulate(np.where(first, rows, 0))
    return rows - starts
