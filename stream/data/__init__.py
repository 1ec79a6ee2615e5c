"""Tables with declared attributes, predicates over them, and exact private counts and sums."""

from stream.data.errors import DataError, PredicateError, UnreadableError
from stream.data.expressions import Predicate, attributes_of, cells
from stream.data.predicates import PredicateParser, parse
from stream.data.reading import GuardedReader, ReadingLimits
from stream.data.store import TableStore
from stream.data.sums import sum_sensitivity
from stream.data.tables import Table, fingerprint
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
    "Table",
    "TableStore",
    "UnreadableError",
    "attributes_of",
    "cell_codes",
    "cells",
    "fingerprint",
    "parse",
    "sum_sensitivity",
]
