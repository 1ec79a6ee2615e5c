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
from stream.accounting.costs import PARTS
from stream.accounting.estimate_laws import marginal_law, number_law, opening_law
from stream.accounting.estimates import opening
from stream.accounting.laws import variance_of
from stream.mechanisms.estimate_questions import Numbers, Question, Single
from stream.mechanisms.maximum_entropy import NoisyMarginal, ordered_sum, summed
from stream.mechanisms.own_measurements import own_measurement
from stream.mechanisms.tensor_sums import Cells
from stream.noise import Symmetric

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
class Measured:
    """One measured marginal: its axes, the law of its cells' noise, and the question whose numbers were told with it.

    With ``share`` it was measured for that question, which was charged so many parts; without axes it is these numbers alone,
    and the law theirs. What was told is off by at most ``reach``, in units of what one person moves a number by.
    """

    axes: Axes
    law: Symmetric
    tops: int | None
    question: Question | None = None
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
        private: Callable[[Axes], Cells],
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
            Measured(axes, opening_law(calibration), None)
            for axes in (opening(self._sizes, calibration.warm_start) if calibration.starts else ())
        ]
        self._told: dict[bytes, int] = {}
        self._used: dict[Axes, tuple[int, ...]] = {}
        self._covering: dict[Axes, list[Covering]] = {}

    # What follows is public.

    def add(self, tops: int, axes: Axes, question: Question | None, share: int | None) -> None:
        """Add what an answer measured after so many charged ones: a marginal, and the question whose numbers were told, if any.

        With ``share`` the question was charged so many parts for a measurement of its own: without axes its numbers alone.
        """
        if share is not None and question is not None:
            own = own_measurement(self._calibration, question, share, marginal=bool(axes))
            one = Measured(axes, own.law, tops, question, own.reach, share)
        else:
            law = marginal_law(self._calibration, numbered=question is not None)
            one = Measured(axes, law, tops, question, self._calibration.sparse_vector.answer_alpha)
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
            return one.question.numbers(Cells(self.counts(index)))
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
            told = self.numbers(index)[0] - question.numbers(Cells(self.counts(index)))[0]
            spread = variance * ordered_sum(weights * weights) + variance_of(self._number_law(question))
            counts = counts + weights * (variance * told / spread)
        return NoisyMarginal(one.axes, counts, variance)

    def _number_law(self, question: Question) -> Symmetric:
        return number_law(self._calibration, question.width)
