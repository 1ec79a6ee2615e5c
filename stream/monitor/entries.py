"""Entries of the monitor's tables: sources, streams, partitions, populations and allotments.

``Series`` has totals over time.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from operator import sub
from typing import Literal, NamedTuple
from zlib import MAX_WBITS, compress, compressobj, decompress, decompressobj

from schemas import Amount, MemberStatus, Period, StreamState, registered_name, split_period_name
from stream.monitor.record_shapes import PositionShape, SharedGrant, SourceRecordShape
from stream.privacy.composition.costs import ordinary_charges_left, to_amount, total_budget
from stream.privacy.ledger.grants import AllottedTerms
from stream.privacy.planning.promises import describe_promise
from stream.processing.protocol import MODEL_NOT_ASKED_REASON


class Series:
    """Rows of a time and some numbers, oldest first: at most ``limit``, and one for each ``spacing`` seconds."""

    __slots__ = ("_keeps_oldest", "_limit", "_rows", "_width", "spacing")

    def __init__(self, *, width: int, spacing: float, limit: int, keeps_oldest: bool = False) -> None:
        """With ``keeps_oldest``, a full series keeps the oldest row, and doubles its spacing."""
        self._rows = array("d")
        self._width = width
        self._limit = limit
        self._keeps_oldest = keeps_oldest
        self.spacing = spacing

    def __len__(self) -> int:
        return len(self._rows) // self._width

    def __iter__(self) -> Iterator[Sequence[float]]:
        return (self._row(index) for index in range(len(self)))

    def add(self, row: Sequence[float]) -> None:
        """Add a row; if its time is in the last row's slot of ``spacing`` seconds, it replaces that row."""
        rows, width = self._rows, self._width
        if rows:
            last = rows[-width]
            time = max(row[0], last)
            if len(rows) > width and self._slot(time) == self._slot(last):
                del rows[-width:]
            rows.append(time)
            rows.extend(row[1:])
        else:
            rows.extend(row)
        if len(self) > self._limit:
            self._shrink()

    def restore(self, spacing: float, rows: Iterable[Sequence[float]]) -> None:
        """Replace the spacing and all rows."""
        self.spacing, self._rows = spacing, array("d", chain.from_iterable(rows))

    def row_at(self, time: float) -> Sequence[float] | None:
        """Return the last row at or before ``time``, or else the oldest row; None if there are no rows."""
        if not self._rows:
            return None
        index = bisect_right(range(len(self)), time, key=lambda index: self._rows[index * self._width])
        return self._row(max(index - 1, 0))

    def _row(self, index: int) -> Sequence[float]:
        return self._rows[index * self._width : (index + 1) * self._width]

    def _slot(self, time: float) -> int:
        return math.floor(time / self.spacing)

    def _shrink(self) -> None:
        width = self._width
        if not self._keeps_oldest:
            del self._rows[:width]
            return
        while len(self) > self._limit // 2 + 1:
            self.spacing *= 2.0
            kept = array("d", self._rows[:width])
            slots = [self._slot(self._rows[index * width]) for index in range(len(self))]
            for index in range(1, len(self)):
                if index + 1 == len(self) or slots[index] != slots[index + 1]:
                    kept.extend(self._row(index))
            self._rows = kept


RATE_WINDOWS = (60, 600, 3600)
"""The windows, in seconds, over which rates are shown."""
IDLE_SECONDS = 2 * max(RATE_WINDOWS)
"""Seconds without a new record after which a stream's activity is packed."""
SLOTS_PER_WINDOW = 12
MAX_TIMELINE_POINTS = 64
STALL_SECONDS = 15.0
"""Seconds for which a closed window may be without an answer, because workers report totals only every few seconds."""
NEARLY_DRY_SHARE = 0.1
"""Largest share of charged answers left with which an open stream counts as nearly dry."""


@dataclass(slots=True)
class SourceEntry:
    """A source with its ``total`` budget; ``raw`` is its last ledger record, empty for the account of a period."""

    record: SourceRecordShape
    raw: bytes
    total: Amount
    updated: float
    streams: Counter[StreamState] = field(default_factory=Counter)


