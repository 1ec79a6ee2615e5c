"""SQL: converts a SELECT of aggregates into questions to a stream."""

from stream.questions.result_text import ERROR, HIGH, LOW
from stream.sql.aggregates import AnswerColumn, StatementError
from stream.sql.result_tables import PreparedStatement, Table, Target, cost_line, target
from stream.sql.statement_questions import StatementPlan, StatementQuestion, plan
from stream.sql.statements import Column, Grouped, SelectStatement, read

__all__ = [
    "ERROR",
    "HIGH",
    "LOW",
    "AnswerColumn",
    "Column",
    "Grouped",
    "PreparedStatement",
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
