"""Streams that answer from an estimate of the table, fitted to all measurements.

Noise is derived from the number of ⊤s so far and the question, not from an event; docs/proofs/pmw.md proves
that this is sound. The changelog has the attributes and questions of measurements, but not their counts: a
restore derives the noise again and repeats the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from schemas import INDEPENDENCE, EstimateCalibration, Interval, Measurement, Pmw
from schemas.queries import STATISTICS
from stream.caches import BoundedCache, RecentCache, weigh_array
from stream.privacy.accuracy.intervals import NoisyNumber, clip_interval
from stream.privacy.accuracy.rate_intervals import ratio_interval, share_bounds_of_rows
from stream.privacy.mechanisms.estimate_questions import (
    CellGroups,
    MeanQuestion,
    Ranks,
    Rates,
    ResolvedQuestion,
    ShareQuestion,
    Spreads,
    memory_of_question,
)
from stream.privacy.mechanisms.estimator import EstimateAnswer, Estimator
from stream.privacy.mechanisms.measurements import Axes
from stream.privacy.mechanisms.releases import TensorCells
from stream.privacy.mechanisms.selection import error_of_sums
from stream.privacy.noise.keyed_noise import DrawRole, block_words, cell_words
from stream.privacy.noise.samplers import Sampler, Symmetric, sampler
from stream.privacy.planning.hypothesis_plans import rows_rate
from stream.privacy.planning.plans import first_price, opening_parts, shown_price
from stream.privacy.planning.warm_starts import expected_sets, workload_axes
from stream.processing.dead_letters import PRICE, Rejection
from stream.worker.families.context import AdmittedQuestion, Context
from stream.worker.families.estimate_reader import QuestionReader, ReadQuestion
from stream.worker.families.family import (
    Reply,
    RestorableFamily,
    alpha_rejection,
    max_price_parts,
    max_price_refusal,
    price_refusal,
    require_form,
    wide_noise_rejection,
)
from stream.worker.families.statistics import (
    NoisyRate,
    build_rates_reply,
    keep_largest_groups,
    read_statistic,
    share_alpha,
    share_interval,
    statistic_form,
    statistic_reply,
)

ESTIMATE_CACHE_BYTES: Final = 256 << 20
"""Maximum number of bytes of cached noisy counts and estimates per partition; others are computed again."""
EXACT_COUNT_CACHE_BYTES: Final = 128 << 20
"""Maximum number of bytes of cached exact counts per partition, with their cumulative sums."""
QUESTION_CACHE_BYTES: Final = 64 << 20
"""Maximum number of bytes of cached resolved questions per partition."""
_STATE_BYTES: Final = 16 << 10
"""Bytes of a stream's state without the measurements and caches of its estimator."""

_FORMS: Final = ("count", "fraction", "terms", "sum", "mean", "groups", "rate", *STATISTICS)
_TYPICAL_FORMS: Final = ("count", "fraction", "groups")
_BASIS_OF_KIND: Final = {
    "settled": "measured",
    "above": "noisy",
    "priced": "noisy",
    "below": "hypothesis",
    "unpromised": "hypothesis",
}
_CELLS_PER_BLOCK: Final = 1 << 15
_START_PREFIX = b"start"
_SEPARATE_PREFIX = b"alone"
_CHARGED_KINDS: Final = ("above", "priced")

Integers = npt.NDArray[np.int64]


class _AdmittedEstimateQuestion(NamedTuple):
    """A resolved question, its requested error, and the limit of its price in parts, or None."""

    read: ReadQuestion
    alpha: float | None
    max_parts: int | None


@dataclass(frozen=True, slots=True)
class _EstimateState:
    """The state of a stream; ``rows`` is the public or noisy row count."""

    incarnation: str
    reader: QuestionReader
    estimator: Estimator
    rows: int


