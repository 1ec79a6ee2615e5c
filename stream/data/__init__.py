"""Tables with declared attributes, predicates over them, and exact private counts and sums."""

from stream.data.errors import DataError, PredicateError
from stream.data.expressions import Predicate, attributes_of, cells
from stream.data.predicates import PredicateParser, parse
from stream.data.store import TableStore
from stream.data.sums import sum_sensitivity
from stream.data.tables import Table, fingerprint
from stream.data.universe import Cell, CellReader, cell_codes

__all__ = [
    "Cell",
    "CellReader",
    "DataError",
    "Predicate",
    "PredicateError",
    "PredicateParser",
    "Table",
    "TableStore",
    "attributes_of",
    "cell_codes",
    "cells",
    "fingerprint",
    "parse",
    "sum_sensitivity",
]
