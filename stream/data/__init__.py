"""Tables with declared attributes, predicates over them, and exact private counts and sums."""

from stream.data.errors import DataError, PredicateError, UnreadableError
from stream.data.expressions import Predicate, attributes_of, cells
from stream.data.fingerprints import fingerprint
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
from stream.data.sums import sum_sensitivity
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
]
