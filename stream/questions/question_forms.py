"""Questions as a program puts them."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from schemas import (
    Allot,
    AllotmentRecord,
    CloseStream,
    ExtendStream,
    HaltSource,
    HaltStream,
    JoinPopulation,
    OpenStream,
    Population,
    Query,
    RefreshSource,
    RegisterPopulation,
    Request,
    Source,
    StreamSpec,
)
from schemas.base import Event
from schemas.wire import describe
from stream.errors import Invalid
from stream.formatting import did_you_mean
from stream.kafka.client.local_address import settings_here
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


POPULATION_KEYS: Final = "population|"
ALLOTMENT_KEYS: Final = "allotment|"
"""Where the ledger's keys of these begin."""


def opening(new_id: Callable[[], str], stream: StreamSpec | Mapping[str, Any], analyst: str | None) -> OpenStream:
    """The request that opens a stream for an analyst; Invalid if it is none."""
    spec = as_spec(stream)
    return valid(lambda: OpenStream(request=new_id(), stream=spec, analyst=analyst))


def extension(new_id: Callable[[], str], **fields: Any) -> ExtendStream:
    """The request that extends a stream; Invalid if it is none."""
    return valid(lambda: ExtendStream.model_validate({"request": new_id(), **fields}))


def registration(new_id: Callable[[], str], population: Population | Mapping[str, Any]) -> RegisterPopulation:
    """The request that makes a population known; Invalid if it is none."""
    made = valid(lambda: Population.model_validate(population), given=population)
    return RegisterPopulation(request=new_id(), population=made)


def joining(new_id: Callable[[], str], source: str, population: str) -> JoinPopulation:
    """The request that lets a source belong to a population; Invalid if it is none."""
    return valid(lambda: JoinPopulation(request=new_id(), source=source, population=population))


def allotting(
    new_id: Callable[[], str],
    allotment: str,
    epsilon: float,
    delta: float | None,
    source: str | None,
    population: str | None,
    analysts: Sequence[str],
) -> Allot:
    """The request that allots a part of a budget; Invalid if it is none."""
    fields = {"allotment": allotment, "source": source, "population": population, "epsilon": epsilon}
    return valid(
        lambda: Allot.model_validate({"request": new_id(), **fields, "delta": delta, "analysts": tuple(analysts)})
    )


def closing(new_id: Callable[[], str], source: str, stream: str, reason: str) -> CloseStream:
    """The request that closes a stream; Invalid if it is none."""
    return valid(lambda: CloseStream(request=new_id(), source=source, stream=stream, reason=reason))


def halting(new_id: Callable[[], str], source: str, stream: str | None, reason: str) -> HaltSource | HaltStream:
    """The request that halts a stream, or a source with all its streams; Invalid if it is none."""
    if stream is None:
        return valid(lambda: HaltSource(request=new_id(), source=source, reason=reason))
    return valid(lambda: HaltStream(request=new_id(), source=source, stream=stream, reason=reason))


def refreshing(new_id: Callable[[], str], source: str, *, close: bool) -> RefreshSource:
    """The request that takes a source's data for its next version; Invalid if it is none."""
    return valid(lambda: RefreshSource(request=new_id(), source=source, close=close))


def as_requests(requests: Iterable[Request]) -> list[Request]:
    """The requests, in a list; Invalid if one of them is none."""
    found = list(requests) if isinstance(requests, Iterable) else [requests]
    other = next((one for one in found if not isinstance(one, Event) or not hasattr(one, "request")), None)
    if other is not None or not isinstance(requests, Iterable):
        raise Invalid(
            f"requests: {type(other).__name__} is no request; give requests of the contract, as OpenStream"
        )
    return found


def is_of(record: AllotmentRecord, source: str | None, population: str | None) -> bool:
    """Whether an allotment is of this source or population; of any unless one is named."""
    return (source is None and population is None) or (record.source, record.population) == (source, population)
