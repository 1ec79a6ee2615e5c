"""Streams that answer from an estimate of the table, fitted to all measurements.

Noise is derived from the number of ⊤s so far and the question, not from an event; docs/proofs/pmw.md proves
that this is sound. The changelog has the attributes and questions of measurements, but not their counts: a
restore derives the noise again and repeats the fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from schemas import EstimateCalibration, Measurement, Pmw
from schemas.queries import STATISTICS
from stream.caches import BoundedCache, RecentCache, weigh_array
from stream.privacy.mechanisms.estimate_questions import ResolvedQuestion, memory_of_question
from stream.privacy.mechanisms.estimator import EstimateAnswer, Estimator
from stream.privacy.mechanisms.measurements import Axes
from stream.privacy.mechanisms.releases import TensorCells
from stream.privacy.noise.keyed_noise import DrawRole, block_words, cell_words
from stream.privacy.noise.samplers import IntegerArray, Sampler, Symmetric
from stream.privacy.planning.plans import opening_parts
from stream.privacy.planning.warm_starts import expected_sets, workload_axes
from stream.worker.families.context import AdmittedQuestion, Context
from stream.worker.families.estimate_reader import QuestionReader, ReadQuestion
from stream.worker.families.estimate_replies import (
    CHARGED_KINDS,
    EstimateState,
    add_price,
    build_reply,
    refuse_price,
)
from stream.worker.families.family import (
    Reply,
    RestorableFamily,
    alpha_rejection,
    max_price_parts,
    max_price_refusal,
    require_form,
    wide_noise_rejection,
)
from stream.worker.families.statistics import read_statistic, statistic_form

ESTIMATE_CACHE_BYTES: Final = 256 << 20
"""Maximum number of bytes of cached noisy counts and estimates per partition; others are computed again."""
EXACT_COUNT_CACHE_BYTES: Final = 128 << 20
"""Maximum number of bytes of cached exact counts per partition, with their cumulative sums."""
QUESTION_CACHE_BYTES: Final = 64 << 20
"""Maximum number of bytes of cached resolved questions per partition."""
_STATE_BYTES: Final = 16 << 10
"""Bytes of a stream's state without the measurements and caches of its estimator."""

_FORMS: Final = ("count", "fraction", "terms", "sum", "mean", "groups", "rate", *STATISTICS)
_CELLS_PER_BLOCK: Final = 1 << 15
_START_PREFIX = b"start"
_SEPARATE_PREFIX = b"alone"


class _AdmittedEstimateQuestion(NamedTuple):
    """A resolved question, its requested error, and the limit of its price in parts, or None."""

    read: ReadQuestion
    alpha: float | None
    max_parts: int | None


class EstimateFamily(RestorableFamily[EstimateState]):
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
                replies[place] = refuse_price(calibration, answer, left, alpha)
                continue
            first, opening, update = opening > 0, 0, None
            if answer.kind in CHARGED_KINDS:
                update = _measurement_record(current, read, answer, number)
                updates.append(update)
                number, left = number + 1, left - answer.charged_parts
            elif (known := read.last_answer) is not None and known[0] is answer:
                replies[place] = known[1]
                continue
            reply = build_reply(calibration, current, read, answer, update)
            if alpha is None:
                read.last_answer = (answer, reply)
            replies[place] = reply if alpha is None else add_price(calibration, reply, answer, alpha, first=first)
        self._keep_state(slot, current, updates)
        return replies

    @staticmethod
    def _weigh_state(state: EstimateState) -> int:
        return _STATE_BYTES + state.estimator.nbytes

    def _build_state(self, slot: int, updates: Sequence[Any]) -> EstimateState:
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
        current = EstimateState(incarnation, reader, estimator, rows)
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

    def query_noise(self, tops: int, keys: Sequence[bytes]) -> IntegerArray:
        """Draw the comparison noise ν of questions after ``tops`` ⊤s."""
        law = self._streams.terms_at(self._slot).query_noise
        number = _encode_numbers(tops)
        words, low = cell_words(self._query_key, [number + key for key in keys], law.words)
        return law.draw(words, low)

    def number_noise(self, tops: int, key: bytes, law: Symmetric) -> int:
        """Draw the noise of the number that a ⊤ publishes."""
        return self._draw_one(DrawRole.ANSWER, _encode_numbers(tops) + key, law)

    def numbers_noise(self, tops: int, key: bytes, noise_parts: int, count: int, law: Symmetric) -> IntegerArray:
        """Draw the noise of the numbers of a question that is measured alone, for ``noise_parts`` parts of a charge."""
        place = _SEPARATE_PREFIX + _encode_numbers(noise_parts, tops) + key
        return self._draw_block(DrawRole.ANSWER, place, count, law)

    def marginal_noise(
        self, tops: int | None, axes: Axes, cells: int, law: Symmetric, noise_parts: int | None = None
    ) -> IntegerArray:
        """Draw the noise of a marginal's cells."""
        when = _START_PREFIX if tops is None else _encode_numbers(tops)
        alone = b"" if noise_parts is None else _SEPARATE_PREFIX + _encode_numbers(noise_parts)
        place = alone + when + _encode_numbers(*axes)
        parts = []
        for start in range(0, cells, _CELLS_PER_BLOCK):
            block, count = place + _encode_numbers(start), min(_CELLS_PER_BLOCK, cells - start)
            parts.append(self._draw_block(DrawRole.RELEASE, block, count, law))
        return np.concatenate(parts)

    def choice_noise(self, number: int, count: int, law: Sampler) -> IntegerArray:
        """Draw the noise of the scores in a round of the warm start."""
        return self._draw_block(DrawRole.CHOICE, _START_PREFIX + _encode_numbers(number), count, law)

    def typical_error_noise(self, order: int, law: Symmetric) -> int:
        """Draw the noise of the typical error of estimates about ``order`` attributes."""
        return self._draw_one(DrawRole.TYPICAL, _START_PREFIX + _encode_numbers(order), law)

    def _draw_one(self, role: DrawRole, place: bytes, law: Symmetric) -> int:
        words, low = cell_words(self._streams.noise.subkey(self._slot, role), [place], law.words)
        return int(law.draw(words, low)[0])

    def _draw_block(self, role: DrawRole, place: bytes, count: int, law: Sampler) -> IntegerArray:
        words, low = block_words(self._streams.noise.subkey(self._slot, role), place, count, law.words)
        return law.draw(words, low)


def _encode_numbers(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in numbers)


def _cache_key(query: Any) -> tuple[Any, ...]:
    """Return the fields that determine the question of a form, without its requested error."""
    terms = None if query.terms is None else tuple((term.where, term.weight) for term in query.terms)
    statistic = (query.quantile, query.q, query.iqr, query.variance, query.stddev)
    return (query.where, terms, query.sum, query.mean, query.group_by, query.rate, query.top, statistic)


def _requested_error(current: EstimateState, read: ReadQuestion, alpha: float) -> Fraction:
    """Return the requested error in steps of the question's numbers; for a fraction, in rows."""
    return Fraction(alpha) * (current.rows if read.form == "fraction" else 1) / read.unit


def _measurement_record(
    current: EstimateState, read: ReadQuestion, answer: EstimateAnswer, number: int
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


def _apply_measurement(current: EstimateState, update: Any) -> None:
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
