"""What one stream has measured: marginals with their noise, and numbers told beside them or by themselves.

All noisy counts are a function of the list of measurements, the table and the key, and are computed again where they were
dropped. The list itself, and what can be told from it without the counts, is public. Nothing here draws noise or does any
I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from schemas import EstimateCalibration
from stream.privacy.accuracy.noise_laws import two_sided_reach, variance_of
from stream.privacy.composition.costs import PARTS
from stream.privacy.mechanisms.estimate_questions import CellGroups, Numbers, ResolvedQuestion, Single
from stream.privacy.mechanisms.maximum_entropy import NoisyMarginal, ordered_sum, summed
from stream.privacy.mechanisms.tensor_sums import TensorCells
from stream.privacy.noise import Symmetric, sampler
from stream.privacy.planning.estimate_plans import opening
from stream.privacy.planning.measurement_accuracy import marginal_law, number_law, opening_law
from stream.privacy.planning.prices import Price, estimate_price, numbers_failure, rate_of


@dataclass(frozen=True, slots=True)
class OwnMeasurement:
    """The law of its noise, and the error of the numbers, in units of what one person moves a number by."""

    law: Symmetric
    reach: Fraction


def own_price(calibration: EstimateCalibration, question: ResolvedQuestion, alpha: Fraction) -> tuple[Price, bool]:
    """The least price at which every number is within ``alpha``, in the unit that is asked for; and whether a marginal has it."""
    steps = alpha * question.unit
    numbers = estimate_price(calibration, _width(calibration, question), question.count, math.floor(steps))
    if not question.whole or question.summed != 1:
        return numbers, False
    # Each number is one cell, in full: a marginal costs what one of its cells does where a row is added or removed.
    rows = math.floor(steps / question.width)
    cells = estimate_price(calibration, calibration.marginal_sensitivity, question.count, rows)
    return (cells, True) if cells.parts <= numbers.parts else (numbers, False)


def own_measurement(
    calibration: EstimateCalibration, question: ResolvedQuestion, share: int, *, marginal: bool
) -> OwnMeasurement:
    """The measurement that has so many parts of a ⊤'s ε."""
    width = calibration.marginal_sensitivity if marginal else _width(calibration, question)
    rate = rate_of(calibration, share, width)
    reach = two_sided_reach(float(rate), question.count, numbers_failure(calibration, share / PARTS))
    law = sampler("two_sided", rate)
    return OwnMeasurement(law, Fraction(reach) if marginal else Fraction(reach, question.width))


def _width(calibration: EstimateCalibration, question: ResolvedQuestion) -> int:
    """How far one person moves all numbers together: the counts of groups as they move a marginal."""
    return question.width * (calibration.marginal_sensitivity if isinstance(question, CellGroups) else 1)


Integers = npt.NDArray[np.int64]
Axes = tuple[int, ...]


class Draws(Protocol):
    """The noise of one stream."""

    def barrier(self, tops: int) -> int:
        """ρ."""

    def queries(self, tops: int, keys: Sequence[bytes]) -> Integers:
        """ν of questions, asked after so many ⊤s."""

    def number(self, tops: int, key: bytes, law: Symmetric) -> int:
        """The noise of the number on the ⊤ of a question."""

    def numbers(self, tops: int, key: bytes, share: int, count: int, law: Symmetric) -> Integers:
        """The noise of the numbers that a question is charged so many parts for."""

    def marginal(
        self, tops: int | None, axes: Axes, cells: int, law: Symmetric, share: int | None = None
    ) -> Integers:
        """The noise of a marginal's cells: of that measured after so many charges, or with None of one of the opening.

        With ``share`` a question is charged so many parts for it.
        """


class Memory(Protocol):
    """Keeps what can be computed again."""

    def get(self, key: Any) -> Any:
        """What is kept under the key, or None."""

    def put(self, key: Any, value: Any) -> None:
        """Keep a value, unless it is too large."""


@dataclass(frozen=True, slots=True)
class MeasuredMarginal:
    """One measured marginal: its axes, the law of its cells' noise, and the question whose numbers were told with it.

    With ``share`` it was measured for that question, which was charged so many parts; without axes it is these numbers alone,
    and the law theirs. What was told is off by at most ``reach``, in units of what one person moves a number by.
    """

    axes: Axes
    law: Symmetric
    tops: int | None
    question: ResolvedQuestion | None = None
    reach: float | Fraction = math.inf
    share: int | None = None

    @property
    def charges(self) -> float:
        """How many ⊤s' charges it had."""
        return 1.0 if self.share is None else self.share / PARTS


@dataclass(frozen=True, slots=True)
class Covering:
    """A measurement that tells of all axes of a question, ``more`` of its cells for each of theirs."""

    index: int
    law: Symmetric
    charges: float
    sizes: tuple[int, ...]
    more: int


