"""Packages that not every installation has: what is missing is told in one line, with the extra that brings it."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from stream.errors import Missing

DISTRIBUTION: Final = "sotto-dp"

EXTRAS: Final = {
    "polars": "polars",
    "pandas": "pandas",
    "pyarrow": "arrow",
}
"""The extra that brings each package which is imported where it is first needed."""


def needed(package: str) -> Any:
    """A package that is imported here and not before; Missing if it is not installed."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        extra = EXTRAS[package]
        raise Missing(f"{package} is not installed; run: pip install '{DISTRIBUTION}[{extra}]'") from None
