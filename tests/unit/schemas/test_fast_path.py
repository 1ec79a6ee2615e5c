"""The fast path and the pydantic model read queries alike: the same bytes, the same values."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import MAX_EVENT_BYTES, Query
from schemas.wire import Codec, MalformedEventError
from stream.privacy.mechanisms.private_values import replace_extreme_numbers
from stream.processing.dead_letters import Rejection
from stream.worker.admission import decode_in_full_form, require_unique_fields
from tests.unit.schemas.json_events import FIELDS, draw_damaged_query, queries, repeats_a_name

Reading = tuple[Any, ...]

codec: Codec[Query] = Codec(Query, limit=MAX_EVENT_BYTES)


def fast(data: bytes) -> Reading | None:
    """Return what the fast path reads. The check of ``value`` and ``where`` is separate, because no struct can state it."""
    try:
        query = require_unique_fields(data, decode_in_full_form(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Rejection):
        return None
    if (query.value is None) == (query.where is None):
        return None
    return tuple(repr(getattr(query, name)) for name in FIELDS)


def careful(data: bytes) -> Reading | None:
    """Return what the model reads; numbers too large or too long for its parser are replaced beforehand."""
    try:
        query = codec.decode(replace_extreme_numbers(data))
    except MalformedEventError:
        return None
    return tuple(repr(getattr(query, name)) for name in FIELDS)


def assert_agreement(data: bytes) -> None:
    quick, slow = fast(data), careful(data)
    assert quick == slow, data
    if quick is not None:
        assert not repeats_a_name(data), data


@given(data=queries)
@settings(deadline=None, max_examples=200)
def test_both_read_the_same_values_of_objects(data: bytes) -> None:
    assert_agreement(data)


@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=25)
def test_both_read_the_same_values_of_damaged_bytes(seed: int) -> None:
    randomness = Random(seed)
    for _ in range(400):
        assert_agreement(draw_damaged_query(randomness))


ID_AND_STREAM = b'{"id":"a","stream":"s",'


@pytest.mark.parametrize(
    "value",
    [
        *(b"1", b"1e15", b"-1e15", b"1000000000000000.0625", b"-0.0", b"1e-400", b"1E+2"),
        *(b"18446744073709551616e-10", b"1000000000000001", b"-2e15", b"1.7e308", b"9007199254740993"),
        *(
            b"1" + b"0" * 5000 + b"e-4990",
            b"0." + b"1" * 9000,
            b"1e-99999999999999999999",
            b"0e99999999999999999999",
        ),
    ],
)
def test_both_accept_every_notation_of_a_number(value: bytes) -> None:
    data = ID_AND_STREAM + b'"value":' + value + b"}"
    expected = repr(float(value))
    assert [reading and reading[2] for reading in (fast(data), careful(data))] == [expected, expected]


@pytest.mark.parametrize(
    ("value", "read"),
    [
        *((b"1e309", 1e300), (b"-1e400", -1e300), (b"9" * 400, 1e300), (b"-" + b"9" * 5000, -1e300)),
        (b"1e99999999999999999999", 1e300),
    ],
)
def test_both_clamp_numbers_beyond_doubles(value: bytes, read: float) -> None:
    data = ID_AND_STREAM + b'"value":' + value + b',"where":null}'
    assert [reading and reading[2] for reading in (fast(data), careful(data))] == [repr(read)] * 2


@pytest.mark.parametrize("threshold", [b"1000000000000000.125", b"-1000000000000001", b"1e400", b"9" * 5000])
def test_both_refuse_a_public_number_out_of_range(threshold: bytes) -> None:
    data = ID_AND_STREAM + b'"value":1,"threshold":' + threshold + b"}"
    assert fast(data) is None
    assert careful(data) is None


@pytest.mark.parametrize(
    "value",
    [
        *(
            b"NaN",
            b"Infinity",
            b"-Infinity",
            b"true",
            b'"1"',
            b"null",
            b"[1]",
            b'{"value":1}',
            b"01",
            b"1.",
            b".5",
        ),
    ],
)
def test_both_refuse_a_value_that_is_no_number(value: bytes) -> None:
    data = ID_AND_STREAM + b'"value":' + value + b"}"
    assert fast(data) is None
    assert careful(data) is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xef\xbb\xbf" + ID_AND_STREAM + b'"value":1}', id="byte order mark"),
        pytest.param(ID_AND_STREAM + b'"value":1}x', id="trailing bytes"),
        pytest.param(ID_AND_STREAM + b'"value":1}\x00', id="trailing zero byte"),
        pytest.param(ID_AND_STREAM + b'"value":1,}', id="trailing comma"),
        pytest.param(ID_AND_STREAM + b'"value":1,"other":null}', id="unknown field"),
        pytest.param(ID_AND_STREAM + b'"value":1,"type":"Query"}', id="a field that structs may use as a tag"),
        pytest.param(ID_AND_STREAM + b'"value":1,"where":"TRUE"}', id="value and where"),
        pytest.param(ID_AND_STREAM + b'"threshold":1}', id="neither value nor where"),
        pytest.param(ID_AND_STREAM + b'"where":""}', id="empty where"),
        pytest.param(b'{"id":"","stream":"s","value":1}', id="empty id"),
        pytest.param(b'{"id":null,"stream":"s","value":1}', id="null id"),
        pytest.param(b'{"id":1,"stream":"s","value":1}', id="number as id"),
        pytest.param(b'{"id":"a\xff","stream":"s","value":1}', id="not UTF-8"),
        pytest.param(b'{"id":"\xed\xa0\x80","stream":"s","value":1}', id="surrogate in UTF-8"),
        pytest.param(b'{"id":"\\ud800","stream":"s","value":1}', id="lone high surrogate"),
        pytest.param(b'{"id":"a","stream":"\\udc00","value":1}', id="lone low surrogate"),
        pytest.param(b'{"id":"a\nb","stream":"s","value":1}', id="bare line end in a string"),
        pytest.param(b'["a","s",1,null,null]', id="fields as a list"),
        pytest.param(ID_AND_STREAM + b'"value":' + b"[" * 5000, id="deep nesting"),
        pytest.param(ID_AND_STREAM + b'"x":' + b'{"x":' * 2000, id="deep nesting in an unknown field"),
    ],
)
def test_both_refuse(data: bytes) -> None:
    assert fast(data) is None
    assert careful(data) is None


def test_both_refuse_a_repeated_name() -> None:
    data = b'{"id":"a","id":"b","stream":"s","value":1,"value":2}'
    assert fast(data) is careful(data) is None
