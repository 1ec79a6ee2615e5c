"""Reads tables on servers, and in DuckDB files, through Ibis: one statement, and so one snapshot.

The statement selects the columns that are asked for, and is compiled by Ibis. Integers, floating-point
numbers, booleans, texts, dates, times and decimals with a fraction are read as they are; other scalars,
and whole decimals, as text. An error has only the name of its class, because its message may quote cells.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import ibis
import ibis.expr.datatypes as dt
import polars as pl
from ibis.common.exceptions import TableNotFound

from schemas import Address
from stream.errors import Missing
from stream.secret_files import SecretFileError
from stream.tables.readers.server_connections import connect_to_file, connect_to_server
from stream.tables.readers.table_parts import BATCH_ROWS
from stream.tables.table_errors import UnreadableError

_plain_words = re.compile(r"[A-Z0-9_.]{1,80}", re.ASCII)

_LARGEST_PRECISION: Final = 38
_MAX_SECONDS: Final = 24 * 3600
_TYPES_WITHOUT_CELLS: Final = (
    (dt.Binary, pl.Binary()),
    (dt.Array, pl.List(pl.String())),
    (dt.Struct, pl.Struct([])),
    (dt.Map, pl.Struct([])),
    (dt.Time, pl.Time()),
    (dt.Interval, pl.Duration()),
)
"""Types that no attribute can have: their names are for the message of a refusal."""


@dataclass(frozen=True)
class ServerTable:
    """A table or view, whose statement runs when its rows are read."""

    types: Mapping[str, pl.DataType]
    expression: Any
    read_batches: Callable[[Any], Iterator[Any]]
    is_csv: bool = False
    name: str = ""
    duplicate_names: Sequence[str] = ()

    def row_count_from_metadata(self) -> int | None:
        """Return None, because counting rows is another statement."""
        return None

    def batches(self, names: Sequence[str]) -> Iterator[pl.DataFrame]:
        """Yield the named columns in batches, in the server's order of rows."""
        schema = pl.Schema({name: self.types[name] for name in names})
        yield pl.DataFrame(schema=schema)
        with _as_unreadable_errors():
            for batch in self.read_batches(select_columns(self.expression, names)):
                cells: pl.DataFrame = pl.DataFrame(batch)
                cells.columns = list(names)
                if any(_zone(kind) != _zone(schema[name]) for name, kind in cells.schema.items()):
                    raise UnreadableError("its times have another zone than its columns declare")
                # A time that its unit cannot hold is missing: no cell may make a read fail.
                yield from cells.cast(schema, strict=False).iter_slices(BATCH_ROWS)


def open_server_table(address: Address, seconds: float | None = None) -> Iterator[ServerTable]:
    """Yield the table of an address; UnreadableError if it is missing or forbidden."""
    limit = max(1, int(_MAX_SECONDS if seconds is None else seconds))
    with _as_unreadable_errors():
        backend = connect_to_server(address, limit)
        try:
            yield (
                _open_spark_table(backend, address)
                if address.scheme == "spark"
                else _open_table(backend, address.parts[:-1], address.parts[-1])
            )
        finally:
            backend.disconnect()


def open_table_in_file(location: str, schema: str, name: str) -> Iterator[ServerTable]:
    """Yield a table of a DuckDB file; UnreadableError if it is missing."""
    with _as_unreadable_errors():
        backend = connect_to_file(location)
        try:
            # Ibis 12 uses methods that DuckDB 2 deprecates, and for batches one that it does not have.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                table = _open_table(backend, (schema,), name)
            yield replace(
                table,
                read_batches=lambda selected: backend.con.sql(backend.compile(selected)).to_arrow_reader(
                    BATCH_ROWS
                ),
            )
        finally:
            backend.disconnect()


