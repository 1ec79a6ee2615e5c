"""What sparse vectors compare with: their thresholds, and the barrier of the round that each is in."""

from __future__ import annotations

from typing import Annotated, Self

import numpy as np
import numpy.typing as npt

from stream.kernel import Spans, rows_of
from stream.noise import SUBKEY_BYTES, Role
from stream.processors.queries.columns import Columns, StreamColumns
from stream.processors.queries.hosted import HostedStreams


class Rounds(Columns):
    """What a partition's sparse vectors need to answer, derived from their definitions.

    ``threshold`` is T in steps and ``barrier`` ρ + s; ``fresh`` says that a stream draws ρ anew after each ⊤. The
    figures of a slot are those of the beginning ``begun`` and of the round after ``tops`` ⊤s.
    """

    APART = frozenset({"fresh"})

    begun: npt.NDArray[np.int32]
    tops: npt.NDArray[np.int64]
    fresh: npt.NDArray[np.bool_]
    threshold: npt.NDArray[np.int64]
    barrier: npt.NDArray[np.int64]
    query_key: Annotated[npt.NDArray[np.uint8], SUBKEY_BYTES]

    def __init__(self, streams: HostedStreams) -> None:
        super().__init__()
        self._streams = streams
        self._some_are_fresh = False

    def of(self, slots: npt.NDArray[np.intp], figures: StreamColumns) -> Self:
        """What streams of these figures need for the round under way.

        Left until a stream's first query, so that a restore of many streams is not held up by idle ones.
        """
        self.grow(len(self._streams))
        found = self.picked(slots)
        stale = found.begun != figures.begun
        if self._some_are_fresh:
            stale |= self.fresh[slots] & (found.tops != figures.tops)
        if not stale.any():
            return found
        waiting, terms_of = slots[stale], figures.terms_of[stale]
        for index in np.unique(terms_of).tolist():
            self._derive(waiting[terms_of == index], index)
        return self.picked(slots)

    def which_are_fresh(self, slots: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_] | None:
        """Which streams draw ρ anew after each ⊤; None if none at all does."""
        return self.fresh[slots] if self._some_are_fresh else None

    def query_keys(self, slots: npt.NDArray[np.intp]) -> Spans:
        """The keys that ν is derived from."""
        return self.texts("query_key", slots)

    def _derive(self, slots: npt.NDArray[np.intp], index: int) -> None:
        """The figures of streams of the same terms, all draws at once."""
        terms, columns, noise = self._streams.terms[index], self._streams.columns, self._streams.noise
        self.query_key[slots] = noise.subkeys(slots, Role.QUERY)
        tops = columns.tops[slots]
        self.begun[slots] = columns.begun[slots]
        self.tops[slots] = tops
        self.fresh[slots] = fresh = terms.sparse_vector.fresh_threshold
        self._some_are_fresh |= fresh
        self.threshold[slots] = terms.grid.public(columns.threshold[slots])
        subkeys = noise.subkeys(slots, Role.THRESHOLD)
        self.barrier[slots] = terms.barriers(rows_of(subkeys, np.arange(len(slots))), tops)
