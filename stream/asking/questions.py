"""Questions as a program puts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from schemas import Query, Source, StreamSpec
from schemas.wire import describe
from stream.errors import Invalid
from stream.kafka.nearby import settings_here
from stream.settings import Settings, variable

Question = Query | Mapping[str, Any] | str
"""A query, its fields, or its stream's name with the fields beside it."""

ANSWER_TIMEOUT: Final = 30.0
"""Seconds that a question waits for its answer."""

REQUEST_TIMEOUT: Final = 30.0
"""Seconds that a request waits for its receipt: some budget service must be running."""

DEFAULT_MAX_PRICE: Final = "10%"
"""The ``max_price`` of a question with an ``alpha`` that a client waits for, unless it has one."""

Made = TypeVar("Made")


def as_query(question: Question, fields: Mapping[str, Any], new_id: Callable[[], str]) -> Query:
    """The query that is meant; an ``id`` is made up where none is given. Invalid if it is none."""
    if isinstance(question, Query):
        if not fields:
            return question
        question = question.model_dump(exclude_defaults=True)
    given = {"stream": question} if isinstance(question, str) else question
    document = {**given, **fields}
    if "id" not in document:
        document["id"] = new_id()
    return valid(lambda: Query.model_validate(document), given=document)


def with_limit(query: Query, *, dry_run: bool = False) -> Query:
    """The query with the limit of its price that interactive clients set; of a dry run 0.

    Without an ``alpha`` an answer is charged as its stream's plan says, and needs no limit.
    """
    if dry_run:
        return query.model_copy(update={"max_price": 0.0})
    if query.alpha is None or query.max_price is not None:
        return query
    return query.model_copy(update={"max_price": DEFAULT_MAX_PRICE})


def as_source(source: Source | Mapping[str, Any]) -> Source:
    """The source that is meant; Invalid if it is none."""
    return valid(lambda: _sources().validate_python(source), given=source)


def as_spec(stream: StreamSpec | Mapping[str, Any]) -> StreamSpec:
    """The stream that is meant; Invalid if it is none."""
    return valid(lambda: StreamSpec.model_validate(stream), given=stream)


@cache
def _sources() -> TypeAdapter[Source]:
    return TypeAdapter(Source)


def valid(make: Callable[[], Made], name: Callable[[str], str] = str, given: Any = None) -> Made:
    """What is made, or Invalid with the fields of ``given`` that are wrong, by the ``name`` that they were given under."""
    try:
        return make()
    except ValidationError as error:
        raise Invalid(describe(error, name, given)) from None


def made_settings(settings: Settings | None, fields: Mapping[str, Any]) -> Settings:
    """The settings that a client is given, whole or by name, beside those of the environment and of a local broker here."""
    if settings is None:
        return valid(lambda: settings_here(**fields), lambda name: name if name in fields else variable(name))
    return settings if not fields else valid(lambda: Settings.model_validate({**settings.model_dump(), **fields}))
