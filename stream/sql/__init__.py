"""SQL: converts a SELECT of aggregates into questions to a stream."""

from stream.questions.result_text import ERROR, HIGH, LOW
from stream.sql.aggregates import AnswerColumn, StatementError
from stream.sql.result_tables import PreparedStatement, Table, cost_line
from stream.sql.statement_questions import StatementPlan, StatementQuestion, plan
from stream.sql.statements import Column, Grouped, SelectStatement, read
from stream.sql.stream_choice import StreamChoice, Target, choose_stream

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
    "StreamChoice",
    "Table",
    "Target",
    "choose_stream",
    "cost_line",
    "plan",
    "read",
]
