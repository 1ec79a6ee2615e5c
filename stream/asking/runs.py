"""Runs of alerts over the periods of a stream: the same, whichever period's answers are read first. Told nothing of Kafka."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass, field

from schemas import Answer, named_from
from stream.asking.alerts import Place, window_end


@dataclass(slots=True)
class Run:
    """Alerts in a row: ``since`` is the end of the first's window in seconds since the epoch, ``answer`` the latest, stamped at ``time``."""

    since: float
    answer: Answer
    time: float
    alerts: int = 1


@dataclass(slots=True)
class _Period:
    """What was read of one period: the run that it ended with, if it did."""

    starts: str
    run: Run | None = None


@dataclass(slots=True)
class _Periods:
    """Those of a place that may be in its run, in their order: of all but the first nothing but alerts was read.

    ``whole`` says that of the first, too: then what is earlier may go before it.
    """

    held: list[_Period] = field(default_factory=list)
    whole: bool = True


class Runs:
    """Of each place whose stream has periods, the run that its latest answers are, over all that were read.

    A period's answers come in their order, and periods in any: each lies in a partition of its own. No window reaches over
    an edge, so the order of periods is that of their windows.
    """

    def __init__(self, limit: int) -> None:
        """Hold so many periods at most, of all places."""
        self._limit = limit
        self._size = 0
        self._places: OrderedDict[Place, _Periods] = OrderedDict()

    def take(self, place: Place, answer: Answer, time: float) -> bool:
        """Take in an answer of outcome ``above`` or ``below``; False if later ones have overtaken it."""
        named = named_from(answer.stream)
        starts = "" if named is None else named[1].removesuffix("Z")
        periods = self._places.setdefault(place, _Periods())
        self._places.move_to_end(place)
        held = periods.held
        at = bisect_left(held, starts, key=lambda one: one.starts)
        if at == len(held) or held[at].starts != starts:
            if at == 0 and not periods.whole:
                return False
            held.insert(at, _Period(starts))
            self._size += 1
        period = held[at]
        if answer.outcome == "below":
            period.run, periods.whole = None, False
            del held[:at]
            self._size -= at
        elif period.run is None:
            period.run = Run(window_end(answer, time), answer, time)
        else:
            period.run.answer, period.run.time = answer, time
            period.run.alerts += 1
        if self._size > self._limit:
            self._make_room(periods)
        return True

    def of(self, place: Place) -> Run | None:
        """The run that a place's latest answers are; None if the latest one is quiet, or nothing is known."""
        held = self._places[place].held if place in self._places else []
        runs = [period.run for period in held if period.run is not None]
        if not runs:
            return None
        return Run(runs[0].since, runs[-1].answer, runs[-1].time, sum(run.alerts for run in runs))

    def _make_room(self, periods: _Periods) -> None:
        """Make the first two periods of a place one; where it has one only, forget the place that has been quiet for longest."""
        self._size -= 1
        if len(periods.held) == 1:
            self._size -= len(self._places.popitem(last=False)[1].held) - 1
            return
        first, second = periods.held.pop(0).run, periods.held[0].run
        periods.whole = False
        if first is not None and second is not None:
            second.since, second.alerts = first.since, first.alerts + second.alerts
