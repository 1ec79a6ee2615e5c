"""Counts events in windows of equal size, interval and lateness, for all conditions in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from schemas.domains import Domain
from stream.feeds.event_counts import CountedQuantity, PersonCounts, UInt64Array
from stream.feeds.event_fields import NO_TEXT
from stream.feeds.tally import NO_END, CountingRule, EventBatch, OpenWindow, StepChanges, Tally
from stream.kernel.byte_columns import Column
from stream.kernel.key_numbering import BoundedCounts

COLUMNS: Final = 64
"""Maximum number of conditions that share a table of people, one for each bit of a 64-bit word."""
_COLUMNS_PER_GROWTH: Final = 4
"""Number of columns by which a table grows at once, because each growth copies the table."""


@dataclass(slots=True)
class EventTotals:
    """Numbers of events; an event counts once for each of its windows and conditions.

    ``left_out`` counts events beyond a person's bound, ``late`` counts events that come after their window
    has closed, and ``counted`` counts all other events.
    """

    counted: int = 0
    left_out: int = 0
    late: int = 0


class _WindowRows(NamedTuple):
    """Events of a batch, and the windows in which they lie.

    For each event:

    - ``rows`` has its row in the batch, and ``windows`` its window's row in the cell tables.
    - ``within_bound`` has the bits of the columns in which the event is within its person's bound.
    - ``first`` has the bits of the columns in which it is its person's first event.

    ``columns`` has the bits of all events together.
    """

    start: int
    columns: int
    rows: Column
    windows: Column
    within_bound: UInt64Array
    first: UInt64Array


@dataclass(slots=True)
class _BatchCount:
    batch: EventBatch
    piece_number: int
    changes: StepChanges = field(default_factory=StepChanges)


class TallyGroup:
    """Tallies with equal size, interval and lateness of windows.

    Each condition has a separate column in the people's rows. So whether an event counts under a condition
    depends only on its person's events under that condition.
    """

    def __init__(self, rule: CountingRule, domains: Mapping[str, Domain], event_totals: EventTotals) -> None:
        self.tallies: dict[int, Tally] = {}
        self.windows: dict[int, OpenWindow] = {}
        self.contribution = rule.contribution
        self._size, self._interval_ms = rule.size, rule.interval_ms
        self._open_ms = rule.size + rule.lateness
        self._domains = domains
        self._event_totals = event_totals
        self._width = 0
        self._free_rows: list[int] = []

    def can_add(self, rule: CountingRule) -> bool:
        """Return whether a tally with this rule may be added."""
        alike = (rule.size, rule.interval_ms, rule.size + rule.lateness) == (
            self._size,
            self._interval_ms,
            self._open_ms,
        )
        return alike and len(self.tallies) < COLUMNS

    def add_tally(self, number: int, rule: CountingRule, since: int, last_window_start: int) -> Tally:
        """Add a tally for another condition, in an empty column."""
        used = {tally.column for tally in self.tallies.values()}
        column = next(column for column in range(COLUMNS) if column not in used)
        if column >= self._width:
            self._width += _COLUMNS_PER_GROWTH
            for window in self.windows.values():
                window.person_counts.widen(self._width)
        tally = self.tallies[number] = Tally(
            number, rule, column, self._domains, self.windows, since, last_window_start
        )
        return tally

    def remove_tally(self, number: int) -> None:
        """Stop counting for a tally."""
        tally = self.tallies.pop(number)
        for window in self.windows.values():
            window.person_counts.empty(tally.column)

    def count(self, batch: EventBatch, piece_number: int) -> StepChanges | None:
        """Count a batch's events; return the changes for a piece of the changelog, or None."""
        column_masks = np.zeros(len(batch), dtype=np.uint64)
        for tally in self.tallies.values():
            wants = batch.mask(tally.rule.predicate)
            if tally.since > batch.stamps[0]:
                wants = wants & (batch.stamps >= tally.since)
            column_masks |= wants.astype(np.uint64) << np.uint64(tally.column)
        step, parts = _BatchCount(batch, piece_number), []
        self._count_late_events(batch, column_masks)
        for start, rows in self._windows_with_rows(batch, np.flatnonzero(column_masks)):
            columns = sum(1 << tally.column for tally in self.tallies.values() if tally.includes_window(start))
            part = self._count_window(start, rows, column_masks[rows] & np.uint64(columns), step)
            if part is not None:
                parts.append(part)
        if not parts:
            return None
        self._update_last_counted(parts)
        part = _join_parts(parts)
        places: dict[tuple[str, ...], Column] = {}
        for tally in self.tallies.values():
            if tally.rule.total is not None:
                self._count_within_totals(tally, part, step)
                continue
            for quantity, cells in tally.cells.items():
                if quantity.by not in places:
                    places[quantity.by] = part.windows * cells.cells + batch.cells(quantity.by)[part.rows]
                within_bound = part.first if quantity.counts_people else part.within_bound
                self._add_cells(
                    tally, quantity, places[quantity.by], (within_bound, tally.column), part.rows, step
                )
            self._count_texts(tally, part, step)
        return step.changes

    def _count_late_events(self, batch: EventBatch, column_masks: UInt64Array) -> None:
        """Add to the total of late events those whose windows were published before this step."""
        latest = batch.times - batch.times % self._interval_ms
        low = latest - self._size + self._interval_ms
        most = int(latest.max())
        begun = [tally for tally in self.tallies.values() if tally.begin <= most]
        # Few events are late, so the others are left out before the work for each tally.
        early = np.flatnonzero(low < max((tally.first for tally in begun), default=0))
        for tally in begun if len(early) else ():
            rows = early[(column_masks[early] & np.uint64(tally.column_bit)) != 0]
            closed = np.minimum(batch.clocks[rows] - self._open_ms, tally.first - 1)
            missed = np.minimum(latest[rows], closed) - np.maximum(low[rows], tally.begin)
            self._event_totals.late += int(np.maximum(missed // self._interval_ms + 1, 0).sum())

    def _windows_with_rows(self, batch: EventBatch, rows: Column) -> Iterator[tuple[int, Column]]:
        """Yield the windows in which these rows may lie, each with its rows in the partition's order."""
        if not len(rows):
            return
        low, high = self.first, max(tally.last for tally in self.tallies.values())
        latest = batch.times[rows] - batch.times[rows] % self._interval_ms
        order = np.argsort(latest, kind="stable")
        begins, ends = np.unique(latest[order], return_index=True)
        parts = dict(zip(begins.tolist(), np.split(rows[order], ends[1:]), strict=True))
        starts = {start - back for start in parts for back in range(0, self._size, self._interval_ms)}
        for start in sorted(start for start in starts if low <= start <= high):
            own = [parts[at] for at in range(start, start + self._size, self._interval_ms) if at in parts]
            yield start, own[0] if len(own) == 1 else np.sort(np.concatenate(own))

    def _count_window(
        self, start: int, rows: Column, column_masks: UInt64Array, step: _BatchCount
    ) -> _WindowRows | None:
        """Count each event for its person in one window; its bit mask has the conditions that it satisfies."""
        in_time = step.batch.clocks[rows] < start + self._open_ms
        kept = in_time & (column_masks != 0)
        if not kept.all():
            self._event_totals.late += _count_bits(column_masks[~in_time])
            rows, column_masks = rows[kept], column_masks[kept]
        if not len(rows):
            return None
        window = self.open_window(start)
        bounded = self._count_people(window, rows, column_masks, step)
        if len(bounded.changed):
            step.changes.people[start] = bounded.changed
        self._event_totals.left_out += _count_bits(column_masks & ~bounded.within_bound)
        all_columns = int(np.bitwise_or.reduce(column_masks))
        return _WindowRows(
            start,
            all_columns,
            rows,
            np.full(len(rows), window.row, dtype=np.int64),
            bounded.within_bound,
            bounded.first,
        )

    def _count_people(
        self, window: OpenWindow, rows: Column, column_masks: UInt64Array, step: _BatchCount
    ) -> BoundedCounts:
        """Count each event for its person, up to the window's contribution bound."""
        return window.person_counts.count(step.batch.people[rows], column_masks, step.piece_number)

    def _update_last_counted(self, parts: Sequence[_WindowRows]) -> None:
        left = {tally.column: tally for tally in self.tallies.values()}
        for part in reversed(parts):
            for column in [column for column in left if part.columns >> column & 1]:
                tally = left.pop(column)
                tally.last_counted = max(tally.last_counted, part.start)
            if not left:
                return

    def _count_within_totals(self, tally: Tally, window_rows: _WindowRows, step: _BatchCount) -> None:
        """Apply the bound over all windows or over a period, in the partition's order.

        An event beyond this bound still uses up the window's bound. This has no effect, because no
        later event of its person is counted anyway.
        """
        for quantity in (*tally.cells, *tally.texts):
            within_bound = window_rows.first if quantity.counts_people else window_rows.within_bound
            chosen = np.flatnonzero(within_bound & np.uint64(tally.column_bit))
            if not len(chosen):
                return
            chosen = chosen[np.argsort(window_rows.rows[chosen], kind="stable")]
            periods = self._periods(tally, window_rows.windows[chosen])
            within_total = np.empty(len(chosen), dtype=np.uint64)
            for period in np.unique(periods).tolist():
                own = np.flatnonzero(periods == period)
                people = step.batch.people[window_rows.rows[chosen[own]]]
                bounded = tally.counts_of_period(period).count(
                    people, np.ones(len(own), dtype=np.uint64), step.piece_number
                )
                within_total[own] = bounded.within_bound
                if len(bounded.changed):
                    step.changes.lifetime_counts[tally.number, period] = bounded.changed
            if quantity.most_bytes:
                self._add_texts(tally, quantity, window_rows, chosen[within_total != 0], step)
                continue
            rows = window_rows.rows[chosen]
            places = (
                window_rows.windows[chosen] * tally.cells[quantity].cells + step.batch.cells(quantity.by)[rows]
            )
            self._add_cells(tally, quantity, places, (within_total, 0), rows, step)

    def _count_texts(self, tally: Tally, part: _WindowRows, step: _BatchCount) -> None:
        for quantity in tally.texts:
            within_bound = part.first if quantity.counts_people else part.within_bound
            chosen = np.flatnonzero(within_bound & np.uint64(tally.column_bit))
            self._add_texts(tally, quantity, part, chosen, step)

    def _add_texts(
        self, tally: Tally, quantity: CountedQuantity, window_rows: _WindowRows, chosen: Column, step: _BatchCount
    ) -> None:
        """Count the texts of chosen events; an event without a text uses up its person's bound too."""
        self._event_totals.counted += len(chosen)
        [name] = quantity.by
        codes = step.batch.codes[name][window_rows.rows[chosen]]
        has_text = codes != NO_TEXT
        chosen, codes = chosen[has_text], codes[has_text]
        touched = tally.texts[quantity].add(
            window_rows.windows[chosen], codes, step.batch.texts[name], step.piece_number
        )
        if touched:
            step.changes.texts[tally.number, quantity] = touched

    def _periods(self, tally: Tally, windows: Column) -> Column:
        rows, place = np.unique(windows, return_inverse=True)
        starts = {window.row: start for start, window in self.windows.items()}
        periods = [tally.rule.period_of(starts[row]) for row in rows.tolist()]
        return np.array(periods, dtype=np.int64)[place]

    def _add_cells(
        self,
        tally: Tally,
        quantity: CountedQuantity,
        places: Column,
        within_bound: tuple[UInt64Array, int],
        rows: Column,
        step: _BatchCount,
    ) -> None:
        codes = None if quantity.sum is None else step.batch.codes[quantity.sum][rows]
        found = tally.cells[quantity].add(places, *within_bound, codes, step.piece_number)
        self._event_totals.counted += found.row_count
        if len(found.changed):
            step.changes.cells[tally.number, quantity] = found.changed

    def open_window(self, start: int) -> OpenWindow:
        """Return the open window that begins at ``start``; open it if necessary."""
        if (window := self.windows.get(start)) is None:
            row = self._free_rows.pop() if self._free_rows else len(self.windows)
            window = self.windows[start] = OpenWindow(row, PersonCounts(self.contribution, self._width))
            for tally in self.tallies.values():
                for cells in tally.cells.values():
                    cells.reserve(len(self.windows) + len(self._free_rows))
        return window

    @property
    def first(self) -> int:
        """The first counted window."""
        return min((tally.first for tally in self.tallies.values()), default=NO_END)

    def drop_ended_windows(self) -> None:
        """Drop windows that no tally counts any more."""
        before = self.first
        for start in [start for start in self.windows if start < before]:
            row = self.windows.pop(start).row
            for tally in self.tallies.values():
                tally.clear(row)
            self._free_rows.append(row)
        for tally in self.tallies.values():
            tally.drop_past_periods()

    @property
    def people(self) -> int:
        """Number of people in open windows; a person counts once for each window."""
        return sum(len(window.person_counts) for window in list(self.windows.values()))

    @property
    def entry_count(self) -> int:
        """Return the number of entries that the changelog must hold."""
        return self.people + sum(tally.entry_count for tally in self.tallies.values())


def _join_parts(parts: Sequence[_WindowRows]) -> _WindowRows:
    if len(parts) == 1:
        return parts[0]
    columns = [np.concatenate(column) for column in list(zip(*parts, strict=True))[2:]]
    return _WindowRows(parts[0].start, parts[0].columns, *columns)


def _count_bits(words: UInt64Array) -> int:
    return int(np.bitwise_count(words).sum())
