"""Which streams answer: how they begin, go on after a crash, and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas import StreamState
from stream.accounting.costs import PARTS
from stream.processors.queries.columns import StreamColumns

STATES: tuple[StreamState, ...] = ("open", "exhausted", "halted", "closed")
OPEN, EXHAUSTED, HALTED, CLOSED = range(4)
_STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}


def answering(figures: StreamColumns) -> npt.NDArray[np.bool_]:
    """Which streams answer, here and now."""
    found: npt.NDArray[np.bool_] = (figures.state == OPEN) & ~figures.refused
    return found


class LifeCycle:
    """The states of a partition's streams.

    ``reasons`` says by slot why one was ended or is refused, ``turns`` what the turn was of the last question that a standing one answered.
    """

    def __init__(self, columns: StreamColumns) -> None:
        self.reasons: dict[int, str] = {}
        self.turns: dict[int, int] = {}
        self._columns = columns

    def begin(self, slots: npt.NDArray[np.intp]) -> None:
        """Open streams that have answered nothing yet."""
        columns = self._columns
        for slot in slots.tolist():
            self.reasons.pop(slot, None)
            self.turns.pop(slot, None)
        columns.state[slots] = OPEN
        columns.refused[slots] = False
        columns.answered[slots] = 0
        columns.last_offset[slots] = -1
        columns.tops[slots] = 0
        columns.surplus[slots] = 0

    def resume(self, checkpoints: Sequence[tuple[int, Any, int]]) -> None:
        """Take streams' figures from the changelog: slot, checkpoint of its incarnation, and when it was written."""
        if not checkpoints:
            return
        columns = self._columns
        slots = np.array([slot for slot, _, _ in checkpoints], dtype=np.intp)
        columns.written_at[slots] = [written_at for _, _, written_at in checkpoints]
        kept = [checkpoint for _, checkpoint, _ in checkpoints]
        columns.state[slots] = [_STATE_NUMBERS[checkpoint.state] for checkpoint in kept]
        columns.answered[slots] = [checkpoint.answered for checkpoint in kept]
        columns.last_offset[slots] = [checkpoint.offset for checkpoint in kept]
        columns.due[slots] = [checkpoint.due for checkpoint in kept]
        columns.tops[slots] = [checkpoint.tops for checkpoint in kept]
        columns.surplus[slots] = [checkpoint.surplus for checkpoint in kept]
        self.revive(slots)
        for slot, checkpoint, _ in checkpoints:
            if checkpoint.reason is not None:
                self.reasons[slot] = checkpoint.reason
            if checkpoint.turn:
                self.turns[slot] = checkpoint.turn

    def revive(self, slots: npt.NDArray[np.intp]) -> None:
        """Open streams again that had run dry before they were extended."""
        columns = self._columns
        figures = columns.picked(slots)
        dry = (figures.state == EXHAUSTED) & (figures.tops_left * PARTS > figures.surplus)
        columns.state[slots[dry]] = OPEN

    def answers(self, slot: int) -> bool:
        """Whether one stream answers, here and now."""
        return bool(self._columns.state[slot] == OPEN) and not self._columns.refused[slot]

    def end(self, slot: int, state: int, reason: str) -> None:
        """Move a stream to a final state."""
        self._columns.state[slot] = state
        self._columns.changed[slot] = True
        self.reasons[slot] = reason

    def refuse(self, slot: int, reason: str) -> None:
        """Stop answering here and now, without a checkpoint: another worker may be fit to answer. The next digest says so."""
        self._columns.refused[slot] = True
        self._columns.changed[slot] = True
        self.reasons[slot] = reason
