"""How well a table fits its declaration, for its owner: exact figures, which are private.

Nothing here is used by a service, and nothing of it is published, logged or kept.
"""

from stream.tables.checks.check_report import NOTICE, CheckReport, ColumnMatch, FoundValue, Misfit, PersonRows
from stream.tables.checks.table_check import check_table

__all__ = ["NOTICE", "CheckReport", "ColumnMatch", "FoundValue", "Misfit", "PersonRows", "check_table"]
