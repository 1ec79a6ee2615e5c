"""What sparse vectors compare with: their thresholds, and the barrier of the round that each is in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stream.kernel import Spans, rows_of, with_room
from stream.noise import SUBKEY_BYTES, Role
from stream.processors.queries.columns import Columns
from stream.processors.queries.hosted import HostedStreams


class Rounds(Columns):
    """What a partition's sparse vectors need to answer, derived from their definitions.

    ``threshold`` is T in steps and ``barrier`` ρ + s; ``fresh`` says that a stream draws ρ anew after each ⊤. The
    figures of a slot are those of the beginning ``begun`` and of the round after ``tops`` ⊤s.
    """

    begun: npt.NDArray[np.int64]
    tops: npt.NDArray[np.int64]
    fresh: npt.NDArray[np.bool_]
    threshold: npt.NDArray[np.int64]
    barrier: npt.NDArray[np.int64]

    def __init__(self, streams: HostedStreams) -> None:
        super().__init__()
        self._streams = streams
        self._query_keys = np.zeros((0, SUBKEY_BYTES), dtype=np.uint8)
        self._some_are_fresh = False

    def prepare(self, slots: npt.NDArray[np.intp]) -> None:
        """Bring streams' figures to the round under way.

        Left until a stream's first query, so that a restore of many streams is not held up by idle ones.
        """
        self._follow()
        columns = self._streams.columns
        stale = self.begun[slots] != columns.begun[slots]
        if self._some_are_fresh:
            stale |= self.fresh[slots] & (self.tops[slots] != columns.tops[slots])
        waiting = slots[stale]
        if len(waiting):
            terms_of = columns.terms_of[waiting]
            for index in np.unique(terms_of).tolist():
                self._derive(waiting[terms_of == index], index)

    def _follow(self) -> None:
        """Make room for streams that are new."""
        self.grow(len(self._streams))
        self._query_keys = with_room(self._query_keys, len(self._streams))

    def query_keys(self, slots: npt.NDArray[np.intp]) -> Spans:
        """The keys that ν is derived from."""
        return rows_of(self._query_keys, slots)

    def _derive(self, slots: npt.NDArray[np.intp], index: int) -> None:
        """The figures of streams of the same terms, all draws at once."""
        terms, columns, noise = self._streams.terms[index], self._streams.columns, self._streams.noise
        self._query_keys[slots] = noise.subkeys(slots, Role.QUERY)
        tops = columns.tops[slots]
        self.begun[slots] = columns.begun[slots]
        self.tops[slots] = tops
        self.fresh[slots] = fresh = terms.sparse_vector.fresh_threshold
        self._some_are_fresh |= fresh
        self.threshold[slots] = terms.grid.public(columns.threshold[slots])
        subkeys = noise.subkeys(slots, Role.THRESHOLD)
        self.barrier[slots] = terms.barriers(rows_of(subkeys, np.arange(len(slots))), tops)
