"""Sotto: differentially private answers on a Kafka query stream.

Programs import only this package. Each name is loaded on first use, so that ``import sotto`` is fast.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from schemas import AllotmentRecord, Answer, GrantRecord, PopulationRecord, Query, Receipt, SourceRecord
    from stream.client.async_client import AsyncClient
    from stream.client.blocking_client import Client
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
    from stream.privacy.noise.keys import NoiseKeyError
    from stream.processing.dead_letters import DeadLetter
    from stream.questions import Result, Results
    from stream.questions.alert_states import Notice
    from stream.settings import Settings
    from stream.sql import StatementError, Table
    from stream.testing import Driver, NotReproducibleError

__all__ = [
    "AllotmentRecord",
    "Answer",
    "AsyncClient",
    "Client",
    "DeadLetter",
    "Driver",
    "Exhausted",
    "Forbidden",
    "GrantRecord",
    "Halted",
    "Invalid",
    "Missing",
    "NoiseKeyError",
    "NotAnswered",
    "NotReproducibleError",
    "Notice",
    "PopulationRecord",
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

_NAMES_BY_MODULE: Final = {
    "schemas": "AllotmentRecord Answer GrantRecord PopulationRecord Query Receipt SourceRecord",
    "stream.client.async_client": "AsyncClient",
    "stream.client.blocking_client": "Client",
    "stream.errors": (
        "Exhausted Forbidden Halted Invalid Missing NotAnswered Refused Rejected SottoError Timeout Unknown "
        "Unreachable"
    ),
    "stream.privacy.noise.keys": "NoiseKeyError",
    "stream.questions": "Result Results",
    "stream.questions.alert_states": "Notice",
    "stream.processing.dead_letters": "DeadLetter",
    "stream.settings": "Settings",
    "stream.sql": "StatementError Table",
    "stream.testing": "Driver NotReproducibleError",
}
_MODULE_OF: Final = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF and name != "__version__":
        raise AttributeError(f"module 'sotto' has no attribute '{name}'")
    require_own_packages()
    if name == "__version__":
        return import_module("stream").VERSION
    with import_module("stream.optional_packages").explain_missing_packages():
        value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def require_own_packages() -> None:
    """Raise ImportError if another module hides the package ``schemas`` or ``stream``."""
    for package in ("schemas", "stream"):
        own = Path(__file__).parents[1] / package / "__init__.py"
        loaded = sys.modules.get(package)
        spec = find_spec(package) if loaded is None else None
        found = spec.origin if spec is not None else getattr(loaded, "__file__", None)
        if found is None or Path(found).resolve() != own.resolve():
            raise ImportError(
                f"{found or f'another {package}'} hides the package '{package}' that Sotto needs; rename it, or start in "
                "another folder"
            )
