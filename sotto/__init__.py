"""Sotto: differentially private answers on a Kafka query stream.

Programs import this package alone. Its names are brought in when they are first asked for, so that importing it costs nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from schemas import Answer, GrantRecord, Query, Receipt, SourceRecord
    from stream.asking import Result, Results
    from stream.client import AsyncClient, Client
    from stream.errors import (
        Exhausted,
        Forbidden,
        Halted,
        Invalid,
        Missing,
        NotAnswered,
        Refused,
        Rejected,
        SottoError,
        Timeout,
        Unknown,
        Unreachable,
    )
    from stream.settings import Settings
    from stream.sql import StatementError, Table
    from stream.testing import Driver, NotReproducibleError

__all__ = [
    "Answer",
    "AsyncClient",
    "Client",
    "Driver",
    "Exhausted",
    "Forbidden",
    "GrantRecord",
    "Halted",
    "Invalid",
    "Missing",
    "NotAnswered",
    "NotReproducibleError",
    "Query",
    "Receipt",
    "Refused",
    "Rejected",
    "Result",
    "Results",
    "Settings",
    "SottoError",
    "SourceRecord",
    "StatementError",
    "Table",
    "Timeout",
    "Unknown",
    "Unreachable",
]

_HOMES: Final = {
    "schemas": ("Answer", "GrantRecord", "Query", "Receipt", "SourceRecord"),
    "stream.asking": ("Result", "Results"),
    "stream.client": ("AsyncClient", "Client"),
    "stream.errors": (
        "Exhausted",
        "Forbidden",
        "Halted",
        "Invalid",
        "Missing",
        "NotAnswered",
        "Refused",
        "Rejected",
        "SottoError",
        "Timeout",
        "Unknown",
        "Unreachable",
    ),
    "stream.settings": ("Settings",),
    "stream.sql": ("StatementError", "Table"),
    "stream.testing": ("Driver", "NotReproducibleError"),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'sotto' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def _require_own(package: str) -> None:
    """Stop where a module of the same name stands before one of Sotto's: half of either would break later, and elsewhere."""
    own = Path(__file__).parents[1] / package / "__init__.py"
    loaded = sys.modules.get(package)
    spec = find_spec(package) if loaded is None else loaded.__spec__
    found = getattr(loaded, "__file__", None) if spec is None else spec.origin
    if found is None or Path(found).resolve() != own.resolve():
        raise ImportError(
            f"{found or f'another {package}'} hides the package '{package}' that Sotto needs; rename it, or start from another "
            "folder"
        )


for _package in ("schemas", "stream"):
    _require_own(_package)
