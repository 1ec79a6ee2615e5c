"""A file of questions has one in each line; errors name the line."""

from __future__ import annotations

import pytest

from stream.dev.simulation_inputs import SimulationError, read_questions


def test_question_line_is_a_query_or_a_condition() -> None:
    lines = ["age > 3", "", '  {"id": "7", "stream": "s", "sum": "age"}', '{"where": "TRUE", "fraction": true}\n']
    found = read_questions(lines, "s")
    assert {number: (one.id, one.stream, one.where, one.sum) for number, one in found.items()} == {
        1: ("line-1", "s", "age > 3", None),
        3: ("7", "s", None, "age"),
        4: ("line-4", "s", "TRUE", None),
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"where": "TRUE"', "no JSON at column"),
        ('{"where": "TRUE", "where": "FALSE"}', "a field is given twice"),
        ('{"wear": "TRUE"}', "wear"),
        ('{"value": 1, "sum": "age"}', "give exactly one of them"),
        ('{"stream": "other", "where": "TRUE"}', "stream is not 's'"),
        ("x" * 3000, "where"),
    ],
)
def test_faulty_question_is_reported_with_its_line(line: str, words: str) -> None:
    with pytest.raises(SimulationError) as refused:
        read_questions(["TRUE", line], "s")
    assert str(refused.value).startswith("QUESTIONS line 2: ")
    assert words in str(refused.value)


def test_question_file_without_questions_is_refused() -> None:
    with pytest.raises(SimulationError, match="give one per line"):
        read_questions(["", "  "], "s")
