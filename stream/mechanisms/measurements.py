"""What one stream has measured: marginals with their noise, and numbers told beside them.

All noisy counts are a function of the list of measurements, the table and the key, and are computed again where they were
dropped. The list itself, and what can be told from it without the counts, is public. Nothing here draws noise or does any
I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from schemas import EstimateCalibration
from stream.accounting.estimate_laws import marginal_law, number_law, opening_law
from stream.accounting.estimates import opening
from stream.accounting.laws import variance_of
from stream.mechanisms.estimate_questions import Single
from stream.mechanisms.maximum_entropy import NoisyMarginal, ordered_sum, summed
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

    def marginal(self, tops: int | None, axes: Axes, cells: int, law: Symmetric) -> Integers:
        """The noise of a marginal's cells: of that on the ⊤ after so many, or with None of one of the opening."""


class Memory(Protocol):
    """Keeps what can be computed again."""

    def get(self, key: Any) -> Any:
        """What is kept under the key, or None."""

    def put(self, key: Any, value: Any) -> None:
        """Keep a value, unless it is too large."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured marginal: its axes, the law of its cells' noise, and the number that was told with it."""

    axes: Axes
    law: Symmetric
    tops: int | None
    question: Single | None = None


@dataclass(frozen=True, slots=True)
class Covering:
    """A measurement that tells of all axes of a question, ``more`` of its cells for each of theirs."""

    index: int
    law: Symmetric
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
        self._number_of: dict[bytes, int] = {}
        self._used: dict[Axes, tuple[int, ...]] = {}
        self._covering: dict[Axes, list[Covering]] = {}

    # What follows is public.

    def add(self, tops: int, axes: Axes, question: Single | None) -> None:
        """Add the marginal that a ⊤ measured after so many, with the question whose number was told beside it, if one was."""
        if question is not None:
            self._number_of[question.key] = len(self.listed)
        law = marginal_law(self._calibration, numbered=question is not None)
        self.listed.append(Measured(axes, law, tops, question))
        self._used, self._covering = {}, {}

    def told(self, key: bytes) -> int | None:
        """The measurement with which the number of a question was told."""
        return self._number_of.get(key)

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
            noise = self._draws.marginal(one.tops, one.axes, true.size, one.law)
            known = true + noise.reshape(true.shape)
            self._memory.put(key, known)
        return known  # type: ignore[no-any-return]

    def number(self, index: int) -> int:
        """The number that was told with a measurement."""
        one = self.listed[index]
        if one.question is None or one.tops is None:
            raise ValueError("no number was told with this measurement")
        [true] = one.question.numbers(self._private(one.axes))
        return true + self._draws.number(one.tops, one.question.key, self._number_law(one.question))

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
        if (question := one.question) is not None:
            weights = question.weights().astype(np.float64)
            told = self.number(index) - question.numbers(Cells(self.counts(index)))[0]
            spread = variance * ordered_sum(weights * weights) + variance_of(self._number_law(question))
            counts = counts + weights * (variance * told / spread)
        return NoisyMarginal(one.axes, counts, variance)

    def _number_law(self, question: Single) -> Symmetric:
        return number_law(self._calibration, question.width)
