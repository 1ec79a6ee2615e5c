"""Answers from an estimate of the table, and the sparse vector that decides on new measurements.

The estimate is fitted to all measurements. A question is *settled* for free if the noise of a
measurement bounds the estimate's error well enough. Otherwise the estimate answers it for free if
its error is below the noisy threshold (⊥). If not (⊤), the marginal of the question's attributes
is measured, and a separate number if that is more accurate. A question that requests a smaller
error is measured alone, at its own price. All public state is a function of the list of
measurements. Proofs: docs/proofs/pmw.md.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from schemas import EstimateCalibration
from stream.privacy.accuracy.intervals import MISS, bounded_half_width, half_width
from stream.privacy.composition.costs import PARTS
from stream.privacy.mechanisms.estimate_questions import (
    Box,
    Linear,
    Mean,
    Numbers,
    Rates,
    ResolvedQuestion,
    Share,
    Single,
    box_numbers,
    plain_of,
    rounded,
)
from stream.privacy.mechanisms.maximum_entropy import combined, fit
from stream.privacy.mechanisms.measurements import Axes, Draws, Measurements, Memory, own_price
from stream.privacy.mechanisms.tensor_sums import TensorCells, values
from stream.privacy.mechanisms.typical_errors import TypicalErrors
from stream.privacy.mechanisms.workload_selection import add_workload
from stream.privacy.noise import NoiseScaleError
from stream.privacy.planning.estimate_plans import ErrorBounds, marginal_law, number_law
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS
from stream.privacy.planning.prices import takes_alpha
from stream.privacy.planning.workload_plans import ExpectedSets

Integers = npt.NDArray[np.int64]

WHOLE_CELLS: Final = 1 << 15
"""If all attributes have at most this many cells together, one estimate serves all questions."""

_THRESHOLD_BYTES: Final = 16
_FIRST_BLOCK: Final = 32
_MOST_LOOKS: Final = 1 << 15
_REFUSALS: Final = ("refused", "limited")


@dataclass(frozen=True, slots=True)
class EstimateAnswer:
    """One answer: ``numbers`` in the question's unit, each with the error bound in ``reach``.

    ``kind`` is ``settled`` (a measurement bounds the error), ``below`` (⊥), ``above`` (⊤),
    ``priced`` (measured alone), ``unpromised`` (no whole charge is left; ``reach`` is None),
    ``refused`` (the grant does not pay) or ``limited`` (may cost more than the question's limit).
    ``parts`` are charged; for ``refused`` and ``limited`` they would be. ``numbered`` is True if a
    ⊤ published a number, ``marginal`` False if no marginal was measured. ``intervals`` has the 95 %
    confidence interval of each number, in its unit, if the numbers were measured; for a mean, the
    first has the half-width of sum − mean·rows around the sum. ``together`` is False if some two
    attributes of an estimated number were never measured together, or the only one never.
    ``typical`` is the root distance R of the typical error of estimates, if it is known.
    """

    kind: Literal["settled", "below", "above", "unpromised", "priced", "refused", "limited"]
    numbers: Numbers
    reach: tuple[float, ...] | None
    numbered: bool = False
    parts: int = 0
    marginal: bool = True
    intervals: tuple[tuple[int, int], ...] | None = None
    together: bool = True
    typical: float | None = None


@dataclass(slots=True, eq=False)
class _FreeAnswer:
    """The answer to a question unless it is ⊤.

    ``compared`` is True if it must be compared with the table first, ``below`` if that was ⊥ since
    the last ⊤.
    """

    step: EstimateAnswer
    compared: bool
    below: bool = False


@dataclass(eq=False)
class Estimator:
    """The measurements of one stream, and the estimates that follow from them.

    ``sizes`` has the number of values of each attribute, ``rows`` is the (noisy) row count, and
    ``private`` returns true counts. ``workload`` has the sets of attributes of which the warm start
    chooses, ``expected`` those over which typical errors are means. ``tops`` counts all charged answers; ``left`` is the rest of the grant, in parts of a
    ⊤'s charge.
    """

    sizes: tuple[int, ...]
    calibration: EstimateCalibration
    rows: int
    private: Callable[[Axes], TensorCells]
    draws: Draws
    memory: Memory
    workload: Sequence[Axes] = ()
    expected: ExpectedSets = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tops = 0
        self.left = self.calibration.cutoff * PARTS
        self._cutoff = self.calibration.cutoff
        self._bounds = ErrorBounds(self.calibration)
        self._promise = self.calibration.sparse_vector.alpha
        self._measured = Measurements(self.sizes, self.calibration, self.private, self.draws, self.memory)
        self._connects = self.calibration.warm_start == "workload"
        # Many measured pairs that depend strongly on each other fit slowly together.
        self._everything = math.prod(self.sizes) <= WHOLE_CELLS and not self._connects
        self._opened, self._begun = False, not self._connects
        self._typical: TypicalErrors | None = None
        self._looks: dict[bytes, _FreeAnswer] = {}
        self._on_tops: dict[tuple[int, int, bool], float] = {}
        self._reaches: dict[tuple[Axes, int, bool], tuple[float, int | None]] = {}

    def add_measurement(self, question: ResolvedQuestion | None, axes: Axes, share: int | None = None) -> None:
        """Add the measurement of a charged answer: the marginal on ``axes``.

        ``question`` is given if its numbers were measured too. With ``share`` it was measured
        alone for this many parts; then empty ``axes`` mean that no marginal was measured.
        """
        self._open()
        self._measured.add(self.tops, axes, question, share)
        self.tops += 1
        self.left -= PARTS if share is None else share
        self._looks, self._reaches = {}, {}

    def _open(self) -> None:
        """List the marginals that the opening chooses; private, and charged with the first answer."""
        if not self._opened:
            self._opened = True
            if self._connects:
                add_workload(self._measured, self.workload, self.rows)
            if self.calibration.epsilon_typical > 0.0:
                opening = self._measured.copied()
                self._typical = TypicalErrors(
                    opening, self.expected, self.rows, lambda axes: self._shares(axes, opening)
                )

    def extend(self, cutoff: int) -> None:
        """Set the total number of ⊤s that are paid for."""
        if cutoff != self._cutoff:
            self.left += (cutoff - self._cutoff) * PARTS
            self._cutoff, self._looks = cutoff, {}

    def answer(
        self,
        questions: Sequence[ResolvedQuestion],
        *,
        beyond: bool,
        wanted: Mapping[int, Fraction] | None = None,
        limits: Mapping[int, int] | None = None,
        begun: bool = True,
    ) -> list[EstimateAnswer]:
        """Answer questions in order until the grant is used up.

        With ``beyond``, later questions are answered too, without a promise. ``wanted`` maps
        places to requested errors, and ``limits`` places to the most parts that may be charged: a
        question that may cost more is ``limited``, before any private value is read. A question
        is ⊤ iff error + ν ≥ threshold + ρ, in whole steps. Questions are decided in blocks: after
        the first ⊤ of a block, the rest is decided again. Blocks grow until a ⊤ occurs.

        ``begun`` is False until an answer has been charged for the opening; until then no refusal
        depends on what the opening chose.
        """
        wanted, limits = wanted or {}, limits or {}
        self._open()
        self._begun = begun or not self._connects
        alone = sorted({*wanted, *limits})
        steps: list[EstimateAnswer] = []
        size = _FIRST_BLOCK
        while len(steps) < len(questions) and (self.left > 0 or beyond):
            start = len(steps)
            self._begun = self._begun or any(step.kind not in _REFUSALS for step in steps)
            if start in limits:
                parts, tested = self._most_charged(questions[start], wanted.get(start))
                if limits[start] < parts <= self.left:
                    steps.append(EstimateAnswer("limited", (), None, parts=parts, marginal=tested))
                    continue
            if start in wanted:
                steps.append(self._alone(questions[start], wanted[start]))
                continue
            place = bisect_right(alone, start)
            asked = questions[start : min(start + size, *alone[place : place + 1], len(questions))]
            block = [self._published(question) for question in asked]
            looks = self._answers_without_top(block)
            over = self._first_above(block, looks) if self.left >= PARTS else len(block)
            unpaid = EstimateAnswer("refused", (), None, parts=PARTS)
            steps += [
                unpaid if look.step.kind == "unpromised" and not beyond else look.step for look in looks[:over]
            ]
            size *= 2
            if over < len(block):
                steps.append(self._measure(block[over]))
                size = _FIRST_BLOCK
        return steps

    def _alone(self, question: ResolvedQuestion, alpha: Fraction) -> EstimateAnswer:
        """Answer within ``alpha``: from a measurement, by a comparison, or by a new measurement."""
        if not self._begun and (refused := self._refused_in_advance(question, alpha)) is not None:
            return refused
        reach, index, told = self._nearest(question)
        limit = alpha * question.unit
        if index is not None and reach <= limit:
            cells = None if told else self._cells_on(index, question.axes)
            centres = self._measured.numbers(index) if cells is None else question.numbers(cells)
            half = self._half_width(question, index, told=told)
            estimate = self._answers_without_top([question])[0].step.numbers
            return self._kept(question, estimate, centres, reach, half, limit)
        if self.left >= PARTS and self.is_tested(question, alpha):
            slack = limit / question.width - Fraction(self._promise)
            return self._tested(question, math.floor(slack * WEIGHT_STEPS))
        if not takes_alpha(self.calibration):
            return EstimateAnswer("refused", (), None)
        price, marginal = own_price(self.calibration, question, alpha)
        if price.parts > self.left:
            return EstimateAnswer("refused", (), None, parts=price.parts)
        self.add_measurement(question, question.axes if marginal else (), price.share)
        index = len(self._measured.listed) - 1
        numbers, kept = self._measured.numbers(index), float(self._measured.listed[index].reach)
        half = self._half_width(question, index, told=True)
        return EstimateAnswer(
            "priced",
            numbers,
            (kept,) * len(numbers),
            parts=price.parts,
            marginal=marginal,
            intervals=_around(numbers, half),
        )

    def _tested(self, question: ResolvedQuestion, slack: int) -> EstimateAnswer:
        """Compare with the threshold raised by ``slack`` steps; the promise is raised as much."""
        estimate = self._answers_without_top([question])[0].step.numbers
        threshold = self.calibration.threshold + slack
        key = question.key + threshold.to_bytes(_THRESHOLD_BYTES, "big") if slack else question.key
        error = int(self._errors([question], [estimate])[0]) + int(self.draws.queries(self.tops, [key])[0])
        if error >= threshold + self.draws.barrier(self.tops):
            return self._measure(question)
        reach = self._promise + slack / WEIGHT_STEPS
        together, typical = self._measured.together(question.axes), self._typical_error(question.axes)
        return EstimateAnswer("below", estimate, (reach,) * len(estimate), together=together, typical=typical)

    # Methods from here on read public values only (noisy counts are public):

    def hides(self, question: ResolvedQuestion) -> bool:
        """Return True if the noise of the number that a ⊤ would publish, if any, fits 52 digits."""
        if isinstance(question, Share):
            question = question.counted
        if not isinstance(question, Linear):
            # Noise of counts fits; for several numbers a ⊤ publishes sums of the marginal's cells.
            return True
        try:
            number_law(self.calibration, question.width)
        except NoiseScaleError:
            return not self._on_top(question)[0]
        return True

    def is_tested(self, question: ResolvedQuestion, alpha: Fraction) -> bool:
        """Return True if a comparison suffices for ``alpha``: ⊥ and ⊤ both keep to it."""
        rows = alpha * question.unit / question.width
        return rows >= max(self._promise, self._on_top(question)[1])

    def _most_charged(self, question: ResolvedQuestion, alpha: Fraction | None) -> tuple[int, bool]:
        """Return the most parts that a question may cost, and True if a comparison decides."""
        if alpha is None:
            compared = not self._begun or self._answers_without_top([self._published(question)])[0].compared
            return (PARTS, True) if compared else (0, False)
        reach, index, _ = self._nearest(question)
        if self._begun and index is not None and reach <= alpha * question.unit:
            return 0, False
        if self.left >= PARTS and self.is_tested(question, alpha):
            return PARTS, True
        if not takes_alpha(self.calibration):
            return 0, False
        return own_price(self.calibration, question, alpha)[0].parts, False

    def _refused_in_advance(self, question: ResolvedQuestion, alpha: Fraction) -> EstimateAnswer | None:
        """Return the refusal of a question that the grant does not pay for if nothing settles it."""
        if self.left >= PARTS and self.is_tested(question, alpha):
            return None
        if not takes_alpha(self.calibration):
            return EstimateAnswer("refused", (), None)
        price, _ = own_price(self.calibration, question, alpha)
        return EstimateAnswer("refused", (), None, parts=price.parts) if price.parts > self.left else None

    def _published(self, question: ResolvedQuestion) -> ResolvedQuestion:
        """Return the count in place of a share that no measurement settles, if one settles the count."""
        if not isinstance(question, Share) or self._is_settled(question):
            return question
        return question.counted if self._is_settled(question.counted) else question

    def _is_settled(self, question: ResolvedQuestion) -> bool:
        reach, index, _ = self._nearest(question)
        return index is not None and reach <= self._promise * question.width

    def _answers_without_top(self, questions: Sequence[ResolvedQuestion]) -> list[_FreeAnswer]:
        """Return the answers to questions unless they are ⊤; equal questions are computed once."""
        if len(self._looks) > _MOST_LOOKS:
            self._looks = {}
        looks = self._looks
        by_axes: dict[Axes, dict[bytes, ResolvedQuestion]] = {}
        for question in questions:
            if question.key not in looks:
                by_axes.setdefault(question.axes, {})[question.key] = question
        for axes, fresh in by_axes.items():
            shares, together = self._shares(axes), self._measured.together(axes)
            alike = list(fresh.values())
            estimates = [rounded(masses, shares.total, self.rows) for masses in _numbers(alike, shares)]
            told = self._settled(axes, alike, estimates)
            for question, numbers, settled in zip(alike, estimates, told, strict=True):
                if settled is not None:
                    looks[question.key] = _FreeAnswer(settled, compared=False)
                elif self.left >= PARTS:
                    reach, typical = self._promised(len(numbers)), self._typical_error(axes)
                    below = EstimateAnswer("below", numbers, reach, together=together, typical=typical)
                    looks[question.key] = _FreeAnswer(below, compared=True)
                else:
                    typical = self._typical_error(axes)
                    unpromised = EstimateAnswer("unpromised", numbers, None, together=together, typical=typical)
                    looks[question.key] = _FreeAnswer(unpromised, compared=False)
        return [looks[question.key] for question in questions]

    def _promised(self, numbers: int) -> tuple[float, ...]:
        return (self._promise,) * numbers

    def _typical_error(self, axes: Axes) -> float | None:
        return None if self._typical is None else self._typical.root_distance(axes, self._measured)

    def _shares(self, axes: Axes, measured: Measurements | None = None) -> TensorCells:
        """Return the estimated shares on ``axes``, from all measurements or from those given."""
        measured, frame = measured or self._measured, axes
        if self._everything:
            frame = tuple(range(len(self.sizes)))
        elif self._connects:
            frame = measured.connected(axes)
        return self._shares_in(frame, axes, measured)

    def _shares_in(self, frame: Axes, axes: Axes, measured: Measurements) -> TensorCells:
        """Return the shares on ``axes`` of the estimate that is fitted on ``frame``."""
        used = measured.used_for(frame)
        key = ("shares", axes, frame, used)
        if (known := self.memory.get(key)) is None:
            if axes == frame:
                marginals = combined(measured.marginals(frame))
                tensor = fit([self.sizes[axis] for axis in frame], marginals, self.rows)
            else:
                others = tuple(place for place, axis in enumerate(frame) if axis not in axes)
                tensor = self._shares_in(frame, frame, measured).tensor.sum(axis=others)
            known = TensorCells(tensor)
            self.memory.put(key, known)
        return known  # type: ignore[no-any-return]

    def _settled(
        self, axes: Axes, questions: Sequence[ResolvedQuestion], estimates: Sequence[Numbers]
    ) -> list[EstimateAnswer | None]:
        """Return the settled answers, None for other questions.

        A measurement whose noise is small enough settles a question: its estimate is clamped to the
        interval in which the measurement proves the promised error.
        """
        found: list[EstimateAnswer | None] = [None] * len(questions)
        by_source: dict[int, list[tuple[int, float | Fraction]]] = {}
        for place, question in enumerate(questions):
            reach, index, numbered = self._nearest(question)
            if index is None or reach > self._promise * question.width:
                continue
            if numbered:
                half = self._half_width(question, index, told=True)
                found[place] = self._kept(question, estimates[place], self._measured.numbers(index), reach, half)
            else:
                by_source.setdefault(index, []).append((place, reach))
        for index, members in by_source.items():
            told = _numbers([questions[place] for place, _ in members], self._cells_on(index, axes))
            for (place, reach), centres in zip(members, told, strict=True):
                half = self._half_width(questions[place], index, told=False)
                found[place] = self._kept(questions[place], estimates[place], centres, reach, half)
        return found

    def _nearest(self, question: ResolvedQuestion) -> tuple[float | Fraction, int | None, bool]:
        """Return the most accurate measurement of a question: error bound, index, and its kind.

        The index is None if there is none. The flag is True if the question's own numbers were
        measured, False for a marginal.
        """
        told, moved = self._measured.told.get(question.key), question.width
        best = math.inf if told is None else self._measured.listed[told].reach * moved
        if not question.whole:
            return best, told, True
        key = (question.axes, question.summed, question.ranges)
        if (known := self._reaches.get(key)) is None:
            known = self._reaches[key] = min(
                (
                    (
                        self._bounds.cells(
                            one.law,
                            question.summed * one.more,
                            one.sizes,
                            ranges=question.ranges,
                            charges=one.charges,
                        ),
                        one.index,
                    )
                    for one in self._measured.covering(question.axes)
                ),
                default=(math.inf, None),
                key=operator.itemgetter(0),
            )
        reach, index = known
        return (reach * moved, index, False) if reach * moved < best else (best, told, True)

    def _kept(
        self,
        question: ResolvedQuestion,
        numbers: Numbers,
        told: Numbers,
        reach: float | Fraction,
        half: int,
        limit: Fraction | None = None,
    ) -> EstimateAnswer:
        """Clamp an estimate so that the measured numbers ``told`` prove the promise or ``limit``.

        The confidence interval of a measured number is widened to contain the estimate.
        """
        moved = question.width
        room = math.floor((self._promise * moved if limit is None else limit) - reach)
        kept = tuple(
            min(max(number, centre - room), centre + room) for number, centre in zip(numbers, told, strict=True)
        )
        reaches = [(reach + abs(number - centre)) / moved for number, centre in zip(kept, told, strict=True)]
        intervals = tuple(
            (min(centre - half, number), max(centre + half, number))
            for number, centre in zip(kept, told, strict=True)
        )
        return EstimateAnswer("settled", kept, tuple(map(float, reaches)), intervals=intervals)

    def _half_width(self, question: ResolvedQuestion, index: int, *, told: bool) -> int:
        """Return the half-width of the confidence interval of each number of a measurement.

        With ``told`` the question's numbers were measured, otherwise a marginal that covers it.
        """
        one = self._measured.listed[index]
        if not told:
            more = math.prod(self.sizes[axis] for axis in one.axes if axis not in question.axes)
            return half_width(one.law, question.summed * more, _miss(question)) * question.width
        if one.share is None:
            return half_width(number_law(self.calibration, question.width))
        # A marginal that was measured alone has one cell for each number.
        return half_width(one.law) * (question.width if one.axes else 1)

    def _cells_on(self, index: int, axes: Axes) -> TensorCells:
        key = ("on", index, axes)
        if (known := self.memory.get(key)) is None:
            known = TensorCells(self._measured.counts_on(index, axes))
            self.memory.put(key, known)
        return known  # type: ignore[no-any-return]

    def _on_top(self, question: ResolvedQuestion) -> tuple[bool, float]:
        """Return True if a ⊤ publishes a number, and the error on ⊤ in units of sensitivity."""
        key = (question.summed, question.count, question.whole)
        if (bound := self._on_tops.get(key)) is None:
            law = marginal_law(self.calibration, numbered=False)
            bound = self._on_tops[key] = self._bounds.fresh(
                law, question.count, question.summed, whole=question.whole
            )
        numbered = isinstance(question, Single) and bound > self._promise
        return numbered, self.calibration.sparse_vector.answer_alpha if numbered else bound

    # Methods from here on read private values, which are published only with noise:

    def _first_above(self, questions: Sequence[ResolvedQuestion], looks: Sequence[_FreeAnswer]) -> int:
        """Return the place of the first ⊤, or the number of questions if there is none.

        A question that was ⊥ after the same number of ⊤s is ⊥ again: error and noise are equal.
        """
        asked = [place for place, look in enumerate(looks) if look.compared and not look.below]
        if not asked:
            return len(questions)
        compared = [questions[place] for place in asked]
        errors = self._errors(compared, [looks[place].step.numbers for place in asked])
        noise = self.draws.queries(self.tops, [question.key for question in compared])
        above = errors + noise >= self.calibration.threshold + self.draws.barrier(self.tops)
        first = int(np.argmax(above)) if above.any() else len(asked)
        for place in asked[:first]:
            looks[place].below = True
        return asked[first] if first < len(asked) else len(questions)

    def _errors(self, questions: Sequence[ResolvedQuestion], estimates: Sequence[Numbers]) -> Integers:
        """Return the errors of the estimates, in steps; private."""
        errors = np.zeros(len(questions), dtype=np.int64)
        by_axes: dict[Axes, list[int]] = {}
        for place, question in enumerate(questions):
            by_axes.setdefault(question.axes, []).append(place)
        for axes, places in by_axes.items():
            alike = [questions[place] for place in places]
            errors[places] = [
                question.error(true, estimates[place])
                for place, question, true in zip(places, alike, _numbers(alike, self.private(axes)), strict=True)
            ]
        return errors

    def _measure(self, question: ResolvedQuestion) -> EstimateAnswer:
        """Measure on a ⊤; answer with a number, or with sums of the marginal if accurate enough."""
        if isinstance(question, Share):
            question = question.counted
        numbered, bound = self._on_top(question)
        self.add_measurement(question if numbered else None, question.axes)
        index = len(self._measured.listed) - 1
        measured = self._measured
        if numbered:
            told, half = measured.numbers(index), self._half_width(question, index, told=True)
        else:
            told, law = question.numbers(TensorCells(measured.counts(index))), measured.listed[index].law
            # The weights of a mean's difference sum − mean·rows are at most its range.
            width = max(1, question.range) if isinstance(question, Mean) else question.width
            half = (
                half_width(law, question.summed, _miss(question)) * width
                if question.whole
                else bounded_half_width(law, question.summed, width)
            )
        return EstimateAnswer("above", told, (bound,) * len(told), numbered, PARTS, intervals=_around(told, half))


def _miss(question: ResolvedQuestion) -> float:
    """Return the probability with which an interval misses; hits and misses of a rate share it."""
    return MISS / 2 if isinstance(question, Rates) else MISS


def _around(numbers: Numbers, half: int) -> tuple[tuple[int, int], ...]:
    return tuple((number - half, number + half) for number in numbers)


def _numbers(questions: Sequence[ResolvedQuestion], cells: TensorCells) -> list[Numbers]:
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
