"""Fair shares of a partition's time: which question is taken on, and which must be asked again later.

A stream's work lies behind everything that was asked before, for answers stand in the order of their queries. So what is
taken on must be bounded when it is asked. Each partition has a clock, the latest timestamp of the questions that cost
work, and a server beside that clock, which does ``rate`` of work per time and gives every stream that has work
outstanding the same share of it. A stream may have as much outstanding as it leaves free of ``outstanding``: half of all
if it is alone, a third if two ask as much as they can, and whoever comes next still finds as much room as each of them.

All of it is a function of the log of queries: of timestamps, sizes of questions and definitions of streams. So a
question that is delivered again, or answered all over from nothing, is taken on or refused as before, whatever the
batches were; nothing depends on how fast a worker is, on what its caches hold, or on any row.

Windows have no part in it: feeds ask about each once, and would not ask again.

Sources: the server's sharing is fair queueing (Demers, Keshav & Shenker 1989; Parekh & Gallager 1993), the room left
free a dynamic threshold (Choudhury & Hahne 1998).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from copy import copy
from typing import Final, NamedTuple, Self

from stream.processors.queries.work import SECOND
from stream.processors.rejections import BUSY, Rejection

_MILLISECONDS: Final = 1000


class Limits(NamedTuple):
    """How much work a partition takes on, in units of work; an ``outstanding`` of 0 takes on everything."""

    outstanding: int
    rate: int
    """Work per millisecond of the partition's clock."""

    @classmethod
    def of(cls, outstanding: float, rate: float) -> Self:
        """Limits from seconds of work, and seconds of work per second."""
        return cls(round(outstanding * SECOND), max(1, round(rate * SECOND / _MILLISECONDS)))


UNLIMITED: Final = Limits(0, 1)
"""Takes on everything."""


class Shares:
    """The work that the streams of one partition have outstanding.

    ``served`` is how much work a stream would have been served that always had some outstanding, ``due`` of a stream that
    has some what that will be when its work is done. Both only ever grow. ``queue`` has these streams in the order in
    which their work is done.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.clock = 0
        self.served = 0
        self.due: dict[int, int] = {}
        self._outstanding = 0
        self.queue: list[tuple[int, int]] = []

    def resume(self, clock: int, served: int, due: Mapping[int, int]) -> None:
        """Go on from the changelog's figures."""
        self.clock, self.served = clock, served
        self.due = {slot: one for slot, one in due.items() if one > served}
        self.queue = sorted((one, slot) for slot, one in self.due.items())
        self._outstanding = sum(self.due.values()) - served * len(self.due)

    def copy(self) -> Shares:
        """Shares that can be tried out; these here stay as they are."""
        found = copy(self)
        found.due, found.queue = self.due.copy(), self.queue.copy()
        return found

    def take(self, slot: int, work: int, timestamp: int) -> None:
        """Take on a question of a stream; Rejection if there is no room for it.

        A question that is larger than the room there ever is for one stream is taken on when nothing is outstanding.
        """
        limit = self._limits.outstanding
        if limit == 0:
            return
        self._advance(timestamp)
        due = self.due.get(slot, self.served)
        own = due - self.served
        excess = own + work - (limit - self._outstanding - work)
        if self._outstanding and excess > 0:
            raise self._busy(own, work, excess)
        self.due[slot] = due + work
        self._outstanding += work
        heapq.heappush(self.queue, (due + work, slot))

    def _advance(self, timestamp: int) -> None:
        """Serve the streams up to a time; time does not go back."""
        work = (timestamp - self.clock) * self._limits.rate
        if work <= 0:
            return
        self.clock = timestamp
        while self.queue:
            due, slot = self.queue[0]
            if due == self.due.get(slot):
                active = len(self.due)
                step = min(due - self.served, work // active)
                self.served += step
                self._outstanding -= step * active
                work -= step * active
                if self.served < due:
                    return
                del self.due[slot]
            heapq.heappop(self.queue)

    def _busy(self, own: int, work: int, excess: int) -> Rejection:
        # What the stream has outstanding and what all have shrink together, but for the stream's part in the rate.
        active = len(self.due)
        pace = self._limits.rate * (active + (own > 0))
        wait = min(excess * active // pace, self._outstanding // self._limits.rate) // _MILLISECONDS + 1
        return Rejection(
            BUSY,
            f"stream: it has {own / SECOND:.1f} s of work outstanding and its partition {self._outstanding / SECOND:.1f} s "
            f"of at most {self._limits.outstanding / SECOND:g} s; this question would take {1000 * work / SECOND:.1f} ms; "
            f"ask it again in {wait} s, and spread questions out",
        )