class EstimateFamily(RestorableFamily[_EstimateState]):
    """Streams of kind ``pmw`` with an estimate."""

    def __init__(self, context: Context) -> None:
        super().__init__(context, "estimate states")
        self._estimate_cache: BoundedCache[Any, Any] = BoundedCache(ESTIMATE_CACHE_BYTES, weigh_array, "estimates")
        self._exact_count_cache: BoundedCache[tuple[int, Axes], TensorCells] = BoundedCache(
            EXACT_COUNT_CACHE_BYTES, weigh_array, "exact counts"
        )
        self._question_cache: RecentCache[tuple[str, str, Any], ReadQuestion] = RecentCache(
            QUESTION_CACHE_BYTES // 2, "questions"
        )

    def admit(self, slot: int, query: Any) -> _AdmittedEstimateQuestion:
        """Resolve a question with its requested error and highest price, or raise Rejection."""
        form = require_form(query, *_FORMS, takes_alpha=True)
        if query.alpha is not None and (
            form in {"mean", "rate", *STATISTICS}
            or (form == "fraction" and self._calibration(slot).epsilon_rows > 0.0)
        ):
            raise alpha_rejection(form)
        key = (self._streams.incarnations[slot], form, _cache_key(query))
        current = self._state(slot)
        if (known := self._question_cache.get(key)) is None:
            reader, statistic = current.reader, statistic_form(query)
            known = (
                reader.parse_question(form, query)
                if statistic is None
                else reader.resolve_statistic(read_statistic(self._context, slot, query, statistic, reader.sizes))
            )
            known.number_fits = current.estimator.number_noise_fits(known.question)
            self._question_cache.put(key, known, memory_of_question(known.question))
        if not known.number_fits and (
            query.alpha is None
            or current.estimator.comparison_suffices(known.question, _requested_error(current, known, query.alpha))
        ):
            # If the question is ⊤, its number would be published with noise that is too wide.
            raise wide_noise_rejection(form, "updates")
        return _AdmittedEstimateQuestion(known, query.alpha, max_price_parts(self._calibration(slot), query))

    def _answer_stream(self, slot: int, questions: Sequence[AdmittedQuestion]) -> list[Reply | None]:
        current = self._state(slot)
        asked: list[_AdmittedEstimateQuestion] = [one.content for one in questions]
        current.estimator.extend(int(self._streams.columns.cutoff[slot]))
        number, left = current.estimator.tops, current.estimator.parts_left
        calibration = self._calibration(slot)
        opening = 0 if self._streams.columns.answered[slot] > 0 else opening_parts(calibration)
        answers = current.estimator.answer(
            [read.question for read, _, _ in asked],
            beyond=not self._streams.terms_at(slot).ends_at_cutoff,
            requested_errors={
                place: _requested_error(current, read, alpha)
                for place, (read, alpha, _) in enumerate(asked)
                if alpha is not None
            },
            limits={place: max_parts for place, (_, _, max_parts) in enumerate(asked) if max_parts is not None},
            opening_parts=opening,
        )
        replies: list[Reply | None] = [None] * len(questions)
        updates: list[Measurement] = []
        for place, ((read, alpha, max_parts), answer) in enumerate(zip(asked, answers, strict=False)):
            if answer.kind == "limited":
                replies[place] = max_price_refusal(
                    calibration, answer.charged_parts, max_parts or 0, at_most=answer.has_marginal, opening=opening
                )
                continue
            if answer.kind == "refused":
                replies[place] = _price_refusal(calibration, answer, left, alpha)
                continue
            first, opening, update = opening > 0, 0, None
            if answer.kind in _CHARGED_KINDS:
                update = _measurement_record(current, read, answer, number)
                updates.append(update)
                number, left = number + 1, left - answer.charged_parts
            elif (known := read.last_answer) is not None and known[0] is answer:
                replies[place] = known[1]
                continue
            reply = _reply(calibration, current, read, answer, update)
            if alpha is None:
                read.last_answer = (answer, reply)
            replies[place] = reply if alpha is None else _add_price(calibration, reply, answer, alpha, first=first)
        self._keep_state(slot, current, updates)
        return replies

    @staticmethod
    def _weigh_state(state: _EstimateState) -> int:
        return _STATE_BYTES + state.estimator.nbytes

    def _build_state(self, slot: int, updates: Sequence[Any]) -> _EstimateState:
        calibration, incarnation = self._calibration(slot), self._streams.incarnations[slot]
        mechanism = self._context.mechanism(slot, Pmw)
        public = self._context.public_rows(slot)
        reader = QuestionReader(
            self._context.source_table(slot),
            self._context.tables,
            mechanism.attributes,
            rows_are_public=public is not None,
        )
        rows = self._context.noisy_rows(slot, calibration) if public is None else max(1, public)
        sizes = tuple(reader.sizes.values())
        estimator = Estimator(
            sizes,
            calibration,
            rows,
            # A function and not a method: a reference cycle would keep a closed partition's memory and files until a
            # full garbage collection.
            partial(_exact_counts, self._context, self._exact_count_cache, slot, reader),
            _KeyedMeasurements(self._context, slot),
            _StreamCache(self._estimate_cache, incarnation),
            workload_axes(mechanism, sizes) if calibration.rounds else (),
            expected_sets(mechanism, sizes) if calibration.epsilon_typical else {},
        )
        current = _EstimateState(incarnation, reader, estimator, rows)
        for update in updates:
            _apply_measurement(current, update)
        return current

    def _calibration(self, slot: int) -> EstimateCalibration:
        return self._context.calibration(slot, EstimateCalibration)


