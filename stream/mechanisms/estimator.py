"""Answers from the estimate of all that was measured, and the sparse vector that decides when to measure more.

A question is settled where the noise of what was measured bounds the estimate's error well enough; that costs nothing. Else it
is answered from the estimate if its error is below the noisy threshold (⊥), for nothing. If it is not (⊤), the marginal of
its attributes is measured, and a number of its own where that is nearer. All that is public is a function of the list of
measurements. The proofs are in docs/pmw.md. Nothing here draws noise or does any I/O.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from schemas import EstimateCalibration
from stream.accounting.estimate_laws import marginal_law
from stream.accounting.measured import Bounds
from stream.mechanisms.estimate_questions import (
    Box,
    Numbers,
    Question,
    Single,
    box_numbers,
    plain_of,
    rounded,
)
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


@dataclass(slots=True, eq=False)
class _Look:
    """What is told of a question without a ⊤, and whether it is compared; ``below`` once it was, since the last ⊤."""

    step: Step
    compared: bool
    below: bool = False


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
        self._reaches: dict[tuple[Axes, int, bool], tuple[float, int | None]] = {}

    def take(self, question: Single | None, axes: Axes) -> None:
        """Add the marginal that a ⊤ measured, with the question whose number was told beside it, if one was."""
        self._measured.add(self.tops, axes, question)
        self.tops += 1
        self._looks, self._reaches = {}, {}

    def answer(self, questions: Sequence[Question], *, beyond: bool) -> list[Step]:
        """Answer questions in order until the last ⊤ is out; with ``beyond`` those after it too, without a promise.

        ⊤ iff the error + ν ≥ threshold + ρ, all in whole steps. What was decided before the first ⊤ of a block stands; only
        what follows is evaluated again. Blocks grow while no ⊤ comes.
        """
        cutoff = self._calibration.cutoff
        steps: list[Step] = []
        size = _FIRST_BLOCK
        while len(steps) < len(questions) and (self.tops < cutoff or beyond):
            block = questions[len(steps) : len(steps) + size]
            looks = self._look(block)
            over = self._first_above(block, looks) if self.tops < cutoff else len(block)
            steps += [look.step for look in looks[:over]]
            size *= 2
            if over < len(block):
                steps.append(self._measure(block[over], len(looks[over].step.numbers)))
                size = _FIRST_BLOCK
        return steps

    # What follows is public.

    def _look(self, questions: Sequence[Question]) -> list[_Look]:
        """What the measurements say of questions; known questions cost a look-up."""
        if len(self._looks) > _MOST_LOOKS:
            self._looks = {}
        looks = self._looks
        by_axes: dict[Axes, dict[bytes, Question]] = {}
        for question in questions:
            if question.key not in looks:
                by_axes.setdefault(question.axes, {})[question.key] = question
        for axes, fresh in by_axes.items():
            shares = self._shares(axes)
            alike = list(fresh.values())
            estimates = [rounded(masses, shares.total, self._rows) for masses in _numbers(alike, shares)]
            told = self._settled(axes, alike, estimates)
            for question, numbers, settled in zip(alike, estimates, told, strict=True):
                if settled is not None:
                    looks[question.key] = _Look(settled, compared=False)
                elif self.tops < self._calibration.cutoff:
                    looks[question.key] = _Look(
                        Step("below", numbers, self._promised(len(numbers))), compared=True
                    )
                else:
                    looks[question.key] = _Look(Step("unpromised", numbers, None), compared=False)
        return [looks[question.key] for question in questions]

    def _promised(self, numbers: int) -> tuple[float, ...]:
        return (self._promise,) * numbers

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

    def _settled(
        self, axes: Axes, questions: Sequence[Question], estimates: Sequence[Numbers]
    ) -> list[Step | None]:
        """The estimates, moved to where the promise holds by the noise of one measurement alone; None if none is so good."""
        found: list[Step | None] = [None] * len(questions)
        by_source: dict[int, list[tuple[int, float]]] = {}
        for place, question in enumerate(questions):
            reach, index, numbered = self._nearest(question)
            if index is None or reach > self._promise * question.width:
                continue
            if numbered:
                found[place] = self._kept(question, estimates[place], (self._measured.number(index),), reach)
            else:
                by_source.setdefault(index, []).append((place, reach))
        for index, members in by_source.items():
            told = _numbers([questions[place] for place, _ in members], self._cells_on(index, axes))
            for (place, reach), centres in zip(members, told, strict=True):
                found[place] = self._kept(questions[place], estimates[place], centres, reach)
        return found

    def _nearest(self, question: Question) -> tuple[float, int | None, bool]:
        """The least reach of what was measured about a question, where that is, and whether it is a number told."""
        told, moved = self._measured.told(question.key), question.width
        best = math.inf if told is None else self._bounds.number() * moved
        if not question.whole:
            return best, told, True
        key = (question.axes, question.summed, question.ranges)
        if (known := self._reaches.get(key)) is None:
            known = self._reaches[key] = min(
                (
                    (
                        self._bounds.cells(one.law, question.summed * one.more, one.sizes, ranges=question.ranges),
                        one.index,
                    )
                    for one in self._measured.covering(question.axes)
                ),
                default=(math.inf, None),
                key=operator.itemgetter(0),
            )
        reach, index = known
        return (reach * moved, index, False) if reach * moved < best else (best, told, True)

    def _kept(self, question: Question, numbers: Numbers, told: Numbers, reach: float) -> Step:
        """The estimate, within what leaves the promise to what was measured."""
        moved = question.width
        room = math.floor(self._promise * moved - reach)
        kept = tuple(
            min(max(number, centre - room), centre + room) for number, centre in zip(numbers, told, strict=True)
        )
        reaches = tuple((reach + abs(number - centre)) / moved for number, centre in zip(kept, told, strict=True))
        return Step("settled", kept, reaches)

    def _cells_on(self, index: int, axes: Axes) -> Cells:
        """The noisy counts of a measurement on some of its axes."""
        key = ("on", index, axes)
        if (known := self._memory.get(key)) is None:
            known = Cells(self._measured.counts_on(index, axes))
            self._memory.put(key, known)
        return known  # type: ignore[no-any-return]

    # What follows reads the table, and hides it behind noise.

    def _first_above(self, questions: Sequence[Question], looks: Sequence[_Look]) -> int:
        """The place of the first ⊤; as many as there are questions if there is none.

        A question that was ⊥ after as many ⊤s is ⊥ again: its error and its noise are the same.
        """
        asked = [place for place, look in enumerate(looks) if look.compared and not look.below]
        if not asked:
            return len(questions)
        compared = [questions[place] for place in asked]
        errors = self._errors(compared, [looks[place].step.numbers for place in asked])
        noise = self._draws.queries(self.tops, [question.key for question in compared])
        above = errors + noise >= self._calibration.threshold + self._draws.barrier(self.tops)
        first = int(np.argmax(above)) if above.any() else len(asked)
        for place in asked[:first]:
            looks[place].below = True
        return asked[first] if first < len(asked) else len(questions)

    def _errors(self, questions: Sequence[Question], estimates: Sequence[Numbers]) -> Integers:
        """The errors of the estimates, in steps: private."""
        errors = np.zeros(len(questions), dtype=np.int64)
        by_axes: dict[Axes, list[int]] = {}
        for place, question in enumerate(questions):
            by_axes.setdefault(question.axes, []).append(place)
        for axes, places in by_axes.items():
            alike = [questions[place] for place in places]
            errors[places] = [
                question.error(true, estimates[place])
                for place, question, true in zip(places, alike, _numbers(alike, self._private(axes)), strict=True)
            ]
        return errors

    def _measure(self, question: Question, numbers: int) -> Step:
        """What a ⊤ tells: a number, or sums of the marginal's own cells where their noise is as small."""
        bound = self._bounds.fresh(marginal_law(self._calibration, numbered=False), numbers, question)
        numbered = isinstance(question, Single) and bound > self._promise
        self.take(question if numbered and isinstance(question, Single) else None, question.axes)
        index = len(self._measured.listed) - 1
        if numbered:
            return Step("above", (self._measured.number(index),), (self._bounds.number(),), numbered=True)
        told = question.numbers(Cells(self._measured.counts(index)))
        return Step("above", told, (bound,) * len(told))


def _numbers(questions: Sequence[Question], cells: Cells) -> list[Numbers]:
    """The exact numbers of questions on the same axes; those of plain ones all at once."""
    boxes = [question for question in questions if isinstance(question, Box)]
    if len(boxes) == len(questions):
        return [(number,) for number in box_numbers(boxes, cells)] if boxes else []
    plain = plain_of(questions)
    found: list[Numbers | None] = [None] * len(questions)
    for (place, _), value in zip(plain, values([one for _, one in plain], cells).tolist(), strict=True):
        found[place] = (value,)
    return [
        question.numbers(cells) if known is None else known
        for question, known in zip(questions, found, strict=True)
    ]
