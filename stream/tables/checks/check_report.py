"""Reports of table checks. All numbers in them are private: exact and without noise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

NOTICE: Final = (
    "PRIVATE: exact figures about people's rows, which no noise protects. They are for the table's owner alone: do not "
    "publish, log or send them. Nothing was sent, logged or stored."
)
"""The notice at the top of every report, both of printed reports and of JSON."""

MisfitKind = Literal[
    "missing", "undeclared", "not a number", "not a date", "not whole", "between steps", "below", "above"
]
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
    """Change of the attribute's sum by clamping finite cells; None if it has no sum."""


@dataclass(frozen=True)
class ColumnMatch:
    """A comparison of the table's columns with the declared columns."""

    found: tuple[str, ...]
    missing: tuple[str, ...]
    """Declared columns that are missing."""
    lacking: dict[str, tuple[str, ...]]
    """Missing columns that some files of a folder have, with the files that lack them."""
    unusable: dict[str, str]
    """Attributes whose column has an unsupported type, with the reason."""
    undeclared: tuple[str, ...]
    """Undeclared columns, which are ignored."""
    repeated: tuple[str, ...]
    """Names that several columns of a file have; the first column is read."""
    separator: str | None
    """The probable separator of a CSV file, if not a comma."""

    @property
    def usable(self) -> bool:
        """True if the file can be read as a table."""
        return not self.missing and not self.unusable


@dataclass(frozen=True)
class Bound:
    """A contribution bound, and the number of rows that it leaves out."""

    contribution: int
    rows_beyond: int


@dataclass(frozen=True)
class PersonRows:
    """Statistics of each person's rows, without rows that are left out because a cell does not fit."""

    column: str
    people: int
    most_rows: int
    with_several: int
    """Number of people with more than one row."""
    contribution: int
    rows_beyond: int
    """Number of rows beyond the contribution bound, which do not count."""
    rows_without: int
    """Number of rows without a person."""
    bounds: tuple[Bound, ...] = ()
    """Rows that 2, 4, 8 … times the bound would leave out, up to the first bound that leaves out at most 1 %."""
    alike: int = 0
    """Number of names with several spellings (by case, spaces, leading zeros or Unicode form)."""
    spellings: tuple[tuple[str, ...], ...] = ()
    """The spellings of some of these names."""


@dataclass(frozen=True)
class EngineTimes:
    """Seconds that a table's engine takes on this machine."""

    engine: str
    loading: float
    """Seconds for reading the table, choosing the rows that count, and writing their codes."""
    count: float
    batch: float
    """Seconds for a hundred counts in one batch."""
    grouping: float
    """Seconds for counting the groups of the attribute with the most values."""


@dataclass(frozen=True)
class ViewTableRows:
    """The rows of one table of a view."""

    table: str
    rows: int
    unmatched: int
    """Number of joined rows that ``JOIN`` leaves out, because this table has no match for them."""


@dataclass(frozen=True)
class UnreadableCells:
    """Cells of one column that a view reads as NULL, because they are not of the declared kind."""

    table: str
    column: str
    kind: str
    rows: int
    found: tuple[FoundValue, ...]
    """The most frequent values."""


@dataclass(frozen=True)
class ViewRows:
    """The rows that a view reads and leaves out, and the cells of its tables that are not of the declared kind."""

    tables: tuple[ViewTableRows, ...]
    filtered: int
    """Number of joined rows that ``WHERE`` leaves out."""
    unreadable: tuple[UnreadableCells, ...]


@dataclass(frozen=True)
class CheckReport:
    """A comparison of a table with its declaration. All numbers are private."""

    source: str
    path: str
    rows: int
    as_declared: int | None
    """Number of rows that fit; None if the file cannot be read as declared."""
    changed: int | None
    """Number of rows with a cell that is clamped or becomes ``other``."""
    left_out: int | None
    surplus_lines: int
    """Number of CSV lines with more cells than columns; extra cells are ignored."""
    columns: ColumnMatch
    misfits: tuple[Misfit, ...]
    people: PersonRows | None
    suggestions: tuple[str, ...]
    times: EngineTimes | None = None
    """Measured times of the engine; None for a table in memory."""
    counted: int | None = None
    """Number of rows that fit, have a person and are within the contribution bound.

    None if the source declares no person column.
    """
    view: ViewRows | None = None
    """Counts of the view's rows; None for a source without a view."""

    @property
    def fits(self) -> bool:
        """True if every row counts with its own values or rounded ones, and the view, if any, can read all cells."""
        people = self.people is None or not (self.people.rows_beyond or self.people.rows_without)
        unchanged = self.left_out == 0 and all(misfit.fate == "rounded" for misfit in self.misfits)
        readable = self.view is None or not self.view.unreadable
        return self.columns.usable and unchanged and not self.surplus_lines and people and readable

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON, with the notice as its first field."""
        return {"private": NOTICE, "fits": self.fits, **asdict(self)}