def _exact_counts(
    context: Context, cache: BoundedCache[Any, TensorCells], slot: int, reader: QuestionReader, axes: Axes
) -> TensorCells:
    key = (int(context.streams.columns.terms_of[slot]), axes)
    if (known := cache.get(key)) is None:
        everyone = context.predicate(slot, None)
        names = [reader.attributes[axis] for axis in axes]
        known = TensorCells(context.table(slot).group_counts(names, everyone))
        cache.put(key, known)
    return known


@dataclass(frozen=True, slots=True)
class _StreamCache:
    """A stream's part of the partition's cache."""

    memory: BoundedCache[Any, Any]
    incarnation: str

    def get(self, key: Any) -> Any:
        """Return the cached value, or None."""
        return self.memory.get((self.incarnation, key))

    def put(self, key: Any, value: Any) -> None:
        """Cache a value, unless it is too large."""
        self.memory.put((self.incarnation, key), value)


class _KeyedMeasurements:
    """Draws a stream's noise from its keys, the number of ⊤s and the questions' canonical bytes."""

    def __init__(self, context: Context, slot: int) -> None:
        self._streams = context.streams
        self._slot = slot
        self._barrier: int | None = None
        self._query_key = self._streams.noise.subkey(slot, DrawRole.QUERY)

    def barrier(self, tops: int) -> int:
        """Return the threshold's noise ρ, which is drawn once for the stream."""
        del tops
        if self._barrier is None:
            self._barrier = self._streams.barrier_of_round(self._slot, 0)
        return self._barrier

    def query_noise(self, tops: int, keys: Sequence[bytes]) -> Integers:
        """Draw the comparison noise ν of questions after ``tops`` ⊤s."""
        law = self._streams.terms_at(self._slot).query_noise
        number = _encode_numbers(tops)
        words, low = cell_words(self._query_key, [number + key for key in keys], law.words)
        return law.draw(words, low)

    def number_noise(self, tops: int, key: bytes, law: Symmetric) -> int:
        """Draw the noise of the number that a ⊤ publishes."""
        subkey = self._streams.noise.subkey(self._slot, DrawRole.ANSWER)
        words, low = cell_words(subkey, [_encode_numbers(tops) + key], law.words)
        return int(law.draw(words, low)[0])

    def numbers_noise(self, tops: int, key: bytes, noise_parts: int, count: int, law: Symmetric) -> Integers:
        """Draw the noise of the numbers of a question that is measured alone, for ``noise_parts`` parts of a charge."""
        place = _SEPARATE_PREFIX + _encode_numbers(noise_parts, tops) + key
        return self._draw_block(DrawRole.ANSWER, place, count, law)

    def marginal_noise(
        self, tops: int | None, axes: Axes, cells: int, law: Symmetric, noise_parts: int | None = None
    ) -> Integers:
        """Draw the noise of a marginal's cells."""
        when = _START_PREFIX if tops is None else _encode_numbers(tops)
        alone = b"" if noise_parts is None else _SEPARATE_PREFIX + _encode_numbers(noise_parts)
        place = alone + when + _encode_numbers(*axes)
        parts = []
        for start in range(0, cells, _CELLS_PER_BLOCK):
            block, count = place + _encode_numbers(start), min(_CELLS_PER_BLOCK, cells - start)
            parts.append(self._draw_block(DrawRole.RELEASE, block, count, law))
        return np.concatenate(parts)

    def choice_noise(self, number: int, count: int, law: Sampler) -> Integers:
        """Draw the noise of the scores in a round of the warm start."""
        return self._draw_block(DrawRole.CHOICE, _START_PREFIX + _encode_numbers(number), count, law)

    def typical_error_noise(self, order: int, law: Symmetric) -> int:
        """Draw the noise of the typical error of estimates about ``order`` attributes."""
        subkey = self._streams.noise.subkey(self._slot, DrawRole.TYPICAL)
        words, low = cell_words(subkey, [_START_PREFIX + _encode_numbers(order)], law.words)
        return int(law.draw(words, low)[0])

    def _draw_block(self, role: DrawRole, place: bytes, count: int, law: Sampler) -> Integers:
        words, low = block_words(self._streams.noise.subkey(self._slot, role), place, count, law.words)
        return law.draw(words, low)


