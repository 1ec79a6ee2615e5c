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
from fractions import Fraction
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from schemas import EstimateCalibration
from stream.accounting.estimates import opening
from stream.accounting.measured import Bounds
from stream.mechanisms.estimate_questions import Linear, Mean, Numbers, Question, plain_of, rounded
from stream.mechanisms.maximum_entropy import NoisyMarginal, combined, fit, ordered_sum, summed
from stream.mechanisms.tensor_sums import Cells, values

Integers = npt.NDArray[np.int64]
Axes = tuple[int, ...]

WHOLE_CELLS: Final = 1 << 15
"""Where all attributes have no more cells together, one estimate of all of them serves every question."""

_FIRST_BLOCK: Final = 32
_MOST_LOOKS: Final = 1 << 15


class Draws(Protocol):
    """The noise of one stream."""

    def barrier(self, tops: int) -> int:
        """ρ."""

    def queries(self, tops: int, keys: Sequence[bytes]) -> Integers:
        """ν of questions, asked after so many ⊤s."""

    def number(self, tops: int, key: bytes, rate: Fraction) -> int:
        """The noise of the number on the ⊤ of a question, two-sided of this rate."""

    def marginal(self, tops: int | None, axes: Axes, cells: int, rate: Fraction) -> Integers:
        """The noise of a marginal's cells: of that on the ⊤ after so many, or with None of one of the opening."""


class Memory(Protocol):
    """Keeps what can be computed again."""

    def get(self, key: Any) -> Any:
        """What is kept under the key, or None."""

    def put(self, key: Any, value: Any) -> None:
        """Keep a value, unless it is too large."""


@dataclass(frozen=True, slots=True)
class Step:
    """One answer, in the question's own unit. ``reach`` bounds the error of each number; None promises nothing."""

    kind: Literal["settled", "below", "above", "unpromised"]
    numbers: Numbers
    reach: tuple[float, ...] | None
    numbered: bool = False


@dataclass(frozen=True, slots=True)
class _Measured:
    """One measured marginal: its axes, the rate of its cells' noise, and the number that was told with it."""

    axes: Axes
    rate: Fraction
    tops: int | None
    question: Linear | None = None


