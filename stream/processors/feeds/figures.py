"""What a feed has counted so far, and holds: private figures for those who run it, who may ask in the middle of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from stream.processors.feeds.standing import StandingStreams

Name = Literal["counted", "late", "left_out"]


class Figures:
    """Sums over all tallies, those among them that are no more."""

    def __init__(self, streams: StandingStreams) -> None:
        self._streams = streams
        self._gone: Counter[str] = Counter()

    def __getitem__(self, name: Name) -> int:
        return self._gone[name] + self._there()[name]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the figures of tallies that are dropped meanwhile."""
        before = self._there()
        yield
        self._gone.update(before - self._there())

    def _there(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for tally in list(self._streams.tallies.values()):
            found.update(counted=tally.counted, late=tally.late, left_out=tally.left_out)
        return found

    @property
    def open_windows(self) -> int:
        """Windows of all tallies that something was counted in."""
        return sum(len(tally.rows) for tally in list(self._streams.tallies.values()))

    @property
    def people(self) -> int:
        """People in these windows, once for each."""
        return sum(tally.people for tally in list(self._streams.tallies.values()))

    @property
    def table_bytes(self) -> int:
        """The memory that the people take."""
        return sum(
            table.nbytes for tally in list(self._streams.tallies.values()) for table in list(tally.tables.values())
        )
