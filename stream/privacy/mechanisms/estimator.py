"""Answers from an estimate of the table, and the sparse vector that decides on new measurements.

The estimate is fitted to all measurements. A question is *settled* for free if an earlier measurement
proves that the estimate's error is at most α (the *promise*). Otherwise the estimate answers the question
for free if its error is below the noisy threshold (⊥). If not (⊤), the marginal of the question's attributes
is measured, and also the question's own number if this is more accurate. A question may request an error
that a comparison cannot promise; it is then measured alone, at its own price. All public state is a function
of the list of measurements. Proofs: docs/proofs/pmw.md.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final, Literal

import numpy as np

from schemas import EstimateCalibration
from stream.caches import ENTRY_BYTES, RecentCache
from stream.privacy.accuracy.intervals import half_width, half_width_bound
from stream.privacy.accuracy.noise_laws import variance_of
from stream.privacy.accuracy.rate_intervals import NoiseSum
from stream.privacy.composition.costs import PARTS_PER_CHARGE
from stream.privacy.composition.losses import takes_alpha
from stream.privacy.mechanisms.estimate_questions import (
    BYTES_PER_NUMBER,
    Box,
    LinearQuestion,
    MeanQuestion,
    Numbers,
    Rates,
    ResolvedQuestion,
    ShareQuestion,
    SingleNumber,
    box_numbers,
    scale_and_round,
)
from stream.privacy.mechanisms.maximum_entropy import average_equal_axes, fit_distribution
from stream.privacy.mechanisms.measurements import Axes, Draws, Measurements, ValueCache, price_alone
from stream.privacy.mechanisms.releases import TensorCells, weighted_sums
from stream.privacy.mechanisms.selection import ErrorScale, TypicalErrors, measure_workload
from stream.privacy.noise.samplers import IntegerArray, NoiseScaleError, sampler
from stream.privacy.planning.estimate_plans import ErrorBounds
from stream.privacy.planning.hypothesis_plans import WEIGHT_STEPS, rows_rate
from stream.privacy.planning.plans import Price, parts_within
from stream.privacy.planning.warm_starts import ExpectedSets, marginal_law, number_law

MAX_CELLS_OF_ONE_ESTIMATE: Final = 1 << 15
"""If the table of all attributes has at most this many cells, one estimate answers all questions."""

_THRESHOLD_BYTES: Final = 16
_FIRST_BLOCK: Final = 32
_FREE_ANSWER_CACHE_BYTES: Final = 32 << 20
"""Maximum size of cached free answers, in bytes; other free answers are computed again."""
_MAX_CACHED_BOUNDS: Final = 1 << 12
"""Each cache keeps this number of recent error bounds, and up to the same number of older ones."""
_BYTES_PER_BOUND: Final = 512
_REFUSALS: Final = ("refused", "limited")


@dataclass(frozen=True, slots=True)
class EstimateAnswer:
    """One answer.

    - ``kind``: ``settled`` (a measurement bounds the error), ``below`` (⊥), ``above`` (⊤), ``priced``
      (measured alone), ``unpromised`` (free without an error bound, because less than a charge is left),
      ``refused`` (the rest of the grant does not pay) or ``limited`` (might cost more than its limit).
    - ``numbers``: the published numbers in the question's unit; ``error_bounds``: a bound for each number, or
      None if the answer is ``unpromised``.
    - ``has_number``: True if a ⊤ measured the question's own number; ``has_marginal``: False if no marginal
      was measured.
    - ``charged_parts``: the price in parts of a charge; for ``refused`` and ``limited`` questions the price
      that they would have.
    - ``intervals``: the 95 % confidence interval of each measured number. For a mean, the first interval
      is centered at the sum, and its half-width bounds the noise of sum − mean·rows. ``noise``: the noise of each number.
    - ``rates``: the 95 % confidence interval of each measured rate or share.
    - ``is_covered``: False if the question is about an attribute, or two attributes, that no measured
      marginal contains.
    - ``error_scale``: the scale of the estimate's typical error; None if unknown.
    """

    kind: Literal["settled", "below", "above", "unpromised", "priced", "refused", "limited"]
    numbers: Numbers
    error_bounds: tuple[float, ...] | None
    has_number: bool = False
    charged_parts: int = 0
    has_marginal: bool = True
    intervals: tuple[tuple[int, int], ...] | None = None
    noise: NoiseSum | None = None
    rates: tuple[tuple[float, float], ...] | None = None
    is_covered: bool = True
    error_scale: ErrorScale | None = None


@dataclass(slots=True, eq=False)
class _FreeAnswer:
    """The answer that a question gets if it is not ⊤; ``was_below``: compared since the last ⊤, with the result ⊥."""

    answer: EstimateAnswer
    was_below: bool = False


@dataclass(eq=False)
class Estimator:
    """The measurements of one stream, and the estimates that follow from them.

    - ``sizes``: number of values of each attribute; ``rows``: the row count, which may be noisy.
    - ``true_counts``: returns the private counts of a marginal.
    - ``workload``: the sets of attributes from which the warm start chooses; ``expected``: the sets of
      attributes over which typical errors are averaged.
    - ``tops``: number of charged answers so far; ``parts_left``: the rest of the grant, in parts of a charge.
    """

    sizes: tuple[int, ...]
    calibration: EstimateCalibration
    rows: int
    true_counts: Callable[[Axes], TensorCells]
    draws: Draws
    cache: ValueCache
    workload: Sequence[Axes] = ()
    expected: ExpectedSets = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tops = 0
        self.parts_left = self.calibration.cutoff * PARTS_PER_CHARGE
        self._cutoff = self.calibration.cutoff
        self._bounds = ErrorBounds(self.calibration)
        self._promise = self.calibration.sparse_vector.alpha
        self._measured = Measurements(self.sizes, self.calibration, self.true_counts, self.draws, self.cache)
        self._has_workload = self.calibration.warm_start == "workload"
        # A fit is slow if many pairs of attributes are measured that depend strongly on each other.
        self._uses_one_estimate = math.prod(self.sizes) <= MAX_CELLS_OF_ONE_ESTIMATE and not self._has_workload
        self._warm_start_complete, self._warm_start_charged = False, not self._has_workload
        self._typical_errors: TypicalErrors | None = None
        self._free_answers: RecentCache[bytes, _FreeAnswer] = RecentCache(_FREE_ANSWER_CACHE_BYTES // 2)
        self._top_bounds: RecentCache[tuple[int, int, bool], float] = RecentCache(_MAX_CACHED_BOUNDS)
        self._marginal_bounds: RecentCache[tuple[Axes, int, bool], tuple[float, int | None]] = RecentCache(
            _MAX_CACHED_BOUNDS
        )
        self._coverage: RecentCache[Axes, tuple[bool, ErrorScale | None]] = RecentCache(_MAX_CACHED_BOUNDS)

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes, without the values in ``cache``."""
        bounds = self._top_bounds.weight + self._marginal_bounds.weight + self._coverage.weight
        return self._measured.nbytes + self._free_answers.weight + _BYTES_PER_BOUND * bounds

    def add_measurement(self, question: ResolvedQuestion | None, axes: Axes, own_price: int | None = None) -> None:
        """Add the measurement of a charged answer: the marginal on ``axes``.

        ``question`` is given if its own numbers were measured too. ``own_price`` is given if the
        question was measured alone, in parts of a charge. If ``axes`` are empty, no marginal was measured.
        """
        self._complete_warm_start()
        self._measured.add(self.tops, axes, question, own_price)
        self.tops += 1
        self.parts_left -= PARTS_PER_CHARGE if own_price is None else own_price
        for cache in (self._free_answers, self._marginal_bounds, self._coverage):
            cache.clear()

    def _complete_warm_start(self) -> None:
        """Measure the marginals of the warm start, and prepare typical errors with its estimates.

        The choice of marginals depends on private data; it is charged with the first answer.
        """
        if self._warm_start_complete:
            return
        self._warm_start_complete = True
        if self._has_workload:
            measure_workload(self._measured, self.workload, self.rows)
        if self.calibration.epsilon_typical > 0.0:
            opening = self._measured.copy()
            self._typical_errors = TypicalErrors(
                opening, self.expected, self.rows, lambda axes: self._estimated_shares(axes, opening)
            )

    def extend(self, cutoff: int) -> None:
        """Set the total number of ⊤s for which the grant with its extensions pays."""
        if cutoff != self._cutoff:
            self.parts_left += (cutoff - self._cutoff) * PARTS_PER_CHARGE
            self._cutoff = cutoff
            self._free_answers.clear()

    def answer(
        self,
        questions: Sequence[ResolvedQuestion],
        *,
        beyond: bool,
        requested_errors: Mapping[int, Fraction] | None = None,
        limits: Mapping[int, int] | None = None,
        opening_parts: int = 0,
    ) -> list[EstimateAnswer]:
        """Answer questions in order until the grant is used up.

        With ``beyond``, later questions are answered too, without a promise. ``requested_errors`` has the
        requested errors of some questions by index. ``limits`` has the most parts that some questions may
        cost: a question that might cost more is ``limited``, before any private value is read. A question
        is ⊤ if error plus noise ≥ threshold plus barrier, in whole steps. Questions are decided in blocks: after the first
        ⊤ of a block, the rest of the block is decided again. Blocks grow until a ⊤ occurs.

        The first answer is also charged ``opening_parts`` for the warm start; later answers have 0. Until
        the first answer no refusal depends on the choices of the warm start.
        """
        requested_errors, limits = requested_errors or {}, limits or {}
        self._complete_warm_start()
        self._warm_start_charged = not opening_parts or not self._has_workload
        decided_alone = sorted({*requested_errors, *limits})
        answers: list[EstimateAnswer] = []
        size = _FIRST_BLOCK
        while len(answers) < len(questions) and (self.parts_left > 0 or beyond):
            start = len(answers)
            if any(answer.kind not in _REFUSALS for answer in answers):
                self._warm_start_charged, opening_parts = True, 0
            if start in limits:
                parts, tested = self._largest_charge(questions[start], requested_errors.get(start))
                price = (
                    min(opening_parts + parts, parts_within(self.calibration, "100%")) if opening_parts else parts
                )
                if parts <= self.parts_left and limits[start] < price:
                    answers.append(EstimateAnswer("limited", (), None, charged_parts=price, has_marginal=tested))
                    continue
            if start in requested_errors:
                answers.append(self._answer_within(questions[start], requested_errors[start]))
                continue
            place = bisect_right(decided_alone, start)
            asked = questions[start : min(start + size, *decided_alone[place : place + 1], len(questions))]
            block = [self._choose_question_to_publish(question) for question in asked]
            free_answers = self._answers_without_top(block)
            first_top = (
                self._find_first_top(block, free_answers) if self.parts_left >= PARTS_PER_CHARGE else len(block)
            )
            answers += [
                _refuse(PARTS_PER_CHARGE)
                if free_answer.answer.kind == "unpromised" and not beyond
                else self._add_share_interval(one, free_answer.answer)
                for one, free_answer in zip(asked, free_answers[:first_top], strict=False)
            ]
            size *= 2
            if first_top < len(block):
                answers.append(self._measure(block[first_top]))
                size = _FIRST_BLOCK
        return answers

    def _answer_within(self, question: ResolvedQuestion, alpha: Fraction) -> EstimateAnswer:
        """Answer within ``alpha``: by an earlier measurement, by a comparison, or by a new measurement."""
        if not self._warm_start_charged:
            refusal = self._price_unsettled(question, alpha)
            if isinstance(refusal, EstimateAnswer):
                return refusal
        reach, index, numbered = self._find_best_measurement(question)
        limit = alpha * question.unit
        if index is not None and reach <= limit:
            cells = None if numbered else self._noisy_cells_on(index, question.axes)
            centers = self._measured.noisy_numbers(index) if cells is None else question.compute_numbers(cells)
            noise = self._noise(question, index, numbered=numbered)
            estimate = self._answers_without_top([question])[0].answer.numbers
            return self._clamp_estimate(question, estimate, centers, reach, noise, limit, numbered=numbered)
        priced = self._price_unsettled(question, alpha)
        if priced is None:
            slack = limit / question.width - Fraction(self._promise)
            return self._compare_with_threshold(question, math.floor(slack * WEIGHT_STEPS))
        if isinstance(priced, EstimateAnswer):
            return priced
        price, marginal = priced
        self.add_measurement(question, question.axes if marginal else (), price.noise_parts)
        index = len(self._measured.listed) - 1
        numbers, reach = self._measured.noisy_numbers(index), float(self._measured.listed[index].reach)
        noise = self._noise(question, index, numbered=True)
        return EstimateAnswer(
            "priced",
            numbers,
            (reach,) * len(numbers),
            charged_parts=price.parts,
            has_marginal=marginal,
            intervals=_intervals_around(numbers, noise.half_width()),
        )

    def _compare_with_threshold(self, question: ResolvedQuestion, slack: int) -> EstimateAnswer:
        """Compare with the threshold plus ``slack`` steps, by which the promised error grows too."""
        estimate = self._answers_without_top([question])[0].answer.numbers
        threshold = self.calibration.threshold + slack
        key = question.key + threshold.to_bytes(_THRESHOLD_BYTES, "big") if slack else question.key
        error = int(self._compute_errors([question], [estimate])[0]) + int(
            self.draws.query_noise(self.tops, [key])[0]
        )
        if error >= threshold + self.draws.barrier(self.tops):
            return self._measure(question)
        return self._answer_from_estimate(question.axes, estimate, self._promise + slack / WEIGHT_STEPS)

    # The methods from here on read public values only; noisy counts are public.

    def number_noise_fits(self, question: ResolvedQuestion) -> bool:
        """Return True unless a ⊤ would publish a number whose noise does not fit 52 binary digits."""
        if isinstance(question, ShareQuestion):
            question = question.counted
        if not isinstance(question, LinearQuestion):
            # The noise of counts always fits. For several numbers, a ⊤ publishes sums of the marginal's cells.
            return True
        try:
            number_law(self.calibration, question.width)
        except NoiseScaleError:
            return not self._bound_on_top(question)[0]
        return True

    def comparison_suffices(self, question: ResolvedQuestion, alpha: Fraction) -> bool:
        """Return True if the answer after a comparison is within ``alpha``, both on ⊥ and on ⊤."""
        rows = alpha * question.unit / question.width
        return rows >= max(self._promise, self._bound_on_top(question)[1])

    def _largest_charge(self, question: ResolvedQuestion, alpha: Fraction | None) -> tuple[int, bool]:
        """Return the most parts that a question may cost, and True if a comparison decides on the charge."""
        if alpha is None:
            if self._warm_start_charged:
                [free] = self._answers_without_top([self._choose_question_to_publish(question)])
                if free.answer.kind != "below":
                    return 0, False
            return PARTS_PER_CHARGE, True
        reach, index, _ = self._find_best_measurement(question)
        if self._warm_start_charged and index is not None and reach <= alpha * question.unit:
            return 0, False
        priced = self._price_unsettled(question, alpha)
        if priced is None:
            return PARTS_PER_CHARGE, True
        return priced.charged_parts if isinstance(priced, EstimateAnswer) else priced[0].parts, False

    def _price_unsettled(
        self, question: ResolvedQuestion, alpha: Fraction
    ) -> tuple[Price, bool] | EstimateAnswer | None:
        """Return how an unsettled question is paid: its own price, a refusal, or None for a comparison.

        With the price comes True if it pays for a marginal, and False if it pays for the question's own numbers.
        """
        if self.parts_left >= PARTS_PER_CHARGE and self.comparison_suffices(question, alpha):
            return None
        if not takes_alpha(self.calibration):
            return _refuse(0)
        priced = price_alone(self.calibration, question, alpha)
        return _refuse(priced[0].parts) if priced[0].parts > self.parts_left else priced

    def _choose_question_to_publish(self, question: ResolvedQuestion) -> ResolvedQuestion:
        """Return the count of a share's hits if measurements settle this count but not the share."""
        if not isinstance(question, ShareQuestion) or self._is_settled(question):
            return question
        return question.counted if self._is_settled(question.counted) else question

    def _add_share_interval(self, question: ResolvedQuestion, answer: EstimateAnswer) -> EstimateAnswer:
        """Add the interval of a share if a marginal settles only the count of its hits.

        The interval is computed from the marginal's cells. It is left out if the noisy number of rows gives a more
        accurate one.
        """
        if not isinstance(question, ShareQuestion) or answer.kind != "settled" or answer.rates is not None:
            return answer
        _, index, numbered = self._find_best_measurement(question.counted)
        if index is None or numbered:
            return answer
        law, more = self._measured.listed[index].law, self._count_cells_per_cell(question, index)
        rows_law = sampler("two_sided", rows_rate(self.calibration))
        if question.summed_cells * more * variance_of(law) > variance_of(rows_law):
            return answer
        cells = question.compute_numbers(self._noisy_cells_on(index, question.axes))
        return replace(answer, rates=question.compute_rate_intervals(cells, law, more))

    def _is_settled(self, question: ResolvedQuestion) -> bool:
        reach, index, _ = self._find_best_measurement(question)
        return index is not None and reach <= self._promise * question.width

    def _answers_without_top(self, questions: Sequence[ResolvedQuestion]) -> list[_FreeAnswer]:
        """Return the answers that questions get if they are not ⊤; equal questions are computed once."""
        free_answers: dict[bytes, _FreeAnswer] = {}
        by_axes: dict[Axes, dict[bytes, ResolvedQuestion]] = {}
        for question in questions:
            if (known := self._free_answers.get(question.key)) is not None:
                free_answers[question.key] = known
            else:
                by_axes.setdefault(question.axes, {})[question.key] = question
        for axes, new_questions in by_axes.items():
            shares, group = self._estimated_shares(axes), list(new_questions.values())
            estimates = [
                scale_and_round(masses, shares.total, self.rows) for masses in _numbers_of_questions(group, shares)
            ]
            settled_answers = self._settle_questions(axes, group, estimates)
            promise = self._promise if self.parts_left >= PARTS_PER_CHARGE else None
            for question, numbers, settled in zip(group, estimates, settled_answers, strict=True):
                answer = settled or self._answer_from_estimate(axes, numbers, promise)
                found = free_answers[question.key] = _FreeAnswer(answer)
                size = 2 * ENTRY_BYTES + len(question.key) + BYTES_PER_NUMBER * len(numbers)
                self._free_answers.put(question.key, found, size)
        return [free_answers[question.key] for question in questions]

    def _answer_from_estimate(self, axes: Axes, numbers: Numbers, bound: float | None) -> EstimateAnswer:
        """Return an answer with the estimate's numbers and the error bound of each, if there is one."""
        if (known := self._coverage.get(axes)) is None:
            typical = self._typical_errors
            scale = None if typical is None else typical.error_scale(axes, self._measured, self._estimated_shares)
            known = self._measured.are_measured_together(axes), scale
            self._coverage.put(axes, known)
        is_covered, scale = known
        if bound is None:
            return EstimateAnswer("unpromised", numbers, None, is_covered=is_covered, error_scale=scale)
        bounds = (bound,) * len(numbers)
        return EstimateAnswer("below", numbers, bounds, is_covered=is_covered, error_scale=scale)

    def _estimated_shares(self, axes: Axes, measured: Measurements | None = None) -> TensorCells:
        """Return the estimated shares on ``axes``, from ``measured`` or by default from all measurements."""
        measured, fitted_axes = measured or self._measured, axes
        if self._uses_one_estimate:
            fitted_axes = tuple(range(len(self.sizes)))
        elif self._has_workload:
            fitted_axes = measured.connect_axes(axes)
        return self._fitted_shares(fitted_axes, axes, measured)

    def _fitted_shares(self, fitted_axes: Axes, axes: Axes, measured: Measurements) -> TensorCells:
        """Return the shares on ``axes`` of the estimate that is fitted on ``fitted_axes``."""
        used = measured.indices_for_fit(fitted_axes)
        key = ("shares", axes, fitted_axes, used)
        if (cached := self.cache.get(key)) is None:
            if axes == fitted_axes:
                marginals = average_equal_axes(measured.noisy_marginals(fitted_axes))
                tensor = fit_distribution([self.sizes[axis] for axis in fitted_axes], marginals, self.rows)
            else:
                others = tuple(place for place, axis in enumerate(fitted_axes) if axis not in axes)
                tensor = self._fitted_shares(fitted_axes, fitted_axes, measured).tensor.sum(axis=others)
            cached = TensorCells(tensor)
            self.cache.put(key, cached)
        return cached  # type: ignore[no-any-return]

    def _settle_questions(
        self, axes: Axes, questions: Sequence[ResolvedQuestion], estimates: Sequence[Numbers]
    ) -> list[EstimateAnswer | None]:
        """Return the answers of settled questions, and None for other questions.

        The estimate is clamped to the interval in which the measurement proves the promised error.
        """
        answers: list[EstimateAnswer | None] = [None] * len(questions)
        by_source: dict[int, list[tuple[int, float | Fraction]]] = {}
        for place, question in enumerate(questions):
            reach, index, numbered = self._find_best_measurement(question)
            if index is None or reach > self._promise * question.width:
                continue
            if numbered:
                noise = self._noise(question, index, numbered=True)
                answers[place] = self._clamp_estimate(
                    question, estimates[place], self._measured.noisy_numbers(index), reach, noise, numbered=True
                )
            else:
                by_source.setdefault(index, []).append((place, reach))
        for index, members in by_source.items():
            centers_by_question = _numbers_of_questions(
                [questions[place] for place, _ in members], self._noisy_cells_on(index, axes)
            )
            for (place, reach), centers in zip(members, centers_by_question, strict=True):
                question = questions[place]
                noise = self._noise(question, index, numbered=False)
                answer = self._clamp_estimate(question, estimates[place], centers, reach, noise, numbered=False)
                if isinstance(question, Rates):
                    law, more = self._measured.listed[index].law, self._count_cells_per_cell(question, index)
                    answer = replace(answer, rates=question.compute_rate_intervals(centers, law, more))
                answers[place] = answer
        return answers

    def _find_best_measurement(self, question: ResolvedQuestion) -> tuple[float | Fraction, int | None, bool]:
        """Return the error bound and the index of the most accurate measurement of a question.

        The index is None if no measurement contains the question. The third value is True if the question's
        own numbers were measured, and False for a marginal.
        """
        own_index, width = self._measured.best_by_question.get(question.key), question.width
        best = math.inf if own_index is None else self._measured.listed[own_index].reach * width
        if not question.full_weights:
            return best, own_index, True
        key = (question.axes, question.summed_cells, question.are_ranges)
        if (cached := self._marginal_bounds.get(key)) is None:
            cached = min(
                (
                    (
                        self._bounds.bound_cell_sums(
                            one.law,
                            question.summed_cells * one.cells_per_cell,
                            one.sizes,
                            ranges=question.are_ranges,
                            charges=one.charges,
                        ),
                        one.index,
                    )
                    for one in self._measured.covering_marginals(question.axes)
                ),
                default=(math.inf, None),
                key=operator.itemgetter(0),
            )
            self._marginal_bounds.put(key, cached)
        reach, index = cached
        return (reach * width, index, False) if reach * width < best else (best, own_index, True)

    def _clamp_estimate(
        self,
        question: ResolvedQuestion,
        numbers: Numbers,
        measured: Numbers,
        reach: float | Fraction,
        noise: NoiseSum,
        limit: Fraction | None = None,
        *,
        numbered: bool,
    ) -> EstimateAnswer:
        """Clamp an estimate so that ``measured`` proves its error to be within ``limit``, or the promise.

        The estimate is not fitted to the question's own numbers. So if ``numbered``, a measured number replaces an estimate
        that is outside its interval.
        """
        width, half = question.width, noise.half_width()
        room = math.floor((self._promise * width if limit is None else limit) - reach)
        clamped = tuple(
            center if numbered and abs(number - center) > half else min(max(number, center - room), center + room)
            for number, center in zip(numbers, measured, strict=True)
        )
        bounds = tuple(
            float((reach + abs(number - center)) / width) for number, center in zip(clamped, measured, strict=True)
        )
        intervals = _intervals_around(measured, half)
        return EstimateAnswer("settled", clamped, bounds, intervals=intervals, noise=noise)

    def _noise(self, question: ResolvedQuestion, index: int, *, numbered: bool) -> NoiseSum:
        """Return the noise of each number of a measurement, in the question's unit.

        ``numbered`` is True if the question's own numbers were measured, and False for a marginal.
        """
        one = self._measured.listed[index]
        if not numbered:
            return NoiseSum(
                one.law, question.summed_cells * self._count_cells_per_cell(question, index), question.width
            )
        if one.noise_parts is None:
            return NoiseSum(number_law(self.calibration, question.width), 1)
        # A marginal that was measured alone has one cell for each number.
        return NoiseSum(one.law, 1, question.width if one.axes else 1)

    def _count_cells_per_cell(self, question: ResolvedQuestion, index: int) -> int:
        """Return the number of measured cells in each cell of a question."""
        measured = self._measured.listed[index].axes
        return math.prod(self.sizes[axis] for axis in measured if axis not in question.axes)

    def _noisy_cells_on(self, index: int, axes: Axes) -> TensorCells:
        key = ("on", index, axes)
        if (cached := self.cache.get(key)) is None:
            others = [place for place, axis in enumerate(self._measured.listed[index].axes) if axis not in axes]
            cached = TensorCells(self._measured.noisy_counts(index).sum(axis=tuple(others)))
            self.cache.put(key, cached)
        return cached  # type: ignore[no-any-return]

    def _bound_on_top(self, question: ResolvedQuestion) -> tuple[bool, float]:
        """Return True if a ⊤ publishes a number, and the error bound on ⊤ in units of the sensitivity."""
        key = (question.summed_cells, question.count, question.full_weights)
        if (bound := self._top_bounds.get(key)) is None:
            law = marginal_law(self.calibration, numbered=False)
            bound = self._bounds.bound_new_numbers(
                law, question.count, question.summed_cells, full_weights=question.full_weights
            )
            self._top_bounds.put(key, bound)
        numbered = isinstance(question, SingleNumber) and bound > self._promise
        return numbered, self.calibration.sparse_vector.answer_alpha if numbered else bound

    # The methods from here on read private values, which are published only with noise.

    def _find_first_top(self, questions: Sequence[ResolvedQuestion], free_answers: Sequence[_FreeAnswer]) -> int:
        """Return the index of the first ⊤, or the number of questions if there is none.

        A question that was ⊥ after the same number of ⊤s is ⊥ again, because error and noise are equal.
        """
        asked = [
            place for place, free in enumerate(free_answers) if free.answer.kind == "below" and not free.was_below
        ]
        if not asked:
            return len(questions)
        compared = [questions[place] for place in asked]
        errors = self._compute_errors(compared, [free_answers[place].answer.numbers for place in asked])
        noise = self.draws.query_noise(self.tops, [question.key for question in compared])
        above = errors + noise >= self.calibration.threshold + self.draws.barrier(self.tops)
        first = int(np.argmax(above)) if above.any() else len(asked)
        for place in asked[:first]:
            free_answers[place].was_below = True
        return asked[first] if first < len(asked) else len(questions)

    def _compute_errors(self, questions: Sequence[ResolvedQuestion], estimates: Sequence[Numbers]) -> IntegerArray:
        """Return the errors of the estimates, in steps; private."""
        errors = np.zeros(len(questions), dtype=np.int64)
        by_axes: dict[Axes, list[int]] = {}
        for place, question in enumerate(questions):
            by_axes.setdefault(question.axes, []).append(place)
        for axes, places in by_axes.items():
            true_numbers = _numbers_of_questions([questions[place] for place in places], self.true_counts(axes))
            errors[places] = [
                questions[place].compute_error(true, estimates[place])
                for place, true in zip(places, true_numbers, strict=True)
            ]
        return errors

    def _measure(self, question: ResolvedQuestion) -> EstimateAnswer:
        """Measure on a ⊤; answer with sums of the marginal if they are accurate enough, else with a number."""
        if isinstance(question, ShareQuestion):
            question = question.counted
        numbered, bound = self._bound_on_top(question)
        noise = rates = None
        self.add_measurement(question if numbered else None, question.axes)
        index = len(self._measured.listed) - 1
        measured = self._measured
        if numbered:
            numbers, noise = measured.noisy_numbers(index), self._noise(question, index, numbered=True)
            half = noise.half_width()
        else:
            numbers = question.compute_numbers(TensorCells(measured.noisy_counts(index)))
            law = measured.listed[index].law
            # For a mean, the weights in sum − mean·rows are at most the range of the attribute.
            width = max(1, question.range) if isinstance(question, MeanQuestion) else question.width
            half = (
                half_width(law, question.summed_cells) * width
                if question.full_weights
                else half_width_bound(law, question.summed_cells, width)
            )
            rates = question.compute_rate_intervals(numbers, law) if isinstance(question, Rates) else None
        return EstimateAnswer(
            "above",
            numbers,
            (bound,) * len(numbers),
            numbered,
            PARTS_PER_CHARGE,
            intervals=_intervals_around(numbers, half),
            noise=noise,
            rates=rates,
        )


def _refuse(charged_parts: int) -> EstimateAnswer:
    return EstimateAnswer("refused", (), None, charged_parts=charged_parts)


def _intervals_around(numbers: Numbers, half: int) -> tuple[tuple[int, int], ...]:
    return tuple((number - half, number + half) for number in numbers)


def _numbers_of_questions(questions: Sequence[ResolvedQuestion], cells: TensorCells) -> list[Numbers]:
    boxes = [question for question in questions if isinstance(question, Box)]
    if len(boxes) == len(questions):
        return [(number,) for number in box_numbers(boxes, cells)] if boxes else []
    single = [
        (place, question.parts[0][1])
        for place, question in enumerate(questions)
        if isinstance(question, LinearQuestion) and [factor for factor, _ in question.parts] == [1]
    ]
    sums = weighted_sums([weighting for _, weighting in single], cells).tolist()
    number_of = {place: (value,) for (place, _), value in zip(single, sums, strict=True)}
    return [
        number_of[place] if place in number_of else question.compute_numbers(cells)
        for place, question in enumerate(questions)
    ]
