"""Writes a feed's counts to its changelog in binary records, called pieces, and reads them.

A *tally* has the counts under one *condition*, the ``where`` of standing streams, and a ``TallyGroup`` has the
tallies whose windows are equal. A piece has the counts that one step changed, with their values after the
step. So if several pieces contain a count, the latest piece has its current value. A piece identifies
people by digests of 16 bytes, not by names. For each person and window it has one row, with a count for
each condition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from schemas.wire import DECODE_ERRORS
from stream.feeds.event_counts import (
    CountedQuantity,
    PersonCounts,
    UInt64Array,
    pack_counts,
    packed_bytes,
    unpack_counts,
)
from stream.feeds.tally import StepChanges, Tally
from stream.feeds.tally_groups import TallyGroup
from stream.privacy.mechanisms.private_values import window_text_size
from stream.processing.protocol import LaterVersionError, Message, RecordLike

PIECE_BYTES: Final = 768 * 1024
"""Approximate size limit of a piece; it is below the size limit of records in every topic."""
_DIGEST_BYTES: Final = 16
_CELL_BYTES: Final = 24
_PREFIX: Final = b"piece|"


class _PeopleSection(msgspec.Struct, array_like=True, gc=False):
    """The counts of some people in one window, under the conditions of some tallies."""

    tallies: list[int]
    start: int
    digests: bytes
    counts: bytes


class _TotalsSection(msgspec.Struct, array_like=True, gc=False):
    """The counts of some people in one tally, over all windows or over the windows of a period."""

    tally: int
    period: int
    digests: bytes
    counts: bytes


class _CellsSection(msgspec.Struct, array_like=True, gc=False):
    """The values of some cells of a tally; ``window_indices`` has the index in ``windows`` of each cell's window.

    ``count`` is the number of these cells.
    """

    tally: int
    by: tuple[str, ...]
    people: bool
    sum: str | None
    windows: list[int]
    count: int
    window_indices: bytes
    cells: bytes
    counts: bytes
    sums: bytes


class _TextsSection(msgspec.Struct, array_like=True, gc=False):
    """The counts of some texts in a tally's window; None if the window's texts are too large."""

    tally: int
    by: tuple[str, ...]
    people: bool
    most_bytes: int
    start: int
    counts: dict[bytes, int] | None


class _Sections(msgspec.Struct, array_like=True, gc=False):
    people: list[_PeopleSection]
    totals: list[_TotalsSection]
    cells: list[_CellsSection]
    texts: list[_TextsSection] = []

    def add(self, section: _Section) -> None:
        """Add a section to the sections of its kind."""
        by_kind: dict[type[_Section], list[Any]] = {
            _PeopleSection: self.people,
            _TotalsSection: self.totals,
            _CellsSection: self.cells,
            _TextsSection: self.texts,
        }
        by_kind[type(section)].append(section)

    def encode(self) -> bytes:
        """Encode the piece; without texts it has the format of earlier versions."""
        parts = [self.people, self.totals, self.cells, self.texts]
        return _encode(parts if self.texts else parts[:3])

    @property
    def entries(self) -> int:
        """The number of entries: rows of people, cells and texts."""
        digests = sum(len(one.digests) for one in self.people) + sum(len(one.digests) for one in self.totals)
        texts = sum(1 if one.counts is None else len(one.counts) for one in self.texts)
        return digests // _DIGEST_BYTES + sum(one.count for one in self.cells) + texts


_Section = _PeopleSection | _TotalsSection | _CellsSection | _TextsSection

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Sections).decode


def piece_key(number: int) -> bytes:
    """Return the key of a piece."""
    return b"%s%d" % (_PREFIX, number)


def piece_number(key: bytes) -> int | None:
    """Return the number of a piece by its key; None for another record's key."""
    return int(key[len(_PREFIX) :]) if key.startswith(_PREFIX) else None


def encode_pieces(changes: Iterable[tuple[TallyGroup, StepChanges]]) -> Iterator[tuple[bytes, int]]:
    """Yield the changes as pieces of limited size, each with its number of entries."""
    piece, size = _Sections([], [], [], []), 0
    for group, touched in changes:
        for section, more in _build_sections(group, touched):
            if size and size + more > PIECE_BYTES:
                yield piece.encode(), piece.entries
                piece, size = _Sections([], [], [], []), 0
            piece.add(section)
            size += more
    if size:
        yield piece.encode(), piece.entries


