"""SQL for counting people: statements become questions that streams answer."""

from stream.questions.result_text import ERROR
from stream.sql.aggregates import AnswerColumn, StatementError
from stream.sql.result_tables import Asking, Table, Target, cost_line, target
from stream.sql.statement_questions import StatementPlan, StatementQuestion, plan
from stream.sql.statements import Column, Grouped, SelectStatement, read

__all__ = [
    "ERROR",
    "AnswerColumn",
    "Asking",
    "Column",
    "Grouped",
    "SelectStatement",
    "StatementError",
    "StatementPlan",
    "StatementQuestion",
    "Table",
    "Target",
    "cost_line",
    "plan",
    "read",
    "target",
]
