"""The files that a source's path stands for, in an order that follows from their names alone.

A path is one file's, or a folder's if it ends in ``/``, or has wildcards: ``*`` stands for signs of a name, ``**`` for any
folders. Folders below that are called ``key=value`` say a column's cell for all rows in them. A folder that is a Delta table's
stands for the files of its newest version (``delta``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from fnmatch import translate
from os import stat_result, walk
from pathlib import Path
from stat import S_ISREG
from typing import Final
from urllib.parse import unquote

from schemas import Address
from stream.tables.table_errors import DataError, UnreadableError

MOST_PARTS: Final = 10_000
"""Most files of one table."""
MOST_LISTED: Final = 100_000
"""Most files, and on disks folders, that are looked through for them."""

CHANGED: Final = "changed while it was read"
LARGE_FILES: Final = "larger than SOTTO_TABLE_READING_BYTES"

DELTA_LOG: Final = "_delta_log"
"""The folder in a Delta table's own that says which files are the table's."""

DOTS: Final = frozenset({"", ".", ".."})
"""Names that would lead elsewhere, though a store's objects may have them."""

Names = tuple[str, ...]
"""A file's folders, from some folder on, and its own name."""

_SUFFIXES: Final = (".csv", ".csv.gz", ".parquet")
_ANY_FOLDERS: Final = "**"
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file of a table."""

    location: str
    """Its path, all links followed, or its address."""

    size: int
    stamp: tuple[int | str, ...]
    """What changes when the file may have changed."""

    cells: tuple[tuple[str, str | None], ...] = ()
    """Columns that its folders' names or a table's log say, with the cell that all of its rows have there."""

    columns: tuple[str, ...] = ()
    """Columns of its table, as far as a log says them: the cells of those that the file lacks are missing."""

    rows: int | None = None
    """How many rows it has by a log's word, those that are deleted among them; None if none says."""

    kept: bytes | None = None
    """A byte for each row, 0 where a log says that it is deleted; None if none is."""

    name: str = ""
    """Its path below the folder of the table's path; empty if the path is a single file's."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The folder that a path's files lie below, and a pattern of which they are."""

    folder: Names
    pattern: Names

    @classmethod
    def of(cls, names: Names, *, is_folder: bool) -> Scope | None:
        """The scope of a path; None of one that is a single file's."""
        fixed = next((place for place, name in enumerate(names) if "*" in name), len(names))
        if is_folder:
            names = (*names, _ANY_FOLDERS, "*")
        return None if fixed == len(names) else cls(names[:fixed], names[fixed:])

    @property
    def depth(self) -> int | None:
        """How many folders deep its files lie at most; None if there is no telling."""
        return None if _ANY_FOLDERS in self.pattern else len(self.pattern)

    @property
    def is_whole(self) -> bool:
        """Whether the path stands for all that lies in its folder, as that of a Delta table does."""
        return self.pattern == (_ANY_FOLDERS, "*")

    def select(self, listed: Sequence[Names]) -> list[Names]:
        """Those of the files below the folder that the path stands for, in order.

        Names that begin with ``_`` or ``.`` are hidden. UnreadableError if a file among them is no table's, or belongs to a
        Delta table, in whose folder files may lie that are no part of it any more.
        """
        pattern = [None if name == _ANY_FOLDERS else _expression(name) for name in self.pattern]
        logged = {names[: names.index(DELTA_LOG)] for names in listed if DELTA_LOG in names}
        found = []
        for names in sorted(listed):
            if not _matches(pattern, names):
                continue
            if not DOTS.isdisjoint(names):
                raise UnreadableError("a file below has an empty name, or dots for one")
            if any(map(_is_hidden, names)):
                continue
            if any(names[:depth] in logged for depth in range(len(names))):
                raise UnreadableError("files of a Delta table; give the table's own folder, with '/' at its end")
            require_table_name(names[-1])
            found.append(names)
        require_number(found)
        return found


def local_scope(path: str) -> Scope | None:
    """The scope of a path of this machine; None if there is a file of this very name, or the path has no wildcards."""
    if Path(path).is_file():
        return None
    return Scope.of(tuple(path.rstrip("/").split("/")), is_folder=path.endswith("/"))


def local_folder(scope: Scope) -> Path:
    """The folder of a scope of this machine."""
    return Path("/".join(scope.folder) or ("/" if scope.folder else "."))


def local_delta(path: str) -> Path | None:
    """The folder of the Delta table that a path of this machine stands for, if it is one's."""
    scope = local_scope(path)
    if scope is None or not scope.is_whole:
        return None
    folder = local_folder(scope)
    return folder if folder.joinpath(DELTA_LOG).is_dir() else None


