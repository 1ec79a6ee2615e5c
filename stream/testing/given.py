"""What was told to an installation in memory last: enough to have it happen once more."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import Query, Source
from stream.testing.tasks import Place


@dataclass(frozen=True)
class Given:
    """Where the logs ended before something was told, what was written then, and where its answers will stand.

    ``expected`` is None where nobody knows how many answers there will be.
    """

    marks: dict[Place, int]
    written: dict[Place, int]
    expected: list[tuple[Place, Query | None, Source | None]] | None

    @property
    def count(self) -> int:
        """How many records were written."""
        return sum(end - self.marks.get(place, 0) for place, end in self.written.items())
