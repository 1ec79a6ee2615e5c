"""Figures of many streams as numpy arrays, one entry for each slot."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

UNLIMITED: Final = 1 << 62
"""Stands for the cutoff where one charge pays for all."""

_ROOM_AT_FIRST: Final = 64


class Columns:
    """Arrays of equal length, one for each annotation of a subclass; entries are 0 at first.

    An array is exchanged when it grows, so whoever keeps ``Columns`` asks for its arrays anew.
    """

    def __init__(self) -> None:
        self._room = _ROOM_AT_FIRST
        self._entries = _entries(type(self))  # type: ignore[arg-type]  # classes are hashable
        for name, entry in self._entries.items():
            setattr(self, name, np.zeros(self._room, dtype=entry))

    def grow(self, count: int) -> None:
        """Make room for so many slots."""
        if count <= self._room:
            return
        while self._room < count:
            self._room *= 2
        for name, entry in self._entries.items():
            values = getattr(self, name)
            grown = np.zeros(self._room, dtype=entry)
            grown[: len(values)] = values
            setattr(self, name, grown)


class StreamColumns(Columns):
    """The figures that a partition keeps of each of its streams.

    ``cutoff`` is how many ordinary charged answers a stream's grant pays for, ``tops`` how many charged ones it has given and
    ``surplus`` what these have cost beyond an ordinary charge each, in parts of one; 0 for sparse vectors. ``threshold`` is
    that of a sparse vector's definition; ``plain`` says that a stream is one over trusted values. ``begun`` is the number of the beginning, never 0, that a stream's figures go
    back to: another beginning, another number.
    """

    terms_of: npt.NDArray[np.int32]
    begun: npt.NDArray[np.int64]
    threshold: npt.NDArray[np.float64]
    plain: npt.NDArray[np.bool_]
    cutoff: npt.NDArray[np.int64]
    state: npt.NDArray[np.uint8]
    refused: npt.NDArray[np.bool_]
    changed: npt.NDArray[np.bool_]
    tops: npt.NDArray[np.int64]
    surplus: npt.NDArray[np.int64]
    answered: npt.NDArray[np.int64]
    last_offset: npt.NDArray[np.int64]
    written_at: npt.NDArray[np.int64]
    due: npt.NDArray[np.int64]

    def tops_left(self, slots: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
        """How many charged answers streams may still give."""
        left: npt.NDArray[np.int64] = self.cutoff[slots] - self.tops[slots]
        return left


@cache
def _entries(kind: type[Columns]) -> dict[str, Any]:
    """The types of the entries, for each annotation of a subclass; they take longer to find than the arrays to make."""
    return {name: _entry(array) for name, array in get_type_hints(kind).items()}


def _entry(array: Any) -> Any:
    """The type of the entries of ``npt.NDArray[...]``: innermost, for numpy's releases nest what stands around it differently."""
    kind = array
    while parts := get_args(kind):
        kind = parts[-1]
    return kind
