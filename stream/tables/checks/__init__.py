"""Checks a table against its declaration. The results are exact and private, for its owner only.

No service uses this package, and its results are never published, logged or stored.
"""

from stream.tables.checks.check_report import (
    NOTICE,
    CheckReport,
    ColumnMatch,
    FoundValue,
    Misfit,
    PersonRows,
    ViewRows,
)
from stream.tables.checks.table_check import check_table

__all__ = ["NOTICE", "CheckReport", "ColumnMatch", "FoundValue", "Misfit", "PersonRows", "ViewRows", "check_table"]
