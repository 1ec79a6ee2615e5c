"""Questions and verdicts in parallel columns, for a family that answers a whole batch in whole-array operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from stream.mechanisms.above_threshold import Decisions
from stream.processors.queries.windows import About


class Rows(NamedTuple):
    """Admitted questions in the order of their records, whose numbers in the batch are ``places``.

    ``values`` are private numbers; ``thresholds`` are the questions' own, None where the stream's counts. ``abouts`` says of each what
    it is about, None where the stream is no standing one.
    """

    places: Sequence[int] = ()
    ids: Sequence[str] = ()
    slots: Sequence[int] = ()
    values: Sequence[float] = ()
    thresholds: Sequence[float | None] = ()
    offsets: Sequence[int] = ()
    payloads: Sequence[bytes] = ()
    abouts: Sequence[About | None] = ()


class Number(NamedTuple):
    """What is published with a ⊤."""

    estimate: float
    basis: str
    alpha: float


class Verdicts(NamedTuple):
    """What became of some rows.

    ``slots`` are those of the streams that were asked, each once, and ``stream_of`` says by row which of these it is.
    ``live`` streams answer, the others have ended or are refused. A ⊤ may have a number, which stands here by its place.
    """

    slots: npt.NDArray[np.intp]
    stream_of: npt.NDArray[np.intp]
    live: npt.NDArray[np.bool_]
    decisions: Decisions
    numbers: Mapping[int, Number]


class ColumnFamily(Protocol):
    """A kind of mechanism that decides a whole batch at once."""

    def admit(self, slot: int, query: Any) -> float:
        """The private number that a question is about, or Rejection. Changes nothing.

        Where the stream's terms are plain it is the question's value as it stands, and nobody need ask.
        """

    def decide(self, rows: Rows) -> Verdicts:
        """Decide questions in order; what was decided is another's to write down."""
