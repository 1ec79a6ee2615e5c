"""Questions as a program puts them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from schemas import Query, Source, StreamSpec
from schemas.wire import describe
from stream.errors import Invalid
from stream.kafka.nearby import settings_here
from stream.settings import Settings, variable
from stream.suggestions import did_you_mean

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
    if not isinstance(question, Query | Mapping | str):
        raise Invalid(
            f"question: is of type {type(question).__name__}; give a query, its fields, or its stream's name, and many of them to ask_many"
        )
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


def require_many(questions: object) -> None:
    """Invalid unless there may be many questions: a list, or anything else that is iterated over."""
    if isinstance(questions, Query | Mapping | str | bytes) or not isinstance(questions, Iterable | AsyncIterable):
        raise Invalid(
            f"questions: is of type {type(questions).__name__}; give a list of questions, and a single one to ask"
        )


def require_headers(headers: object) -> None:
    """Invalid unless these are headers of a record."""
    if not isinstance(headers, Sequence) or not all(_is_header(one) for one in headers):
        raise Invalid("headers: give a list of pairs, each of a name and bytes, as [('traceparent', b'00-…')]")


def _is_header(one: object) -> bool:
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str) and isinstance(one[1], bytes)


def require_seconds(field: str, seconds: object) -> None:
    """Invalid unless this is a number of seconds, or None for any."""
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise Invalid(f"{field}: is of type {type(seconds).__name__}; give a number of seconds")


def as_names(field: str, names: object) -> list[str]:
    """The names, in a list; Invalid unless they are texts, and several may stand there."""
    several = list(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else [names, None]
    found = [one for one in several if isinstance(one, str)]
    if len(found) < len(several):
        raise Invalid(f"{field}: give a list of names, as text")
    return found


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


def made_settings(settings: Settings | str | None, fields: Mapping[str, Any]) -> Settings:
    """The settings that a client is given, whole or by name, beside those of the environment and of a local broker here.

    A text is the address of Kafka: the setting ``bootstrap``. Invalid if a name is no setting's.
    """
    if isinstance(settings, str):
        if "bootstrap" in fields:
            raise Invalid("bootstrap: is given twice; give it once")
        settings, fields = None, {**fields, "bootstrap": settings}
    if settings is not None and not isinstance(settings, Settings):
        raise Invalid(
            f"settings: is of type {type(settings).__name__}; give Kafka's address, as '127.0.0.1:9092', Settings, or settings by name"
        )
    if unknown := next((name for name in fields if name not in Settings.model_fields), None):
        raise Invalid(f"{unknown}: is no setting{did_you_mean(unknown, Settings.model_fields)}")
    if settings is None:
        return valid(lambda: settings_here(**fields), lambda name: name if name in fields else variable(name))
    return settings if not fields else valid(lambda: Settings.model_validate({**settings.model_dump(), **fields}))