def _build_sections(group: TallyGroup, changes: StepChanges) -> Iterator[tuple[_Section, int]]:
    tallies = sorted(group.tallies.values(), key=lambda tally: tally.column)
    numbers, columns = [tally.number for tally in tallies], [tally.column for tally in tallies]
    for start, rows in changes.people.items():
        yield from (
            (_PeopleSection(numbers, start, digests, counts), len(digests) + len(counts) + _overhead(len(numbers)))
            for digests, counts in _encode_people(
                group.windows[start].person_counts, rows, columns, group.contribution
            )
        )
    for (number, period), rows in changes.lifetime_counts.items():
        tally = group.tallies[number]
        yield from (
            (_TotalsSection(number, period, digests, counts), len(digests) + len(counts) + _overhead(0))
            for digests, counts in _encode_people(tally.counts_of_period(period), rows, [0], tally.rule.total or 0)
        )
    start_of_row = {window.row: start for start, window in group.windows.items()}
    for (number, quantity), places in changes.cells.items():
        yield from _encode_cells(group.tallies[number], quantity, places, start_of_row)
    for (number, quantity), texts in changes.texts.items():
        facts = number, quantity.by, quantity.counts_people, quantity.most_bytes
        for row, changed in texts.items():
            all_counts = group.tallies[number].texts[quantity].counts(row)
            counts = None if all_counts is None else {text: all_counts[text] for text in changed}
            # They fit into a piece, because all texts of a window have at most ``MOST_WINDOW_BYTES``.
            yield _TextsSection(*facts, start_of_row[row], counts), window_text_size(changed) + _overhead(0)