@dataclass(slots=True)
class Activity:
    """A stream's totals over time: a series for each window of rates, and a timeline since the opening."""

    windows: tuple[Series, ...] = field(
        default_factory=lambda: tuple(
            Series(width=3, spacing=seconds / SLOTS_PER_WINDOW, limit=SLOTS_PER_WINDOW + 2)
            for seconds in RATE_WINDOWS
        )
    )
    timeline: Series = field(
        default_factory=lambda: Series(width=3, spacing=1.0, limit=MAX_TIMELINE_POINTS, keeps_oldest=True)
    )

    def add(self, row: tuple[float, int, int]) -> None:
        """Add the totals at a time."""
        for series in (*self.windows, self.timeline):
            series.add(row)

    def pack(self) -> bytes:
        """Return the timeline in few bytes, with times in whole milliseconds."""
        rows = [(round(1000 * row[0]), int(row[1]), int(row[2])) for row in self.timeline]
        columns = [[column[0], *map(sub, column[1:], column)] for column in zip(*rows, strict=True)]
        return compress(array("q", [round(self.timeline.spacing), *chain.from_iterable(columns)]).tobytes())

    @classmethod
    def unpack(cls, packed: bytes) -> Activity:
        """Return an unpacked activity, whose windows have only the timeline's last row."""
        activity, numbers = cls(), array("q", decompress(packed))
        count = len(numbers) // 3
        times, answered, tops = (
            list(accumulate(numbers[1 + place * count : 1 + (place + 1) * count])) for place in range(3)
        )
        rows = [(time / 1000, *totals) for time, *totals in zip(times, answered, tops, strict=True)]
        activity.timeline.restore(float(numbers[0]), rows)
        for series in activity.windows:
            series.add(rows[-1])
        return activity


class RecordPacking:
    """Compresses the ledger's records of one kind of mechanism, which have most of their text in common."""

    def __init__(self, sample: bytes) -> None:
        self._sample = sample

    def pack(self, record: bytes) -> bytes:
        """Return a record in few bytes."""
        packer = compressobj(1, wbits=-MAX_WBITS, zdict=self._sample)
        return packer.compress(record) + packer.flush()

    def unpack(self, packed: bytes) -> bytes:
        """Return a packed record."""
        return decompressobj(-MAX_WBITS, self._sample).decompress(packed)


