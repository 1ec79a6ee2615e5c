"""Plans of views, and their rows in batches.

The first table is read in parts, and joined to the other tables, which are in memory. If a view leaves a row of the
first table out, its batch still has one row for it, with ``KEPT_COLUMN`` false, so that people and rows are counted as for a
single table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from schemas import ColumnKind, ViewTable
from stream.optional_packages import pl
from stream.tables.people import person_names
from stream.tables.readers.table_parts import KEPT_COLUMN, TablePart
from stream.tables.readers.view_terms import convert_cells, require_simple_type
from stream.tables.table_errors import ColumnError, UnreadableError

PERSON_KIND: Final = "person"
"""The kind of a person column: its cells are names in the form that ``people`` compares, or NULL if blank."""

UsedKind = ColumnKind | Literal["raw", "person"]


def column_label(alias: str, column: str) -> str:
    """Return the name of a table's column among the joined columns."""
    return f"{alias}\0{column}"


@dataclass(frozen=True)
class TableUse:
    """One table in FROM or JOIN; ``name`` is its name in the view's ``tables``, ``columns`` are those to read."""

    name: str
    alias: str
    table: ViewTable
    columns: Mapping[str, UsedKind]


@dataclass(frozen=True)
class Join:
    """A join of one more table to the earlier tables, on equal values.

    ``on`` has an expression of the earlier tables for each column of the key of a lookup table, or for the person of a
    table of people. If ``is_inner``, a row without a match is left out of the view.
    """

    use: TableUse
    on: Mapping[str, pl.Expr]
    is_inner: bool


@dataclass(frozen=True)
class ViewPlan:
    """A checked view: each row of the view comes from one row of the first table.

    ``where`` is a condition, and ``outputs`` has an expression for each selected column.
    """

    first: TableUse
    joins: tuple[Join, ...]
    where: pl.Expr | None
    outputs: Mapping[str, pl.Expr]

    @property
    def uses(self) -> tuple[TableUse, ...]:
        """The tables in the order of FROM and JOIN."""
        return (self.first, *(join.use for join in self.joins))


MAX_JOINED_ROWS: Final = 1000
"""Maximum number of rows of the view that joins with tables of people make from one row of the first table."""

_BATCH_ROWS: Final = 1 << 20
"""Number of rows that are joined at a time; polars hashes the whole joined table for each of these batches."""

_MATCH: Final = "\0match"

OpenParts = Callable[[str], Iterator[TablePart]]
"""Opens the parts of a table by its name in the view."""


class RowObserver(Protocol):
    """Sees private rows while a view reads them.

    Only a check for the tables' owner uses an observer; no service does.
    """

    def add_cells(self, use: TableUse, cells: pl.DataFrame, converted: pl.DataFrame) -> None:
        """See a table's cells before and after their conversion to the kinds of their columns."""

    def add_unmatched(self, use: TableUse, rows: int) -> None:
        """See the number of rows that a join leaves out, because this table has no match for them."""

    def add_filtered(self, rows: int) -> None:
        """See the number of joined rows that WHERE leaves out."""


def open_view(plan: ViewPlan, open_parts: OpenParts, observer: RowObserver | None = None) -> Iterator[ViewPart]:
    """Yield a part of a view for each part of its first table; UnreadableError or ColumnError if a table fails."""
    most_rows = limit_joined_rows(sum(1 for join in plan.joins if not join.use.table.key))
    joined = [_JoinedTable.load(join, open_parts, most_rows, observer) for join in plan.joins]
    for part in _name_errors_of_parts(plan.first, open_parts(plan.first.name)):
        yield ViewPart(part, plan, joined, observer)


