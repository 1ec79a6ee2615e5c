"""The family of AboveThreshold and NumericSparse: decides batches over thousands of streams.

Questions and decisions are columns, because the family decides a whole batch at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import cache
from itertools import repeat
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from schemas import Interval, TableSource
from schemas.wire import encode
from stream.kernel.array_operations import group_rows
from stream.kernel.byte_columns import Column, Spans, concatenate_spans, rows_of, spans_of
from stream.privacy.accuracy.intervals import half_width
from stream.privacy.composition.costs import shortest_decimal
from stream.privacy.mechanisms.above_threshold import ABOVE, Decisions, decide_queries
from stream.privacy.mechanisms.private_values import published_interval, published_numbers, value_of
from stream.privacy.noise.keyed_noise import SUBKEY_BYTES, DrawRole, event_words
from stream.privacy.noise.samplers import IntegerArray, Sampler
from stream.worker.families.context import Context
from stream.worker.families.family import require_form
from stream.worker.families.laplace_questions import sent_value_limits
from stream.worker.hosted_streams import HostedStreams, answering_mask
from stream.worker.stream_columns import SlotArrays, StreamColumns
from stream.worker.stream_terms import StreamTerms, WindowAndGroup

Indices = npt.NDArray[np.intp]

Row = tuple[int, str, int, float, float | None, int, bytes, WindowAndGroup | None]
"""A single question: one entry for each column of ``QuestionRows``."""

_NO_WINDOWS: Final[Mapping[int, WindowAndGroup]] = MappingProxyType({})


class QuestionRows(NamedTuple):
    """Admitted questions in the order of their records.

    - ``places``: indices of their records in the batch.
    - ``ids``: the questions' ids as JSON strings without the quotation marks.
    - ``values``: private numbers.
    - ``thresholds``: the questions' thresholds; NaN if a question uses the stream's threshold.
    - ``windows_and_groups``: windows and groups of standing streams' questions, by place.
    """

    places: Indices
    ids: Spans
    slots: Indices
    values: npt.NDArray[np.float64]
    thresholds: npt.NDArray[np.float64]
    offsets: Column
    payloads: Spans
    windows_and_groups: Mapping[int, WindowAndGroup] = _NO_WINDOWS

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> Self:
        """Build columns from single questions."""
        if not rows:
            return cls.empty()
        places, ids, slots, values, thresholds, offsets, payloads, windows_and_groups = zip(*rows, strict=True)
        return cls(
            np.array(places, dtype=np.intp),
            spans_of([encode(one)[1:-1] for one in ids]),
            np.array(slots, dtype=np.intp),
            np.array(values, dtype=np.float64),
            np.array(thresholds, dtype=np.float64),
            np.array(offsets, dtype=np.int64),
            spans_of(payloads),
            {
                place: window_and_group
                for place, window_and_group in zip(places, windows_and_groups, strict=True)
                if window_and_group is not None
            },
        )

    @classmethod
    @cache
    def empty(cls) -> Self:
        """Return empty columns."""
        nothing, integers, floats = spans_of([]), np.array([], dtype=np.int64), np.array([], dtype=np.float64)
        return cls(integers, nothing, integers, floats, floats, integers, nothing)

    def merge(self, others: QuestionRows) -> QuestionRows:
        """Merge two sets of questions, in the order of their records."""
        if not len(others.places) or not len(self.places):
            return others if len(others.places) else self
        pairs: Iterable[Any] = zip(self[:-1], others[:-1], strict=True)
        columns: list[Any] = [
            concatenate_spans(pair) if isinstance(pair[0], Spans) else np.concatenate(pair) for pair in pairs
        ]
        merged = QuestionRows(*columns)._replace(
            windows_and_groups={**self.windows_and_groups, **others.windows_and_groups}
        )
        return merged.gather(np.argsort(merged.places, kind="stable"))

    def before_record(self, place: int) -> QuestionRows:
        """Return the questions whose records come before ``place``."""
        if not len(self.places) or self.places[-1] < place:
            return self
        return self.gather(np.flatnonzero(self.places < place))

    def gather(self, members: Indices) -> QuestionRows:
        """Return the questions with these indices."""
        columns: Any = (one.gather(members) if isinstance(one, Spans) else one[members] for one in self[:-1])
        return QuestionRows(*columns)._replace(windows_and_groups=self.windows_and_groups)


class PublishedNumber(NamedTuple):
    """The number that is published with a ⊤.

    ``interval`` is None if the number is a gap (the noisy distance from the threshold). The noise of a gap
    also decided that the outcome is ⊤, so it is not centered on zero.
    """

    estimate: float
    basis: str
    alpha: float
    interval: Interval | None = None


class QuestionStreams(NamedTuple):
    """The streams of some questions.

    ``slots`` and ``columns`` (answers, ⊤s and other state) have one entry per stream. ``stream_of``
    has, for each question, the index of its stream. ``order`` sorts the questions stably by stream.
    """

    slots: Indices
    columns: StreamColumns
    stream_of: Indices
    order: Indices

    @classmethod
    def from_rows(cls, rows: QuestionRows, columns: StreamColumns) -> Self:
        """Group questions by stream, and gather the streams' current columns."""
        slots, stream_of, order = group_rows(rows.slots)
        return cls(slots, columns.gather(slots), stream_of, order)


