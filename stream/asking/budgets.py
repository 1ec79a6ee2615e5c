"""Requests about budgets as a program puts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

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
    RefreshSource,
    RegisterPopulation,
    Request,
    StreamSpec,
)
from schemas.base import Event
from stream.asking.questions import as_spec, valid
from stream.errors import Invalid

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
