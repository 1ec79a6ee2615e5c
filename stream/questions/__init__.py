"""Questions, results, alerts and live events, which clients and driver share."""

from stream.questions.question_forms import Question, as_query
from stream.questions.results import Result, Results

__all__ = ["Question", "Result", "Results", "as_query"]