class Measurements:
    """One stream's measurements in order; ``listed`` has them by index."""

    def __init__(
        self,
        sizes: Sequence[int],
        calibration: EstimateCalibration,
        private: Callable[[Axes], TensorCells],
        draws: Draws,
        memory: Memory,
    ) -> None:
        """Take the attributes' sizes, and what gives the true counts on some axes."""
        self._sizes = tuple(sizes)
        self._calibration = calibration
        self._private = private
        self._draws = draws
        self._memory = memory
        self.listed = [
            MeasuredMarginal(axes, opening_law(calibration), None)
            for axes in (opening(self._sizes, calibration.warm_start) if calibration.starts else ())
        ]
        self._told: dict[bytes, int] = {}
        self._used: dict[Axes, tuple[int, ...]] = {}
        self._covering: dict[Axes, list[Covering]] = {}

    # What follows is public.

    def add(self, tops: int, axes: Axes, question: ResolvedQuestion | None, share: int | None) -> None:
        """Add what an answer measured after so many charged ones: a marginal, and the question whose numbers were told, if any.

        With ``share`` the question was charged so many parts for a measurement of its own: without axes its numbers alone.
        """
        if share is not None and question is not None:
            own = own_measurement(self._calibration, question, share, marginal=bool(axes))
            one = MeasuredMarginal(axes, own.law, tops, question, own.reach, share)
        else:
            law = marginal_law(self._calibration, numbered=question is not None)
            one = MeasuredMarginal(axes, law, tops, question, self._calibration.sparse_vector.answer_alpha)
        if question is not None:
            known = self._told.get(question.key)
            if known is None or one.reach < self.listed[known].reach:
                self._told[question.key] = len(self.listed)
        self.listed.append(one)
        self._used, self._covering = {}, {}

    def told(self, key: bytes) -> int | None:
        """The measurement with which the numbers of a question were told, the best of several."""
        return self._told.get(key)

    def used_for(self, frame: Axes) -> tuple[int, ...]:
        """Which measurements tell of these axes: all that share two of them, and the first that tell of a single one."""
        if (known := self._used.get(frame)) is None:
            used, covered = [], set[int]()
            for index, one in enumerate(self.listed):
                shared = {axis for axis in one.axes if axis in frame}
                if len(shared) > 1 or shared - covered:
                    used.append(index)
                    covered |= shared
            known = self._used[frame] = tuple(used)
        return known

    def covering(self, axes: Axes) -> list[Covering]:
        """The measurements that tell of all these axes."""
        if (known := self._covering.get(axes)) is None:
            known = self._covering[axes] = [
                Covering(
                    index,
                    one.law,
                    one.charges,
                    tuple(self._sizes[axis] for axis in one.axes),
                    math.prod(self._sizes[axis] for axis in one.axes if axis not in axes),
                )
                for index, one in enumerate(self.listed)
                if set(axes) <= set(one.axes)
            ]
        return known

    # What follows reads the table, and hides it behind noise.

    def counts(self, index: int) -> Integers:
        """A measurement's noisy counts; a function of the table, the key and the list."""
        key = ("counts", index, self.listed[index].axes)
        if (known := self._memory.get(key)) is None:
            one = self.listed[index]
            true = self._private(one.axes).tensor
            noise = self._draws.marginal(one.tops, one.axes, true.size, one.law, one.share)
            known = true + noise.reshape(true.shape)
            self._memory.put(key, known)
        return known  # type: ignore[no-any-return]

    def numbers(self, index: int) -> Numbers:
        """The numbers that were told with a measurement."""
        one = self.listed[index]
        if one.question is None or one.tops is None:
            raise ValueError("no number was told with this measurement")
        if one.share is not None and one.axes:
            return one.question.numbers(TensorCells(self.counts(index)))
        true = one.question.numbers(self._private(one.question.axes))
        if one.share is not None:
            noise = self._draws.numbers(one.tops, one.question.key, one.share, len(true), one.law)
            return tuple(number + drawn for number, drawn in zip(true, noise.tolist(), strict=True))
        return (true[0] + self._draws.number(one.tops, one.question.key, self._number_law(one.question)),)

    def counts_on(self, index: int, axes: Axes) -> Integers:
        """A measurement's noisy counts, summed over the axes left out."""
        own = self.listed[index].axes
        others = tuple(place for place, axis in enumerate(own) if axis not in axes)
        counts = self.counts(index)
        return counts.sum(axis=others) if others else counts

    def marginals(self, frame: Axes) -> list[NoisyMarginal]:
        """All that tells of these axes, as a fit takes it."""
        found = []
        for index in self.used_for(frame):
            shared = tuple(axis for axis in self.listed[index].axes if axis in frame)
            one = summed(self._noisy(index), shared)
            places = tuple(frame.index(axis) for axis in shared)
            found.append(NoisyMarginal(places, one.counts, one.variance))
        return found

    def _noisy(self, index: int) -> NoisyMarginal:
        """A measurement as the fit takes it: its cells, moved to what the number beside them says, by precision."""
        one = self.listed[index]
        counts = self.counts(index).astype(np.float64)
        variance = variance_of(one.law)
        if isinstance(question := one.question, Single) and one.share is None:
            weights = question.weights().astype(np.float64)
            told = self.numbers(index)[0] - question.numbers(TensorCells(self.counts(index)))[0]
            spread = variance * ordered_sum(weights * weights) + variance_of(self._number_law(question))
            counts = counts + weights * (variance * told / spread)
        return NoisyMarginal(one.axes, counts, variance)

    def _number_law(self, question: ResolvedQuestion) -> Symmetric:
        return number_law(self._calibration, question.width)
