"""Reads the inputs of simulations, and draws synthetic rows.

A simulation prints exact errors, from which exact counts follow, and its noise keys are not secret. So
its table must be public. Sotto cannot know whether a table is public, but it refuses files that a
deployment treats as private. This check only prevents mistakes: copies of private files are not
recognized, and file permissions must protect them.
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

from schemas import Address, Bins, Categories, Dates, Decimals, Domain, Query, TableSource, Text
from schemas.base import repeats_a_field, shape_fault
from schemas.calendars import HOUR_US, parse_day
from schemas.wire import describe, read_json
from stream.tables.demo_tables import ADULT_PATH
from stream.tables.readers.table_files import local_folder, local_pattern

_REMEDY = "a simulation reveals exact counts; give --table a public file, or use --synthetic ROWS"


def require_public(
    table: Path, source: TableSource, *, roots: Iterable[Path] = (), registered: Iterable[TableSource] = ()
) -> Path:
    """Resolve the path of a table, and refuse a private table.

    Files of ``source`` and of ``registered`` sources, under any name, and files in the table ``roots``
    are private. The shipped Adult table is always public.

    Raises:
        SimulationError: the file is private or does not exist.
    """
    if is_shipped(table):
        return ADULT_PATH.resolve()
    try:
        path = table.resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise SimulationError(
            f"--table: there is no file {table}; give a .csv, .csv.gz or .parquet file"
        ) from None
    for known in (source, *registered):
        if any(_belongs_to(path, declared) for declared in known.paths):
            raise SimulationError(
                f"--table: {table} is the file of source '{known.source}' and private; {_REMEDY}"
            )
    for root in roots:
        if path.is_relative_to(root.resolve()):
            raise SimulationError(
                f"--table: {table} is in {root}, one of SOTTO_TABLE_ROOTS, whose tables are private; {_REMEDY}"
            )
    return path


def _belongs_to(path: Path, declared_path: str) -> bool:
    if Address.parse_table(declared_path) is not None:
        return False
    if (path_pattern := local_pattern(declared_path)) is None:
        return _is_same_file(path, Path(declared_path))
    try:
        return path.is_relative_to(local_folder(path_pattern).resolve())
    except (OSError, RuntimeError, ValueError):
        return False


def require_shipped_table(source: TableSource) -> Path:
    """Return the path of the source's file; raise SimulationError unless it is the shipped table."""
    if source.path is None or not is_shipped(Path(source.path)):
        raise SimulationError(f"source '{source.source}': its own table is private; {_REMEDY}")
    return Path(source.path)


def is_shipped(path: Path) -> bool:
    """Return whether a path is the Adult table of this package."""
    return _is_same_file(path, ADULT_PATH)


def _is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths are the same file; compare the paths if a file is missing."""
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
        number: _parse_question(line.strip(), number, stream)
        for number, line in enumerate(lines, 1)
        if line.strip()
    }
    if not questions:
        raise SimulationError("QUESTIONS: the file has no question; give one per line")
    return questions


def _parse_question(line: str, number: int, stream: str) -> Query:
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
            f"QUESTIONS line {number}: no JSON at column {error.colno}; give one JSON object or one predicate per line"
        ) from None
    if query.stream != stream:
        raise SimulationError(
            f"QUESTIONS line {number}: stream is not '{stream}', which SPEC opens; leave it out, or simulate each stream "
            "separately"
        )
    return query


_MAX_TEXTS = 1000
SYNTHETIC_LAW = (
    "independent attributes; a category has odds 1/k, k its place in a drawn order; "
    "a number or bin d steps from a drawn one has odds 1/(1 + d); texts are up to 1,000 numbers, the k-th with odds 1/k"
)
"""Distribution of synthetic rows."""


def draw_table(source: TableSource, rows: int, seed: int) -> pl.DataFrame:
    """Draw independent rows by ``SYNTHETIC_LAW`` over a source's declared domains.

    A person has on average as many rows as the contribution bound allows. With the same seed, an attribute
    has the same cells, independently of the other attributes. The random numbers protect no privacy.
    """
    # If attributes share a column, the finest attribute determines its cells.
    finest: dict[str, tuple[str, Domain]] = {}
    for name, domain in source.attributes.items():
        column = source.column_of(name)
        if column not in finest or domain.size > finest[column][1].size:
            finest[column] = name, domain
    columns = [_draw_column(name, domain, rows, seed).alias(column) for column, (name, domain) in finest.items()]
    for name, text in source.texts.items():
        if (column := source.column_of(name)) not in finest:
            finest[column] = name, Categories(values=_synthetic_texts(text))
            columns.append(_draw_column(name, finest[column][1], rows, seed).alias(column))
    if source.person is not None and source.person not in finest:
        people = max(1, rows // source.contribution)
        columns.append(pl.Series(source.person, _generator(source.person, seed).integers(people, size=rows)))
    return pl.DataFrame(columns)


def _synthetic_texts(declared: Text) -> tuple[str, ...]:
    """Return artificial texts: the whole numbers from 1 on that are short enough."""
    return tuple(str(number) for number in range(1, _MAX_TEXTS + 1) if len(str(number)) <= declared.max_length)


def _draw_column(name: str, domain: Domain, rows: int, seed: int) -> pl.Series:
    codes = _draw_codes(domain, rows, _generator(name, seed))
    match domain:
        case Categories(values=values):
            return pl.Series(name, values, dtype=pl.String).gather(codes)
        case Dates():
            return _date_column(name, domain, codes)
        case Decimals():
            return pl.Series(name, np.array(domain.values(), dtype=np.float64)[codes])
        case Bins(edges=edges):
            # A bin includes its lower edge.
            return pl.Series(name, np.array(edges, dtype=np.float64)[codes])
        case _:
            return pl.Series(name, codes + domain.minimum)


def _date_column(name: str, domain: Dates, codes: npt.NDArray[np.int64]) -> pl.Series:
    """Return the beginning of each cell; if the cells are parts of dates, return days or hours of 2024."""
    if domain.part is None:
        starts = np.array([domain.calendar.start(place) for place in range(domain.size)], dtype=np.int64)
    elif domain.granularity == "month-of-year":
        starts = np.array([parse_day(f"2024-{month:02}-01") for month in domain.values()], dtype=np.int64)
    else:
        # 2024-01-01 is a Monday.
        starts = parse_day("2024-01-01") + np.arange(domain.size)
    if domain.kind == "date":
        return pl.Series(name, starts[codes]).cast(pl.Int32).cast(pl.Date)
    if domain.granularity == "hour-of-day":
        local = parse_day("2024-01-01") * 24 * HOUR_US + np.arange(24) * HOUR_US
        return pl.Series(name, local[codes]).cast(pl.Datetime("us"))
    if domain.part is not None:
        return pl.Series(name, starts[codes] * 24 * HOUR_US).cast(pl.Datetime("us"))
    return pl.Series(name, starts[codes]).cast(pl.Datetime("us", "UTC"))


def _generator(name: str, seed: int) -> np.random.Generator:
    digest = blake3(f"sotto synthetic table v1 {seed} {name}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def _draw_codes(domain: Domain, rows: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    if isinstance(domain, Categories):
        ranks = generator.permutation(domain.size) + 1
    else:
        ranks = 1 + np.abs(np.arange(domain.size) - generator.integers(domain.size))
    ends = np.cumsum(1.0 / ranks)
    drawn: npt.NDArray[np.int64] = ends.searchsorted(generator.random(rows) * ends[-1], side="right")
    return np.minimum(drawn, domain.size - 1)


class SimulationError(ValueError):
    """A simulation is refused or its input is invalid; the message has the remedy."""
