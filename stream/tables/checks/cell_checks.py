"""Classifies the cells of an attribute that do not fit its domain.

``stream.tables.encoding`` has the rules of encoding, and so decides which rows are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, assert_never, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from schemas import Bins, Categories, Dates, Decimals, Domain, Integers, Numeric
from stream.tables.date_codes import date_codes, iso_text
from stream.tables.encoding import CodeArray, Mask, as_numbers, as_text, encode

SHOWN_VALUES: Final = 5
MAX_VALUES: Final = 10_000
"""Maximum number of distinct values that are counted; if there are more, only the most frequent half is kept."""

_SHOWN_LENGTH: Final = 60

_NoValue = Literal["missing", "undeclared", "not a number", "not a date", "skipped by the clock"]
MisfitKind = Literal[_NoValue, "not whole", "between steps", "below", "above"]
Fate = Literal["left out", "clamped", "rounded", "other"]


@dataclass(frozen=True)
class FoundValue:
    """A value, truncated to 60 characters, and its number of rows."""

    value: str
    rows: int


@dataclass(frozen=True)
class Misfit:
    """The cells of one attribute that do not fit its domain, for the reason ``what``."""

    attribute: str
    what: MisfitKind
    rows: int
    fate: Fate
    """Effect on the row: it is left out, or its cell is clamped, rounded or becomes ``other``."""
    becomes: str | None
    """The value that replaces the cell, if the row is not left out."""
    found: tuple[FoundValue, ...]
    """The most frequent values, except for numbers out of range."""
    different: int | None
    """Number of distinct values; None if there are too many or they were not counted."""
    farthest: str | None
    """The number farthest out of range."""
    sum_moved: float | None
    """Change of the attribute's sum by clamping or rounding finite cells, also in rows that are left out; None if it has no sum."""