def _encode_numbers(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers)


def _cache_key(query: Any) -> tuple[Any, ...]:
    """Return the fields that determine the question of a form, without its requested error."""
    terms = None if query.terms is None else tuple((term.where, term.weight) for term in query.terms)
    statistic = (query.quantile, query.q, query.iqr, query.variance, query.stddev)
    return (query.where, terms, query.sum, query.mean, query.group_by, query.rate, query.top, statistic)


def _requested_error(current: _EstimateState, read: ReadQuestion, alpha: float) -> Fraction:
    """Return the requested error in steps of the question's numbers; for a fraction, in rows."""
    return Fraction(alpha) * (current.rows if read.form == "fraction" else 1) / read.unit


def _reply(
    calibration: EstimateCalibration,
    current: _EstimateState,
    read: ReadQuestion,
    answer: EstimateAnswer,
    update: Measurement | None,
) -> Reply:
    basis = _BASIS_OF_KIND[answer.kind]
    if not answer.is_covered and (calibration.marks_guesses or calibration.warm_start == "workload"):
        basis = INDEPENDENCE
    charged = answer.kind in _CHARGED_KINDS
    question = read.question
    if isinstance(question, ShareQuestion) and len(answer.numbers) == 1:
        # The ⊤ has published only the count.
        question = question.counted
    if read.statistic is not None and isinstance(question, Ranks | Spreads):
        reach = None if answer.error_bounds is None else max(answer.error_bounds)
        reply = statistic_reply(read.statistic, question, answer.numbers, reach, calibration.beta)
        return replace(reply, charged=charged, basis=basis, update=update)
    if isinstance(question, MeanQuestion):
        estimate, alpha = _mean_and_error(question, answer)
        interval = _mean_interval(question, answer)
        return Reply(
            charged=charged,
            estimate=_convert_to_unit(read, estimate),
            basis=basis,
            alpha=None if alpha is None else _convert_to_unit(read, alpha),
            update=update,
            interval=None if interval is None else _convert_interval_to_unit(read, interval),
        )
    scale = question.width / question.unit
    alpha = None if answer.error_bounds is None else _convert_to_unit(read, max(answer.error_bounds) * scale)
    numbers = tuple(_convert_to_unit(read, number / question.unit) for number in answer.numbers)
    typical = _typical_error(current, read, answer)
    fields: dict[str, Any] = {"charged": charged, "basis": basis, "update": update, "typical_error": typical}
    if isinstance(question, Rates):
        fields |= {"grouped": read.grouped, "excluded": question.excluded_groups}
        return _rates_of_groups(numbers, alpha, answer.rates, **fields)
    intervals = _intervals(calibration, current, read, answer)
    if isinstance(question, CellGroups):
        reply = Reply(estimates=numbers, alpha=alpha, intervals=intervals, **fields)
        return reply if read.top is None else keep_largest_groups(reply, read.top)
    estimate = numbers[0]
    if read.form == "fraction":
        alpha = None if alpha is None else share_alpha(calibration, current.rows, estimate, alpha)
        estimate /= current.rows
    interval = None if intervals is None else intervals[0]
    return Reply(estimate=estimate, alpha=alpha, interval=interval, **fields)


