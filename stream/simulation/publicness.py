"""Which files a simulation may read.

A simulation prints the errors of its answers against exact counts: answer less error is the count itself, and no noise
protects it. Its throw-away keys are no secret either, so that even its noise could be taken off. What it reads must
therefore be public before it is read. Nobody can tell that of a file in general; what can be told is that a deployment
holds a file for private, and such a file is refused.

This guards against a mistake. Whoever may read a private file can count its rows without a simulation, and a copy under
another name is not recognised: rights on files are what protects them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from schemas import Address, TableSource
from stream.data import adult
from stream.data.parts import local_folder, local_scope
from stream.simulation.errors import SimulationError

_REMEDY = "a simulation tells exact counts, so give --table a public file, or --synthetic ROWS"


def require_public(
    table: Path, source: TableSource, *, roots: Iterable[Path] = (), registered: Iterable[TableSource] = ()
) -> Path:
    """The file behind a path, all links followed, unless something says that it is private.

    Refused is the file of the ``source`` itself and of any ``registered`` one, under any name, and whatever lies in the
    deployment's table ``roots``. The shipped Adult table is public and taken wherever it lies and whoever registered it.

    Raises:
        SimulationError: the file is refused, or is not there.
    """
    if is_shipped(table):
        return adult.PATH.resolve()
    try:
        path = table.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise SimulationError(
            f"--table: there is no file {table}; give a .csv, .csv.gz or .parquet file"
        ) from None
    for known in (source, *registered):
        if _is_of(path, known.path):
            raise SimulationError(f"--table: {table} is the file of source '{known.source}', private; {_REMEDY}")
    for root in roots:
        if path.is_relative_to(root.resolve()):
            raise SimulationError(
                f"--table: {table} lies in {root}, one of SOTTO_TABLE_ROOTS, where private tables are; {_REMEDY}"
            )
    return path


def _is_of(path: Path, place: str) -> bool:
    """Whether a file is that of a source's path, or lies in the folder of one that stands for several."""
    if Address.of_table(place) is not None:
        return False
    if (scope := local_scope(place)) is None:
        return _same(path, Path(place))
    try:
        return path.is_relative_to(local_folder(scope).resolve())
    except (OSError, RuntimeError, ValueError):
        return False


def require_other_table(source: TableSource) -> None:
    """SimulationError where a source's own file would be read, unless it is the shipped table."""
    if not is_shipped(Path(source.path)):
        raise SimulationError(f"source '{source.source}': its own table is private; {_REMEDY}")


def is_shipped(path: Path) -> bool:
    """Whether a path leads to the Adult table that comes with the package."""
    return _same(path, adult.PATH)


def _same(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, by links of either kind; a path at which there is nothing counts as written."""
    try:
        if one.samefile(other):
            return True
    except (OSError, ValueError):
        pass
    try:
        return one.resolve() == other.resolve()
    except (OSError, RuntimeError, ValueError):
        return False
