"""Connects Ibis to servers and DuckDB files: one function for each kind.

User names, passwords and tokens come from the variables of each server's own client and are never part
of a source. A secret may also be in an owner-only file: NAME_FILE has the path of NAME's content. Each
statement ends after the reading time; nothing is written, not even temporary objects of Ibis.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

import ibis

from schemas import Address
from stream.optional_packages import explain_missing_packages
from stream.secret_files import read_secret

_CONNECT_SECONDS: Final = 10
_BIGQUERY_SCOPE: Final = "https://www.googleapis.com/auth/bigquery"


class ServerKind(NamedTuple):
    """How tables on one kind of server are reached."""

    driver: str
    """The module of the driver."""

    connect: Callable[[Address, int], Any]
    """Return an Ibis backend for an address, whose statements end after some seconds."""


def connect_to_server(address: Address, seconds: int) -> Any:
    """Return an Ibis backend; Missing if the extra is not installed, any other error if it fails."""
    kind = SERVER_KINDS[address.scheme]
    with explain_missing_packages(address.scheme):
        import_module(kind.driver)
    return kind.connect(address, seconds)


def connect_to_file(path: str) -> Any:
    """Open a DuckDB file read-only; its views cannot read other files."""
    return ibis.duckdb.connect(
        path,
        read_only=True,
        threads=1,
        memory_limit="512MiB",
        enable_external_access=False,
        autoinstall_known_extensions=False,
        autoload_known_extensions=False,
    )


def _connect_to_spark(address: Address, _seconds: int) -> Any:
    """Connect by Spark Connect, which has no time-out of statements; with a token by TLS."""
    # Spark's client would retry for minutes.
    socket.create_connection((address.host, address.port or 0), _CONNECT_SECONDS).close()
    token = _secret("SPARK_CONNECT_AUTHENTICATE_TOKEN")
    session = import_module("pyspark.sql").SparkSession.builder.remote(
        f"sc://{address.host}:{address.port}/" + (f";use_ssl=true;token={token}" if token else "")
    )
    return ibis.pyspark.connect(session.create())


def _connect_to_trino(address: Address, seconds: int) -> Any:
    user, password, token = (_secret(f"TRINO_{name}") for name in ("USER", "PASSWORD", "TOKEN"))
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
    # A role of the profile "readonly" may not change the time-out.
    import_module("clickhouse_connect.common").set_setting("invalid_setting_action", "drop")
    return ibis.clickhouse.connect(
        host=address.host,
        port=address.port,
        user=_secret("CLICKHOUSE_USER") or "default",
        password=_secret("CLICKHOUSE_PASSWORD"),
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
    """Connect with user and key of the connection in Snowflake's own file (connections.toml)."""
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
        """Creates no volume for tables in memory."""

        def _post_connect(self, **_: object) -> None:
            pass

    backend = ReadingBackend()
    backend.do_connect(
        server_hostname=address.host,
        http_path=os.environ.get("DATABRICKS_HTTP_PATH"),
        access_token=_secret("DATABRICKS_TOKEN"),
        catalog=address.parts[0],
        schema=address.parts[1],
        session_configuration={"STATEMENT_TIMEOUT": str(seconds), "TIMEZONE": "UTC"},
    )
    return backend


def _uses_tls(server: str) -> bool:
    """Return True unless SERVER_SECURE=0 allows HTTP without TLS."""
    return os.environ.get(f"{server}_SECURE") != "0"


def _secret(name: str) -> str:
    """Return a variable's text, or that of the owner-only file that NAME_FILE names; empty if neither is set."""
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
