"""SQL: converts a SELECT of aggregates into questions to a stream."""

from stream.questions.result_text import ERROR_SUFFIX, HIGH_SUFFIX, INFORMATIVE_SUFFIX, LOW_SUFFIX, NUMBER_SUFFIXES
from stream.sql.aggregates import AnswerColumn, StatementError
from stream.sql.result_tables import PreparedStatement, Table, format_cost, format_price
from stream.sql.select_statements import Column, GroupColumn, SelectStatement, parse_statement
from stream.sql.statement_questions import StatementPlan, StatementQuestion, plan_statement
from stream.sql.statement_text import Parameters, bind_parameters
from stream.sql.stream_choice import StreamChoice, Target, choose_stream, list_tables

__all__ = [
    "ERROR_SUFFIX",
    "HIGH_SUFFIX",
    "INFORMATIVE_SUFFIX",
    "LOW_SUFFIX",
    "NUMBER_SUFFIXES",
    "AnswerColumn",
    "Column",
    "GroupColumn",
    "Parameters",
    "PreparedStatement",
    "SelectStatement",
    "StatementError",
    "StatementPlan",
    "StatementQuestion",
    "StreamChoice",
    "Table",
    "Target",
    "bind_parameters",
    "choose_stream",
    "format_cost",
    "format_price",
    "list_tables",
    "parse_statement",
    "plan_statement",
]
