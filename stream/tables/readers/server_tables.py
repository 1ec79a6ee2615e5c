"""Reads tables on servers, and in DuckDB files, through Ibis: one statement, and so one snapshot.

User names, passwords and tokens come from the variables of each server's own client and are never part of a source.
A secret may also be in an owner-only file: the variable NAME_FILE has the path of a file with the secret NAME. The
server stops a statement after SOTTO_TABLE_READING_SECONDS (except Spark). Nothing is written, and no temporary objects
are created, except the temporary view ``sotto`` of Spark's session.

The statement selects the requested columns, and Ibis compiles it. Integers, floating-point numbers, booleans, texts,
dates, times and decimals with a fraction are read as they are; other scalars, and whole decimals, as text. An error
has only the name of its class, because its message may quote cells.
"""

from __future__ import annotations

import os
import re
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import ibis
import ibis.expr.datatypes as dt
import polars as pl
from ibis.common.exceptions import TableNotFound

from schemas import Address
from stream.errors import Missing
from stream.optional_packages import explain_missing_packages
from stream.secret_files import SecretFileError, read_secret
from stream.tables.readers.table_parts import BATCH_ROWS, DatabaseTable
from stream.tables.table_errors import UnreadableError

_CONNECT_SECONDS: Final = 10
_BIGQUERY_SCOPE: Final = "https://www.googleapis.com/auth/bigquery"


class ServerKind(NamedTuple):
    """The driver of one kind of server, and the function that connects to it."""

    driver: str
    connect: Callable[[Address, int], Any]
    """Return an Ibis backend for an address; each of its statements ends after the given seconds."""


def _connect_to_spark(address: Address, _seconds: int) -> Any:
    """Connect by Spark Connect, with TLS if there is a token; it has no time-out of statements."""
    # An unreachable server fails here at once; Spark's client would retry for minutes.
    socket.create_connection((address.host, address.port or 0), _CONNECT_SECONDS).close()
    token = _read_setting("SPARK_CONNECT_AUTHENTICATE_TOKEN")
    session = import_module("pyspark.sql").SparkSession.builder.remote(
        f"sc://{address.host}:{address.port}/" + (f";use_ssl=true;token={token}" if token else "")
    )
    return ibis.pyspark.connect(session.create())


def _connect_to_trino(address: Address, seconds: int) -> Any:
    user, password, token = (_read_setting(f"TRINO_{name}") for name in ("USER", "PASSWORD", "TOKEN"))
    auth = import_module("trino.auth")
    return ibis.trino.connect(
        host=address.host,
        port=address.port,
        user=user,
        auth=auth.JWTAuthentication(token)
        if token
        else auth.BasicAuthentication(user, password)
        if password
        else None,
        database=address.parts[0],
        schema=address.parts[1],
        http_scheme="https" if _uses_tls("TRINO") else "http",
        request_timeout=_CONNECT_SECONDS,
        session_properties={"query_max_run_time": f"{seconds}s"},
    )


def _connect_to_clickhouse(address: Address, seconds: int) -> Any:
    # Drop the time-out instead of failing if the role may not set it, as with the profile "readonly".
    import_module("clickhouse_connect.common").set_setting("invalid_setting_action", "drop")
    return ibis.clickhouse.connect(
        host=address.host,
        port=address.port,
        user=_read_setting("CLICKHOUSE_USER") or "default",
        password=_read_setting("CLICKHOUSE_PASSWORD"),
        database=address.parts[0],
        secure=_uses_tls("CLICKHOUSE"),
        connect_timeout=_CONNECT_SECONDS,
        settings={"max_execution_time": seconds},
    )


def _connect_to_bigquery(address: Address, seconds: int) -> Any:
    credentials, _project = import_module("google.auth").default(scopes=[_BIGQUERY_SCOPE])
    bigquery = import_module("google.cloud.bigquery")
    client = bigquery.Client(
        project=address.host,
        credentials=credentials,
        default_query_job_config=bigquery.QueryJobConfig(job_timeout_ms=seconds * 1000),
    )
    return ibis.bigquery.connect(project_id=address.host, dataset_id=address.parts[0], client=client)


def _connect_to_snowflake(address: Address, seconds: int) -> Any:
    """Connect with the user and key of a connection in Snowflake's own file, connections.toml."""
    return ibis.snowflake.connect(
        create_object_udfs=False,
        connection_name=os.environ.get("SNOWFLAKE_DEFAULT_CONNECTION_NAME", "default"),
        account=address.host,
        database="/".join(address.parts[:2]),
        login_timeout=_CONNECT_SECONDS,
        session_parameters={"STATEMENT_TIMEOUT_IN_SECONDS": seconds},
    )


def _connect_to_databricks(address: Address, seconds: int) -> Any:
    class ReadingBackend(import_module("ibis.backends.databricks").Backend):  # type: ignore[misc]
        """A backend that does not create Ibis's volume for tables in memory."""

        def _post_connect(self, **_: object) -> None:
            pass

    backend = ReadingBackend()
    backend.do_connect(
        server_hostname=address.host,
        http_path=os.environ.get("DATABRICKS_HTTP_PATH"),
        access_token=_read_setting("DATABRICKS_TOKEN"),
        catalog=address.parts[0],
        schema=address.parts[1],
        session_configuration={"STATEMENT_TIMEOUT": str(seconds), "TIMEZONE": "UTC"},
    )
    return backend