def _typical_error(current: _EstimateState, read: ReadQuestion, answer: EstimateAnswer) -> float | None:
    question = read.question.counted if isinstance(read.question, ShareQuestion) else read.question
    if answer.error_scale is None or read.form not in _TYPICAL_FORMS or not question.full_weights:
        return None
    cells = math.prod(current.estimator.sizes[axis] for axis in question.axes)
    found = error_of_sums(answer.error_scale, question.summed_cells, cells)
    return (found / current.rows if read.form == "fraction" else found) or None


def _convert_to_unit(read: ReadQuestion, steps: float) -> float:
    """Convert a number of steps to the summed attribute's unit."""
    return steps if read.unit == 1 else steps / float(1 / read.unit)


def _convert_interval_to_unit(read: ReadQuestion, interval: Interval) -> Interval:
    return _convert_to_unit(read, interval[0]), _convert_to_unit(read, interval[1])


def _intervals(
    calibration: EstimateCalibration, current: _EstimateState, read: ReadQuestion, answer: EstimateAnswer
) -> tuple[Interval, ...] | None:
    """Return the confidence intervals of measured numbers, within their public limits.

    Each interval contains the published number; the ends of a count's interval are whole rows.
    """
    if answer.intervals is None:
        return None
    unit = read.question.unit
    if read.form == "fraction" and calibration.epsilon_rows > 0.0 and answer.noise is not None:
        [(low, high)], [number] = answer.intervals, answer.numbers
        rows = NoisyNumber(current.rows, sampler("two_sided", rows_rate(calibration)))
        [(first, last)] = answer.rates or (share_bounds_of_rows((low + high) / 2, answer.noise, rows, unit),)
        share = number / unit / current.rows
        return ((min(first, share), max(last, share)),)
    intervals = [
        (min(low, number) / unit, max(high, number) / unit)
        for (low, high), number in zip(answer.intervals, answer.numbers, strict=True)
    ]
    if read.form == "fraction":
        return tuple(share_interval(calibration, current.rows, one) for one in intervals)
    if read.form not in {"count", "groups"}:
        return tuple(_convert_interval_to_unit(read, one) for one in intervals)
    most = None if calibration.epsilon_rows > 0.0 else float(current.rows)
    return tuple(
        clip_interval((float(math.floor(low)), float(math.ceil(high))), 0.0, most) for low, high in intervals
    )