def local_parts(path: str) -> tuple[TableFile, ...]:
    """The files that a path of this machine stands for; UnreadableError if there is none, or one that is no table's.

    What links lead to is in ``location``: whoever may not read everything looks there. Of a Delta table they are all files of its
    folder, its log among them, which says what they are.
    """
    try:
        if (scope := local_scope(path)) is None:
            require_table_name(Path(path).name)
            return (_local_part(Path(path)),)
        folder = local_folder(scope)
        listed = _listed(folder, scope.depth)
        chosen = scope.select(listed) if local_delta(path) is None else sorted(listed)
        return tuple(_local_part(folder.joinpath(*names), names) for names in chosen)
    except (OSError, RuntimeError, ValueError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError("missing") from None


def has_changed(part: TableFile) -> bool:
    """Whether a file of this machine is another than when it was listed."""
    try:
        return _stamp(Path(part.location).stat()) != part.stamp
    except OSError:
        return True


def cells_of(names: Names) -> tuple[tuple[str, str | None], ...]:
    """The columns that folders' names say: ``key=value``, signs as in addresses (``%2F``)."""
    found: dict[str, str | None] = {}
    for name in names[:-1]:
        key, sign, value = name.partition("=")
        if sign and key:
            found[unquote(key)] = None if value == _NO_VALUE else unquote(value)
    return tuple(found.items())


def require_table_name(name: str) -> None:
    """UnreadableError unless a file's name says that it holds a table."""
    if not name.lower().endswith(_SUFFIXES):
        raise UnreadableError("no .csv, .csv.gz or .parquet file")


def require_number(files: Sized) -> None:
    """UnreadableError unless a table has files, and not too many."""
    if not len(files):
        raise UnreadableError("missing")
    if len(files) > MOST_PARTS:
        raise UnreadableError(f"more than {MOST_PARTS} files")


def require_size(parts: Sequence[TableFile], most_bytes: int | None) -> None:
    """UnreadableError if files have more than ``most_bytes`` together."""
    if most_bytes is not None and sum(part.size for part in parts) > most_bytes:
        raise UnreadableError(LARGE_FILES)


def _listed(folder: Path, depth: int | None) -> list[Names]:
    """The files below a folder, of links to folders none."""
    found: list[Names] = []
    for earlier, (at, folders, files) in enumerate(walk(folder)):
        below = Path(at).relative_to(folder).parts
        if depth is not None and len(below) >= depth:
            folders[:] = [name for name in folders if name == DELTA_LOG]
        found.extend((*below, name) for name in files)
        if earlier + len(found) > MOST_LISTED:
            raise UnreadableError(f"more than {MOST_LISTED} files and folders below its folder")
    return found


def _local_part(path: Path, names: Names = ()) -> TableFile:
    resolved = path.resolve(strict=True)
    status = resolved.stat()
    if not S_ISREG(status.st_mode):
        raise UnreadableError("no regular file")
    return TableFile(str(resolved), status.st_size, _stamp(status), cells_of(names), name="/".join(names))


def _stamp(status: stat_result) -> tuple[int, ...]:
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_dev, status.st_ino)


def _is_hidden(name: str) -> bool:
    return name.startswith(("_", ".")) and "=" not in name


def _expression(name: str) -> re.Pattern[str]:
    """What a name with wildcards matches; of these ``*`` alone is one."""
    return re.compile(translate("".join(f"[{sign}]" if sign in "?[" else sign for sign in name)))


def _matches(pattern: Sequence[re.Pattern[str] | None], names: Names) -> bool:
    """Whether names are as a pattern says, of which None stands for any number of them; in time that grows with their product."""
    places = _onward(pattern, {0})
    for name in names:
        stay = {place for place in places if place < len(pattern) and pattern[place] is None}
        go = {
            place + 1
            for place in places
            if place < len(pattern) and (one := pattern[place]) is not None and one.match(name)
        }
        places = _onward(pattern, stay | go)
    return len(pattern) in places


def _onward(pattern: Sequence[re.Pattern[str] | None], places: set[int]) -> set[int]:
    """Places in a pattern, and those behind what may stand for nothing."""
    for place, one in enumerate(pattern):
        if place in places and one is None:
            places.add(place + 1)
    return places


Root = Path | Address

_address = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^:]*(?::[0-9]+(?:/[^:]*)?(?![^:]))?")


def parse_roots(text: str) -> tuple[Root, ...]:
    """The roots of one text, separated by colons as in ``PATH``.

    The colon of ``://`` separates nothing, nor does one before a server's port. Behind an address comes another, or a folder that
    begins with ``/`` or ``.``: anything else might be a part of the address. DataError, with the remedy, where that is not so.
    """
    return tuple(_parsed(text))


def _parsed(text: str) -> Iterator[Root]:
    at, is_behind_address = 0, False
    while at <= len(text):
        if (found := _address.match(text, at)) is not None:
            try:
                yield Address.of_root(found[0])
            except ValueError as error:
                raise DataError(f"SOTTO_TABLE_ROOTS: {error}") from None
            at, is_behind_address = found.end() + 1, True
            continue
        folder = text[at:].partition(":")[0]
        if folder and is_behind_address and not folder.startswith(("/", ".")):
            raise DataError(
                "SOTTO_TABLE_ROOTS: what stands behind an address and ':' might be a part of it; begin a folder there with '/' or "
                "'./', and an address with s3:// or postgresql://"
            )
        if folder:
            yield Path(folder)
        at += len(folder) + 1
        is_behind_address = is_behind_address and not folder


def is_within(path: Path, roots: tuple[Root, ...]) -> bool:
    """Whether a path, all links followed, lies in one of the folders; OSError or ValueError if there is no telling."""
    resolved = path.resolve()
    return any(resolved.is_relative_to(root.resolve()) for root in roots if isinstance(root, Path))


def is_allowed(address: Address, roots: tuple[Root, ...]) -> bool:
    """Whether an address lies below one of the addresses."""
    return any(address.is_below(root) for root in roots if isinstance(root, Address))
