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
    from schemas import AllotmentRecord as AllotmentRecord
    from schemas import Answer as Answer
    from schemas import GrantRecord as GrantRecord
    from schemas import PopulationRecord as PopulationRecord
    from schemas import Query as Query
    from schemas import Receipt as Receipt
    from schemas import SourceRecord as SourceRecord
    from stream.client.async_client import AsyncClient as AsyncClient
    from stream.client.blocking_client import Client as Client
    from stream.errors import Exhausted as Exhausted
    from stream.errors import Forbidden as Forbidden
    from stream.errors import Halted as Halted
    from stream.errors import Invalid as Invalid
    from stream.errors import Missing as Missing
    from stream.errors import NotAnswered as NotAnswered
    from stream.errors import Refused as Refused
    from stream.errors import Rejected as Rejected
    from stream.errors import SottoError as SottoError
    from stream.errors import Timeout as Timeout
    from stream.errors import Unknown as Unknown
    from stream.errors import Unreachable as Unreachable
    from stream.privacy.noise.keys import NoiseKeyError as NoiseKeyError
    from stream.processing.dead_letters import DeadLetter as DeadLetter
    from stream.questions import Result as Result
    from stream.questions import Results as Results
    from stream.questions.alert_states import Notice as Notice
    from stream.settings import Settings as Settings
    from stream.sql.aggregates import StatementError as StatementError
    from stream.sql.result_tables import Table as Table
    from stream.testing import Driver as Driver
    from stream.testing import NotReproducibleError as NotReproducibleError

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
    "stream.sql.aggregates": "StatementError",
    "stream.sql.result_tables": "Table",
    "stream.testing": "Driver NotReproducibleError",
}
_MODULE_OF: Final = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

__all__ = sorted(_MODULE_OF)  # noqa: PLE0605  (type checkers read the imports above)


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
