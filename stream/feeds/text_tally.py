"""Counts of the private texts of a tally's windows.

A window keeps no more texts than ``most_bytes`` allow by ``text_size``. A window with more is too
large: it keeps none, and remains too large until it closes. So its memory is bounded by the limit, and
by the number of events within the contribution bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stream.kernel.byte_columns import Column
from stream.privacy.planning.unknown_groups_plans import text_size

TouchedTexts = Mapping[int, Sequence[bytes]]
"""The changed texts of each window by its row; none of a window that is too large."""


@dataclass(slots=True)
class _WindowTexts:
    """The counts of a window's texts, and the changelog piece that has each current count."""

    counts: dict[bytes, int] = field(default_factory=dict)
    pieces: dict[bytes, int] = field(default_factory=dict)
    size: int = 0
    is_too_large: bool = False
    piece: int = -1
    """The piece that says that the window is too large."""


class TextTally:
    """The texts of all open windows for one counted quantity, by the windows' rows."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._windows: dict[int, _WindowTexts] = {}

    def add(self, rows: Column, codes: Column, texts: Sequence[bytes], piece: int) -> TouchedTexts:
        """Count an event for each row of a window and code of a text; return the changed texts."""
        touched: dict[int, Sequence[bytes]] = {}
        for row in np.unique(rows).tolist():
            found, counts = np.unique(codes[rows == row], return_counts=True)
            window = self._windows.setdefault(row, _WindowTexts())
            if window.is_too_large:
                continue
            changed = [texts[code] for code in found.tolist()]
            for text, count in zip(changed, counts.tolist(), strict=True):
                self._set(window, text, window.counts.get(text, 0) + count, piece)
            if window.size > self._most_bytes:
                self._close(window, piece)
            touched[row] = [] if window.is_too_large else changed
        return touched

    def put(self, row: int, counts: Mapping[bytes, int] | None, piece: int) -> None:
        """Apply a piece's counts of a window; None says that it is too large."""
        window = self._windows.setdefault(row, _WindowTexts())
        if counts is None:
            self._close(window, piece)
        elif not window.is_too_large:
            for text, count in counts.items():
                self._set(window, text, count, piece)

    def counts(self, row: int) -> Mapping[bytes, int] | None:
        """Return the counts of a window's texts; None if they are too large."""
        window = self._windows.get(row)
        if window is None:
            return {}
        return None if window.is_too_large else window.counts

    def some_counts(self, row: int, texts: Iterable[bytes]) -> dict[bytes, int] | None:
        """Return the counts of some of a window's texts; None if the window is too large."""
        counts = self.counts(row)
        return None if counts is None else {text: counts[text] for text in texts}

    def clear(self, row: int) -> None:
        """Drop a window's texts."""
        self._windows.pop(row, None)

    @property
    def entry_count(self) -> int:
        """The number of entries that the changelog must hold."""
        return sum(len(window.counts) + window.is_too_large for window in self._windows.values())

    def renumber_old_entries(self, before: int, piece: int) -> TouchedTexts:
        """Mark the texts of pieces before ``before`` with ``piece``, and return these texts."""
        found: dict[int, Sequence[bytes]] = {}
        for row, window in self._windows.items():
            if window.is_too_large:
                if window.piece < before:
                    window.piece, found[row] = piece, []
            elif old := [text for text, own in window.pieces.items() if own < before]:
                window.pieces.update(dict.fromkeys(old, piece))
                found[row] = old
        return found

    def _set(self, window: _WindowTexts, text: bytes, count: int, piece: int) -> None:
        if text not in window.counts:
            window.size += text_size(text)
        window.counts[text], window.pieces[text] = count, piece

    def _close(self, window: _WindowTexts, piece: int) -> None:
        window.counts, window.pieces, window.size = {}, {}, 0
        window.is_too_large, window.piece = True, piece