@dataclass(slots=True)
class StreamEntry:
    """A stream; it is shown once it has a ``grant``, whose ledger record is ``packed``.

    Most streams of a large installation are rarely asked. To save memory, streams with equal fields share
    objects, and the activity of a stream without recent answers is packed.
    """

    name: str
    grant: SharedGrant | None = None
    packing: RecordPacking | None = None
    packed: bytes = b""
    incarnation: str = ""
    state: StreamState = "open"
    ending: Literal["halted", "closed"] | None = None
    reason: str | None = None
    answered: int = 0
    tops: int = 0
    surplus: int = 0
    spent: Amount | None = None
    position: PositionShape | None = None
    refused: str | None = None
    opened: float | None = None
    granted_by: float | None = None
    """The time of the ledger's earliest record of the grant that was read; the stream was opened before."""
    extended: float | None = None
    updated: float | None = None
    last_answered: float | None = None
    is_restored: bool = False
    """True if records have the time of a restore or later, which says nothing about the stream's answers."""
    kept_activity: Activity | bytes | None = None

    @property
    def raw(self) -> bytes:
        """The ledger's record."""
        return b"" if self.packing is None else self.packing.unpack(self.packed)

    @property
    def opened_by(self) -> float | None:
        """The time of the opening or, if it is unknown, a later time."""
        return self.granted_by if self.opened is None else self.opened

    @property
    def activity(self) -> Activity | None:
        """The stream's totals over time; None before its first answer."""
        kept = self.kept_activity
        return Activity.unpack(kept) if isinstance(kept, bytes) else kept

    @property
    def is_idle(self) -> bool:
        """True if the stream's last answer is older than all windows of rates."""
        return isinstance(self.kept_activity, bytes)

    def pack_activity(self) -> None:
        """Pack the activity of a stream whose last answer is older than all windows."""
        if isinstance(self.kept_activity, Activity):
            self.kept_activity = self.kept_activity.pack()

    @property
    def is_of_period(self) -> bool:
        """True if the stream belongs to a period: its name and its source's name end in the same period start."""
        named = split_period_name(self.name)
        account = None if self.grant is None else split_period_name(self.grant.source)
        return named is not None and account is not None and named[1] == account[1]

    @property
    def listed_name(self) -> str:
        """The name that lists show: the model's name for a stream of a period, else the stream's name."""
        return registered_name(self.name) if self.is_of_period else self.name

    @property
    def listed_source(self) -> str | None:
        """The registered source of the stream, also of a stream of a period; None without a grant."""
        if self.grant is None:
            return None
        return registered_name(self.grant.source) if self.is_of_period else self.grant.source

    @property
    def cutoff(self) -> int | None:
        """Number of charged answers that the grant pays for, with extensions; None if unlimited."""
        return (self.grant.calibration.cutoff + self.added or None) if self.grant else None

    @property
    def added(self) -> int:
        """Number of charged answers that extensions have added."""
        return sum(extension.answers for extension in self.grant.extensions) if self.grant else 0

    @property
    def tops_left(self) -> int | None:
        """Number of ordinary charged answers left; None if unlimited."""
        return None if self.cutoff is None else max(ordinary_charges_left(self.cutoff, self.tops, self.surplus), 0)

    @property
    def missing_input(self) -> str | None:
        """Why the worker of an open stream cannot answer, for example without its noise key; None if it can."""
        return self.refused if self.state == "open" and self.refused != MODEL_NOT_ASKED_REASON else None

    @property
    def nearly_dry(self) -> bool:
        """True if the stream is open and its charged answers are nearly used up."""
        left, cutoff = self.tops_left, self.cutoff
        return (
            self.state == "open" and left is not None and cutoff is not None and left <= NEARLY_DRY_SHARE * cutoff
        )


@dataclass(slots=True)
class MemberEntry:
    """The latest heartbeat of a service process, and its time."""

    record: MemberStatus
    last_heartbeat_at: float


class ActiveStreams:
    """The streams whose activity is not packed; the last one changed most recently."""

    def __init__(self) -> None:
        self._entries: dict[str, StreamEntry] = {}
        self._latest_time = 0.0
        """The latest time of all totals that were added."""

    def add(self, entry: StreamEntry, time: float) -> None:
        """Add a stream's totals at a time to its activity, and pack the activities that have become idle."""
        activity = entry.activity
        if activity is None:
            activity = Activity()
            if entry.opened is not None:
                activity.add((entry.opened, 0, 0))
        activity.add((time, entry.answered, entry.tops))
        entry.kept_activity = activity
        self._entries.pop(entry.name, None)
        if self._is_recent(entry):
            self._entries[entry.name] = entry
        else:
            entry.pack_activity()
        self._latest_time = max(self._latest_time, time)
        while self._entries and not self._is_recent(oldest := next(iter(self._entries.values()))):
            del self._entries[oldest.name]
            oldest.pack_activity()

    def _is_recent(self, entry: StreamEntry) -> bool:
        return (entry.updated or 0.0) > self._latest_time - IDLE_SECONDS


class Owner(NamedTuple):
    """The source or population that a budget belongs to."""

    source: str | None
    population: str | None


def total_amount(epsilon: float, delta: float, accountant: str) -> Amount:
    """Return the total of a declared budget as an amount."""
    terms = AllottedTerms(epsilon, delta, accountant, None)
    return to_amount(total_budget(terms), terms)


def describe_guarantee(period: Period | None) -> str:
    """Describe the guarantee of a budget; ``period`` is its current period if it renews."""
    return period.meaning if period is not None else describe_promise(AllottedTerms(1.0, 0.0, "pure", None), 0)