def select_columns(table: Any, names: Sequence[str]) -> Any:
    """Return an Ibis expression with these columns, which it calls c0, c1 and so on."""
    kinds = table.schema()
    return table.select(
        **{
            f"c{place}": table[name].cast("string") if _is_read_as_text(kinds[name]) else table[name]
            for place, name in enumerate(names)
        }
    )


def column_types(schema: Any) -> dict[str, pl.DataType]:
    """Return the types of columns as they are read."""
    return {name: _type_as_read(kind) for name, kind in schema.items()}


def _type_as_read(kind: Any) -> pl.DataType:
    for unreadable, named in _TYPES_WITHOUT_CELLS:
        if isinstance(kind, unreadable):
            return named
    if _is_read_as_text(kind):
        return pl.String()
    if kind.is_timestamp() and kind.scale == 0:
        # Ibis would read seconds as nanoseconds, which end in 2262.
        return pl.Datetime("ms", kind.timezone)
    found: pl.DataType = ibis.schema({"": kind}).to_polars()[""]
    return found


def _is_read_as_text(kind: Any) -> bool:
    if kind.is_decimal():
        return not (kind.scale and kind.precision and kind.precision <= _LARGEST_PRECISION)
    is_plain = kind.is_numeric() or kind.is_boolean() or kind.is_date() or kind.is_timestamp()
    return not is_plain and not isinstance(kind, tuple(kind for kind, _ in _TYPES_WITHOUT_CELLS))


def _open_table(backend: Any, place: Sequence[str], name: str) -> ServerTable:
    expression = backend.table(name, database=tuple(place) if len(place) > 1 else place[0])

    def read_batches(selected: Any) -> Iterator[Any]:
        yield from backend.to_pyarrow_batches(selected, chunk_size=BATCH_ROWS)

    return ServerTable(column_types(expression.schema()), expression, read_batches)


def _open_spark_table(backend: Any, address: Address) -> ServerTable:
    """Open a table by Spark Connect; Ibis would hold all of its rows, and forget the zone of instants."""
    session: Any = backend._session  # noqa: SLF001  (the session that it was connected with)
    reader = session.read if address.version is None else session.read.option("versionAsOf", address.version)
    frame = reader.table(".".join(f"`{part}`" for part in address.parts))
    view = "sotto"
    frame.createOrReplaceTempView(view)
    kinds = {
        name: dt.Timestamp(timezone="UTC") if field.dataType.typeName() == "timestamp" else kind
        for field, (name, kind) in zip(frame.schema.fields, backend.table(view).schema().items(), strict=True)
    }
    expression = ibis.table(kinds, name=view)

    def read_batches(selected: Any) -> Iterator[Any]:
        client = session.client
        plan = session.sql(backend.compile(selected))._plan.to_proto(client)  # noqa: SLF001  (no public method streams Arrow)
        for found in client.to_table_as_iterator(plan, {}):
            if hasattr(found, "to_batches"):
                yield from found.to_batches()

    return ServerTable(column_types(expression.schema()), expression, read_batches)


def _zone(kind: pl.DataType) -> str | None:
    return kind.time_zone if isinstance(kind, pl.Datetime) else None


@contextmanager
def _as_unreadable_errors() -> Iterator[None]:
    """Convert errors to UnreadableError, without their messages."""
    try:
        yield
    except (UnreadableError, Missing, MemoryError):
        raise
    except SecretFileError as error:
        raise UnreadableError(str(error)) from None
    except TableNotFound:
        raise UnreadableError("missing") from None
    except Exception as error:  # noqa: BLE001  (each driver has its own errors)
        raise UnreadableError(f"its database was not reached, or refused: {_error_code(error)}") from None


def _error_code(error: Exception) -> str:
    """Return the name of an error's class or, of Spark's, its condition: plain words, which cannot quote cells."""
    condition = error.getCondition() if hasattr(error, "getCondition") else None
    is_plain = isinstance(condition, str) and _plain_words.fullmatch(condition)
    return str(condition) if is_plain else type(error).__name__
