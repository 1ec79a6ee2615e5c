"""The periods of each name, and sums over all streams."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from schemas import StreamState, split_period_name
from stream.monitor.entries import StreamEntry

_NO_PERIODS: Final[list[str]] = []
"""The empty list that all names without periods share."""


class PeriodsByName:
    """Names of sources or streams in order of arrival, each with the sorted starts of its periods."""

    def __init__(self) -> None:
        self._starts: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._starts)

    def add(self, name: str, *, period: bool = True) -> None:
        """Add a name. ``NAME@START`` adds a period to NAME, unless ``period`` is False."""
        named = split_period_name(name) if period else None
        if named is None:
            self._starts.setdefault(name, _NO_PERIODS)
            return
        starts = self._starts.get(named[0])
        if not starts:
            starts = self._starts[named[0]] = []
        index = bisect_left(starts, named[1])
        if index == len(starts) or starts[index] != named[1]:
            starts.insert(index, named[1])

    def remove(self, name: str, *, period: bool = True) -> None:
        """Remove a name without periods, or a period of a name."""
        named = split_period_name(name) if period else None
        if named is None:
            if not self._starts.get(name):
                self._starts.pop(name, None)
        elif named[1] in (starts := self._starts.get(named[0], [])):
            starts.remove(named[1])

    def starts_of(self, name: str) -> Sequence[str]:
        """Return the start times of a name's periods, oldest first."""
        return self._starts.get(name, ())

    def period_names(self, name: str) -> Sequence[str]:
        """Return the names of a name's periods, oldest first."""
        return [f"{name}@{start}" for start in self.starts_of(name)]

    def latest_name(self, name: str) -> str | None:
        """Return the name of the latest period; None without periods."""
        starts = self.starts_of(name)
        return f"{name}@{starts[-1]}" if starts else None

    def names_at(self, start: str) -> list[str]:
        """Return the names of all periods that begin at ``start``."""
        found = []
        for name, starts in self._starts.items():
            index = bisect_left(starts, start)
            if index < len(starts) and starts[index] == start:
                found.append(f"{name}@{start}")
        return found


class StreamTotals:
    """Sums over all streams with a grant.

    ``states`` counts the streams that lists show: of a model with periods, only its latest period; ``listed_of`` counts
    them for each registered source. ``states_of`` counts all streams of each source, and of each period's account.
    """

    def __init__(self, streams: Mapping[str, StreamEntry], periods: PeriodsByName) -> None:
        self.answered = self.tops = self.nearly_dry = self.not_answering = 0
        self.states: Counter[StreamState] = Counter()
        self.listed_of: defaultdict[str, Counter[StreamState]] = defaultdict(Counter)
        self.states_of: defaultdict[str, Counter[StreamState]] = defaultdict(Counter)
        self._streams = streams
        self._periods = periods

    def add(self, entry: StreamEntry, sign: int) -> None:
        """Add a stream to the sums (``sign`` 1), or subtract it before a change (-1)."""
        if entry.grant is None:
            return
        self.answered += sign * entry.answered
        self.tops += sign * entry.tops
        self.nearly_dry += sign * entry.nearly_dry
        self.not_answering += sign * (entry.missing_input is not None)
        self.states_of[entry.grant.source][entry.state] += sign
        self.add_listed(entry, sign)

    def find_listed(self, entry: StreamEntry) -> StreamEntry | None:
        """Return the stream that lists show for a stream's name: the latest period's, if there are periods."""
        name = entry.listed_name
        return self._streams.get(self._periods.latest_name(name) or name)

    def add_listed(self, entry: StreamEntry, sign: int) -> None:
        """Add or subtract the state that lists show for a stream's name, before or after a change of its periods."""
        listed = self.find_listed(entry)
        if listed is not None and (source := listed.listed_source) is not None:
            self.states[listed.state] += sign
            self.listed_of[source][listed.state] += sign
