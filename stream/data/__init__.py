"""Tables with declared attributes, predicates over them, and exact private counts."""

from stream.data.errors import DataError, PredicateError
from stream.data.expressions import Predicate, attributes_of, cells
from stream.data.predicates import PredicateParser, parse
from stream.data.store import TableStore
from stream.data.tables import Table, fingerprint

__all__ = [
    "DataError",
    "Predicate",
    "PredicateError",
    "PredicateParser",
    "Table",
    "TableStore",
    "attributes_of",
    "cells",
    "fingerprint",
    "parse",
]
