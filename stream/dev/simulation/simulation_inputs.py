"""Which files a simulation may read.

A simulation prints the errors of its answers against exact counts: answer less error is the count itself, and no noise
protects it. Its throw-away keys are no secret either, so that even its noise could be taken off. What it reads must
therefore be public before it is read. Nobody can tell that of a file in general; what can be told is that a deployment
holds a file for private, and such a file is refused.

This guards against a mistake. Whoever may read a private file can count its rows without a simulation, and a copy under
another name is not recognised: rights on files are what protects them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
from blake3 import blake3
from pydantic import ValidationError

from schemas import Address, Bins, Categories, Domain, Query, TableSource
from schemas.json_limits import repeats_a_field, shape_fault
from schemas.wire import describe, read_json
from stream.dev.simulation.true_answers import SimulationError
from stream.tables import adult
from stream.tables.readers.table_files import local_folder, local_scope

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


def read_questions(lines: Iterable[str], stream: str) -> dict[int, Query]:
    """The questions of a file to a stream, by the number of their line.

    A line that begins with ``{`` is a query as producers send it, whose ``id`` and ``stream`` may be left out; any other is
    the ``where`` of a count. Blank lines are passed over.

    Raises:
        SimulationError: a line is no query, or names another stream; it says which line and field.
    """
    questions = {
        number: _question(line.strip(), number, stream) for number, line in enumerate(lines, 1) if line.strip()
    }
    if not questions:
        raise SimulationError("QUESTIONS: there is none in the file; give one a line")
    return questions


def _question(line: str, number: int, stream: str) -> Query:
    fields = {"id": f"line-{number}", "stream": stream}
    try:
        if not line.startswith("{"):
            return Query.model_validate({**fields, "where": line})
        if fault := shape_fault(line):
            raise SimulationError(f"QUESTIONS line {number}: {fault}")
        given = read_json(line)
        if repeats_a_field(line):
            raise SimulationError(f"QUESTIONS line {number}: a field is given twice; give each field once")
        query = Query.model_validate_json(json.dumps({**fields, **given}))
    except ValidationError as error:
        raise SimulationError(f"QUESTIONS line {number}: {describe(error)}") from None
    except json.JSONDecodeError as error:
        raise SimulationError(
            f"QUESTIONS line {number}: no JSON at column {error.colno}; give one JSON object a line, or a where"
        ) from None
    if query.stream != stream:
        raise SimulationError(
            f"QUESTIONS line {number}: stream is not '{stream}', which SPEC opens; leave it out, or simulate each stream "
            "by itself"
        )
    return query


LAW = (
    "independent attributes; a category has odds 1/k, k its place in a drawn order; "
    "a number or bin d steps from a drawn one has odds 1/(1 + d)"
)
"""The law that rows are drawn from."""


def synthetic(source: TableSource, rows: int, seed: int) -> pl.DataFrame:
    """So many rows that are drawn independently by ``LAW`` over a source's declared domains.

    No row is left out of the table or clamped. Where rows have persons, each is that of one of so many people that they
    have as many rows on average as count. The same seed gives the same cells to an attribute, whatever other
    attributes there are. This is no noise, and protects nothing: there is nothing to protect.
    """
    columns = [_column(name, domain, rows, seed) for name, domain in source.attributes.items()]
    if source.person is not None and source.person not in source.attributes:
        people = max(1, rows // source.contribution)
        columns.append(pl.Series(source.person, _generator(source.person, seed).integers(people, size=rows)))
    return pl.DataFrame(columns)


def _column(name: str, domain: Domain, rows: int, seed: int) -> pl.Series:
    codes = _codes(domain, rows, _generator(name, seed))
    match domain:
        case Categories(values=values):
            return pl.Series(name, values, dtype=pl.String).gather(codes)
        case Bins(edges=edges):
            # The lower edge lies in its bin.
            return pl.Series(name, np.array(edges, dtype=np.float64)[codes])
        case _:
            return pl.Series(name, codes + domain.minimum)


def _generator(name: str, seed: int) -> np.random.Generator:
    digest = blake3(f"sotto synthetic table v1 {seed} {name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def _codes(domain: Domain, rows: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    if isinstance(domain, Categories):
        places = generator.permutation(domain.size) + 1
    else:
        places = 1 + np.abs(np.arange(domain.size) - generator.integers(domain.size))
    ends = np.cumsum(1.0 / places)
    drawn: npt.NDArray[np.int64] = ends.searchsorted(generator.random(rows) * ends[-1], side="right")
    return np.minimum(drawn, domain.size - 1)
