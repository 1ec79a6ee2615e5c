"""A budget over time, as the audit trail tells it, and when it runs out at the pace of late.

The trail is kept for ever and read from its beginning, so that a monitor that was started just now knows as much as one
that has run for a year.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from schemas import Amount
from stream.monitor.series import Series

DAY: Final = 86_400
PACE_WINDOWS: Final = (DAY, 7 * DAY, 30 * DAY)
"""Seconds over which the pace is taken."""
HEADLINE_WINDOW: Final = 7 * DAY
"""The one that alerts go by."""
EARLIEST: Final = 3600.0
"""Seconds of history without which nothing is forecast: one stream opened in a minute would be a stampede."""
ROUNDING: Final = 1e-12
"""A share of a budget that is so small that only rounding leaves it, and buys nothing."""
HISTORY_POINTS: Final = 256
_SLOTS: Final = 56

Part = Literal["epsilon", "delta", "rho"]
Outcome = Literal["never", "runs-out", "renews-first", "too-early", "gone"]


class Pace(NamedTuple):
    """What was taken of a budget in a window, and what that means for what is left.

    ``taken`` is what was granted less what came back since ``since``; ``at`` is when nothing is left of ``part`` if it goes
    on like that. Of a budget that is gone ``part`` is what nothing is left of.
    """

    window: int
    since: float
    taken: Amount
    outcome: Outcome
    at: float | None = None
    part: Part | None = None


@dataclass(slots=True)
class History:
    """What an account had granted, spent, got back and left, by the ledger's clock."""

    whole: Series = field(
        default_factory=lambda: Series(width=13, spacing=1.0, limit=HISTORY_POINTS, whole_life=True)
    )
    recent: tuple[Series, ...] = field(
        default_factory=lambda: tuple(
            Series(width=4, spacing=window / _SLOTS, limit=_SLOTS + 2) for window in PACE_WINDOWS
        )
    )

    def add(self, time: float, granted: Amount, spent: Amount, refunded: Amount, left: Amount) -> None:
        """Take the totals of a time."""
        figures = (numbers(amount) for amount in (granted, spent, refunded, left))
        self.whole.add((time, *(number for three in figures for number in three)))
        for series in self.recent:
            series.add((time, *_net(granted, refunded)))

    def paces(self, granted: Amount, refunded: Amount, left: Amount, total: Amount, end: PeriodEnd) -> list[Pace]:
        """What each window says of a budget that stands so now; ``end`` is when it renews, if it does, and the time now."""
        return [
            self._pace(series, window, _net(granted, refunded), left, total, end)
            for window, series in zip(PACE_WINDOWS, self.recent, strict=True)
        ]

    @staticmethod
    def _pace(
        series: Series, window: int, net: Sequence[float], left: Amount, total: Amount, end: PeriodEnd
    ) -> Pace:
        before = series.at(end.now - window)
        since = end.now if before is None else max(before[0], end.now - window)
        taken = [0.0] * 3 if before is None else [now - then for now, then in zip(net, before[1:], strict=True)]
        told = (window, since, amount_of(taken if total.rho is not None else [*taken[:2], math.nan]))
        if (gone := _gone(left, total)) is not None:
            return Pace(*told, "gone", part=gone)
        seconds = end.now - since
        if seconds < min(EARLIEST, window):
            return Pace(*told, "too-early")
        lasts, part = _lasts(taken, seconds, left, total)
        if lasts == math.inf:
            return Pace(*told, "never")
        if end.renews is not None and end.now + lasts >= end.renews:
            return Pace(*told, "renews-first", end.renews)
        return Pace(*told, "runs-out", end.now + lasts, part)


def merged(histories: Sequence[History]) -> History:
    """The sums of several accounts at every time at which one of them is told of."""
    together = History()
    _merge(together.whole, [one.whole for one in histories], 12)
    for place, series in enumerate(together.recent):
        _merge(series, [one.recent[place] for one in histories], 3)
    return together


def _merge(into: Series, parts: Sequence[Series], width: int) -> None:
    latest = [[0.0] * width for _ in parts]
    rows = sorted((row[0], number, row[1:]) for number, part in enumerate(parts) for row in map(tuple, part))
    for time, number, figures in rows:
        latest[number] = list(figures)
        into.add((time, *(math.fsum(column) for column in zip(*latest, strict=True))))


class PeriodEnd(NamedTuple):
    """The time now, and when the budget's period ends, if it renews."""

    now: float
    renews: float | None = None


def numbers(amount: Amount) -> tuple[float, float, float]:
    """An amount as a row has it."""
    return amount.epsilon, amount.delta, math.nan if amount.rho is None else amount.rho


def amount_of(row: Sequence[float]) -> Amount:
    """An amount as it is told."""
    epsilon, delta, rho = row
    return Amount(epsilon=epsilon, delta=delta, rho=None if math.isnan(rho) else rho)


def _net(granted: Amount, refunded: Amount) -> tuple[float, float, float]:
    return (
        granted.epsilon - refunded.epsilon,
        granted.delta - refunded.delta,
        (granted.rho or 0.0) - (refunded.rho or 0.0),
    )


def _counts_epsilon(left: Amount) -> bool:
    """Under zCDP: where ε has a δ it says what ρ implies, and does not add up."""
    return not left.delta


def _gone(left: Amount, total: Amount) -> Part | None:
    """What nothing is left of, so that the budget is gone: whichever of ε and δ was first, as ``_lasts`` has it."""
    epsilon = _is_nothing(left.epsilon, total.epsilon)
    if total.rho is None:
        return "epsilon" if epsilon else "delta" if total.delta and _is_nothing(left.delta, total.delta) else None
    if left.rho is None:
        return "epsilon" if epsilon else None
    return "rho" if _is_nothing(left.rho, total.rho) and (epsilon or not _counts_epsilon(left)) else None


def _is_nothing(left: float, total: float) -> bool:
    """Whether all that is left is what rounding leaves of a budget that was granted whole."""
    return left <= total * ROUNDING


def _lasts(taken: Sequence[float], seconds: float, left: Amount, total: Amount) -> tuple[float, Part]:
    """Seconds until nothing is left at this pace, and of what; infinite if nothing was taken."""

    def until(amount: float, gone: float) -> float:
        return amount * seconds / gone if gone > 0.0 else math.inf

    epsilon, rho = until(left.epsilon, taken[0]), until(left.rho or 0.0, taken[2])
    if total.rho is None or left.rho is None:
        delta = until(left.delta, taken[1]) if total.delta else math.inf
        return (delta, "delta") if delta < epsilon else (epsilon, "epsilon")
    # One of the two need do.
    return (epsilon, "epsilon") if _counts_epsilon(left) and epsilon > rho else (rho, "rho")
