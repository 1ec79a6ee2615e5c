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
    from stream.tables.sensitivity import (
        count_sensitivity,
        groups_sensitivity,
        people_groups_sensitivity,
        person_sensitivity,
        restrict_domain,
        rows_are_public,
        sum_sensitivity,
        total_sensitivity,
    )
    from stream.tables.store import TableStore, fingerprint
    from stream.tables.table_errors import DataError, PredicateError, UnreadableError
    from stream.tables.universe import Cell, CellReader, cell_codes, cell_mask

__all__ = ["Cell", "CellReader", "DataError", "GuardedReader", "Predicate", "PredicateError"]
__all__ += ["PredicateParser", "PrivateTable", "ReadingLimits", "Rows", "TableStore", "UnreadableError"]
__all__ += ["attributes_of", "cell_codes", "cell_mask", "count_sensitivity", "fingerprint", "groups_sensitivity"]
__all__ += ["people_groups_sensitivity", "person_sensitivity"]
__all__ += ["parse", "restrict_domain", "rows_are_public", "sum_sensitivity", "total_sensitivity"]

_NAMES_BY_MODULE: Final = {
    "table_errors": ("DataError", "PredicateError", "UnreadableError"),
    "expressions": ("Predicate", "attributes_of"),
    "predicates": ("PredicateParser", "parse"),
    "readers.table_reading": ("GuardedReader", "ReadingLimits"),
    "rows": ("Rows",),
    "store": ("TableStore", "fingerprint"),
    "sensitivity": (
        "count_sensitivity",
        "groups_sensitivity",
        "people_groups_sensitivity",
        "person_sensitivity",
        "rows_are_public",
        "sum_sensitivity",
        "total_sensitivity",
        "restrict_domain",
    ),
    "columns_table": ("PrivateTable",),
    "universe": ("Cell", "CellReader", "cell_codes", "cell_mask"),
}
_MODULE_OF: Final = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'stream.tables' has no attribute '{name}'")
    value = globals()[name] = getattr(import_module(f"stream.tables.{_MODULE_OF[name]}"), name)
    return value
