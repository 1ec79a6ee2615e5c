"""A standing stream on its way from partials to questions: which windows are whole, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from stream.processors.feeds.running import RunningSums

Partials = dict[int, Any]
"""What of a window is there, by partition of the topic."""


@dataclass(slots=True)
class Merged:
    """A stream's open windows.

    A partition tells of its windows in their order, each once. So a window that it has not told of is not told of any more once
    it tells of a later one, as after a stream that had ended was extended: such a window is passed over.
    """

    incarnation: str
    partitions: int
    reached: int = -1
    open: dict[int, Partials] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    running: RunningSums = field(default_factory=RunningSums)

    def is_news(self, partial: Any) -> bool:
        """Whether a partition tells of a window for the first time."""
        return bool(partial.start > self.latest.get(partial.partition, self.reached))

    def take(self, partial: Any) -> None:
        """Take in news."""
        self.open.setdefault(partial.start, {})[partial.partition] = partial
        self.latest[partial.partition] = partial.start

    def forget(self) -> None:
        """Drop what was told of windows that are open."""
        self.open.clear()
        self.latest.clear()

    def whole(self) -> list[int]:
        """The open windows that no partition tells more of, in their order."""
        told = min(self.latest.get(number, self.reached) for number in range(self.partitions))
        return sorted(start for start in self.open if start <= told)

    def close(self, start: int) -> Partials:
        """What there is of the next window, which is open no more."""
        self.reached = start
        return self.open.pop(start)

    def due(self) -> Iterator[tuple[int, Partials]]:
        """The windows that no partition tells more of, in their order; they are open no more."""
        for start in self.whole():
            yield start, self.close(start)
