"""Opens the parts of a source: those of its path, or of its view over several tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from schemas import TableSource
from stream.tables.readers.table_files import TableFile
from stream.tables.readers.table_parts import Stamp, TablePart, open_table_parts, stamp_of

if TYPE_CHECKING:
    from stream.tables.views.view_rows import RowObserver

ListedFiles = Mapping[str, Sequence[TableFile] | None]
"""The local files of each path, if they are already listed; None for an address."""


def open_source_parts(
    source: TableSource,
    files: ListedFiles | None = None,
    most_bytes: int | None = None,
    seconds: float | None = None,
    observer: RowObserver | None = None,
) -> Iterator[TablePart]:
    """Yield the parts of a source; errors as for ``open_table_parts``, DataError for an invalid view."""
    listed = files or {}
    if source.view is None:
        [path] = source.paths
        yield from open_table_parts(path, listed.get(path), most_bytes, seconds)
        return
    from stream.tables.views.view_parser import parse_view  # noqa: PLC0415  (its import takes a tenth of a worker's start)
    from stream.tables.views.view_rows import open_view  # noqa: PLC0415

    paths = {name: table.path for name, table in source.view.tables.items()}

    def open_parts(name: str) -> Iterator[TablePart]:
        path = paths[name]
        return open_table_parts(path, listed.get(path), most_bytes, seconds)

    yield from open_view(parse_view(source), open_parts, observer)


def base_columns(source: TableSource) -> set[str]:
    """Return the columns that a view reads, as TABLE.COLUMN; none for a source with a path."""
    if source.view is None:
        return set()
    from stream.tables.views.view_parser import parse_view  # noqa: PLC0415

    return {f"{use.name}.{column}" for use in parse_view(source).uses for column in use.columns}


def require_valid_view(source: TableSource) -> None:
    """Raise DataError if a source has a view that is not accepted; it names the place in the SQL."""
    base_columns(source)


def stamp_of_source(source: TableSource) -> Stamp:
    """Return the current stamp of a source's tables; UnreadableError if a store or server fails."""
    return join_stamps([stamp_of(path) for path in source.paths])


def join_stamps(stamps: Sequence[Stamp]) -> Stamp:
    """Return the stamp of several tables: the paths, and nothing more if one of the tables is missing."""
    paths = "\n".join(str(stamp[0]) for stamp in stamps)
    if any(len(stamp) == 1 for stamp in stamps):
        return (paths,)
    return (paths, *(item for stamp in stamps for item in stamp[1:]))
