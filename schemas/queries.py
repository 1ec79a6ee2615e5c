"""Queries: what producers ask."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from schemas.base import Event, EventId, Number

MAX_PREDICATE_LENGTH = 2048
"""Longest predicate in characters."""


class Query(Event):
    """One question to one stream: a trusted ``value``, or a ``where`` predicate whose rows are counted.

    ``threshold`` is public and replaces the stream's own for this query.
    """

    id: EventId
    stream: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    value: Number | None = None
    where: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PREDICATE_LENGTH)] | None = None
    threshold: Annotated[Number | None, Field()] = None

    @model_validator(mode="after")
    def _one_question(self) -> Query:
        if (self.value is None) == (self.where is None):
            raise ValueError("give exactly one of value and where")
        return self
