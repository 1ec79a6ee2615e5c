"""Whose rows a table's are, and which of them count.

Of each person at most so many rows count, those whose keyed hashes are least. The hash is of the person and the row, and of how
many equal rows of the same person came before it: a person's rows are chosen by that person's rows alone, in whatever
order they stand and whoever else is in the table. Every row is hashed and sorted, however few a person has.
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

NAME_BYTES: Final = 16
"""How long a digest of a person's name is."""
PERSON_BYTES: Final = 44
"""Most memory that choosing takes in a service for each person: names in two orders, and places."""
CHOOSING_BYTES: Final = 32
"""And for each row, beside its codes in two orders: whose it is, its hash, rank and place, before and after."""

_WHOLE_NUMBER: Final = r"^(-?[0-9]+)\.0+$"
_WORD_BYTES: Final = 8
_GROUP_ROWS: Final = 1 << 22
"""Rows of how many people are chosen from at a time, which takes some hundred bytes each."""
_HASH_ROWS: Final = 1 << 16
_NAME_CONTEXT: Final = "sotto 2026 person v1"
_PURPOSE: Final = b"sotto contribution v1"


@dataclass(frozen=True, slots=True)
class RowOwners:
    """The number of each row's person, and a digest of each person's name: two words each, by number.

    ``private_unnamed`` counts the file's rows that name nobody, none of which is in the table.
    """

    private_numbers: Numbers
    private_names: Words
    private_unnamed: int = 0

    @property
    def count(self) -> int:
        """How many people the file names, those among them of whom no row is in the table."""
        return len(self.private_names)

    @property
    def public_size(self) -> int:
        """People and rows without a name, each of which may be a person: the same whatever one person's row holds."""
        return self.count + self.private_unnamed


def named(name: str, column: pl.Series) -> tuple[pl.Series, Mask]:
    """What each row of a column calls its person, as text, and which rows name nobody: their cell is missing or blank.

    Spaces around a name are no part of it, and a whole number has one form: some writers turn 1 into 1.0 as soon as another
    row's cell is missing. DataError if the column's type is none that categories are read from.
    """
    texts = as_text(name, column)
    if not column.dtype.is_integer():
        texts = texts.str.strip_chars().str.replace(_WHOLE_NUMBER, "${1}")
    nobody = texts.is_null() | (texts == "").fill_null(value=True)
    if column.dtype.is_float():
        nobody |= column.is_nan().fill_null(value=True)
    return texts, nobody.to_numpy()


class PeopleNumbers:
    """Gives each person whom batches of a column name a number, in no order."""

    def __init__(self, column: str) -> None:
        self.column: Final = column
        self._texts = pl.Categories.random()
        # The mapping lives as long as a series that is of it.
        self._anchor = pl.Series([], dtype=pl.Categorical(self._texts))

    def add(self, column: pl.Series) -> tuple[Numbers, Mask]:
        """The numbers of a batch's people, and which rows name somebody; the number of a row that does not means nothing."""
        texts, nobody = named(self.column, column)
        somebody = ~nobody
        asked = (
            texts if somebody.all() else texts.zip_with(pl.Series(somebody), pl.Series([None], dtype=pl.String))
        )
        numbers = asked.cast(self._anchor.dtype).to_physical()
        return numbers.fill_null(0).to_numpy().astype(np.uint32), somebody

    def names(self) -> Words:
        """A digest of each person's name, by number."""
        digests = b"".join(
            [
                blake3(text.encode(), derive_key_context=_NAME_CONTEXT).digest(NAME_BYTES)
                for text in self._texts.to_series()
            ]
        )
        return np.frombuffer(digests, dtype="<u8").reshape(-1, 2).astype(np.uint64)


def contribution_key(key: bytes, source: str) -> bytes:
    """The key by which a source's rows are chosen, from one that the deployment holds."""
    return blake3(source.encode(), key=blake3(_PURPOSE, key=key).digest()).digest(NAME_BYTES)


@dataclass(frozen=True, slots=True)
class Chosen:
    """All rows in an order of their own, those that count first; ``private_numbers`` says whose they are in that order."""

    private_order: Numbers
    private_counted: int
    people: RowOwners


def choose(codes: Mapping[str, CodeArray], people: RowOwners, most: int, key: bytes) -> Chosen:
    """Which rows count: ``most`` of each person. The order of the rows, and the people's numbers, make no difference.

    The result is in an order that follows from what the rows hold, so that equal rows of the same people give the same.
    """
    by_name = np.lexsort((people.private_names[:, 1], people.private_names[:, 0]))
    place = np.empty(people.count, dtype=np.uint32)
    place[by_name] = np.arange(people.count, dtype=np.uint32)
    whose, names = place[people.private_numbers], people.private_names[by_name]
    counted, others = [], []
    for low, high in _groups(whose, people.count):
        rows = np.flatnonzero((whose >= low) & (whose < high)).astype(np.uint32)
        for order, counts in _chosen(codes, rows, whose[rows] - np.uint32(low), names[low:high], most, key):
            counted.append(rows[order[counts]])
            others.append(rows[order[~counts]])
    arranged = np.concatenate([np.empty(0, dtype=np.uint32), *counted, *others])
    return Chosen(arranged, sum(map(len, counted)), RowOwners(whose[arranged], names, people.private_unnamed))


def _groups(whose: Numbers, people: int) -> Iterator[tuple[int, int]]:
    """Ranges of people, in order, whose rows are looked at together: so many rows, or one person's if these are more."""
    rows = np.cumsum(np.bincount(whose, minlength=people))
    low = done = 0
    while low < people:
        high = max(low + 1, int(np.searchsorted(rows, done + _GROUP_ROWS, side="right")))
        yield low, high
        low, done = high, int(rows[high - 1])