def _uses_tls(server: str) -> bool:
    """Return False only if the variable ``server``_SECURE is 0, which allows HTTP without TLS."""
    return os.environ.get(f"{server}_SECURE") != "0"


def _read_setting(name: str) -> str:
    """Return the environment's variable ``name``; empty if it is not set.

    If the variable ``name``_FILE is set, the content of the owner-only file at its path is returned instead.
    """
    path = os.environ.get(f"{name}_FILE")
    return read_secret(Path(path)) if path else os.environ.get(name, "")


SERVER_KINDS: Final[Mapping[str, ServerKind]] = {
    "spark": ServerKind("pyspark.sql.connect.session", _connect_to_spark),
    "trino": ServerKind("trino", _connect_to_trino),
    "clickhouse": ServerKind("clickhouse_connect", _connect_to_clickhouse),
    "bigquery": ServerKind("google.cloud.bigquery", _connect_to_bigquery),
    "snowflake": ServerKind("snowflake.connector", _connect_to_snowflake),
    "databricks": ServerKind("databricks.sql", _connect_to_databricks),
}
"""Servers that are read through Ibis, by scheme."""

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
"""Ibis types that no attribute can have, each with the polars type that the refusal names."""


def open_server_table(address: Address, seconds: float | None = None) -> Iterator[DatabaseTable]:
    """Yield the table of an address; UnreadableError if it is missing or forbidden."""
    limit = max(1, int(_MAX_SECONDS if seconds is None else seconds))
    with _as_unreadable_errors():
        kind = SERVER_KINDS[address.scheme]
        with explain_missing_packages(address.scheme):
            import_module(kind.driver)
        backend = kind.connect(address, limit)
        try:
            open_table = _open_spark_table if address.scheme == "spark" else _open_table
            yield open_table(backend, address)
        finally:
            backend.disconnect()


def open_table_in_file(location: str, schema: str, name: str) -> Iterator[DatabaseTable]:
    """Yield a table of a DuckDB file, whose views cannot read other files; UnreadableError if it is missing."""
    with _as_unreadable_errors():
        backend = ibis.duckdb.connect(
            location,
            read_only=True,
            threads=1,
            memory_limit="512MiB",
            enable_external_access=False,
            autoinstall_known_extensions=False,
            autoload_known_extensions=False,
        )
        try:
            # Ibis 12 uses methods that DuckDB 2 deprecates. DuckDB 2 lacks the method by which Ibis reads batches, so
            # DuckDB itself reads them.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                table = backend.table(name, database=schema)
            yield _make_table(
                table, lambda selected: backend.con.sql(backend.compile(selected)).to_arrow_reader(BATCH_ROWS)
            )
        finally:
            backend.disconnect()


def select_columns(table: Any, names: Sequence[str]) -> Any:
    """Return the Ibis expression that selects these columns and calls them c0, c1 and so on."""
    kinds = table.schema()
    return table.select(
        **{
            f"c{place}": table[name].cast("string") if _is_read_as_text(kinds[name]) else table[name]
            for place, name in enumerate(names)
        }
    )


def column_types(schema: Any) -> dict[str, pl.DataType]:
    """Return the polars types in which the columns of an Ibis schema are read."""
    return {name: _type_as_read(kind) for name, kind in schema.items()}


def _type_as_read(kind: Any) -> pl.DataType:
    for unreadable, named in _TYPES_WITHOUT_CELLS:
        if isinstance(kind, unreadable):
            return named
    if _is_read_as_text(kind):
        return pl.String()
    if kind.is_timestamp() and kind.scale == 0:
        # Ibis would read times in whole seconds as nanoseconds, which end in the year 2262.
        return pl.Datetime("ms", kind.timezone)
    found: pl.DataType = ibis.schema({"": kind}).to_polars()[""]
    return found


def _is_read_as_text(kind: Any) -> bool:
    if kind.is_decimal():
        return not (kind.scale and kind.precision and kind.precision <= _LARGEST_PRECISION)
    is_plain = kind.is_numeric() or kind.is_boolean() or kind.is_date() or kind.is_timestamp()
    return not is_plain and not isinstance(kind, tuple(kind for kind, _ in _TYPES_WITHOUT_CELLS))


def _make_table(table: Any, read_batches: Callable[[Any], Iterator[Any]]) -> DatabaseTable:
    """Return a table; ``read_batches`` runs an expression over this table and yields Arrow batches."""
    return DatabaseTable(
        column_types(table.schema()),
        lambda names: read_batches(select_columns(table, names)),
        _as_unreadable_errors,
    )


def _open_table(backend: Any, address: Address) -> DatabaseTable:
    *place, name = address.parts
    table = backend.table(name, database=tuple(place) if len(place) > 1 else place[0])
    return _make_table(table, lambda selected: backend.to_pyarrow_batches(selected, chunk_size=BATCH_ROWS))


def _open_spark_table(backend: Any, address: Address) -> DatabaseTable:
    """Open a table by Spark Connect without Ibis's reader, which holds all rows in memory and loses time zones."""
    session: Any = backend._session  # noqa: SLF001  (the session that connected the backend)
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

    return _make_table(expression, read_batches)


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
    """Return Spark's error condition, or the name of the error's class; neither can quote cells."""
    condition = error.getCondition() if hasattr(error, "getCondition") else None
    is_plain = isinstance(condition, str) and _plain_words.fullmatch(condition)
    return str(condition) if is_plain else type(error).__name__
