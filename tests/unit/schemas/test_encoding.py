"""Structs and models encode events that the other reads as equal."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from schemas import MAX_EVENT_BYTES, Amount, Answer, Charge, Checkpoint, Event, Position, StreamStatus
from schemas.wire import Codec, MalformedEventError, encode, event_models, struct

numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**62)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:/@+\-]{0,20}", fullmatch=True)
incarnations = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
reasons = st.none() | st.text(max_size=30)
states = st.sampled_from(["open", "exhausted", "halted", "closed"])
amounts = st.builds(Amount, epsilon=numbers, delta=numbers, rho=st.none() | numbers)

events: st.SearchStrategy[Event] = st.one_of(
    st.builds(
        Answer,
        id=st.text(max_size=20),
        stream=st.text(max_size=20),
        index=st.none() | counts,
        outcome=st.sampled_from(["above", "below", "answer", "halted", "rejected"]),
        estimate=st.none() | numbers,
        basis=st.none() | st.text(max_size=20),
        reason=reasons,
        spent=st.none() | amounts,
        tops_left=st.none() | counts,
    ),
    st.builds(
        Checkpoint,
        incarnation=incarnations,
        state=states,
        answered=counts,
        tops=counts,
        offset=st.integers(-1, 2**63 - 1),
        reason=reasons,
    ),
    st.builds(
        Charge,
        stream=names,
        source=names,
        incarnation=incarnations,
        state=states,
        answered=counts,
        tops=counts,
        spent=amounts,
        reason=reasons,
    ),
    st.builds(
        StreamStatus,
        stream=names,
        source=names,
        incarnation=incarnations,
        state=states,
        answered=counts,
        tops=counts,
        tops_left=counts,
        spent=amounts,
        alpha=numbers,
        position=st.builds(
            Position, topic=names, partition=st.integers(0, 2**31 - 1), offset=st.integers(0, 2**63 - 1)
        ),
    ),
)


def as_struct(event: BaseModel) -> Any:
    """Return the struct of an event, field by field."""
    fields = {
        name: as_struct(value) if isinstance(value, BaseModel) else value
        for name in type(event).model_fields
        for value in [getattr(event, name)]
    }
    return struct(type(event))(**fields)


@given(event=events)
@settings(deadline=None, max_examples=75)
def test_model_reads_events_of_the_fast_path(event: Event) -> None:
    codec: Codec[Event] = Codec(type(event), limit=MAX_EVENT_BYTES)
    assert codec.decode(encode(as_struct(event))) == event


@given(event=events)
@settings(deadline=None, max_examples=75)
def test_fast_path_reads_events_of_the_model(event: Event) -> None:
    codec: Codec[Event] = Codec(type(event), limit=MAX_EVENT_BYTES)
    read = msgspec.json.decode(codec.encode(event), type=struct(type(event)))
    assert read == as_struct(event)


CHARGE = b"""{"stream":"%s","source":"s","incarnation":"%s","state":"open","answered":1,"tops":0,
    "spent":{"epsilon":0.5,"delta":0.0}}"""


@pytest.mark.parametrize(
    ("stream", "incarnation"),
    [(b"a b", b"0" * 32), (b"-a", b"0" * 32), ("é".encode(), b"0" * 32), (b"a", b"0" * 31), (b"a", b"G" * 32)],
)
def test_both_refuse_a_malformed_name_or_incarnation(stream: bytes, incarnation: bytes) -> None:
    data = CHARGE % (stream, incarnation)
    with pytest.raises(MalformedEventError, match=r"a name has only letters|give 32 hexadecimal digits"):
        Codec(Charge, limit=MAX_EVENT_BYTES).decode(data)
    with pytest.raises(msgspec.ValidationError, match="matching regex"):
        msgspec.json.decode(data, type=struct(Charge))


@pytest.mark.parametrize(("stream", "incarnation"), [(rb"a\n", b"0" * 32), (b"a", b"0" * 32 + rb"\n")])
def test_both_refuse_a_line_end_after_a_name_or_incarnation(stream: bytes, incarnation: bytes) -> None:
    data = CHARGE % (stream, incarnation)
    with pytest.raises(MalformedEventError):
        Codec(Charge, limit=MAX_EVENT_BYTES).decode(data)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data, type=struct(Charge))


@pytest.mark.parametrize("surplus", [0, -5])
def test_events_without_prices_are_written_as_before_prices(surplus: int) -> None:
    charge = Charge.model_validate({**json.loads(CHARGE % (b"a", b"0" * 32)), "reason": None, "surplus": surplus})
    codec: Codec[Charge] = Codec(Charge, limit=MAX_EVENT_BYTES)
    assert (b"surplus" in codec.encode(charge)) == bool(surplus)


CONTRACT = [model for model in event_models() if model.__module__.startswith("schemas")]


@pytest.mark.parametrize("model", CONTRACT, ids=lambda model: str(model.__name__))
def test_model_omits_exactly_the_fields_that_it_declares(model: type[Event]) -> None:
    left_out = {name for name, field in model.model_fields.items() if field.exclude_if is not None}
    assert left_out == model.wire_omits & model.model_fields.keys()
    assert model.__subclasses__() or model.wire_omits <= model.model_fields.keys()
