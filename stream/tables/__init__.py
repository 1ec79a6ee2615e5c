"""Reads tables with declared attributes, and computes exact private counts and sums over them.

Reading order: ``rows``, ``people`` (contribution bound), ``columns_table`` (counts), ``predicates``, ``store``.
Names are imported on first use, so that a process that reads one table does not load the SQL parser.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stream.tables.columns_table import PrivateTable
    from stream.tables.expressions import Predicate, attributes_of
    from stream.tables.predicates import PredicateParser, parse
    from stream.tables.readers.table_reading import GuardedReader, ReadingLimits
    from stream.tables.rows import Rows
    from stream.tables.store import TableStore, fingerprint
    from stream.tables.sums import (
        count_sensitivity,
        groups_sensitivity,
        people_groups_sensitivity,
        person_sensitivity,
        rows_are_public,
        sum_sensitivity,
        total_sensitivity,
        within,
    )
    from stream.tables.table_errors import DataError, PredicateError, UnreadableError
    from stream.tables.universe import Cell, CellReader, cell_codes, cells

__all__ = ["Cell", "CellReader", "DataError", "GuardedReader", "Predicate", "PredicateError"]
__all__ += ["PredicateParser", "PrivateTable", "ReadingLimits", "Rows", "TableStore", "UnreadableError"]
__all__ += ["attributes_of", "cell_codes", "cells", "count_sensitivity", "fingerprint", "groups_sensitivity"]
__all__ += ["people_groups_sensitivity", "person_sensitivity"]
__all__ += ["parse", "rows_are_public", "sum_sensitivity", "total_sensitivity", "within"]

_HOMES: Final = {
    "table_errors": ("DataError", "PredicateError", "UnreadableError"),
    "expressions": ("Predicate", "attributes_of"),
    "predicates": ("PredicateParser", "parse"),
    "readers.table_reading": ("GuardedReader", "ReadingLimits"),
    "rows": ("Rows",),
    "store": ("TableStore", "fingerprint"),
    "sums": (
        "count_sensitivity",
        "groups_sensitivity",
        "people_groups_sensitivity",
        "person_sensitivity",
        "rows_are_public",
        "sum_sensitivity",
        "total_sensitivity",
        "within",
    ),
    "columns_table": ("PrivateTable",),
    "universe": ("Cell", "CellReader", "cell_codes", "cells"),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'stream.tables' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"stream.tables.{_HOME_OF[name]}"), name)
    return value
