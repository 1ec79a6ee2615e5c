"""Why a request is not served, as an exception and as an answer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import ValidationError

from schemas import Amount
from schemas.base import KIND_ERROR
from schemas.shape import MAX_FAULTS
from stream.monitor.models import FieldProblem, Problem, ProblemCode

MAX_FIELDS = 10
"""Field problems told at once."""


class ProblemError(Exception):
    """Stops a request; the answer is ``problem`` with ``headers``."""

    def __init__(
        self,
        status: int,
        code: ProblemCode,
        message: str,
        *,
        fields: list[FieldProblem] | None = None,
        asked: Amount | None = None,
        left: Amount | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.problem = Problem(
            status=status, code=code, message=message, fields=fields or [], asked=asked, left=left
        )
        self.headers = headers or {}


def too_many(message: str, seconds: int) -> ProblemError:
    """So much is asked at once that it is refused; whoever asks again after these seconds may have better luck."""
    return ProblemError(429, "too-many-requests", message, headers={"Retry-After": str(seconds)})


def unknown(what: Literal["source", "stream", "population"], name: str) -> ProblemError:
    """The name in a path is not known (yet)."""
    return ProblemError(404, "not-found", f"there is no {what} '{name[:128]}'")


def refuse_repeated(parameters: Collection[str]) -> None:
    """Refuse parameters of which one is given twice."""
    if len(set(parameters)) != len(parameters):
        raise ProblemError(400, "malformed", "parameter: one is given twice; give each once")


def malformed(error: ValidationError, what: Literal["body", "parameter"]) -> ProblemError:
    """Say which fields are wrong and why, without quoting any value."""
    found = error.error_count()
    if found > MAX_FAULTS:
        return ProblemError(400, "malformed", f"{what}: {found} fields are wrong; compare it with /openapi.json")
    fields = [_field(detail) for detail in error.errors(include_input=False, include_url=False)[:MAX_FIELDS]]
    return ProblemError(400, "malformed", f"{what}: {found} fields are wrong; see 'fields'", fields=fields)


def _field(detail: Any) -> FieldProblem:
    steps = [*map(str, detail["loc"]), *(["kind"] if detail["type"] == KIND_ERROR else [])]
    place = ".".join(steps) or "body"
    message = "unknown field; remove it" if detail["type"] == "extra_forbidden" else detail["msg"]
    return FieldProblem(field=place[:80], message=message[:200])