@dataclass(frozen=True, slots=True)
class _Covering:
    """A measurement that tells of all axes of a question, ``more`` of its cells for each of theirs."""

    index: int
    rate: Fraction
    sizes: tuple[int, ...]
    more: int


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
        rate = Fraction(calibration.epsilon_start) / calibration.marginal_sensitivity
        self._measured = [
            _Measured(axes, rate, None)
            for axes in (opening(self._sizes, calibration.warm_start) if calibration.starts else ())
        ]
        self._everything = math.prod(self._sizes) <= WHOLE_CELLS
        self._number_of: dict[bytes, int] = {}
        self._looks: dict[bytes, _Look] = {}
        self._used: dict[Axes, tuple[int, ...]] = {}
        self._covering: dict[Axes, list[_Covering]] = {}

    def take(self, question: Linear | None, axes: Axes) -> None:
        """Add the marginal that a ⊤ measured, with the question whose number was told beside it, if one was."""
        if question is not None:
            self._number_of[question.key] = len(self._measured)
        self._measured.append(
            _Measured(axes, self._marginal_rate(numbered=question is not None), self.tops, question)
        )
        self.tops += 1
        self._looks, self._used, self._covering = {}, {}, {}

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
        used = self._used_for(frame)
        key = ("shares", axes, frame, used)
        if (known := self._memory.get(key)) is None:
            if axes == frame:
                tensor = self._fitted(frame, used)
            else:
                tensor = self._shares(frame).tensor.sum(axis=tuple(axis for axis in frame if axis not in axes))
            known = Cells(tensor)
            self._memory.put(key, known)
        return known  # type: ignore[no-any-return]

    def _fitted(self, frame: Axes, used: Sequence[int]) -> Integers:
        marginals = []
        for index in used:
            shared = tuple(axis for axis in self._measured[index].axes if axis in frame)
            one = summed(self._noisy(index), shared)
            places = tuple(frame.index(axis) for axis in shared)
            marginals.append(NoisyMarginal(places, one.counts, one.variance))
        return fit([self._sizes[axis] for axis in frame], combined(marginals), self._rows)

    def _used_for(self, frame: Axes) -> tuple[int, ...]:
        """Which measurements tell of these axes: all that share two of them, and the first that tell of a single one."""
        if (known := self._used.get(frame)) is None:
            used, covered = [], set[int]()
            for index, one in enumerate(self._measured):
                shared = {axis for axis in one.axes if axis in frame}
                if len(shared) > 1 or shared - covered:
                    used.append(index)
                    covered |= shared
            known = self._used[frame] = tuple(used)
        return known

    def _settled(self, question: Question, numbers: Numbers) -> tuple[Numbers, tuple[float, ...]] | None:
        """The estimate, moved to where the promise holds by the noise of one measurement alone; None if none is so good."""
        if isinstance(question, Mean):
            return None
        moved = question.width
        best: tuple[float, Callable[[], Numbers]] | None = None
        if (index := self._number_of.get(question.key)) is not None:
            best = (self._bounds.number() * moved, self._teller(index))
        for one in self._covering_of(question.axes) if question.whole else ():
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

    def _covering_of(self, axes: Axes) -> list[_Covering]:
        """The measurements that tell of all these axes."""
        if (known := self._covering.get(axes)) is None:
            known = self._covering[axes] = [
                _Covering(
                    index,
                    one.rate,
                    tuple(self._sizes[axis] for axis in one.axes),
                    math.prod(self._sizes[axis] for axis in one.axes if axis not in axes),
                )
                for index, one in enumerate(self._measured)
                if set(axes) <= set(one.axes)
            ]
        return known

    def _teller(self, index: int) -> Callable[[], Numbers]:
        return lambda: (self._number(index),)

    def _summer(self, question: Question, index: int) -> Callable[[], Numbers]:
        return lambda: question.numbers(Cells(self._counts_on(index, question.axes)))

    def _counts_on(self, index: int, axes: Axes) -> Integers:
        """A measurement's noisy counts, summed over the axes left out."""
        own = self._measured[index].axes
        others = tuple(place for place, axis in enumerate(own) if axis not in axes)
        counts = self._counts(index)
        return counts.sum(axis=others) if others else counts

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
        bound = self._bounds.fresh(self._marginal_rate(numbered=False), numbers, question)
        numbered = isinstance(question, Linear) and bound > self._promise
        self.take(question if numbered and isinstance(question, Linear) else None, question.axes)
        index = len(self._measured) - 1
        if numbered:
            return Step("above", (self._number(index),), (self._bounds.number(),), numbered=True)
        told = question.numbers(Cells(self._counts(index)))
        return Step("above", told, (bound,) * len(told))

    def _marginal_rate(self, *, numbered: bool) -> Fraction:
        calibration = self._calibration
        part = Fraction(calibration.sparse_vector.epsilon_answer) / calibration.cutoff
        if numbered:
            part -= Fraction(calibration.epsilon_number)
        return part / calibration.marginal_sensitivity

    def _counts(self, index: int) -> Integers:
        """A measurement's noisy counts; a function of the table, the key and the list."""
        key = ("counts", index, self._measured[index].axes)
        if (known := self._memory.get(key)) is None:
            one = self._measured[index]
            true = self._private(one.axes).tensor
            noise = self._draws.marginal(one.tops, one.axes, true.size, one.rate)
            known = true + noise.reshape(true.shape)
            self._memory.put(key, known)
        return known  # type: ignore[no-any-return]

    def _number(self, index: int) -> int:
        """The number that was told with a measurement."""
        one = self._measured[index]
        if one.question is None or one.tops is None:
            raise ValueError("no number was told with this measurement")
        [true] = one.question.numbers(self._private(one.axes))
        return true + self._draws.number(one.tops, one.question.key, self._number_rate(one.question))

    def _number_rate(self, question: Linear) -> Fraction:
        return Fraction(self._calibration.epsilon_number) / question.width

    def _noisy(self, index: int) -> NoisyMarginal:
        """A measurement as the fit takes it: its cells, moved to what the number beside them says, by precision."""
        one = self._measured[index]
        counts = self._counts(index).astype(np.float64)
        rate = float(one.rate)
        variance = 2.0 / (rate * rate)
        if (question := one.question) is not None:
            weights = question.weights().astype(np.float64)
            told = self._number(index) - question.numbers(Cells(self._counts(index)))[0]
            number_rate = float(self._number_rate(question))
            spread = variance * ordered_sum(weights * weights) + 2.0 / (number_rate * number_rate)
            counts = counts + weights * (variance * told / spread)
        return NoisyMarginal(one.axes, counts, variance)


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
