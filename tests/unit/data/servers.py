"""A store that speaks S3 and a PostgreSQL server, of this machine and for one test run."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stream.kafka.broker.broker_addresses import free_port

ADMIN, READER = "the-administrator", "the-reader"
STORE_SECRET = "wJalrXUtnFEMI"  # noqa: S105


@contextmanager
def object_store() -> Iterator[str]:
    """The address of a store that is empty at first."""
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
    """Give credentials for a store as a deployment does: in files that variables name."""
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
    """Give the reader's credentials as a deployment does: in a file that a variable names."""
    passwords = folder / "pgpass"
    passwords.write_text(f"127.0.0.1:{server.port}:clinic:reader:{READER}\n")
    passwords.chmod(0o600)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    monkeypatch.setenv("PGUSER", "reader")


@dataclass(frozen=True)
class Database:
    """A server with a role ``reader`` that may read."""

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
        """Where one of its tables lies."""
        return f"postgresql://127.0.0.1:{self.port}/clinic/public/{table}"


@contextmanager
def database_server() -> Iterator[Database]:
    """A server, with the programs that Debian's package ``postgresql`` brings."""
    pytest.importorskip(
        "adbc_driver_postgresql", reason="adbc-driver-postgresql, the extra postgresql, is not installed"
    )
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = str(found[-1]) if found else shutil.which("initdb")
    if initdb is None or shutil.which("psql") is None:
        pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql")
    postgres = str(Path(initdb).with_name("postgres"))
    # The server refuses to run as root, and its user may not enter pytest's folders.
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


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 120
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
