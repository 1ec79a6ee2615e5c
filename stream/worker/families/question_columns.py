"""Questions and verdicts in parallel columns, for a family that answers a whole batch in whole-array operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from schemas.wire import encode
from stream.kernel import Column, Spans, grouped, joined, spans_of
from stream.privacy.mechanisms.above_threshold import Decisions
from stream.worker.stream_columns import StreamColumns
from stream.worker.stream_terms import About

Places = npt.NDArray[np.intp]

Row = tuple[int, str, int, float, float | None, int, bytes, About | None]
"""A question that was read by itself: an entry of each column of ``Rows``."""

_NOTHING: Final[Mapping[int, About]] = MappingProxyType({})


class QuestionRows(NamedTuple):
    """Admitted questions in the order of their records, whose numbers in the batch are ``places``.

    ``ids`` are written as JSON has them between quotation marks. ``values`` are private numbers; ``thresholds`` are the
    questions' own, NaN where the stream's counts. ``abouts`` says by place what questions of standing streams are about.
    """

    places: Places
    ids: Spans
    slots: Places
    values: npt.NDArray[np.float64]
    thresholds: npt.NDArray[np.float64]
    offsets: Column
    payloads: Spans
    abouts: Mapping[int, About] = _NOTHING

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Self:
        """Questions that were read one by one."""
        if not rows:
            return cls.none()
        places, ids, slots, values, thresholds, offsets, payloads, abouts = zip(*rows, strict=True)
        return cls(
            np.array(places, dtype=np.intp),
            spans_of([encode(one)[1:-1] for one in ids]),
            np.array(slots, dtype=np.intp),
            np.array(values, dtype=np.float64),
            np.array(thresholds, dtype=np.float64),
            np.array(offsets, dtype=np.int64),
            spans_of(payloads),
            {place: about for place, about in zip(places, abouts, strict=True) if about is not None},
        )

    @classmethod
    @cache
    def none(cls) -> Self:
        """No questions."""
        nothing, integers, floats = spans_of([]), np.array([], dtype=np.int64), np.array([], dtype=np.float64)
        return cls(integers, nothing, integers, floats, floats, integers, nothing)

    def and_also(self, others: QuestionRows) -> QuestionRows:
        """These and others, in the order of their records."""
        if not len(others.places) or not len(self.places):
            return others if len(others.places) else self
        order = np.argsort(np.concatenate((self.places, others.places)), kind="stable")
        return QuestionRows(
            np.concatenate((self.places, others.places)),
            joined((self.ids, others.ids)),
            np.concatenate((self.slots, others.slots)),
            np.concatenate((self.values, others.values)),
            np.concatenate((self.thresholds, others.thresholds)),
            np.concatenate((self.offsets, others.offsets)),
            joined((self.payloads, others.payloads)),
            {**self.abouts, **others.abouts},
        ).picked(order)

    def before(self, place: int) -> QuestionRows:
        """Those of records before one."""
        if not len(self.places) or self.places[-1] < place:
            return self
        return self.picked(np.flatnonzero(self.places < place))

    def picked(self, members: Places) -> QuestionRows:
        """Some of them."""
        return QuestionRows(
            self.places[members],
            self.ids.picked(members),
            self.slots[members],
            self.values[members],
            self.thresholds[members],
            self.offsets[members],
            self.payloads.picked(members),
            self.abouts,
        )


class Number(NamedTuple):
    """What is published with a ⊤."""

    estimate: float
    basis: str
    alpha: float


class Streams(NamedTuple):
    """The streams that some rows ask.

    ``slots`` has each once, with its ``figures``, and ``stream_of`` says by row which of these it is; in the ``order`` given
    the rows of one stream stand together, as they came.
    """

    slots: Places
    figures: StreamColumns
    stream_of: Places
    order: Places

    @classmethod
    def of(cls, rows: QuestionRows, columns: StreamColumns) -> Self:
        """As they are now."""
        slots, stream_of, order = grouped(rows.slots)
        return cls(slots, columns.picked(slots), stream_of, order)


class Verdicts(NamedTuple):
    """What became of some rows, and the streams as they were before.

    ``live`` streams answer, the others have ended or are refused. A ⊤ may have a number, which stands here by its place.
    """

    streams: Streams
    live: npt.NDArray[np.bool_]
    decisions: Decisions
    numbers: Mapping[int, Number]


class ColumnFamily(Protocol):
    """A kind of mechanism that decides a whole batch at once."""

    def admit(self, slot: int, query: Any) -> float:
        """The private number that a question is about, or Rejection. Changes nothing.

        Where the stream's terms are plain it is the question's value as it stands, and nobody need ask.
        """

    def decide(self, rows: QuestionRows, asked: Streams) -> Verdicts:
        """Decide questions to streams in order; what was decided is another's to write down."""
