"""SQL for counting people: statements become questions that streams answer."""

from stream.asking.shown import ERROR
from stream.sql.aggregates import Measured
from stream.sql.errors import StatementError
from stream.sql.questions import Plan, Question, plan
from stream.sql.statements import Column, Grouped, Statement, read
from stream.sql.tables import Asking, Table, cost_line
from stream.sql.targets import Target, target

__all__ = [
    "ERROR",
    "Asking",
    "Column",
    "Grouped",
    "Measured",
    "Plan",
    "Question",
    "Statement",
    "StatementError",
    "Table",
    "Target",
    "cost_line",
    "plan",
    "read",
    "target",
]