class Verdicts(NamedTuple):
    """The decisions on some questions, and the state of their streams before them.

    ``answering`` is False for streams that have ended or are refused. ``numbers`` has the published
    numbers of ⊤s, by place.
    """

    streams: QuestionStreams
    answering: npt.NDArray[np.bool_]
    decisions: Decisions
    numbers: Mapping[int, PublishedNumber]


class RoundValues(SlotArrays):
    """Values that each sparse vector needs in its current round, derived from its definition.

    ``threshold`` is T in steps, and ``barrier`` is the threshold's noise ρ plus the shift s. If
    ``redraws_threshold`` is True, ρ is drawn again after each ⊤. A slot's values are derived again if the
    stream's ``start_number`` changes (at an opening or a later version of the table) or, with ``redraws_threshold``, if
    its number of ⊤s (``tops``) changes.
    """

    SEPARATE_ARRAYS = frozenset({"redraws_threshold"})

    start_number: npt.NDArray[np.int32]
    tops: npt.NDArray[np.int64]
    redraws_threshold: npt.NDArray[np.bool_]
    threshold: npt.NDArray[np.int64]
    barrier: npt.NDArray[np.int64]
    query_key: Annotated[npt.NDArray[np.uint8], SUBKEY_BYTES]

    def __init__(self, streams: HostedStreams) -> None:
        super().__init__()
        self._streams = streams
        self._any_redraws = False

    def gather_current(self, slots: npt.NDArray[np.intp], gathered: StreamColumns) -> Self:
        """Return the values of some streams for their current rounds.

        The values are derived at a stream's first query, so that idle streams do not slow down a restore.
        """
        self.grow(len(self._streams))
        found = self.gather(slots)
        stale = found.start_number != gathered.start_number
        if self._any_redraws:
            stale |= self.redraws_threshold[slots] & (found.tops != gathered.tops)
        if not stale.any():
            return found
        stale_slots, terms_of = slots[stale], gathered.terms_of[stale]
        for index in np.unique(terms_of).tolist():
            self._derive(stale_slots[terms_of == index], index)
        return self.gather(slots)

    def redraw_mask(self, slots: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_] | None:
        """Return a mask of the streams that draw ρ again after each ⊤; None if no stream does."""
        return self.redraws_threshold[slots] if self._any_redraws else None

    def _derive(self, slots: npt.NDArray[np.intp], index: int) -> None:
        """Derive the values of streams with equal terms at once."""
        terms, columns, noise = self._streams.terms[index], self._streams.columns, self._streams.noise
        self.query_key[slots] = noise.subkeys(slots, DrawRole.QUERY)
        tops = columns.tops[slots]
        self.start_number[slots] = columns.start_number[slots]
        self.tops[slots] = tops
        self.redraws_threshold[slots] = fresh = terms.sparse_vector.fresh_threshold
        self._any_redraws |= fresh
        self.threshold[slots] = terms.grid.round_public(columns.threshold[slots])
        subkeys = noise.subkeys(slots, DrawRole.THRESHOLD)
        self.barrier[slots] = terms.barriers(rows_of(subkeys, np.arange(len(slots))), tops)


_NO_NUMBERS: Final[Mapping[int, PublishedNumber]] = {}


class _Batch(NamedTuple):
    """Questions, with their indices grouped by the terms of their streams."""

    rows: QuestionRows
    by_terms: Sequence[tuple[StreamTerms, Indices]]


class _ComparedBatch(NamedTuple):
    """For each question, in steps: its number f, its threshold T, and f − T + ν with the noise ν."""

    values: IntegerArray
    thresholds: IntegerArray
    margins: IntegerArray


