"""What the clients and the in-memory driver have in common: questions as they are given, and results."""

from stream.questions.question_forms import Question, as_query
from stream.questions.results import Result, Results

__all__ = ["Question", "Result", "Results", "as_query"]
