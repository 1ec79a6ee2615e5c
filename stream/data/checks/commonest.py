"""Which values come most often, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from stream.data.checks.report import Found

SHOWN_VALUES: Final = 5
MAX_VALUES: Final = 10_000
"""Most different values that are told apart; beyond, the rarer half is forgotten."""

_SHOWN_LENGTH: Final = 60


class Commonest:
    """Counts values, each cut to 60 characters; exactly, as long as there are no more than ``MAX_VALUES``."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._all = True

    def __iter__(self) -> Iterator[str]:
        """The values that are told apart, in no order."""
        return iter(self._rows)

    def add(self, values: pl.Series) -> None:
        """Count a batch of texts; missing ones are not counted."""
        counted = values.drop_nulls().str.head(_SHOWN_LENGTH).alias("value").value_counts(name="rows")
        for value, rows in counted.iter_rows():
            self._rows[value] = self._rows.get(value, 0) + rows
        if len(self._rows) > MAX_VALUES:
            self._all = False
            self._rows = {one.value: one.rows for one in self._sorted()[: MAX_VALUES // 2]}

    def shown(self) -> tuple[Found, ...]:
        """The values that came most often."""
        return tuple(self._sorted()[:SHOWN_VALUES])

    def different(self) -> int | None:
        """How many different values there were; None if they were too many."""
        return len(self._rows) if self._all else None

    def _sorted(self) -> list[Found]:
        return sorted((Found(*one) for one in self._rows.items()), key=lambda one: (-one.rows, one.value))
