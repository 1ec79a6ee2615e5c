"""Lists the files of a source's path, sorted by their names.

A path names a file, or a folder if it ends in ``/``, or several files by a pattern: ``*`` matches any characters of a
name, and ``**`` any number of folders. A folder ``key=value`` gives all rows of its files the cell ``value`` in the
column ``key``. ``lake_files`` selects the files of one version of a Delta table, ``iceberg`` the files of an Iceberg
table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import stat_result, walk
from pathlib import Path
from stat import S_ISREG
from typing import Final, NamedTuple
from urllib.parse import unquote

from schemas import Address
from stream.tables.table_errors import FILES_TOO_LARGE, TableDataError, UnreadableError

MAX_FILES: Final = 10_000
MAX_LISTED_FILES: Final = 100_000
"""Maximum number of files and local folders that are searched."""

CHANGED_WHILE_READ: Final = "changed while it was read"

DELTA_LOG: Final = "_delta_log"
"""The log folder of a Delta table."""

ICEBERG_METADATA: Final = "metadata"
"""The folder of an Iceberg table's metadata files; each of them is a version of the table."""
_METADATA_SUFFIX: Final = ".metadata.json"

SPECIAL_NAMES: Final = frozenset({"", ".", ".."})
"""Names with a special meaning in file systems; an object's key may contain them."""

PathParts = tuple[str, ...]
"""The parts of a path below a folder: names of folders, and then the name of a file."""

_SUFFIXES: Final = (".csv", ".csv.gz", ".parquet")
_DATABASE_SUFFIX: Final = ".duckdb"
_LOG_SUFFIX: Final = ".wal"
"""Suffix of the file beside a DuckDB file, with the changes that the DuckDB file still lacks."""
_ANY_FOLDERS: Final = "**"
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table."""

    location: str
    """The path with links resolved, or the address."""
    size: int
    stamp: tuple[int | str, ...]
    """A value that differs if the file may have changed."""
    constant_columns: tuple[tuple[str, str | None], ...] = ()
    """Columns that folder names, a log or metadata define, each with the value that all rows of the file have."""
    columns: tuple[str, ...] = ()
    """The table's columns by its log or metadata; if the file lacks one of them, its cells are missing."""
    rows: int | None = None
    """Number of rows by a Delta log or Iceberg manifest, including deleted rows; None without one."""
    kept_rows: bytes | None = None
    """A byte for each row, 0 if the row is marked as deleted; None if no row is deleted."""
    name: str = ""
    """The path below the table's folder; empty for a single file."""


class DatabasePath(NamedTuple):
    """A path to a table of a DuckDB file: ``/data/clinic.duckdb/main/visits``."""

    file: str
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class PathPattern:
    """The folder and the pattern of a path that may stand for several files."""

    folder: PathParts
    pattern: PathParts

    @classmethod
    def from_names(cls, names: PathParts, *, is_folder: bool) -> PathPattern | None:
        """Return the pattern of a path; None for a single file."""
        fixed = next((place for place, name in enumerate(names) if "*" in name), len(names))
        if is_folder:
            names = (*names, _ANY_FOLDERS, "*")
        return None if fixed == len(names) else cls(names[:fixed], names[fixed:])

    @property
    def depth(self) -> int | None:
        """Maximum number of levels of folders to search below ``folder``; None if unlimited."""
        return None if _ANY_FOLDERS in self.pattern else len(self.pattern)

    @property
    def is_all_files(self) -> bool:
        """True if the path stands for all files of its folder, as the path of a Delta table does."""
        return self.pattern == (_ANY_FOLDERS, "*")

    def select(self, listed: Sequence[PathParts]) -> list[PathParts]:
        """Select the files that match the path, in order.

        Names that begin with ``_`` or ``.`` (and have no ``=``) are skipped. UnreadableError if a file is not a table,
        or is in the folder of a Delta or Iceberg table, which also has the files of other versions.
        """
        # ``*`` is the only wildcard of a path; others of fnmatch are escaped.
        pattern = tuple(re.sub(r"[?\[]", r"[\g<0>]", name) for name in self.pattern)
        logged = {names[: names.index(DELTA_LOG)] for names in listed if DELTA_LOG in names}
        versioned = {names[:-2] for names in listed if is_iceberg_metadata(names)}
        found = []
        for names in sorted(listed):
            if not _matches(pattern, names):
                continue
            if any(names[:depth] in versioned for depth in range(len(names))):
                raise UnreadableError(
                    "an Iceberg table; give the path of a metadata file, which names one version: metadata/….metadata.json"
                )
            if not SPECIAL_NAMES.isdisjoint(names):
                raise UnreadableError(
                    "a file in the folder has an empty name, or '.' or '..' as a name; rename it"
                )
            if any(name.startswith(("_", ".")) and "=" not in name for name in names):
                continue
            if any(names[:depth] in logged for depth in range(len(names))):
                raise UnreadableError(
                    "some of the files belong to a Delta table; give that table's folder, with '/' at its end"
                )
            require_table_name(names[-1])
            found.append(names)
        require_file_count(found)
        return found


