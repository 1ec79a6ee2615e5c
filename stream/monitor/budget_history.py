"""Computes budget histories from the audit trail, and forecasts from the recent spending pace.

The trail is kept for ever. A monitor reads the end of the trail first, and then the earlier entries.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter
from typing import Final, NamedTuple

from schemas import Amount
from stream.budget.receipts import EMPTY_TRAIL_HEAD, entry_digest
from stream.monitor.api.budget_models import MAX_HELD_ENTRIES, BudgetPart, Forecast, ForecastOutcome
from stream.monitor.entries import Series
from stream.monitor.record_shapes import (
    AmountShape,
    SourceRecordShape,
    TotalsOfSourceShape,
    TrailEntryShape,
    decode_record,
)

DAY_SECONDS: Final = 86_400
PACE_WINDOWS: Final = (DAY_SECONDS, 7 * DAY_SECONDS, 30 * DAY_SECONDS)
"""The windows, in seconds, over which the spending pace is measured."""
HEADLINE_WINDOW: Final = 7 * DAY_SECONDS
"""The window of the metric ``sotto_monitor_source_runs_out_seconds``, on which alerts are set."""
MIN_HISTORY_SECONDS: Final = 3600.0
"""Seconds of history that a forecast needs, because a single opened stream does not show a trend."""
MAX_ROUNDING_SHARE: Final = 1e-12
"""A remaining amount up to this share of the budget is a rounding error and counts as 0."""
HISTORY_POINTS: Final = 256
_SLOTS_PER_WINDOW: Final = 56


@dataclass(slots=True)
class History:
    """Granted, spent, refunded and remaining amounts of a budget, by the time of the trail's entries."""

    all_time: Series = field(
        default_factory=lambda: Series(width=13, spacing=1.0, limit=HISTORY_POINTS, keeps_oldest=True)
    )
    recent: tuple[Series, ...] = field(
        default_factory=lambda: tuple(
            Series(width=4, spacing=window / _SLOTS_PER_WINDOW, limit=_SLOTS_PER_WINDOW + 2)
            for window in PACE_WINDOWS
        )
    )

    def begin(self, time: float, net: Sequence[float]) -> None:
        """Set the net amount (granted minus refunded) at the time from which the trail was read."""
        for series in self.recent:
            series.add((time, *net))

    def add(self, time: float, totals: TotalsOfSourceShape) -> None:
        """Add the totals at a time."""
        amounts = (totals.granted, totals.spent, totals.refunded, totals.left)
        self.all_time.add((time, *chain.from_iterable(map(_to_numbers, amounts))))
        for series in self.recent:
            series.add((time, *_net_granted(totals.granted, totals.refunded)))

    def extend(self, later: History) -> None:
        """Add the rows of a history that continues this one."""
        for series, more in zip((self.all_time, *self.recent), (later.all_time, *later.recent), strict=True):
            for row in more:
                series.add(row)

    def forecasts(
        self, granted: Amount, refunded: Amount, left: Amount, total: Amount, end: PeriodEnd
    ) -> list[Forecast]:
        """Return one forecast for each window, for a budget with these totals at the time ``end.now``."""
        return [
            self._forecast(series, window, _net_granted(granted, refunded), left, total, end)
            for window, series in zip(PACE_WINDOWS, self.recent, strict=True)
        ]

    @staticmethod
    def _forecast(
        series: Series, window: int, net: Sequence[float], left: Amount, total: Amount, end: PeriodEnd
    ) -> Forecast:
        before = series.row_at(end.now - window)
        since = end.now if before is None else max(before[0], end.now - window)
        used = [0.0] * 3 if before is None else [now - then for now, then in zip(net, before[1:], strict=True)]
        measured = numbers_to_amount(used if total.rho is not None else [*used[:2], math.nan])

        def forecast(
            outcome: ForecastOutcome, at: float | None = None, part: BudgetPart | None = None
        ) -> Forecast:
            return Forecast(window_seconds=window, since=since, taken=measured, outcome=outcome, at=at, part=part)

        if (used_up_part := _used_up_part(left, total)) is not None:
            return forecast("gone", part=used_up_part)
        seconds = end.now - since
        if seconds < min(MIN_HISTORY_SECONDS, window):
            return forecast("too-early")
        lasts, part = _seconds_left(used, seconds, left, total)
        if lasts == math.inf:
            return forecast("never")
        if end.renews is not None and end.now + lasts >= end.renews:
            return forecast("renews-first", end.renews)
        return forecast("runs-out", end.now + lasts, part)