class SparseVectorFamily:
    """Streams of the kinds ``above_threshold`` and ``numeric_sparse``."""

    counts_rows: ClassVar = True

    def __init__(self, context: Context) -> None:
        self._context = context
        self._streams = context.streams
        self._round_values = RoundValues(context.streams)

    def admit(self, slot: int, query: Any) -> float:
        """Return a question's private number (the sent value, or a table's count or sum in steps), or raise Rejection."""
        context = self._context
        if context.trusts_values(slot):
            require_form(query, "value")
            return float(query.value)
        if (form := require_form(query, "count", "people", "sum")) == "people":
            return context.to_grid_steps(slot, context.people(slot, query.where, min_rows=query.min_rows))
        context.require_row_counts(slot, "where" if form == "count" else "sum")
        if form == "count":
            return context.to_grid_steps(slot, context.count(slot, query.where))
        context.require_planned_sum(slot, query.sum)
        return context.to_grid_steps(slot, context.total(slot, query.sum, query.where), query.sum)

    def decide(self, rows: QuestionRows, streams: QuestionStreams) -> Verdicts:
        """Compare every question with its stream's barrier, in order, without changing the streams' state."""
        hosted = self._streams
        slots, gathered, stream_of, order = streams
        values = self._round_values.gather_current(slots, gathered)
        batch = _Batch(rows, self._group_by_terms(gathered.terms_of[stream_of]))
        compared = self._compare(batch, values.threshold[stream_of])
        answering = answering_mask(gathered)
        tops = gathered.tops
        decisions = decide_queries(
            compared.margins,
            stream_of,
            values.barrier,
            np.where(answering, gathered.tops_left, 0),
            lambda row, more: hosted.barrier_of_round(int(slots[row]), int(tops[row]) + more),
            self._round_values.redraw_mask(slots),
            order,
        )
        return Verdicts(streams, answering, decisions, self._published_numbers(batch, compared, decisions))

    def _group_by_terms(self, terms_of: npt.NDArray[np.int32]) -> list[tuple[StreamTerms, Indices]]:
        terms = self._streams.terms
        if len(terms_of) and (terms_of == terms_of[0]).all():
            return [(terms[terms_of[0]], np.arange(len(terms_of)))]
        return [(terms[index], np.flatnonzero(terms_of == index)) for index in np.unique(terms_of).tolist()]

    def _compare(self, batch: _Batch, thresholds: IntegerArray) -> _ComparedBatch:
        """Return each question's number, its threshold (or else the stream's), and their noisy difference."""
        values, question_thresholds = batch.rows.values, batch.rows.thresholds
        steps = np.empty(len(values), dtype=np.int64)
        for terms, members in batch.by_terms:
            given = members[~np.isnan(question_thresholds[members])]
            thresholds[given] = terms.grid.round_public(question_thresholds[given])
            steps[members] = terms.value_grid.round_private(
                values[members], _exact_number_reader(terms, batch.rows, members)
            )
        return _ComparedBatch(steps, thresholds, steps - thresholds + self._draw_query_noise(batch))

    def _draw_query_noise(self, batch: _Batch) -> IntegerArray:
        """Draw each question's noise ν; questions with the same distribution are drawn together."""
        noise = np.empty(len(batch.rows.slots), dtype=np.int64)
        laws: dict[Sampler, list[Indices]] = {}
        for terms, members in batch.by_terms:
            laws.setdefault(terms.query_noise, []).append(members)
        for law, parts in laws.items():
            members = np.sort(np.concatenate(parts))
            rows = batch.rows if len(laws) == 1 else batch.rows.gather(members)
            noise[members] = self._draw(law, rows, self._round_values.byte_spans("query_key", rows.slots))
        return noise

    def _draw(self, law: Sampler, rows: QuestionRows, subkeys: Spans) -> IntegerArray:
        topic, partition = self._context.topic, self._context.partition
        words, low = event_words(subkeys, topic, partition, rows.offsets, rows.payloads, law.words)
        return law.draw(words, low)

    def _published_numbers(
        self, batch: _Batch, compared: _ComparedBatch, decisions: Decisions
    ) -> Mapping[int, PublishedNumber]:
        """Return the published numbers of ⊤s, by the question's place in the batch."""
        tops = np.flatnonzero(decisions.outcomes == ABOVE)
        if not len(tops):
            return _NO_NUMBERS
        numbers: dict[int, PublishedNumber] = {}
        for terms, chosen in self._group_by_terms(self._streams.columns.terms_of[batch.rows.slots[tops]]):
            calibration, members = terms.sparse_vector, tops[chosen]
            if calibration.numbers == "none":
                continue
            slots = batch.rows.slots[members]
            if calibration.numbers == "fresh":
                subkeys = rows_of(self._streams.noise.subkeys(slots, DrawRole.ANSWER), np.arange(len(slots)))
                steps = compared.values[members] + self._draw(
                    terms.answer_noise, batch.rows.gather(members), subkeys
                )
            else:
                before = self._streams.columns.tops[slots] + decisions.tops_before[members]
                barriers = map(self._streams.barrier_of_round, slots.tolist(), before.tolist())
                gaps = compared.margins[members] - np.array(list(barriers), dtype=np.int64)
                steps = compared.thresholds[members] + gaps
            published = published_numbers(steps.tolist(), calibration.grid)
            intervals: Iterable[Interval | None] = repeat(None)
            if calibration.numbers == "fresh":
                half, rounded = half_width(terms.answer_noise), calibration.rounding > 0.0
                least = None if getattr(terms.mechanism, "sums", ()) else 0.0
                low, high = (least, None) if isinstance(terms.source, TableSource) else sent_value_limits(terms)
                intervals = [
                    published_interval(step, half, calibration.grid, low=low, high=high, rounded=rounded)
                    for step in steps.tolist()
                ]
            for member, number, interval in zip(members.tolist(), published, intervals, strict=False):
                numbers[int(batch.rows.places[member])] = PublishedNumber(
                    number, calibration.numbers, calibration.answer_alpha, interval
                )
        return numbers


def _exact_number_reader(terms: StreamTerms, rows: QuestionRows, members: Indices) -> Callable[[int], Decimal]:
    """Return a function that reads the exact number of a question (given by index) from event or table."""
    if terms.trusts_values:
        return lambda place: value_of(rows.payloads[int(members[place])])
    return lambda place: shortest_decimal(float(rows.values[members[place]]))
