"""What a check found. All of it is private: exact, and without noise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

NOTICE: Final = (
    "PRIVATE: exact figures about people's rows, which no noise protects. They are for the table's owner alone: do not "
    "publish, log or send them. Nothing was sent, logged or stored."
)
"""What stands above every report, printed or as JSON."""

What = Literal["missing", "undeclared", "not a number", "not whole", "below", "above"]
Fate = Literal["left out", "clamped", "other"]


@dataclass(frozen=True)
class FoundValue:
    """A value, cut to 60 characters, and how many rows hold it."""

    value: str
    rows: int


@dataclass(frozen=True)
class Misfit:
    """Cells of one attribute that do not fit its domain, in one way."""

    attribute: str
    what: What
    rows: int
    fate: Fate
    """What becomes of such a row: it is left out, or its cell is clamped or taken for ``other``."""

    becomes: str | None
    """The value that the cell is read as, if the row is not left out."""

    found: tuple[FoundValue, ...]
    """The values that were found most often, where it is not a number outside the range."""

    different: int | None
    """How many different values were found; None if they are too many to tell, or were not told apart."""

    farthest: str | None
    """The number that lies farthest outside the range."""

    sum_moved: float | None
    """By how much clamping these cells moves the sum of the attribute, infinite cells left aside; None where it has no sum."""


@dataclass(frozen=True)
class ColumnMatch:
    """The file's columns beside the declared ones."""

    found: tuple[str, ...]
    missing: tuple[str, ...]
    """Declared, and not there."""

    lacking: dict[str, tuple[str, ...]]
    """Of these, what some files of a folder have, and the files that do not."""

    unusable: dict[str, str]
    """Of a type that cannot be read as declared, and why."""

    undeclared: tuple[str, ...]
    """There, not declared, and ignored."""

    repeated: tuple[str, ...]
    """Names that several columns of a part have; the first of them is read."""

    separator: str | None
    """What a CSV file seems to be separated by, if not by commas."""

    @property
    def usable(self) -> bool:
        """Whether a table can be read from the file at all."""
        return not self.missing and not self.unusable


@dataclass(frozen=True)
class Bound:
    """How many rows a contribution leaves out."""

    contribution: int
    rows_beyond: int


@dataclass(frozen=True)
class PersonRows:
    """How many rows belong to one person, who is named in a column."""

    column: str
    people: int
    most_rows: int
    with_several: int
    """How many people have more than one row."""

    contribution: int
    """How many rows of each person count."""

    rows_beyond: int
    """How many rows do not count, because so many others of their person do."""

    rows_without: int
    """How many rows name nobody."""

    bounds: tuple[Bound, ...] = ()
    """How many rows larger contributions would leave out: up to the least that leaves out at most one in a hundred."""

    alike: int = 0
    """How many names have several spellings that differ in case, spaces, leading zeros or Unicode's composition alone."""

    spellings: tuple[tuple[str, ...], ...] = ()
    """Some of these spellings, for each of some names."""

    @property
    def all_count(self) -> bool:
        """Whether each row names its person, who has no more rows than count."""
        return not self.rows_beyond and not self.rows_without


@dataclass(frozen=True)
class CheckReport:
    """How well a table fits its declaration. All of it is private."""

    source: str
    path: str
    rows: int
    as_declared: int | None
    """Rows all of whose declared cells fit; None if the file cannot be read as declared."""

    changed: int | None
    """Rows that are in the table with a cell clamped or taken for ``other``."""

    left_out: int | None
    """Rows that are not in the table."""

    surplus_lines: int
    """Lines of a CSV file that have more cells than there are columns; what is too much is ignored."""

    columns: ColumnMatch
    misfits: tuple[Misfit, ...]
    people: PersonRows | None
    suggestions: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether every row is in the table as it was found and, where people are known, none has more than count."""
        people = self.people is None or self.people.all_count
        return self.columns.usable and self.as_declared == self.rows and not self.surplus_lines and people

    def to_json(self) -> dict[str, Any]:
        """The report as JSON has it, with the notice as its first field."""
        return {"private": NOTICE, "fits": self.fits, **asdict(self)}
