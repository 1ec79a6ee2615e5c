"""The ordinary questions of the benchmark ``ordinary_questions``."""

from __future__ import annotations

from benchmarks import ordinary_questions
from benchmarks.ordinary_questions import MARKS


def test_survey_answers_state_their_error() -> None:
    lines = ordinary_questions.ask(ordinary_questions.survey(), (7).to_bytes(32))
    assert len({line.question.words for line in lines}) == 8
    assert all(line.error_bound is not None for line in lines)
    assert {line.verdict for line in lines} == {"yes", "no: too wide"}


def test_document_shows_the_output_of_the_command() -> None:
    shown = ordinary_questions.DOCUMENT.read_text().split(MARKS[0])[1].split(MARKS[1])[0]
    assert shown.strip() == ordinary_questions.report((1).to_bytes(32)).strip()
