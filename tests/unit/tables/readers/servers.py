"""Servers on this machine for one test run: a store with S3's protocol, PostgreSQL, Spark and ClickHouse."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stream.kafka.broker_addresses import free_port

ADMIN, READER = "the-administrator", "the-reader"
STORE_SECRET = "wJalrXUtnFEMI"  # noqa: S105


@contextmanager
def object_store() -> Iterator[str]:
    """Yield the address of an empty store."""
    pytest.importorskip("moto", reason="moto, a store that speaks S3, is not installed")
    pytest.importorskip("boto3", reason="boto3, the extra s3, is not installed")
    from moto.server import ThreadedMotoServer  # noqa: PLC0415  (an optional package)

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def let_into_the_store(address: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give credentials for a store like a deployment: in files that variables name."""
    (folder / "config").write_text(
        f"[profile clinic]\nregion = eu-west-1\nendpoint_url = {address}\ns3 =\n  addressing_style = path\n"
    )
    (folder / "credentials").write_text(
        f"[clinic]\naws_access_key_id = AKIA\naws_secret_access_key = {STORE_SECRET}\n"
    )
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "clinic")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def let_into_the_database(server: Database, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the reader's credentials like a deployment: in a file that a variable names."""
    passwords = folder / "pgpass"
    passwords.write_text(f"127.0.0.1:{server.port}:clinic:reader:{READER}\n")
    passwords.chmod(0o600)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    monkeypatch.setenv("PGUSER", "reader")


@dataclass(frozen=True)
class Database:
    """A server with a role ``reader`` that may only read."""

    port: int
    folder: Path

    def execute(self, *statements: str) -> None:
        """Execute statements as the server's owner, in the database ``clinic``."""
        text = "".join(f"{statement};\n" for statement in statements)
        subprocess.run(
            [
                shutil.which("psql") or "psql",
                "-qX",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-p",
                str(self.port),
                "clinic",
            ],
            input=text,
            text=True,
            check=True,
            capture_output=True,
            env={**os.environ, "PGUSER": "postgres", "PGPASSWORD": ADMIN},
        )

    def address(self, table: str) -> str:
        """Return the address of one of the server's tables."""
        return f"postgresql://127.0.0.1:{self.port}/clinic/public/{table}"


@contextmanager
def database_server() -> Iterator[Database]:
    """Start a server with the programs of Debian's package ``postgresql``."""
    pytest.importorskip(
        "adbc_driver_postgresql", reason="adbc-driver-postgresql, the extra postgresql, is not installed"
    )
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None or shutil.which("psql") is None:
        pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql")
    postgres = str(Path(initdb).with_name("postgres"))
    # The server refuses to run as root, and its user may not use pytest's folders.
    folder = Path(tempfile.mkdtemp(prefix="sotto-postgresql-"))
    other: dict[str, Any] = {}
    if os.geteuid() == 0:
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("there is no user 'postgres' for a server to run as")
        os.chown(folder, user.pw_uid, user.pw_gid)
        other = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    password = folder / "password"
    password.write_text(ADMIN)
    password.chmod(0o644)
    data, port = folder / "data", free_port()
    try:
        subprocess.run(
            [
                initdb,
                "-D",
                str(data),
                "-A",
                "scram-sha-256",
                "-U",
                "postgres",
                "--no-sync",
                f"--pwfile={password}",
            ],
            check=True,
            capture_output=True,
            cwd=folder,
            **other,
        )
        listening = ["-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
        with subprocess.Popen(
            [postgres, "-D", str(data), *listening],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            **other,
        ) as server:
            try:
                _wait(port, server)
                yield _prepared(Database(port, folder))
            finally:
                server.send_signal(3)  # SIGQUIT: at once
                server.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def spark_server() -> Iterator[str]:
    """Yield the host and port of a Spark Connect server with Delta, whose tables are in a separate folder."""
    pytest.importorskip("pyspark", reason="pyspark is not installed: pip install 'sotto-dp[spark]'")
    pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'sotto-dp[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    home, folder, port = Path(str(import_module("pyspark").__file__)).parent, tempfile.mkdtemp(), free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "1",
        "spark.databricks.delta.snapshotPartitions": "1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    command = [
        *(str(home / "bin" / "spark-submit"), "--master", "local[1]", "--driver-memory", "1g"),
        *("--packages", "io.delta:delta-spark_2.13:4.0.0"),
        *(text for name, value in settings.items() for text in ("--conf", f"{name}={value}")),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"),
    ]
    environment = {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            try:
                _wait(port, server, 300)
            except RuntimeError:
                pytest.skip("Spark did not start; it fetches the package io.delta:delta-spark_2.13:4.0.0")
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def clickhouse_server() -> Iterator[str]:
    """Yield the address of ClickHouse's HTTP interface, served by chdb, which is ClickHouse's engine as a library."""
    pytest.importorskip("chdb", reason="chdb is not installed: pip install 'sotto-dp[servers]'")
    pytest.importorskip("clickhouse_connect", reason="clickhouse-connect is not installed")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.unit.tables.readers.chdb_server", str(port), folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                _wait(port, server)
                yield f"127.0.0.1:{port}"
            finally:
                server.terminate()
                server.wait()


def _prepared(server: Database) -> Database:
    environment = {**os.environ, "PGUSER": "postgres", "PGPASSWORD": ADMIN}
    command = [
        "psql",
        "-qX",
        "-h",
        "127.0.0.1",
        "-p",
        str(server.port),
        "postgres",
        "-c",
        "CREATE DATABASE clinic",
    ]
    until = time.monotonic() + 120
    # A server that listens may still be starting up.
    while subprocess.run(command, env=environment, capture_output=True, check=False).returncode:
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.2)
    server.execute(
        f"CREATE ROLE reader LOGIN PASSWORD '{READER}' CONNECTION LIMIT 20",
        "ALTER ROLE reader SET default_transaction_read_only = on",
        "ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO reader",
    )
    return server


def _wait(port: int, server: subprocess.Popen[bytes], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return
    raise RuntimeError("the server ended right after its start")