def add_histories(histories: Sequence[History]) -> History:
    """Add up several budgets' histories; the sum has a row at each time at which a history has a row."""
    total = History()
    _add_series(total.all_time, [history.all_time for history in histories], 12)
    for index, series in enumerate(total.recent):
        _add_series(series, [history.recent[index] for history in histories], 3)
    return total


def _add_series(into: Series, parts: Sequence[Series], width: int) -> None:
    latest = [[0.0] * width for _ in parts]
    rows = [(row[0], number, row[1:]) for number, part in enumerate(parts) for row in part]
    for time, number, numbers in sorted(rows, key=itemgetter(0)):  # rows of one time keep their order
        latest[number] = list(numbers)
        into.add((time, *(math.fsum(column) for column in zip(*latest, strict=True))))


class PeriodEnd(NamedTuple):
    """The time now, and the end of the budget's period if the budget renews."""

    now: float
    renews: float | None = None


def _to_numbers(amount: AmountShape) -> tuple[float, float, float]:
    """Return an amount's ε, δ and ρ; a missing ρ is NaN."""
    return amount.epsilon, amount.delta, math.nan if amount.rho is None else amount.rho


def numbers_to_amount(numbers: Sequence[float]) -> Amount:
    """Return the amount of an ε, δ and ρ, which is NaN if the amount has none."""
    epsilon, delta, rho = numbers
    return Amount(epsilon=epsilon, delta=delta, rho=None if math.isnan(rho) else rho)


def _net_granted(granted: Amount | AmountShape, refunded: Amount | AmountShape) -> tuple[float, float, float]:
    return (
        granted.epsilon - refunded.epsilon,
        granted.delta - refunded.delta,
        (granted.rho or 0.0) - (refunded.rho or 0.0),
    )


def _is_epsilon_a_sum(left: Amount) -> bool:
    """Return False if ε follows from ρ and δ (zCDP), so that it is not the sum of the streams' ε."""
    return not left.delta


def _used_up_part(left: Amount, total: Amount) -> BudgetPart | None:
    """Return the part that is used up and ends the budget; None if the budget can still grant."""
    epsilon = _is_used_up(left.epsilon, total.epsilon)
    if total.rho is None:
        return "epsilon" if epsilon else "delta" if total.delta and _is_used_up(left.delta, total.delta) else None
    if left.rho is None:
        return "epsilon" if epsilon else None
    return "rho" if _is_used_up(left.rho, total.rho) and (epsilon or not _is_epsilon_a_sum(left)) else None


def _is_used_up(left: float, total: float) -> bool:
    return left <= total * MAX_ROUNDING_SHARE


def _seconds_left(used: Sequence[float], seconds: float, left: Amount, total: Amount) -> tuple[float, BudgetPart]:
    """Return the seconds until the budget is used up at this pace, or infinity, and the part that ends it."""

    def seconds_until(amount: float, used_in_period: float) -> float:
        return amount * seconds / used_in_period if used_in_period > 0.0 else math.inf

    epsilon, rho = seconds_until(left.epsilon, used[0]), seconds_until(left.rho or 0.0, used[2])
    if total.rho is None or left.rho is None:
        delta = seconds_until(left.delta, used[1]) if total.delta else math.inf
        return (delta, "delta") if delta < epsilon else (epsilon, "epsilon")
    # Under zCDP the budget lasts until both ε and ρ are used up.
    return (epsilon, "epsilon") if _is_epsilon_a_sum(left) and epsilon > rho else (rho, "rho")


class HeldEntry(NamedTuple):
    """A trail entry in memory: the fields to search and filter by, and its bytes."""

    number: int
    time: float
    kind: str
    action: str
    outcome: str
    source: str
    stream: str
    population: str
    analyst: str
    by: str
    request: str
    raw: bytes


class _Beginning(NamedTuple):
    """Number, previous digest and time of the first entry that was read."""

    number: int
    previous: str
    time: float


_NOTHING: Final = AmountShape(0.0, 0.0, 0.0)


