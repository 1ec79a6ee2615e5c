"""Reads the inputs of simulations (public tables, questions), and draws synthetic rows.

A simulation prints exact errors, from which exact counts follow, and its noise keys are not secret. So
its table must be public. Sotto cannot know whether a table is public, but it refuses files that a
deployment treats as private. This prevents mistakes only: copies of private files are not recognized;
file permissions must protect them.
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

_REMEDY = "a simulation reveals exact counts; give --table a public file, or use --synthetic ROWS"


def require_public(
    table: Path, source: TableSource, *, roots: Iterable[Path] = (), registered: Iterable[TableSource] = ()
) -> Path:
    """Resolve the path of a table, and refuse a private one.

    Files of ``source`` and of ``registered`` sources, under any name, and files in the table ``roots``
    are private. The shipped Adult table is always public.

    Raises:
        SimulationError: the file is private or does not exist.
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
    if Address.of_table(place) is not None:
        return False
    if (scope := local_scope(place)) is None:
        return _same(path, Path(place))
    try:
        return path.is_relative_to(local_folder(scope).resolve())
    except (OSError, RuntimeError, ValueError):
        return False


def require_other_table(source: TableSource) -> None:
    """Raise SimulationError unless the source's own file is the shipped table."""
    if not is_shipped(Path(source.path)):
        raise SimulationError(f"source '{source.source}': its own table is private; {_REMEDY}")


def is_shipped(path: Path) -> bool:
    """Whether a path is the Adult table of this package."""
    return _same(path, adult.PATH)


def _same(one: Path, other: Path) -> bool:
    """Whether two paths are the same file; compares paths if a file is missing."""
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
    """Parse a file of questions to a stream, by line number.

    A line that begins with ``{`` is a query, in which ``id`` and ``stream`` are optional. Any other
    line is the ``where`` of a count. Blank lines are ignored.

    Raises:
        SimulationError: a line is not a query or has another stream; the message has line and field.
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
            "separately"
        )
    return query


LAW = (
    "independent attributes; a category has odds 1/k, k its place in a drawn order; "
    "a number or bin d steps from a drawn one has odds 1/(1 + d)"
)
"""Distribution of synthetic rows."""


def synthetic(source: TableSource, rows: int, seed: int) -> pl.DataFrame:
    """Draw independent rows by ``LAW`` over a source's declared domains.

    A person has on average as many rows as the contribution bound allows. With the same seed, an attribute
    has the same cells whatever the other attributes are. The random numbers protect no privacy.
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
            # A bin includes its lower edge.
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