class ValueCounts:
    """Counts values, truncated to 60 characters; the counts are exact for at most ``MAX_VALUES`` distinct values."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._is_exact = True

    def __iter__(self) -> Iterator[str]:
        """Iterate over the counted values, in no order."""
        return iter(self._rows)

    def add(self, values: pl.Series) -> None:
        """Count the values of a batch; missing values are not counted."""
        counted = values.drop_nulls().str.head(_SHOWN_LENGTH).alias("value").value_counts(name="rows")
        self._rows.update(dict(counted.iter_rows()))
        if len(self._rows) > MAX_VALUES:
            self._is_exact = False
            self._rows = Counter(dict(self._sort_by_rows()[: MAX_VALUES // 2]))

    def most_frequent(self) -> tuple[FoundValue, ...]:
        """Return the ``SHOWN_VALUES`` most frequent values."""
        return tuple(FoundValue(*one) for one in self._sort_by_rows()[:SHOWN_VALUES])

    def distinct_count(self) -> int | None:
        """Return the number of distinct values; None if there were too many."""
        return len(self._rows) if self._is_exact else None

    def _sort_by_rows(self) -> list[tuple[str, int]]:
        return sorted(self._rows.items(), key=lambda one: (-one[1], one[0]))


_LARGEST_WHOLE: Final = 1e15


@dataclass
class _MisfitCells:
    """The cells with one kind of misfit in the batches that were added."""

    rows: int = 0
    values: ValueCounts = field(default_factory=ValueCounts)
    farthest: float | None = None
    sum_moved: float = 0.0


class CellCheck:
    """Checks one attribute's cells in batches."""

    def __init__(self, name: str, domain: Domain) -> None:
        self.name = name
        self.domain = domain
        self._misfits: dict[MisfitKind, _MisfitCells] = {}

    def add(self, column: pl.Series) -> tuple[Mask, Mask]:
        """Return two masks: cells with a code, and among these the cells whose code stands for another value.

        TableDataError if the column's type is not supported.
        """
        codes, known = encode(self.name, self.domain, column)
        match self.domain:
            case Categories():
                misfits = self._add_categories(self.domain, column)
            case Dates():
                misfits = self._add_dates(self.domain, column)
            case Decimals():
                misfits = self._add_decimals(self.domain, column, codes, known)
            case Integers() | Bins():
                misfits = self._add_numbers(self.domain, column)
            case _:
                assert_never(self.domain)
        return known, known & misfits

    def misfits(self) -> tuple[Misfit, ...]:
        """Return the misfits, in the order of ``MisfitKind``."""
        return tuple(
            self._make_misfit(what, self._misfits[what]) for what in get_args(MisfitKind) if what in self._misfits
        )

    def undeclared_values(self) -> ValueCounts:
        """Return the undeclared values of categories."""
        return self._misfits["undeclared"].values if "undeclared" in self._misfits else ValueCounts()

    def _add_categories(self, domain: Categories, column: pl.Series) -> Mask:
        texts = as_text(self.name, column)
        undeclared = texts.cast(pl.Enum(domain.values), strict=False).is_null()
        missing = undeclared & (texts.is_null() | (texts == "")).fill_null(value=True)
        self._count("missing", missing.to_numpy())
        self._count("undeclared", (undeclared & ~missing).to_numpy(), texts)
        return undeclared.to_numpy()

    def _add_numbers(self, domain: Integers | Bins, column: pl.Series) -> Mask:
        numbers = as_numbers(self.name, column)
        missing = missing_cells(column)
        unread = np.isnan(numbers) & ~missing
        whole = numbers == np.floor(numbers) if isinstance(domain, Integers) else ~np.isnan(numbers)
        low, high = (
            (domain.minimum, domain.maximum)
            if isinstance(domain, Integers)
            else (domain.edges[0], domain.edges[-1])
        )
        below, above = whole & (numbers < low), whole & (numbers > high)
        broken = ~whole & ~missing & ~unread
        self._count("missing", missing)
        self._count("not a number", unread, column)
        self._count("not whole", broken, column)
        self._measure_outside(self._count("below", below), numbers[below], low)
        self._measure_outside(self._count("above", above), numbers[above], high)
        return missing | unread | broken | below | above

    def _add_dates(self, domain: Dates, column: pl.Series) -> Mask:
        missing = missing_cells(column)
        texts = iso_text(self.name, domain, column)
        clamped, valid = date_codes(self.name, domain.model_copy(update={"outside": "clamp"}), column)
        _, inside = date_codes(self.name, domain.model_copy(update={"outside": "reject"}), column)
        unread, outside = ~valid & ~missing, valid & ~inside
        self._count("missing", missing)
        in_utc = domain.model_copy(update={"outside": "clamp", "zone": "UTC" if domain.zone else None})
        skipped = unread & date_codes(self.name, in_utc, column)[1]
        self._count("not a date", unread & ~skipped, texts)
        self._count("skipped by the clock", skipped, texts)
        self._count("below", outside & (clamped == 0), texts)
        self._count("above", outside & (clamped != 0), texts)
        return missing | unread | outside

    def _add_decimals(self, domain: Decimals, column: pl.Series, codes: CodeArray, known: Mask) -> Mask:
        numbers = as_numbers(self.name, column)
        missing = missing_cells(column)
        unread = np.isnan(numbers) & ~missing
        value = np.array(domain.values())[np.where(known, codes, 0)]
        # A number beyond an end of the range by at most half a step counts as rounded, not as clamped.
        beyond = np.abs(numbers - numbers.clip(domain.minimum, domain.maximum))
        rounded = known & (numbers != value) & (beyond <= domain.step / 2)
        outside = ~missing & ~unread & ~rounded & ~(known & (numbers == value))
        below, above = outside & (numbers < domain.minimum), outside & (numbers > domain.maximum)
        self._count("missing", missing)
        self._count("not a number", unread, column)
        if (found := self._count("between steps", rounded, column)) is not None:
            found.sum_moved += float(np.sum(value[rounded] - numbers[rounded]))
        self._measure_outside(self._count("below", below), numbers[below], domain.minimum)
        self._measure_outside(self._count("above", above), numbers[above], domain.maximum)
        misfits: Mask = missing | unread | rounded | below | above
        return misfits

    def _count(self, what: MisfitKind, rows: Mask, cells: pl.Series | None = None) -> _MisfitCells | None:
        number = int(np.count_nonzero(rows))
        if not number:
            return None
        found = self._misfits.setdefault(what, _MisfitCells())
        found.rows += number
        if cells is not None:
            found.values.add(cells.filter(pl.Series(rows)).cast(pl.String))
        return found

    @staticmethod
    def _measure_outside(found: _MisfitCells | None, outside: npt.NDArray[np.float64], end: float) -> None:
        if found is None:
            return
        known = [] if found.farthest is None else [found.farthest]
        found.farthest = max([float(outside.min()), float(outside.max()), *known], key=lambda one: abs(one - end))
        found.sum_moved += float(np.sum(end - outside[np.isfinite(outside)]))

    def _make_misfit(self, what: MisfitKind, found: _MisfitCells) -> Misfit:
        fate, becomes = self._find_fate(what)
        most_frequent = found.values.most_frequent()
        return Misfit(
            attribute=self.name,
            what=what,
            rows=found.rows,
            fate=fate,
            becomes=becomes,
            found=most_frequent,
            different=found.values.distinct_count() if most_frequent else None,
            farthest=None if found.farthest is None else _format_number(found.farthest),
            sum_moved=found.sum_moved
            if fate in {"clamped", "rounded"} and isinstance(self.domain, Numeric)
            else None,
        )

    def _find_fate(self, what: MisfitKind) -> tuple[Fate, str | None]:
        if isinstance(self.domain, Categories):
            return ("left out", None) if self.domain.other is None else ("other", self.domain.other)
        if what == "between steps":
            return "rounded", "the nearest step"
        if what not in {"below", "above"} or self.domain.outside == "reject":
            return "left out", None
        if isinstance(self.domain, Numeric):
            return "clamped", _format_number(self.domain.minimum if what == "below" else self.domain.maximum)
        if isinstance(self.domain, Dates):
            return "clamped", str(self.domain.values()[0 if what == "below" else -1])
        edges = self.domain.edges[:2] if what == "below" else self.domain.edges[-2:]
        return "clamped", f"{_format_number(edges[0])} … {_format_number(edges[1])}"


def missing_cells(column: pl.Series) -> Mask:
    """Return a mask of missing and blank cells."""
    empty = column.is_null()
    if column.dtype.is_float():
        empty |= column.is_nan().fill_null(value=True)
    elif column.dtype in (pl.String, pl.Categorical, pl.Enum):
        empty |= (column.cast(pl.String).str.strip_chars() == "").fill_null(value=True)
    return empty.to_numpy()


def _format_number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < _LARGEST_WHOLE else repr(value)