class TrailState:
    """The trail's latest entries, the budgets' histories, and whether its chain is intact.

    If reading began at a later entry, ``unread`` entries come before it. Their chain is unknown until
    ``join`` adds them; their amounts are known, because each entry has the totals after it.
    """

    def __init__(self, *, is_whole: bool = True, room: int | None = None) -> None:
        """Create a state that keeps up to ``room`` entries; unless ``is_whole``, it may begin at any entry."""
        self.entries = 0
        self.unread = 0
        """The number of earlier entries that are not read yet."""
        self.broken: str | None = None
        """A description of the first break of the chain; None if the read entries are intact."""
        self._latest: deque[HeldEntry] = deque(maxlen=MAX_HELD_ENTRIES if room is None else room)
        self._digest = EMPTY_TRAIL_HEAD.digest
        self._beginning = _Beginning(0, self._digest, 0.0) if is_whole else None
        self._histories: dict[str, History] = {}

    def __len__(self) -> int:
        return len(self._latest)

    def __iter__(self) -> Iterator[HeldEntry]:
        """Iterate over the kept entries, newest first."""
        return reversed(self._latest)

    @property
    def room(self) -> int:
        """The number of further entries that can be kept."""
        return MAX_HELD_ENTRIES - len(self._latest)

    def history(self, record: SourceRecordShape) -> History:
        """Return the history of a source's budget; ``record`` has its present amounts."""
        if (known := self._histories.get(record.source.source)) is None:
            known = History()
            if self.unread and self._beginning is not None:
                known.begin(self._beginning.time, _net_granted(record.granted, record.refunded))
        return known

    def forget_source(self, source: str) -> None:
        """Drop the history of a retired account."""
        self._histories.pop(source, None)

    def add_entry(self, value: bytes) -> None:
        """Add the next entry. An unreadable entry breaks the chain."""
        entry = None
        try:
            entry = decode_record(TrailEntryShape, value)
        finally:
            self._check_chain(entry, value)
        if entry.totals is not None and entry.source is not None:
            self._add_totals(entry.source, entry, entry.totals)
        if entry.kind != "point" and self._latest.maxlen:
            self._latest.append(to_held_entry(entry, value))

    def note_earlier(self, earlier: TrailState) -> None:
        """Update ``unread`` and ``broken`` from the state of the earlier entries that were read so far."""
        if self._beginning is not None:
            self.unread = max(self._beginning.number - earlier.entries, 1)  # 0 only once they are joined
        self.broken = earlier.broken or self.broken

    def join(self, earlier: TrailState, sources: Container[str]) -> None:
        """Add all entries before this state's first entry; drop histories except those of ``sources``."""
        self.note_earlier(earlier)
        begins = self._beginning
        if begins is None:
            self.entries, self._digest, self._beginning = earlier.entries, earlier._digest, earlier._beginning
        elif earlier.broken is None:
            self.broken = earlier.find_break(begins.number, begins.previous) or self.broken
        self.unread = 0
        self._latest.extendleft(islice(earlier, self.room))
        later, self._histories = self._histories, earlier._histories
        for source, history in later.items():
            self._histories.setdefault(source, History()).extend(history)
        for source in [one for one in self._histories if one not in sources]:
            del self._histories[source]

    def find_break(self, number: int, previous: str) -> str | None:
        """Describe why an entry cannot follow this state's last entry; None if it can."""
        if number != self.entries:
            return f"entry {number} is at the position of entry {self.entries}"
        return (
            None
            if previous == self._digest
            else f"entry {number} does not contain the digest of the entry before it"
        )

    def _check_chain(self, entry: TrailEntryShape | None, value: bytes) -> None:
        if self._beginning is None and entry is not None:
            self._beginning = _Beginning(entry.number, entry.previous, entry.time / 1000)
            self.entries, self.unread, self._digest = entry.number, entry.number, entry.previous
        if self.broken is None:
            self.broken = (
                f"entry {self.entries} cannot be read"
                if entry is None
                else self.find_break(entry.number, entry.previous)
            )
        self.entries += 1
        self._digest = entry_digest(value)

    def _add_totals(self, source: str, entry: TrailEntryShape, totals: TotalsOfSourceShape) -> None:
        if (history := self._histories.get(source)) is None:
            history = self._histories[source] = History()
            if self.unread and self._beginning is not None and entry.action != "register":
                net = _net_granted(totals.granted, totals.refunded)
                change = _net_granted(entry.granted or _NOTHING, entry.refunded or _NOTHING)
                history.begin(self._beginning.time, [now - more for now, more in zip(net, change, strict=True)])
        history.add(entry.time / 1000, totals)


def to_held_entry(entry: TrailEntryShape, value: bytes) -> HeldEntry:
    """Return an entry in the form that is kept in memory."""
    action = entry.action or entry.event or entry.kind
    names = (entry.outcome, entry.source, entry.stream, entry.population, entry.analyst, entry.by, entry.request)
    return HeldEntry._make(
        (entry.number, entry.time / 1000, entry.kind, action, *(name or "" for name in names), value)
    )
