"""The changelog of what was counted, in pieces: each says what a step changed, and is deleted when later ones have said it all.

A figure never goes down while its window is open, and a piece has figures as they are after its step and not what was added, so
that of any two pieces the later one holds. A piece is binary: people are digests of 16 bytes, and nothing is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np

from stream.processors.feeds.cells import Counting
from stream.processors.feeds.tally import Table, Tally, Touched

PEOPLE_AT_ONCE: Final = 32_768
"""Most entries of one piece: with 24 bytes each it stays below the largest record of any topic."""
_PREFIX: Final = b"piece|"


class _People(msgspec.Struct, array_like=True, gc=False):
    """How often people were counted, and in which of the section's windows."""

    table: Table
    digests: bytes
    windows: bytes
    counts: bytes


class _Places(msgspec.Struct, array_like=True, gc=False):
    """Numbers of cells, and in which of the section's windows they are."""

    by: tuple[str, ...]
    people: bool
    sum: str | None
    windows: bytes
    cells: bytes
    counts: bytes
    sums: bytes


class _Section(msgspec.Struct, array_like=True, gc=False):
    """What one tally has of some windows, by their beginning; there are none where all windows are counted together."""

    tally: int
    windows: list[int]
    people: list[_People]
    cells: list[_Places]

    @property
    def entries(self) -> int:
        """How many figures there are."""
        return sum(len(one.counts) // 4 for one in self.people) + sum(len(one.cells) // 4 for one in self.cells)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Section]).decode


@dataclass(slots=True)
class Piece:
    """A piece's value, and how many figures it has."""

    value: bytes
    entries: int


def key_of(number: int) -> bytes:
    """The key of a piece."""
    return b"%s%d" % (_PREFIX, number)


def number_of(key: bytes) -> int | None:
    """The number of a piece by its key; None for another record's."""
    return int(key[len(_PREFIX) :]) if key.startswith(_PREFIX) else None


def pieces(changes: Iterable[tuple[Tally, Touched]]) -> Iterator[Piece]:
    """What was touched, in as many pieces as it takes."""
    sections: list[_Section] = []
    entries = 0
    for tally, touched in changes:
        for section, count in _sections(tally, touched):
            if sections and entries + count > PEOPLE_AT_ONCE:
                yield Piece(_encode(sections), entries)
                sections, entries = [], 0
            sections.append(section)
            entries += count
    if sections:
        yield Piece(_encode(sections), entries)


def _sections(tally: Tally, touched: Touched) -> Iterator[tuple[_Section, int]]:
    starts = tally.starts()
    for table, entries in touched.people.items():
        for part in _parts(len(entries.slots)):
            windows, books = [], np.empty(0, dtype=np.int64)
            if table != "life":
                numbers, books = np.unique(entries.books[part], return_inverse=True)
                windows = [starts[number] for number in numbers.tolist()]
            counts = tally.tables[table].counts[entries.slots[part]]
            people = _People(table, entries.people[part].tobytes(), _narrow(books), counts.astype("<u4").tobytes())
            yield _Section(tally.number, windows, [people], []), len(counts)
    by_row = {row: start for start, row in tally.rows.items()}
    for counting, touched_places in touched.cells.items():
        cells = tally.cells[counting]
        for part in _parts(len(touched_places)):
            places = touched_places[part]
            rows, among = np.unique(places // cells.cells, return_inverse=True)
            found = _Places(
                counting.by,
                counting.people,
                counting.sum,
                _narrow(among),
                (places % cells.cells).astype("<u4").tobytes(),
                cells.counts[places].astype("<i8").tobytes(),
                cells.sums[places].astype("<i8").tobytes() if counting.sum is not None else b"",
            )
            yield _Section(tally.number, [by_row[row] for row in rows.tolist()], [], [found]), len(places)


def _parts(count: int) -> Iterator[slice]:
    return (slice(start, start + PEOPLE_AT_ONCE) for start in range(0, count, PEOPLE_AT_ONCE))


def _narrow(places: np.ndarray[Any, Any]) -> bytes:
    return places.astype("<u2").tobytes()


def take(value: bytes, number: int, tallies: Mapping[int, Tally], closed: Mapping[int, int]) -> int:
    """Take a piece in, and give how many figures it has.

    Windows that begin before ``closed``, by tally, are passed over, as are tallies that are no more.
    """
    sections = _decode(value)
    for section in sections:
        if (tally := tallies.get(section.tally)) is not None:
            tally.open(start for start in section.windows if start >= closed[section.tally])
            _take(section, number, tally)
    return sum(section.entries for section in sections)


def _take(section: _Section, number: int, tally: Tally) -> None:
    is_open = np.array([start in tally.rows for start in section.windows], dtype=np.bool_)
    books = np.array(
        [tally.book(start) if start in tally.rows else 0 for start in section.windows], dtype=np.int32
    )
    rows = np.array([tally.rows.get(start, 0) for start in section.windows], dtype=np.int64)
    for people in section.people:
        if (visits := tally.tables.get(people.table)) is None:
            continue
        digests = np.frombuffer(people.digests, dtype="<u8").reshape(-1, 2).astype(np.uint64)
        counts = np.frombuffer(people.counts, dtype="<u4")
        windows = np.frombuffer(people.windows, dtype="<u2")
        kept = is_open[windows] if section.windows else np.ones(len(counts), dtype=np.bool_)
        whose = books[windows][kept] if section.windows else np.zeros(len(counts), dtype=np.int32)
        slots = visits.slots(digests[kept], whose)
        visits.counts[slots] = counts[kept]
        visits.pieces[slots] = number
    for one in section.cells:
        counting = Counting(one.by, one.people, one.sum)
        if (cells := tally.cells.get(counting)) is None:
            continue
        windows = np.frombuffer(one.windows, dtype="<u2")
        kept = is_open[windows]
        places = rows[windows][kept] * cells.cells + np.frombuffer(one.cells, dtype="<u4")[kept]
        sums = np.frombuffer(one.sums, dtype="<i8")[kept] if counting.sum is not None else None
        cells.put(places, np.frombuffer(one.counts, dtype="<i8")[kept], sums, number)
