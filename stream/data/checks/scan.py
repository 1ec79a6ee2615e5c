"""A table in batches, for whoever looks at every row once and keeps none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from stream.data.csv_files import SURPLUS
from stream.data.places import sheets_of


@dataclass(frozen=True)
class TableScan:
    """A table that is there and has columns. Cells are read as services read them."""

    path: str
    types: Mapping[str, pl.DataType]
    """The columns that all of its parts have, in order, by the types of the first; those of CSV are text."""

    kinds: Mapping[str, Mapping[pl.DataType, str]]
    """The types that these columns have in parts, each with the name of the first part."""

    lacking: Mapping[str, Sequence[str]]
    """Columns that some of its parts have, with the names of those that do not."""

    repeated: tuple[str, ...]
    """Names that several columns of one part have."""

    has_lines: bool
    """Whether lines may have too many cells, in some part."""

    @classmethod
    def open(cls, path: str) -> TableScan:
        """UnreadableError if there is no table to be read at the path."""
        sheets = list(sheets_of(path))
        types = {
            name: kind for name, kind in sheets[0].types.items() if all(name in sheet.types for sheet in sheets)
        }
        lacking = {
            name: [sheet.name for sheet in sheets if name not in sheet.types]
            for name in dict.fromkeys(name for sheet in sheets for name in sheet.types)
            if name not in types
        }
        kinds: dict[str, dict[pl.DataType, str]] = {name: {} for name in types}
        for name, found in kinds.items():
            for sheet in sheets:
                found.setdefault(sheet.types[name], sheet.name)
        repeated = dict.fromkeys(name for sheet in sheets for name in sheet.repeated)
        return cls(path, types, kinds, lacking, tuple(repeated), any(sheet.is_csv for sheet in sheets))

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """The named columns, some rows at a time and in order, with ``SURPLUS`` beside them where they are lines of CSV.

        Memory does not grow with the number of rows. UnreadableError if a part turns out to be malformed.
        """
        for sheet in sheets_of(self.path):
            yield from sheet.batches([*names, SURPLUS] if sheet.is_csv else names)
