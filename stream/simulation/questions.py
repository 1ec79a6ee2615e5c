"""A file of questions, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pydantic import ValidationError

from schemas import Query
from schemas.repeats import repeats_a_field
from schemas.shape import shape_fault
from schemas.wire import describe, read_json
from stream.simulation.errors import SimulationError


def read_questions(lines: Iterable[str], stream: str) -> dict[int, Query]:
    """The questions of a file to a stream, by the number of their line.

    A line that begins with ``{`` is a query as producers send it, whose ``id`` and ``stream`` may be left out; any other is
    the ``where`` of a count. Blank lines are passed over.

    Raises:
        SimulationError: a line is no query, or names another stream; it says which line and field.
    """
    questions = {
        number: _question(line.strip(), number, stream) for number, line in enumerate(lines, 1) if line.strip()
    }
    if not questions:
        raise SimulationError("QUESTIONS: there is none in the file; give one a line")
    return questions


def _question(line: str, number: int, stream: str) -> Query:
    fields = {"id": f"line-{number}", "stream": stream}
    try:
        if not line.startswith("{"):
            return Query.model_validate({**fields, "where": line})
        if fault := shape_fault(line):
            raise SimulationError(f"QUESTIONS line {number}: {fault}")
        given = read_json(line)
        if repeats_a_field(line):
            raise SimulationError(f"QUESTIONS line {number}: a field is given twice; give each field once")
        query = Query.model_validate_json(json.dumps({**fields, **given}))
    except ValidationError as error:
        raise SimulationError(f"QUESTIONS line {number}: {describe(error)}") from None
    except json.JSONDecodeError as error:
        raise SimulationError(
            f"QUESTIONS line {number}: no JSON at column {error.colno}; give one JSON object a line, or a where"
        ) from None
    if query.stream != stream:
        raise SimulationError(
            f"QUESTIONS line {number}: stream is not '{stream}', which SPEC opens; leave it out, or simulate each stream "
            "by itself"
        )
    return query
