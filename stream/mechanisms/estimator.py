"""Answers from the estimate of all that was measured, and the sparse vector that decides when to measure more.

A question is settled where the noise of what was measured bounds the estimate's error well enough; that costs nothing. Else it
is answered from the estimate if its error is below the noisy threshold (⊥), for nothing. If it is not (⊤), the marginal of
its attributes is measured, and a number of its own where that is nearer. All that is public is a function of the list of
measurements. The proofs are in docs/pmw.md. Nothing here draws noise or does any I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from schemas import EstimateCalibration
from stream.accounting.measured import Bounds
from stream.mechanisms.estimate_questions import Linear, Mean, Numbers, Question, plain_of, rounded
from stream.mechanisms.maximum_entropy import combined, fit
from stream.mechanisms.measurements import Axes, Draws, Measurements, Memory
from stream.mechanisms.tensor_sums import Cells, values

Integers = npt.NDArray[np.int64]

WHOLE_CELLS: Final = 1 << 15
"""Where all attributes have no more cells together, one estimate of all of them serves every question."""

_FIRST_BLOCK: Final = 32
_MOST_LOOKS: Final = 1 << 15


@dataclass(frozen=True, slots=True)
class Step:
    """One answer, in the question's own unit. ``reach`` bounds the error of each number; None promises nothing."""

    kind: Literal["settled", "below", "above", "unpromised"]
    numbers: Numbers
    reach: tuple[float, ...] | None
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class _Look:
    """What is public about a question before it is asked of the table."""

    numbers: Numbers
    settled: tuple[Numbers, tuple[float, ...]] | None


