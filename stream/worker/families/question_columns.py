"""Questions and decisions as columns, for families that decide a whole batch at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from schemas import Interval
from schemas.wire import encode
from stream.kernel.array_operations import group_rows
from stream.kernel.byte_columns import Column, Spans, concatenate_spans, spans_of
from stream.privacy.mechanisms.above_threshold import Decisions
from stream.worker.stream_columns import StreamColumns
from stream.worker.stream_terms import WindowAndGroup

Indices = npt.NDArray[np.intp]

Row = tuple[int, str, int, float, float | None, int, bytes, WindowAndGroup | None]
"""A single question: one entry of each column of ``QuestionRows``."""

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
        order = np.argsort(np.concatenate((self.places, others.places)), kind="stable")
        return QuestionRows(
            np.concatenate((self.places, others.places)),
            concatenate_spans((self.ids, others.ids)),
            np.concatenate((self.slots, others.slots)),
            np.concatenate((self.values, others.values)),
            np.concatenate((self.thresholds, others.thresholds)),
            np.concatenate((self.offsets, others.offsets)),
            concatenate_spans((self.payloads, others.payloads)),
            {**self.windows_and_groups, **others.windows_and_groups},
        ).gather(order)

    def before_record(self, place: int) -> QuestionRows:
        """Return the questions whose records come before ``place``."""
        if not len(self.places) or self.places[-1] < place:
            return self
        return self.gather(np.flatnonzero(self.places < place))

    def gather(self, members: Indices) -> QuestionRows:
        """Return the questions with these indices."""
        return QuestionRows(
            self.places[members],
            self.ids.gather(members),
            self.slots[members],
            self.values[members],
            self.thresholds[members],
            self.offsets[members],
            self.payloads.gather(members),
            self.windows_and_groups,
        )


class PublishedNumber(NamedTuple):
    """The number that is published with a ⊤.

    ``interval`` is None if the number is a gap, the noisy distance from the threshold: its noise decided
    that the outcome is ⊤, so it is not centered on zero.
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


class ColumnFamily(Protocol):
    """A family that decides a whole batch at once."""

    def admit(self, slot: int, query: Any) -> float:
        """Return the question's private number without a change of state, or raise Rejection.

        Sparse vectors over values that queries contain do not need it.
        """

    def decide(self, rows: QuestionRows, streams: QuestionStreams) -> Verdicts:
        """Decide questions in order, without a change of the streams' state."""
