"""Opens the parts of a source's table or view, and stamps them, so that a change of the data is noticed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from time import time_ns
from typing import TYPE_CHECKING

from schemas import Address, TableSource
from stream.optional_packages import explain_missing_packages
from stream.tables.readers import table_files
from stream.tables.readers.table_parts import FilePart, TablePart
from stream.tables.table_errors import TableDataError, UnreadableError

if TYPE_CHECKING:
    from stream.tables.readers.view_rows import RowObserver

Stamp = tuple[object, ...]
"""A path, and values that differ if its data may have changed; only the path if no file is found."""


def address_of(path: str) -> Address | None:
    """Parse a path that is an address, or return None; TableDataError if it is invalid."""
    try:
        return Address.parse_table(path)
    except ValueError as error:
        raise TableDataError(f"path: {error}") from None


def open_table_parts(
    path: str,
    files: Sequence[table_files.TableFile] | None = None,
    most_bytes: int | None = None,
    seconds: float | None = None,
) -> Iterator[TablePart]:
    """Yield the parts of a path's table; ``files`` are its local files, if already listed.

    UnreadableError if the objects of a store or the files of a Delta or Iceberg table exceed ``most_bytes`` in total, or
    if a file has changed since it was listed. A database is read in one snapshot, and a server ends the statement after
    ``seconds``.
    """
    if (address := address_of(path)) is None:
        listed = table_files.local_files(path) if files is None else files
        if (folder := table_files.local_delta_folder(path)) is not None:
            from stream.tables.readers.lake_files import newest_local_files  # noqa: PLC0415  (an extra)

            listed = newest_local_files(folder, listed)
            table_files.require_size(listed, most_bytes)
        if (metadata := table_files.local_iceberg_metadata(path)) is not None:
            from stream.tables.readers.iceberg import local_version_files  # noqa: PLC0415  (an extra)

            listed = local_version_files(metadata, listed)
            table_files.require_size(listed, most_bytes)
        if (database := table_files.local_database(path)) is not None:
            with explain_missing_packages():
                from stream.tables.readers.server_tables import open_table_in_file  # noqa: PLC0415  (an extra)
            yield from open_table_in_file(listed[0].location, database.schema, database.name)
        else:
            for file in listed:
                yield FilePart.open(file)
        if any(map(table_files.has_changed, listed)):
            raise UnreadableError(table_files.CHANGED_WHILE_READ)
    elif address.scheme == "s3":
        from stream.tables.readers.lake_files import open_objects  # noqa: PLC0415  (an extra)

        yield from open_objects(address, most_bytes)
    elif address.scheme == "postgresql":
        from stream.tables.readers.postgresql import open_postgresql_table  # noqa: PLC0415  (an extra)

        yield from open_postgresql_table(address, seconds)
    else:
        with explain_missing_packages(address.scheme):
            from stream.tables.readers.server_tables import open_server_table  # noqa: PLC0415  (an extra)
        yield from open_server_table(address, seconds)


def stamp_of(path: str) -> Stamp:
    """Return the current stamp of a path; UnreadableError if a store or server fails."""
    if (address := address_of(path)) is None:
        try:
            return stamp_of_files(path, table_files.local_files(path))
        except UnreadableError:
            # The error of the path is raised when the table is read.
            return (path,)
    if address.scheme == "s3":
        from stream.tables.readers.lake_files import object_files  # noqa: PLC0415  (an extra)

        return stamp_of_files(path, object_files(address))
    if address.scheme == "postgresql":
        from stream.tables.readers.postgresql import read_snapshot  # noqa: PLC0415  (an extra)

        return (path, *read_snapshot(address))
    # A server does not tell whether rows have changed, so the stamp is new each time, except for a fixed version.
    return (path, str(time_ns() if address.version is None else address.version))


def stamp_of_files(path: str, files: Sequence[table_files.TableFile]) -> Stamp:
    """Return the stamp of these files; its size does not depend on their number."""
    if not files:
        return (path,)
    digest = blake2b(digest_size=16)
    for file in files:
        kept = file.kept_rows or b""
        digest.update(
            repr((file.location, file.stamp, file.constant_columns, file.columns, file.rows, len(kept))).encode()
        )
        digest.update(kept)
    return (path, digest.hexdigest())


def open_source_parts(
    source: TableSource,
    files: Mapping[str, Sequence[table_files.TableFile] | None] | None = None,
    most_bytes: int | None = None,
    seconds: float | None = None,
    observer: RowObserver | None = None,
) -> Iterator[TablePart]:
    """Yield the parts of a source's table or view; raises TableDataError for an invalid view.

    ``files`` are the local files of each path, if already listed; None for an address.
    """
    listed = files or {}
    if source.view is None:
        [path] = source.paths
        yield from open_table_parts(path, listed.get(path), most_bytes, seconds)
        return
    from stream.tables.readers.view_parser import parse_view  # noqa: PLC0415  (its import takes a tenth of a worker's start)
    from stream.tables.readers.view_rows import open_view  # noqa: PLC0415

    paths = {name: table.path for name, table in source.view.tables.items()}

    def open_parts(name: str) -> Iterator[TablePart]:
        path = paths[name]
        return open_table_parts(path, listed.get(path), most_bytes, seconds)

    yield from open_view(parse_view(source), open_parts, observer)


def base_columns(source: TableSource) -> set[str]:
    """Return the columns that a source's view reads, as TABLE.COLUMN; no columns for a source with a path.

    TableDataError, which names the place in the SQL, if the view is not accepted.
    """
    if source.view is None:
        return set()
    from stream.tables.readers.view_parser import parse_view  # noqa: PLC0415

    return {f"{use.name}.{column}" for use in parse_view(source).uses for column in use.columns}


def stamp_of_source(source: TableSource) -> Stamp:
    """Return the current stamp of a source's tables; UnreadableError if a store or server fails."""
    return join_stamps([stamp_of(path) for path in source.paths])


def join_stamps(stamps: Sequence[Stamp]) -> Stamp:
    """Return the stamp of several tables; if one of them is missing, the stamp has only the paths."""
    paths = "\n".join(str(stamp[0]) for stamp in stamps)
    if any(len(stamp) == 1 for stamp in stamps):
        return (paths,)
    return (paths, *(item for stamp in stamps for item in stamp[1:]))