def _chosen(
    codes: Mapping[str, CodeArray], rows: Numbers, whose: Numbers, names: Words, most: int, key: bytes
) -> Iterator[tuple[npt.NDArray[np.intp], Mask]]:
    """Yield the order of some people's rows, by person and hash, in parts, and which of them in that order count."""
    own = siphash(np.frombuffer(key, dtype="<u8").reshape(1, 2).astype(np.uint64), _twice(names)).reshape(-1, 2)
    hashes = np.empty(len(whose), dtype=np.uint64)
    for block in _blocks(len(whose), _HASH_ROWS):
        own_codes = {name: column[rows[block]] for name, column in codes.items()}
        hashes[block] = siphash(own[whose[block]], words_of(own_codes, len(whose[block])))
    ranks = _ranks_of_equals(whose, hashes, len(names))
    for block in _blocks(len(whose), _HASH_ROWS):
        hashes[block] = siphash(
            own[whose[block]], np.stack([hashes[block], ranks[block].astype(np.uint64)], axis=1)
        )
    done = 0
    for order in _sorted_parts(whose, hashes, len(names)):
        # Only one person's rows come in several parts.
        yield order, _ranks(whose[order]) + done < most
        done += len(order)


def _blocks(rows: int, size: int) -> Iterator[slice]:
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _hash_ranges(rows: int) -> Iterator[tuple[np.uint64, np.uint64]]:
    """Yield as many ranges of hashes, first and last, as ``rows`` make groups: of different hashes each has a group's."""
    parts = -(-rows // _GROUP_ROWS)
    for part in range(parts):
        yield np.uint64((part << 64) // parts), np.uint64(((part + 1 << 64) // parts) - 1)


def _sorted_parts(whose: Numbers, hashes: Words, people: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the rows by person and hash; those of one person who has more than a group in parts, by hash."""
    if len(whose) <= _GROUP_ROWS:
        yield _sorted(whose, hashes, people)
        return
    for first, last in _hash_ranges(len(whose)):
        part = np.flatnonzero((hashes >= first) & (hashes <= last))
        yield part[_sorted(whose[part], hashes[part], people)]


def _ranks_of_equals(whose: Numbers, hashes: Words, people: int) -> Numbers:
    """How many equal rows of the same person come before each row, in any order."""
    ranks = np.empty(len(whose), dtype=np.uint32)
    if len(whose) <= _GROUP_ROWS:
        order = _sorted(whose, hashes, people)
        ranks[order] = _ranks(whose[order], hashes[order])
        return ranks
    # One person's: however many are equal, a group of rows is sorted at a time, and a group of different ones is remembered.
    for first, last in _hash_ranges(len(whose)):
        known, counts = np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
        for block in _blocks(len(whose), _GROUP_ROWS):
            inside = np.flatnonzero((hashes[block] >= first) & (hashes[block] <= last))
            order = inside[np.argsort(hashes[block][inside])]
            ordered = hashes[block][order]
            found, number = np.unique(ordered, return_counts=True)
            places = np.searchsorted(known, found)
            is_known = np.zeros(len(found), dtype=np.bool_)
            is_known[places < len(known)] = known[places[places < len(known)]] == found[places < len(known)]
            before = np.zeros(len(found), dtype=np.int64)
            before[is_known] = counts[places[is_known]]
            ranks[block][order] = _ranks(ordered) + np.repeat(before, number)
            counts[places[is_known]] += number[is_known]
            known = np.insert(known, places[~is_known], found[~is_known])
            counts = np.insert(counts, places[~is_known], number[~is_known])
    return ranks


def _twice(names: Words) -> Words:
    """Each name with 0 and with 1 behind it: the messages of a person's two words of key."""
    doubled = np.repeat(names, 2, axis=0)
    return np.concatenate([doubled, np.tile(np.arange(2, dtype=np.uint64), len(names))[:, None]], axis=1)


def words_of(codes: Mapping[str, CodeArray], rows: int) -> Words:
    """Each row's codes side by side, by the names of the attributes, as whole words."""
    width = sum(column.dtype.itemsize for column in codes.values())
    found = np.zeros((rows, -(-width // _WORD_BYTES) * _WORD_BYTES), dtype=np.uint8)
    at = 0
    for name in sorted(codes):
        size = codes[name].dtype.itemsize
        found[:, at : at + size] = np.ascontiguousarray(codes[name]).view(np.uint8).reshape(rows, size)
        at += size
    return found.view("<u8").astype(np.uint64)


def _sorted(whose: Numbers, hashes: Words, people: int) -> npt.NDArray[np.intp]:
    """The rows by person and hash; equal ones stay in no order.

    Person and hash are cut to one word, which sorts in a fraction of the time. Where that leaves different hashes
    alike, all of both decide.
    """
    bits = np.uint64(max(1, (people - 1).bit_length()))
    key = (whose.astype(np.uint64) << (np.uint64(64) - bits)) | (hashes >> bits)
    order = np.argsort(key)
    key, sorted_hashes = key[order], hashes[order]
    if ((key[1:] == key[:-1]) & (sorted_hashes[1:] != sorted_hashes[:-1])).any():
        return np.lexsort((hashes, whose))
    return order


def _ranks(*columns: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.int64]:
    """How many rows before each one, of sorted columns, are equal to it."""
    rows = np.arange(len(columns[0]))
    first = np.zeros(len(rows), dtype=np.bool_)
    first[:1] = True
    for column in columns:
        first[1:] |= column[1:] != column[:-1]
    starts: npt.NDArray[np.int64] = np.maximum.accumulate(np.where(first, rows, 0))
    return rows - starts
