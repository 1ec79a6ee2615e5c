"""Tables with declared attributes, predicates over them, and exact private counts and sums.

Its names are brought in when they are first asked for: a process that reads one table waits for no parser of predicates.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stream.data.errors import DataError, PredicateError, UnreadableError
    from stream.data.expressions import Predicate, attributes_of
    from stream.data.fingerprints import fingerprint
    from stream.data.masks import cells
    from stream.data.neighbors import (
        count_sensitivity,
        groups_sensitivity,
        rows_are_public,
        total_sensitivity,
    )
    from stream.data.predicates import PredicateParser, parse
    from stream.data.reading import GuardedReader, ReadingLimits
    from stream.data.rows import Rows
    from stream.data.store import TableStore
    from stream.data.sums import sum_sensitivity, within
    from stream.data.tables import Table
    from stream.data.universe import Cell, CellReader, cell_codes

__all__ = [
    "Cell",
    "CellReader",
    "DataError",
    "GuardedReader",
    "Predicate",
    "PredicateError",
    "PredicateParser",
    "ReadingLimits",
    "Rows",
    "Table",
    "TableStore",
    "UnreadableError",
    "attributes_of",
    "cell_codes",
    "cells",
    "count_sensitivity",
    "fingerprint",
    "groups_sensitivity",
    "parse",
    "rows_are_public",
    "sum_sensitivity",
    "total_sensitivity",
    "within",
]

_HOMES: Final = {
    "errors": ("DataError", "PredicateError", "UnreadableError"),
    "expressions": ("Predicate", "attributes_of"),
    "fingerprints": ("fingerprint",),
    "masks": ("cells",),
    "neighbors": ("count_sensitivity", "groups_sensitivity", "rows_are_public", "total_sensitivity"),
    "predicates": ("PredicateParser", "parse"),
    "reading": ("GuardedReader", "ReadingLimits"),
    "rows": ("Rows",),
    "store": ("TableStore",),
    "sums": ("sum_sensitivity", "within"),
    "tables": ("Table",),
    "universe": ("Cell", "CellReader", "cell_codes"),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'stream.data' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"stream.data.{_HOME_OF[name]}"), name)
    return value