class Estimator:
    """One stream's measurements, and the estimates that follow from them."""

    def __init__(
        self,
        sizes: Sequence[int],
        calibration: EstimateCalibration,
        rows: int,
        private: Callable[[Axes], Cells],
        draws: Draws,
        memory: Memory,
    ) -> None:
        """Take the attributes' sizes, the (noisy) number of rows, and what gives the true counts on some axes."""
        self.tops = 0
        self._sizes = tuple(sizes)
        self._calibration = calibration
        self._rows = rows
        self._private = private
        self._draws = draws
        self._memory = memory
        self._bounds = Bounds(calibration)
        self._promise = calibration.sparse_vector.alpha
        self._measured = Measurements(self._sizes, calibration, private, draws, memory)
        self._everything = math.prod(self._sizes) <= WHOLE_CELLS
        self._looks: dict[bytes, _Look] = {}

    def take(self, question: Linear | None, axes: Axes) -> None:
        """Add the marginal that a ⊤ measured, with the question whose number was told beside it, if one was."""
        self._measured.add(self.tops, axes, question)
        self.tops += 1
        self._looks = {}

    def answer(self, questions: Sequence[Question], *, beyond: bool) -> list[Step]:
        """Answer questions in order until the last ⊤ is out; with ``beyond`` those after it too, without a promise.

        ⊤ iff the error + ν ≥ threshold + ρ, all in whole steps. What was decided before the first ⊤ of a block stands; only
        what follows is evaluated again. Blocks grow while no ⊤ comes.
        """
        cutoff, threshold = self._calibration.cutoff, self._calibration.threshold
        steps: list[Step] = []
        size = _FIRST_BLOCK
        while len(steps) < len(questions) and (self.tops < cutoff or beyond):
            block = questions[len(steps) : len(steps) + size]
            looks = self._look(block)
            tested = [place for place, look in enumerate(looks) if look.settled is None]
            over = len(block)
            if tested and self.tops < cutoff:
                errors = self._errors([block[place] for place in tested], [looks[place] for place in tested])
                noise = self._draws.queries(self.tops, [block[place].key for place in tested])
                above = errors + noise >= threshold + self._draws.barrier(self.tops)
                over = tested[int(np.argmax(above))] if above.any() else len(block)
            steps += [self._told(look) for look in looks[:over]]
            size *= 2
            if over < len(block):
                steps.append(self._measure(block[over], len(looks[over].numbers)))
                size = _FIRST_BLOCK
        return steps

    def _told(self, look: _Look) -> Step:
        """What a question without a ⊤ is told."""
        if look.settled is not None:
            return Step("settled", *look.settled)
        if self.tops >= self._calibration.cutoff:
            return Step("unpromised", look.numbers, None)
        return Step("below", look.numbers, (self._promise,) * len(look.numbers))

    # What follows is public.

    def _look(self, questions: Sequence[Question]) -> list[_Look]:
        """What the measurements say of questions; known questions cost a look-up."""
        if len(self._looks) > _MOST_LOOKS:
            self._looks = {}
        fresh: dict[bytes, Question] = {
            question.key: question for question in questions if question.key not in self._looks
        }
        by_axes: dict[Axes, list[Question]] = {}
        for question in fresh.values():
            by_axes.setdefault(question.axes, []).append(question)
        for axes, alike in by_axes.items():
            shares = self._shares(axes)
            for question, masses in zip(alike, _numbers(alike, shares), strict=True):
                numbers = rounded(masses, shares.total, self._rows)
                self._looks[question.key] = _Look(numbers, self._settled(question, numbers))
        return [self._looks[question.key] for question in questions]

    def _shares(self, axes: Axes) -> Cells:
        """The estimate on some axes."""
        frame = tuple(range(len(self._sizes))) if self._everything else axes
        used = self._measured.used_for(frame)
        key = ("shares", axes, frame, used)
        if (known := self._memory.get(key)) is None:
            if axes == frame:
                marginals = combined(self._measured.marginals(frame))
                tensor = fit([self._sizes[axis] for axis in frame], marginals, self._rows)
            else:
                tensor = self._shares(frame).tensor.sum(axis=tuple(axis for axis in frame if axis not in axes))
            known = Cells(tensor)
            self._memory.put(key, known)
        return known  # type: ignore[no-any-return]

    def _settled(self, question: Question, numbers: Numbers) -> tuple[Numbers, tuple[float, ...]] | None:
        """The estimate, moved to where the promise holds by the noise of one measurement alone; None if none is so good."""
        if isinstance(question, Mean):
            return None
        moved = question.width
        best: tuple[float, Callable[[], Numbers]] | None = None
        if (index := self._measured.told(question.key)) is not None:
            best = (self._bounds.number() * moved, self._teller(index))
        for one in self._measured.covering(question.axes) if question.whole else ():
            reach = (
                self._bounds.cells(one.rate, question.summed * one.more, one.sizes, ranges=question.ranges) * moved
            )
            if best is None or reach < best[0]:
                best = (reach, self._summer(question, one.index))
        if best is None or best[0] > self._promise * moved:
            return None
        reach, tell = best
        room = math.floor(self._promise * moved - reach)
        told = tell()
        kept = tuple(
            min(max(number, centre - room), centre + room) for number, centre in zip(numbers, told, strict=True)
        )
        return kept, tuple(
            (reach + abs(number - centre)) / moved for number, centre in zip(kept, told, strict=True)
        )

    def _teller(self, index: int) -> Callable[[], Numbers]:
        return lambda: (self._measured.number(index),)

    def _summer(self, question: Question, index: int) -> Callable[[], Numbers]:
        return lambda: question.numbers(Cells(self._measured.counts_on(index, question.axes)))

    # What follows reads the table, and hides it behind noise.

    def _errors(self, questions: Sequence[Question], looks: Sequence[_Look]) -> Integers:
        """The errors of the estimates, in steps: private."""
        errors = np.zeros(len(questions), dtype=np.int64)
        by_axes: dict[Axes, list[int]] = {}
        for place, question in enumerate(questions):
            by_axes.setdefault(question.axes, []).append(place)
        for axes, places in by_axes.items():
            alike = [questions[place] for place in places]
            for place, question, true in zip(places, alike, _numbers(alike, self._private(axes)), strict=True):
                errors[place] = question.error(true, looks[place].numbers)
        return errors

    def _measure(self, question: Question, numbers: int) -> Step:
        """What a ⊤ tells: a number, or sums of the marginal's own cells where their noise is as small."""
        bound = self._bounds.fresh(self._measured.rate_on_top(numbered=False), numbers, question)
        numbered = isinstance(question, Linear) and bound > self._promise
        self.take(question if numbered and isinstance(question, Linear) else None, question.axes)
        index = len(self._measured.listed) - 1
        if numbered:
            return Step("above", (self._measured.number(index),), (self._bounds.number(),), numbered=True)
        told = question.numbers(Cells(self._measured.counts(index)))
        return Step("above", told, (bound,) * len(told))


def _numbers(questions: Sequence[Question], cells: Cells) -> list[Numbers]:
    """The exact numbers of questions on the same axes; those of plain ones all at once."""
    plain = plain_of(questions)
    found: list[Numbers | None] = [None] * len(questions)
    for (place, _), value in zip(plain, values([one for _, one in plain], cells).tolist(), strict=True):
        found[place] = (value,)
    return [
        question.numbers(cells) if known is None else known
        for question, known in zip(questions, found, strict=True)
    ]
