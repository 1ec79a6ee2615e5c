"""Which pieces the changelog holds, and how it is kept short: the oldest are deleted once what still counts of them is said again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from schemas.wire import UNREADABLE
from stream.processors.base import LaterVersionError, Message, RecordLike
from stream.processors.feeds.forms import Form
from stream.processors.feeds.pieces import key_of, pieces, take
from stream.processors.feeds.tally import Touched

SLACK: Final = 65_536
"""So many figures the changelog may hold beyond twice those that count."""
AT_ONCE: Final = 2 * 65_536
"""Pieces of so many figures are said again in one step, and no more than so many times what the step itself has written."""
TIMES: Final = 4

Changes = Sequence[tuple[Form, Touched]]


class PiecesLog:
    """The pieces of one partition, by the steps that wrote them."""

    def __init__(self) -> None:
        self.next = 0
        """The number of the next piece: what a step changes is marked with it before it is written."""
        self._steps: deque[tuple[int, int, int]] = deque()
        self._entries = 0

    def _add(self, first: int, end: int, entries: int) -> None:
        """Note the pieces from ``first`` up to ``end``, which one step wrote."""
        self._steps.append((first, end, entries))
        self._entries += entries
        self.next = max(self.next, end)

    def take(self, found: Mapping[int, RecordLike], forms: Sequence[Form]) -> None:
        """Take in the pieces of a changelog, by their numbers.

        Raises:
            LaterVersionError: a later version wrote one of them.
        """
        for number in sorted(found):
            try:
                entries = take(found[number].value or b"", number, forms)
            except UNREADABLE:
                raise LaterVersionError(found[number]) from None
            self._add(number, number + 1, entries)

    def write(self, changes: Changes, forms: Iterable[Form]) -> list[Message]:
        """The records of a step that changed this, with what it says again of old pieces, and the ends of those."""
        messages: list[Message] = []
        first = self.next
        entries = self._append(changes, messages)
        known = list(forms)
        excess = self._entries - 2 * sum(form.live for form in known) - SLACK
        old: list[tuple[int, int, int]] = []
        allowed = max(AT_ONCE // TIMES, TIMES * entries)
        while self._steps and self._steps[0][0] < first and excess > 0 and allowed > 0:
            old.append(self._steps.popleft())
            excess -= old[-1][2]
            allowed -= old[-1][2]
        if old:
            before = old[-1][1]
            self._append([(form, again) for form in known if (again := _again(form, before, first))], messages)
            self._entries -= sum(step[2] for step in old)
            messages += [(key_of(number), None, ()) for step in old for number in range(step[0], step[1])]
        return messages

    def _append(self, changes: Changes, messages: list[Message]) -> int:
        first, entries = self.next, 0
        for piece in pieces(changes):
            messages.append((key_of(self.next), piece.value, ()))
            self.next += 1
            entries += piece.entries
        if entries:
            self._steps.append((first, self.next, entries))
            self._entries += entries
        return entries


def _again(form: Form, before: int, piece: int) -> Touched:
    """What old pieces said last of a form, to be said in a new one."""
    touched = Touched()
    for start, window in form.windows.items():
        if len(rows := window.visits.again(before, piece)):
            touched.people[start] = rows
    for tally in form.tallies.values():
        for period, visits in tally.lives.items():
            if len(rows := visits.again(before, piece)):
                touched.lives[tally.number, period] = rows
        for counting, cells in tally.cells.items():
            if len(places := cells.again(before, piece)):
                touched.cells[tally.number, counting] = places
    return touched
