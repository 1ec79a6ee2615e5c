"""Converts the arguments of a program's calls into queries, requests and settings."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, TypeAdapter, ValidationError

from schemas import (
    AnswersCalibration,
    EstimateCalibration,
    GrantRecord,
    Laplace,
    OpeningSpec,
    Query,
    ReleaseCalibration,
    Request,
    Source,
    StreamSpec,
    TableSource,
    UnknownGroupsCalibration,
)
from schemas.base import Event
from schemas.wire import describe
from stream.errors import Invalid
from stream.formatting import did_you_mean
from stream.kafka.broker_addresses import local_settings
from stream.privacy.composition.costs import charged_answers
from stream.processing.dead_letters import PRICE
from stream.questions.result_text import next_costs
from stream.questions.results import Result, Results
from stream.settings import Settings, variable_of

Question = Query | Mapping[str, Any] | str
"""A query, a mapping of its fields, or the name of its stream, with the other fields as keywords."""

ANSWER_TIMEOUT: Final = 30.0
"""Default timeout of a question, in seconds."""

REQUEST_TIMEOUT: Final = 30.0
"""Default timeout of a request, in seconds; a budget service must be running."""

DEFAULT_MAX_PRICE: Final = "10%"
"""Default ``max_price`` of a question with an ``alpha``."""

Validated = TypeVar("Validated")


def as_query(question: Question, fields: Mapping[str, Any], new_id: Callable[[], str]) -> Query:
    """Convert a question to a query, with a new ``id`` if it has none; ``Invalid`` if it is not a query."""
    if not isinstance(question, Query | Mapping | str):
        raise Invalid(
            f"question: is of type {type(question).__name__}; give a Query, a mapping of its fields, or a stream's name; give several questions to ask_many"
        )
    if isinstance(question, Query):
        if not fields:
            return question
        question = question.model_dump(exclude_defaults=True)
    given = {"stream": question} if isinstance(question, str) else question
    document = {**given, **fields}
    if "id" not in document:
        document["id"] = new_id()
    return validate_as_invalid(lambda: Query.model_validate(document), given=document)


def set_default_max_price(query: Query) -> Query:
    """Set the default ``max_price`` of a query with an ``alpha`` and without ``max_price``.

    Without an ``alpha``, the stream's plan fixes the charge, so no limit is needed.
    """
    if query.alpha is None or query.max_price is not None:
        return query
    return query.model_copy(update={"max_price": DEFAULT_MAX_PRICE})


def limit_by_plan(queries: Sequence[Query], grant: GrantRecord, source: Source) -> tuple[Query, ...] | Results:
    """Apply ``max_price`` to questions to a stream whose plan fixes the charge of every answer.

    Workers apply it themselves for ``laplace`` over tables and for estimates of ``pmw``, and refuse it for other
    streams. Returns the queries to send or, if one may cost more than its limit, a rejection of each query with its
    price; if the stream has ended, why: sent without the limit, a question could meet a just extended stream.

    Raises:
        Invalid: a question has an ``alpha`` and a limit above the whole grant, such as 10 for ``"10%"``.
    """
    is_laplace = isinstance(grant.spec.mechanism, Laplace) and isinstance(source, TableSource)
    limits = [one.max_price for one in queries]
    whole = grant.cost.epsilon
    above = [one for one in limits if isinstance(one, float) and one > whole] if grant.state == "open" else []
    if above and any(one.alpha is not None for one in queries):
        raise Invalid(
            f"max_price: {above[0]:g} is above the stream's ε of {whole:g}, so it limits nothing; give at most {whole:g}, or a part such as '10%'"
        )
    if is_laplace or isinstance(grant.calibration, EstimateCalibration):
        return tuple(queries)
    if grant.state != "open":
        ended: dict[str, Any] = {"outcome": "halted", "reason": grant.reason, "spent": grant.spent}
        return Results(Result(id=one.id, stream=one.stream, **ended).with_question(one, source) for one in queries)
    prices = [_price_by_plan(grant, source, place) for place in range(len(queries))]
    if all(limit is None or price <= _limit_of(limit, grant) for limit, price in zip(limits, prices, strict=True)):
        return tuple(one.model_copy(update={"max_price": None}) for one in queries)
    fixed = isinstance(grant.calibration, AnswersCalibration | ReleaseCalibration | UnknownGroupsCalibration)
    verb = "costs" if fixed else "may cost up to"
    shown = [f"{limit:g}" if isinstance(limit, float) else limit for limit in limits]
    return Results(
        Result(
            id=one.id,
            stream=one.stream,
            outcome="rejected",
            price=float(price),
            reason=f"{PRICE}: max_price: the answer {verb} ε = {float(price):.6g}, and the limit is {limit}; raise the limit",
        ).with_question(one, source)
        for one, price, limit in zip(queries, prices, shown, strict=True)
    )


def _price_by_plan(grant: GrantRecord, source: Source, before: int) -> Fraction:
    """Return the most ε that the answer after ``before`` further charged answers costs.

    Answers with Gaussian noise cost ρ and no ε, so each counts as its part of the grant's ε.
    """
    if not (charges := charged_answers(grant.calibration, grant.extensions)):
        return Fraction(grant.spec.epsilon) if grant.answered + before == 0 else Fraction(0)
    _, charged = next_costs(grant, source, grant.answered + before, grant.tops + before, grant.surplus)
    return Fraction(charged.epsilon) or Fraction(grant.spec.epsilon) / charges


def _limit_of(max_price: float | str, grant: GrantRecord) -> Fraction:
    if isinstance(max_price, str):
        return Fraction(max_price.removesuffix("%")) / 100 * Fraction(grant.spec.epsilon)
    return Fraction(max_price)


def require_many(questions: object) -> None:
    """Raise ``Invalid`` if ``questions`` is not an iterable of questions."""
    if isinstance(questions, Query | Mapping | str | bytes) or not isinstance(questions, Iterable | AsyncIterable):
        raise Invalid(
            f"questions: is of type {type(questions).__name__}; give a list of questions, or use ask for a single question"
        )


def require_headers(headers: object) -> None:
    """Raise ``Invalid`` if ``headers`` are not pairs of a name and bytes."""
    for one in headers if isinstance(headers, Sequence) else [headers]:
        match one:
            case (str(), bytes()) if isinstance(one, tuple):
                continue
        raise Invalid(
            "headers: is not a list of pairs of a name and bytes; give for example [('traceparent', b'00-…')]"
        )


def require_timeout(seconds: object) -> None:
    """Raise ``Invalid`` if a timeout is neither a number above 0 nor None."""
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        raise Invalid(f"timeout: is of type {type(seconds).__name__}; give a number of seconds")
    if seconds is not None and not seconds > 0:
        raise Invalid(f"timeout: is {seconds:g}; give a number of seconds above 0")


def as_stream_names(names: object) -> list[str]:
    """Return the names of streams as a list; ``Invalid`` if ``names`` is not an iterable of strings."""
    several = list(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else [names, None]
    found = [one for one in several if isinstance(one, str)]
    if len(found) < len(several):
        raise Invalid("streams: is not a list of names; give a list of texts")
    return found


def as_source(source: Source | Mapping[str, Any]) -> Source:
    """Return the valid source; ``Invalid`` if it does not fit the contract."""
    return validate_as_invalid(lambda: source_adapter().validate_python(source), given=source)


def as_spec(stream: StreamSpec | Mapping[str, Any]) -> StreamSpec:
    """Return the valid specification of a stream; ``Invalid`` if it does not fit the contract."""
    return validate_as_invalid(lambda: StreamSpec.model_validate(stream), given=stream)


def as_opening(stream: OpeningSpec | Mapping[str, Any]) -> OpeningSpec:
    """Return the valid specification of a stream to open; ``Invalid`` if it does not fit the contract."""
    return validate_as_invalid(lambda: opening_adapter().validate_python(stream), given=_expand_auto(stream))


@cache
def opening_adapter() -> TypeAdapter[OpeningSpec]:
    """Return the parser of streams to open; the mechanism ``"auto"`` means the object ``{"kind": "auto"}``."""
    return TypeAdapter(Annotated[OpeningSpec, BeforeValidator(_expand_auto)])


def _expand_auto(stream: Any) -> Any:
    if isinstance(stream, Mapping) and stream.get("mechanism") == "auto":
        return {**stream, "mechanism": {"kind": "auto"}}
    return stream


@cache
def source_adapter() -> TypeAdapter[Source]:
    """Return the parser of sources to register."""
    return TypeAdapter(Source)


def validate_as_invalid(
    make: Callable[[], Validated], name: Callable[[str], str] = str, given: Any = None
) -> Validated:
    """Return the result of ``make``; its ValidationError becomes ``Invalid``, which names the wrong fields."""
    try:
        return make()
    except ValidationError as error:
        raise Invalid(describe(error, name, given)) from None


def as_settings(settings: Settings | str | None, fields: Mapping[str, Any]) -> Settings:
    """Return a client's settings by its arguments, by the environment, or else for the local broker.

    A string is the setting ``bootstrap``. ``Invalid`` if a keyword is not a setting.
    """
    if isinstance(settings, str):
        if "bootstrap" in fields:
            raise Invalid("bootstrap: is given twice; give it once")
        settings, fields = None, {**fields, "bootstrap": settings}
    if settings is not None and not isinstance(settings, Settings):
        raise Invalid(
            f"settings: is of type {type(settings).__name__}; give Kafka's address (such as '127.0.0.1:9092'), a Settings object, or settings as keywords"
        )
    if unknown := next((name for name in fields if name not in Settings.model_fields), None):
        raise Invalid(f"{unknown}: is not a setting{did_you_mean(unknown, Settings.model_fields)}")
    if settings is None:
        return validate_as_invalid(
            lambda: local_settings(**fields), lambda name: name if name in fields else variable_of(name)
        )
    if not fields:
        return settings
    return validate_as_invalid(lambda: Settings.model_validate({**settings.model_dump(), **fields}))


def as_requests(requests: Iterable[Request]) -> list[Request]:
    """Return the requests as a list; ``Invalid`` if one is not a request."""
    found = list(requests) if isinstance(requests, Iterable) else [requests]
    other = next((one for one in found if not isinstance(one, Event) or not hasattr(one, "request")), None)
    if other is not None or not isinstance(requests, Iterable):
        raise Invalid(
            f"requests: an item is of type {type(other).__name__}, not a request; give objects such as schemas.OpenStream"
        )
    return found