def local_pattern(path: str) -> PathPattern | None:
    """Return the pattern of a local path; None if the path names a single file, or exists as a file."""
    if Path(path).is_file():
        return None
    return PathPattern.from_names(tuple(path.rstrip("/").split("/")), is_folder=path.endswith("/"))


def local_database(path: str) -> DatabasePath | None:
    """Return the parts of a local path to a table of a DuckDB file, or None."""
    file, *relation = path.rsplit("/", 2)
    if not file.lower().endswith(_DATABASE_SUFFIX) or len(relation) != 2 or not all(relation):
        return None
    return DatabasePath(file, *relation)


def local_folder(path_pattern: PathPattern) -> Path:
    """Return the folder of a local pattern."""
    return Path("/".join(path_pattern.folder) or ("/" if path_pattern.folder else "."))


def local_delta_folder(path: str) -> Path | None:
    """Return the folder of a local Delta table, or None."""
    if (path_pattern := local_pattern(path)) is None or not path_pattern.is_all_files:
        return None
    folder = local_folder(path_pattern)
    return folder if folder.joinpath(DELTA_LOG).is_dir() else None


def is_iceberg_metadata(names: PathParts) -> bool:
    """Return whether the path of a single file or object leads to an Iceberg table's metadata file."""
    return len(names) > 1 and names[-2] == ICEBERG_METADATA and names[-1].endswith(_METADATA_SUFFIX)


def local_iceberg_metadata(path: str) -> Path | None:
    """Return the path of a local Iceberg table's metadata file, or None."""
    return Path(path) if is_iceberg_metadata(Path(path).parts) and Path(path).is_file() else None


def local_files(path: str) -> tuple[TableFile, ...]:
    """List the files of a local path; UnreadableError if there are none, or some are not tables.

    Links are resolved in each ``location``, so that callers can check whether the location is allowed. For a Delta or
    Iceberg table, all files of its folder are listed, including the log or metadata.
    """
    try:
        if (database := local_database(path)) is not None:
            if Path(database.file + _LOG_SUFFIX).exists():
                raise UnreadableError("its newest rows are not in the file; close the database, or run CHECKPOINT")
            return (_local_file(Path(database.file)),)
        if (metadata := local_iceberg_metadata(path)) is not None:
            folder = metadata.parent.parent
            return tuple(
                _local_file(folder.joinpath(*names), names) for names in sorted(_list_files(folder, None))
            )
        if (path_pattern := local_pattern(path)) is None:
            require_table_name(Path(path).name)
            return (_local_file(Path(path)),)
        folder = local_folder(path_pattern)
        listed = _list_files(folder, path_pattern.depth)
        chosen = path_pattern.select(listed) if local_delta_folder(path) is None else sorted(listed)
        return tuple(_local_file(folder.joinpath(*names), names) for names in chosen)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError("missing") from None


def files_by_path(folder: Path, listed: Sequence[TableFile]) -> dict[PathParts, TableFile]:
    """Return the listed files by their paths in a folder, without files to which links lead out of the folder."""
    paths = ((Path(file.location), file) for file in listed)
    return {path.relative_to(folder).parts: file for path, file in paths if path.is_relative_to(folder)}


def has_changed(file: TableFile) -> bool:
    """Return whether a local file has changed since it was listed."""
    try:
        return _stamp(Path(file.location).stat()) != file.stamp
    except OSError:
        return True


def columns_from_folders(names: PathParts) -> tuple[tuple[str, str | None], ...]:
    """Return the columns and cells of the folder names ``key=value`` in a path, percent-decoded."""
    found: dict[str, str | None] = {}
    for name in names[:-1]:
        key, sign, value = name.partition("=")
        if sign and key:
            found[unquote(key)] = None if value == _NO_VALUE else unquote(value)
    return tuple(found.items())