def _encode_people(
    person_counts: PersonCounts, rows: npt.NDArray[np.int64], columns: list[int], contribution: int
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the digests and counts of some people's rows, in parts of limited size."""
    for part in _split_rows(len(rows), _DIGEST_BYTES + packed_bytes(contribution, len(columns))):
        own = rows[part]
        yield (
            person_counts.people(own).astype("<u8").tobytes(),
            pack_counts(person_counts.counts(own, columns), contribution),
        )


def _encode_cells(
    tally: Tally, quantity: CountedQuantity, changed_places: npt.NDArray[np.int64], start_of_row: Mapping[int, int]
) -> Iterator[tuple[_Section, int]]:
    cells = tally.cells[quantity]
    for part in _split_rows(len(changed_places), _CELL_BYTES):
        places = changed_places[part]
        rows, window_indices = np.unique(places // cells.cells, return_inverse=True)
        found = _CellsSection(
            tally.number,
            quantity.by,
            quantity.counts_people,
            quantity.sum,
            [start_of_row[row] for row in rows.tolist()],
            len(places),
            b"" if len(rows) == 1 else _pack_integers(window_indices),
            _pack_integers(places % cells.cells),
            _pack_integers(cells.counts[places]),
            _pack_integers(cells.sums[places]) if quantity.sum is not None else b"",
        )
        size = len(found.window_indices) + len(found.cells) + len(found.counts) + len(found.sums)
        yield found, size + _overhead(len(found.windows))


def _split_rows(count: int, size: int) -> Iterator[slice]:
    most = max(1, PIECE_BYTES // size)
    return (slice(start, start + most) for start in range(0, count, most))


def _overhead(listed: int) -> int:
    """Return an upper bound for the bytes of a section without its columns, if it lists ``listed`` integers."""
    return 200 + 9 * listed


def _pack_integers(numbers: np.ndarray[Any, Any]) -> bytes:
    """Encode integers of at least 0, all in the least of 1, 2, 4 or 8 bytes that holds the largest."""
    bits = int(numbers.max(initial=0)).bit_length()
    return numbers.astype(next(f"<u{size}" for size in (1, 2, 4, 8) if bits <= 8 * size)).tobytes()


def _unpack_integers(value: bytes, count: int) -> npt.NDArray[np.int64]:
    return np.frombuffer(value, dtype=f"<u{max(1, len(value) // max(1, count))}").astype(np.int64)


def apply_piece(value: bytes, number: int, tally_groups: Iterable[TallyGroup]) -> int:
    """Apply a piece to open windows, and return its number of entries."""
    piece = _decode(value)
    for group in tally_groups:
        for people in piece.people:
            _apply_people(people, number, group)
        for totals in piece.totals:
            tally = group.tallies.get(totals.tally)
            if tally is not None and not tally.period_is_over(totals.period):
                counts = unpack_counts(totals.counts, tally.rule.total or 0, 1)
                tally.counts_of_period(totals.period).put(_decode_digests(totals.digests), [0], counts, number)
        for cells in piece.cells:
            if (tally := group.tallies.get(cells.tally)) is not None:
                _apply_cells(cells, number, group, tally)
        for texts in piece.texts:
            _apply_texts(texts, number, group)
    return piece.entries


def _apply_people(section: _PeopleSection, number: int, group: TallyGroup) -> None:
    own = [place for place, tally in enumerate(section.tallies) if tally in group.tallies]
    if not own or section.start < group.first:
        return
    counts = unpack_counts(section.counts, group.contribution, len(section.tallies))[:, own]
    tallies = [group.tallies[section.tallies[place]] for place in own]
    person_counts = group.open_window(section.start).person_counts
    person_counts.put(_decode_digests(section.digests), [tally.column for tally in tallies], counts, number)
    for tally in tallies:
        tally.last_counted = max(tally.last_counted, section.start)


def _apply_cells(section: _CellsSection, number: int, group: TallyGroup, tally: Tally) -> None:
    quantity = CountedQuantity(section.by, section.people, section.sum)
    if (cells := tally.cells.get(quantity)) is None:
        return
    kept = [group.open_window(start).row if start >= group.first else -1 for start in section.windows]
    indices = np.zeros(section.count, dtype=np.int64)
    if section.window_indices:
        indices = _unpack_integers(section.window_indices, section.count)
    rows = np.array(kept, dtype=np.int64)[indices]
    is_open = rows >= 0
    places = rows[is_open] * cells.cells + _unpack_integers(section.cells, section.count)[is_open]
    sums = _unpack_integers(section.sums, section.count)[is_open] if quantity.sum is not None else None
    cells.put(places, _unpack_integers(section.counts, section.count)[is_open], sums, number)


def _apply_texts(section: _TextsSection, number: int, group: TallyGroup) -> None:
    quantity = CountedQuantity(section.by, section.people, most_bytes=section.most_bytes)
    tally = group.tallies.get(section.tally)
    if tally is None or section.start < group.first or (texts := tally.texts.get(quantity)) is None:
        return
    texts.put(group.open_window(section.start).row, section.counts, number)


def _decode_digests(value: bytes) -> UInt64Array:
    return np.frombuffer(value, dtype="<u8").reshape(-1, 2).astype(np.uint64)


SLACK_ENTRIES: Final = 65_536
"""The changelog may have twice as many entries as the open windows need, plus this number."""
REWRITTEN_ENTRIES: Final = 32_768
"""A step rewrites at most this number of old entries, or four times its new entries if these are more.

The entries of an earlier step are rewritten together, so a step may exceed the limit once.
"""

Changes = Sequence[tuple[TallyGroup, StepChanges]]


class PiecesLog:
    """The numbers of one partition's pieces and of their entries, grouped by the step that wrote the pieces.

    If the changelog has too many entries that later pieces repeat, ``write`` deletes the oldest pieces.
    Before that, it writes again the entries that only they have.
    """

    def __init__(self) -> None:
        self.next = 0
        """The number of the next piece; ``TallyGroup.count`` marks changed counts with it before the piece is written."""
        self._steps: deque[tuple[int, int, int]] = deque()
        self._entries = 0

    def _add_pieces(self, first: int, end: int, entries: int) -> None:
        """Add the pieces ``first`` … ``end`` − 1, which one step wrote."""
        self._steps.append((first, end, entries))
        self._entries += entries
        self.next = max(self.next, end)

    def apply_pieces(self, pieces: Mapping[int, RecordLike], tally_groups: Sequence[TallyGroup]) -> None:
        """Apply the pieces of a changelog in the order of their numbers.

        LaterVersionError if a later version wrote a piece.
        """
        for number in sorted(pieces):
            try:
                entries = apply_piece(pieces[number].value or b"", number, tally_groups)
            except DECODE_ERRORS:
                raise LaterVersionError(pieces[number]) from None
            self._add_pieces(number, number + 1, entries)

    def write(self, changes: Changes, tally_groups: Iterable[TallyGroup]) -> list[Message]:
        """Return a step's pieces, rewritten entries of old pieces, and the old pieces' deletions."""
        messages: list[Message] = []
        first = self.next
        entries = self._append(changes, messages)
        known = list(tally_groups)
        excess = self._entries - 2 * sum(group.entry_count for group in known) - SLACK_ENTRIES
        old: list[tuple[int, int, int]] = []
        allowed = max(REWRITTEN_ENTRIES, 4 * entries)
        while self._steps and self._steps[0][0] < first and excess > 0 and allowed > 0:
            old.append(self._steps.popleft())
            excess -= old[-1][2]
            allowed -= old[-1][2]
        if old:
            before = old[-1][1]
            self._append(
                [(group, again) for group in known if (again := _renumber_old_entries(group, before, first))],
                messages,
            )
            self._entries -= sum(step[2] for step in old)
            messages += [(piece_key(number), None, ()) for step in old for number in range(step[0], step[1])]
        return messages

    def _append(self, changes: Changes, messages: list[Message]) -> int:
        first, entries = self.next, 0
        for piece, entry_count in encode_pieces(changes):
            messages.append((piece_key(self.next), piece, ()))
            self.next += 1
            entries += entry_count
        if entries:
            self._add_pieces(first, self.next, entries)
        return entries


def _renumber_old_entries(group: TallyGroup, before: int, piece: int) -> StepChanges:
    """Return a tally group's entries whose latest piece is before ``before``, and mark them with ``piece``.

    ``before`` and ``piece`` are numbers of pieces.
    """
    touched = StepChanges()
    for start, window in group.windows.items():
        if len(rows := window.person_counts.renumber_old_entries(before, piece)):
            touched.people[start] = rows
    for tally in group.tallies.values():
        for period, person_counts in tally.lifetime_counts.items():
            if len(rows := person_counts.renumber_old_entries(before, piece)):
                touched.lifetime_counts[tally.number, period] = rows
        for quantity, cells in tally.cells.items():
            if len(places := cells.renumber_old_entries(before, piece)):
                touched.cells[tally.number, quantity] = places
        for quantity, texts in tally.texts.items():
            if found := texts.renumber_old_entries(before, piece):
                touched.texts[tally.number, quantity] = found
    return touched
