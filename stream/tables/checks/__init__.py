"""Checks a table against its declaration. The results are exact and private, for its owner only.

No service uses this package, and its results are never published, logged or stored.
"""

from stream.tables.checks.cell_checks import FoundValue, Misfit
from stream.tables.checks.row_counts import ColumnMatch, PersonRows, ViewRows
from stream.tables.checks.table_check import NOTICE, CheckReport, check_table

__all__ = ["NOTICE", "CheckReport", "ColumnMatch", "FoundValue", "Misfit", "PersonRows", "ViewRows", "check_table"]