def require_table_name(name: str) -> None:
    """Raise UnreadableError unless the file's name ends as a table's."""
    if not name.lower().endswith(_SUFFIXES):
        raise UnreadableError("not a .csv, .csv.gz or .parquet file")


def require_file_count(files: Sized) -> None:
    """Raise UnreadableError if a table has no files, or too many."""
    if not len(files):
        raise UnreadableError("missing")
    if len(files) > MAX_FILES:
        raise UnreadableError(f"more than {MAX_FILES} files")


def require_size(files: Sequence[TableFile], most_bytes: int | None) -> None:
    """Raise UnreadableError if files have more than ``most_bytes`` in total."""
    if most_bytes is not None and sum(file.size for file in files) > most_bytes:
        raise UnreadableError(FILES_TOO_LARGE)


def _list_files(folder: Path, depth: int | None) -> list[PathParts]:
    """List the files below a folder; links to folders are not followed."""
    found: list[PathParts] = []
    for earlier, (at, folders, files) in enumerate(walk(folder)):
        below = Path(at).relative_to(folder).parts
        if depth is not None and len(below) >= depth:
            folders[:] = [name for name in folders if name == DELTA_LOG]
        found.extend((*below, name) for name in files)
        if earlier + len(found) > MAX_LISTED_FILES:
            raise UnreadableError(f"more than {MAX_LISTED_FILES} files and folders below its folder")
    return found


def _local_file(path: Path, names: PathParts = ()) -> TableFile:
    resolved = path.resolve(strict=True)
    status = resolved.stat()
    if not S_ISREG(status.st_mode):
        raise UnreadableError("not a regular file")
    return TableFile(
        str(resolved), status.st_size, _stamp(status), columns_from_folders(names), name="/".join(names)
    )


def _stamp(status: stat_result) -> tuple[int, ...]:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_dev, status.st_ino)


def _matches(pattern: PathParts, names: PathParts) -> bool:
    """Match names with a pattern in polynomial time; ``**`` matches any number of names."""
    ends = {0}  # the numbers of leading names that the pattern's processed parts can match
    for part in pattern:
        if part == _ANY_FOLDERS:
            ends = set(range(min(ends, default=len(names) + 1), len(names) + 1))
        else:
            ends = {end + 1 for end in ends if end < len(names) and fnmatchcase(names[end], part)}
    return len(names) in ends


Root = Path | Address

_ADDRESS_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^:]*(?::[0-9]+(?:/[^:]*)?(?![^:]))?")


def parse_roots(text: str) -> tuple[Root, ...]:
    """Parse SOTTO_TABLE_ROOTS: folders and addresses below which tables may be read.

    Roots are separated by colons, as in ``PATH``. The colons of ``://`` and of ports separate nothing. A root
    after an address must be an address or begin with ``/`` or ``.``, because other text might belong to the
    address before it. TableDataError if an address is invalid, or the text after it might belong to it.
    """
    return tuple(_parse_each_root(text))


def _parse_each_root(text: str) -> Iterator[Root]:
    at, is_behind_address = 0, False
    while at <= len(text):
        if (found := _ADDRESS_PATTERN.match(text, at)) is not None:
            try:
                yield Address.parse_root(found[0])
            except ValueError as error:
                raise TableDataError(f"SOTTO_TABLE_ROOTS: {error}") from None
            at, is_behind_address = found.end() + 1, True
            continue
        folder = text[at:].partition(":")[0]
        if folder and is_behind_address and not folder.startswith(("/", ".")):
            raise TableDataError(
                "SOTTO_TABLE_ROOTS: the text after an address and ':' might belong to the address; begin a folder there with '/' "
                "or './', and an address with s3:// or a server's scheme"
            )
        if folder:
            yield Path(folder)
        at += len(folder) + 1
        is_behind_address = is_behind_address and not folder


def is_within(path: Path, roots: tuple[Root, ...]) -> bool:
    """Return whether a path, with its links resolved, is in one of the roots.

    OSError or ValueError if links cannot be resolved.
    """
    resolved = path.resolve()
    return any(resolved.is_relative_to(root.resolve()) for root in roots if isinstance(root, Path))


def is_allowed(address: Address, roots: tuple[Root, ...]) -> bool:
    """Return whether an address is below one of the roots."""
    return any(address.is_below(root) for root in roots if isinstance(root, Address))