@dataclass(frozen=True)
class _JoinedTable:
    """A table after JOIN, with its rows in memory."""

    join: Join
    rows: pl.DataFrame
    copies: pl.DataFrame | None
    """The number of rows of each person; None for a lookup table, which has at most one row for each key."""

    @classmethod
    def load(
        cls, join: Join, open_parts: OpenParts, most_rows: int, observer: RowObserver | None = None
    ) -> _JoinedTable:
        """Read at most ``most_rows`` rows of each person; ColumnError if two rows of a lookup table have the same key."""
        use, keys = join.use, [column_label(join.use.alias, name) for name in join.on]
        batches = [
            _convert_cells(use, cells, observer)
            for part in _name_errors_of_parts(use, open_parts(use.name))
            for cells in _read_columns(use, part)
        ]
        try:
            rows = pl.concat(batches).drop_nulls(keys)
        except pl.exceptions.PolarsError:
            raise UnreadableError(
                "its files have several types for one column; declare the column's kind", file=use.name
            ) from None
        if use.table.key:
            require_unique(use, rows.select(keys))
            return cls(join, rows.with_columns(pl.lit(value=True).alias(_MATCH)), None)
        rows = bound_rows(rows, keys[0], most_rows)
        copies = rows.group_by(keys[0]).len(_MATCH)
        return cls(join, rows.with_columns(pl.lit(value=True).alias(_MATCH)), copies)

    def join_to(self, frame: pl.DataFrame, observer: RowObserver | None = None) -> Iterator[pl.DataFrame]:
        """Yield the joined rows of a batch in pieces; ``KEPT_COLUMN`` is false if an inner join has no match."""
        names = [f"\0on{place}" for place in range(len(self.join.on))]
        columns = [column_label(self.join.use.alias, name) for name in self.join.on]
        frame = frame.with_columns(
            for_each_row(value).alias(name) for name, value in zip(names, self.join.on.values(), strict=True)
        )
        for piece in self._pieces(frame, names):
            found = piece.join(
                self.rows, left_on=names, right_on=columns, how="left", coalesce=False, maintain_order="left_right"
            )
            if self.join.is_inner:
                if observer is not None:
                    unmatched = found.select(pl.col(KEPT_COLUMN) & pl.col(_MATCH).is_null()).to_series()
                    observer.add_unmatched(self.join.use, int(unmatched.sum()))
                found = found.with_columns(pl.col(KEPT_COLUMN) & pl.col(_MATCH).is_not_null())
            yield found.drop(*names, _MATCH)

    def _pieces(self, frame: pl.DataFrame, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Split a batch so that each piece has few joined rows, even if a person has many."""
        if self.copies is None:
            yield frame
            return
        [column] = [column_label(self.join.use.alias, name) for name in self.join.on]
        copies = frame.select(names).join(
            self.copies, left_on=names, right_on=[column], how="left", maintain_order="left"
        )
        pieces = copies[_MATCH].fill_null(1).cast(pl.Int64).cum_sum() // _BATCH_ROWS
        for piece in frame.with_columns(pieces.alias(_MATCH)).partition_by(_MATCH, maintain_order=True):
            yield piece.drop(_MATCH)
        if not frame.height:
            yield frame


def for_each_row(value: pl.Expr) -> pl.Expr:
    """Return an expression with one value for each row; polars gives a constant expression only one value in all."""
    return pl.when(pl.col(KEPT_COLUMN).is_not_null()).then(value)


def require_unique(use: TableUse, keys: pl.DataFrame) -> None:
    """Raise ColumnError if a key of a lookup table, which is public, is not unique."""
    if keys.is_duplicated().any():
        raise ColumnError("repeated", f"{use.name}.{use.table.key[0]}")


def limit_joined_rows(tables: int) -> int:
    """Return the most rows of a person in each of ``tables`` joined tables: their product is bounded."""
    return max(most for most in range(1, MAX_JOINED_ROWS + 1) if most**tables <= MAX_JOINED_ROWS)


def bound_rows(rows: pl.DataFrame, person: str, most_rows: int) -> pl.DataFrame:
    """Keep at most ``most_rows`` rows of each person: the first in the order of their cells, not of the file."""
    if not rows.height or int(rows[person].value_counts()["count"].max() or 0) <= most_rows:  # type: ignore[arg-type]
        return rows
    return rows.sort(rows.columns).filter(pl.int_range(pl.len()).over(person) < most_rows)


@dataclass(frozen=True)
class ViewPart:
    """A part of a view: a part of its first table, joined to the other tables."""

    first: TablePart
    plan: ViewPlan
    joined: Sequence[_JoinedTable]
    observer: RowObserver | None = None
    name: str = ""
    duplicate_names: Sequence[str] = ()
    is_csv: bool = False
    _types: dict[str, pl.DataType] = field(default_factory=dict)

    @property
    def types(self) -> Mapping[str, pl.DataType]:
        """The selected columns' types; ColumnError if a table lacks a column that the view uses."""
        if not self._types:
            use = self.plan.first
            _require_columns(use, self.first)
            types = pl.Schema({name: self.first.types[name] for name in use.columns})
            selected = self._select(pl.DataFrame(schema=types), list(self.plan.outputs))
            self._types.update(next(iter(selected)).drop(KEPT_COLUMN).schema)
        return self._types

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the named columns and ``KEPT_COLUMN`` in batches, first an empty one."""
        for cells in _merge_batches(_read_columns(self.plan.first, self.first)):
            yield from self._select(cells, names)

    def _select(self, cells: pl.DataFrame, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        frame = _convert_cells(self.plan.first, cells, self.observer).with_columns(
            pl.lit(value=True).alias(KEPT_COLUMN)
        )
        kept = pl.col(KEPT_COLUMN)
        if self.plan.where is not None:
            kept &= for_each_row(self.plan.where).fill_null(value=False)
        outputs = [for_each_row(self.plan.outputs[name]).alias(name) for name in names]
        for joined in self._join(frame, self.joined):
            selected = joined.select(*outputs, kept.alias(KEPT_COLUMN))
            if self.observer is not None:
                self.observer.add_filtered(int(joined[KEPT_COLUMN].sum()) - int(selected[KEPT_COLUMN].sum()))
            yield selected

    def _join(self, frame: pl.DataFrame, joined: Sequence[_JoinedTable]) -> Iterator[pl.DataFrame]:
        if not joined:
            yield frame
            return
        for piece in joined[0].join_to(frame, self.observer):
            yield from self._join(piece, joined[1:])


def _read_columns(use: TableUse, part: TablePart) -> Iterator[pl.DataFrame]:
    _require_columns(use, part)
    with _name_errors(use):
        yield from part.batches(list(use.columns))


def _merge_batches(batches: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the first batch, which is empty, and then larger batches of the other rows."""
    yield next(batches)
    held: list[pl.DataFrame] = []
    for batch in batches:
        held.append(batch)
        if sum(part.height for part in held) >= _BATCH_ROWS:
            yield pl.concat(held)
            held.clear()
    if held:
        yield pl.concat(held)


def _require_columns(use: TableUse, part: TablePart) -> None:
    for name in use.columns:
        if name not in part.types:
            raise ColumnError("missing", f"{use.name}.{name}", file=part.name)


def _name_errors_of_parts(use: TableUse, parts: Iterator[TablePart]) -> Iterator[TablePart]:
    with _name_errors(use):
        yield from parts


@contextmanager
def _name_errors(use: TableUse) -> Iterator[None]:
    """Add the table's name in the view to errors about its files."""
    try:
        yield
    except UnreadableError as error:
        if error.file == use.name or error.file.startswith(f"{use.name}/"):
            raise
        file = f"{use.name}/{error.file}" if error.file else use.name
        raise UnreadableError(error.cause, lasting=error.lasting, where=error.where, file=file) from None


def _convert_cells(use: TableUse, cells: pl.DataFrame, observer: RowObserver | None = None) -> pl.DataFrame:
    """Convert a table's cells to the kinds of their columns, under the table's alias."""
    converted = pl.DataFrame(
        [
            _convert_column(f"{use.name}.{name}", kind, cells[name]).alias(column_label(use.alias, name))
            for name, kind in use.columns.items()
        ]
    )
    if observer is not None:
        observer.add_cells(use, cells, converted)
    return converted


def _convert_column(name: str, kind: UsedKind, column: pl.Series) -> pl.Series:
    if kind == "raw":
        return require_simple_type(name, column)
    if kind == PERSON_KIND:
        texts, is_unnamed = person_names(name, column)
        return texts.zip_with(pl.Series(~is_unnamed), pl.Series([None], dtype=pl.String))
    return convert_cells(kind, name, column)