def _rates_of_groups(
    numbers: Sequence[float], reach: float | None, intervals: Sequence[Interval] | None, **fields: Any
) -> Reply:
    """Return the rates of all groups; if the counts have no error bound, the answer has no ``alpha``."""
    groups = len(numbers) // 2
    ends: Sequence[Interval | None] = intervals or [None] * groups
    pairs = zip(numbers[:groups], numbers[groups:], ends, strict=True)
    rates = [NoisyRate(hits, misses, reach or 0.0, interval) for hits, misses, interval in pairs]
    reply = build_rates_reply(rates, **fields)
    return reply if reach is not None else replace(reply, alpha=None)


def _add_price(
    calibration: EstimateCalibration, reply: Reply, answer: EstimateAnswer, alpha: float, *, first: bool
) -> Reply:
    """Add the price and the error bound; rounding must not raise the bound above the requested error."""
    kept = alpha if reply.alpha is None else min(reply.alpha, alpha)
    price = (first_price if first else shown_price)(calibration, answer.charged_parts)
    return replace(reply, alpha=kept, parts=answer.charged_parts, price=price)


def _price_refusal(
    calibration: EstimateCalibration, answer: EstimateAnswer, left: int, alpha: float | None
) -> Reply:
    if answer.charged_parts:
        return price_refusal(calibration, answer.charged_parts, left, alpha=alpha is not None)
    refusal = Rejection(
        PRICE,
        f"alpha: no published number is that exact, and with delta above 0 none can be bought; ask with an alpha of at least "
        f"{calibration.alpha:.6g} rows, or open a stream with delta 0",
    )
    return Reply(charged=False, refusal=refusal)


def _measurement_record(
    current: _EstimateState, read: ReadQuestion, answer: EstimateAnswer, number: int
) -> Measurement:
    """Return the changelog record of a measurement: its marginal, and the question if its numbers were measured."""
    alone = answer.kind == "priced"
    own = alone or answer.has_number
    return Measurement(
        incarnation=current.incarnation,
        number=number,
        attributes=tuple(current.reader.attributes[axis] for axis in read.question.axes if answer.has_marginal),
        terms=read.terms if own else (),
        sum=read.sum if own else None,
        group_by=read.group_by if alone else (),
        share=answer.charged_parts if alone else None,
        within=own and read.sum is not None,
    )


def _apply_measurement(current: _EstimateState, update: Any) -> None:
    reader = current.reader
    question: ResolvedQuestion | None = None
    if update.group_by:
        question = reader.resolve_groups(update.group_by, update.terms)
    elif update.sum is not None:
        question = reader.resolve_total(update.sum, update.terms, narrow=update.within)
    elif update.terms:
        question = reader.resolve_linear(update.terms)
    axes = tuple(reader.attributes.index(name) for name in update.attributes)
    current.estimator.add_measurement(question, axes, update.share)


def _mean_interval(question: MeanQuestion, answer: EstimateAnswer) -> Interval | None:
    """Return a measured mean's confidence interval: all r for which |sum − r·rows| is within the noise."""
    if answer.intervals is None:
        return None
    (low, high), count, most = answer.intervals[0], answer.numbers[1] / question.rows.unit, float(question.range)
    ends = (low / count, high / count) if count > 0.0 else (0.0, most)
    first, last = clip_interval(ends, 0.0, most)
    return question.minimum + first, question.minimum + last


def _mean_and_error(question: MeanQuestion, answer: EstimateAnswer) -> tuple[float, float | None]:
    bounds = (0.0, float(question.range))
    total, count = answer.numbers[0], answer.numbers[1] / question.rows.unit
    if answer.kind == "above" and answer.error_bounds is not None:
        reach = answer.error_bounds[0]
        estimate, alpha = ratio_interval((float(total), reach * max(1, question.range)), (count, reach), bounds)
        return question.minimum + estimate, alpha
    estimate = question.mean(answer.numbers)
    if answer.error_bounds is None:
        return estimate, None
    above = estimate - question.minimum
    worst = max(above, question.range - above)
    sure = count - answer.error_bounds[0]
    return estimate, min(worst, question.range * answer.error_bounds[0] / sure) if sure > 0.0 else worst
