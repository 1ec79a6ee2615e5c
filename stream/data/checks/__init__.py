"""How well a table fits its declaration, for its owner: exact figures, which are private.

Nothing here is used by a service, and nothing of it is published, logged or kept.
"""

from stream.data.checks.check import check_table
from stream.data.checks.report import NOTICE, Columns, Found, Misfit, People, Report

__all__ = ["NOTICE", "Columns", "Found", "Misfit", "People", "Report", "check_table"]
