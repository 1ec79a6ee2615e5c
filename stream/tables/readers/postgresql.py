"""Reads a table or view of PostgreSQL in batches, in one read-only snapshot (repeatable read).

User, password and other connection settings come from libpq's variables (PGUSER, PGPASSFILE, PGSERVICEFILE,
PGSSLMODE) and are never part of a source. Numbers and booleans are read as such, and other types as text, so that no
cell affects how other cells are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import polars as pl

from schemas import Address
from stream.optional_packages import connect_to_postgresql, convert_postgresql_errors
from stream.tables.readers.table_parts import DatabaseTable
from stream.tables.table_errors import UnreadableError

_CONNECT_SECONDS: Final = 10
_BATCH_BYTES: Final = 4 << 20

_TYPES_READ_AS_THEY_ARE: Final[Mapping[str, pl.DataType]] = {
    "smallint": pl.Int16(),
    "integer": pl.Int32(),
    "bigint": pl.Int64(),
    "real": pl.Float32(),
    "double precision": pl.Float64(),
    "boolean": pl.Boolean(),
}
"""Types whose cells are not converted to text."""


def open_postgresql_table(address: Address, seconds: float | None = None) -> Iterator[DatabaseTable]:
    """Yield the table of an address; UnreadableError if it is missing or forbidden.

    Services give ``seconds``: each statement ends after that time, and the role must not be able to change the table.
    """
    with _as_unreadable_errors(), _connect(address) as connection:
        if seconds is not None:
            # Servers before version 14 do not have client_connection_check_interval.
            for setting, value in (
                ("statement_timeout", f"{int(seconds * 1000)}ms"),
                ("client_connection_check_interval", "1s"),
            ):
                _run_query(
                    connection,
                    "SELECT set_config(name, $1, true) FROM pg_settings WHERE name = $2",
                    (value, setting),
                )
        _database, schema, name = address.parts
        found = _run_query(
            connection,
            "SELECT a.attname::text, format_type(a.atttypid, NULL), "
            "has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')::text "
            "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE a.attnum > 0 AND NOT a.attisdropped AND "
            "c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname = $1 AND c.relname = $2 ORDER BY a.attnum",
            (schema, name),
        )
        if not found:
            raise UnreadableError("missing")
        if seconds is not None and found[0][2] == "true":
            raise UnreadableError("its role may change the table; give the services one that may only SELECT")
        types = {column: _TYPES_READ_AS_THEY_ARE.get(kind, pl.String()) for column, kind, _ in found}
        yield DatabaseTable(
            types, lambda names: _read_batches(connection, address, types, names), _as_unreadable_errors
        )


def _read_batches(
    connection: Any, address: Address, types: Mapping[str, pl.DataType], names: Sequence[str]
) -> Iterator[Any]:
    """Yield Arrow batches of the named columns, in the server's order of rows."""
    columns = [_quote_identifier(name) + ("::text" if types[name] == pl.String else "") for name in names]
    _database, *relation = address.parts
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
        cursor.execute(f"SELECT {', '.join(columns)} FROM {'.'.join(map(_quote_identifier, relation))}")  # noqa: S608  (all names are quoted)
        yield from cursor.fetch_record_batch()


def read_snapshot(address: Address) -> tuple[str, ...]:
    """Return the server's start time and snapshot; while both stay equal, the rows do not change."""
    with _as_unreadable_errors(), _connect(address) as connection:
        [stamp] = _run_query(connection, "SELECT pg_postmaster_start_time()::text, pg_current_snapshot()::text")
    return stamp


@contextmanager
def _connect(address: Address) -> Iterator[Any]:
    """Open a connection in a read-only transaction with one snapshot."""
    with connect_to_postgresql(address, _CONNECT_SECONDS) as connection:
        with connection.cursor() as cursor:
            # The first statement begins the transaction; the second takes its snapshot.
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield connection


@contextmanager
def _as_unreadable_errors() -> Iterator[None]:
    with convert_postgresql_errors(UnreadableError):
        try:
            yield
        except (OSError, import_module("pyarrow").ArrowException):
            # The driver gives no error code for failures while rows arrive.
            raise UnreadableError("PostgreSQL ended the connection while it sent rows") from None


def _run_query(connection: Any, query: str, values: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query, values or None)
        return [tuple(row) for row in cursor.fetchall()]


def _quote_identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
